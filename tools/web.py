"""The page's bundle is what web/ builds: `python tools/web.py`. Stdlib only.

Silent where Node or web/node_modules is not. Types are checked, the bundle is built in a temporary folder and compared
with the one in src/qkv/explore/static.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WEB, STATIC = ROOT / "web", ROOT / "src" / "qkv" / "explore" / "static"
TYPED = ("tsconfig.json", "tsconfig.live.json")
BUILT = ("app.js", "app.css", "index.html", "chat.js", "chat.css", "chat.html")


def differing(built: Path, committed: Path) -> list[str]:
    """The files of the bundle that are not there, or not the same, byte for byte."""
    pairs = ((built / name, committed / name, name) for name in BUILT)
    return [name for a, b, name in pairs if not b.is_file() or a.read_bytes() != b.read_bytes()]


def main() -> int:
    """0 where the bundle is as built or nothing can be built here, else 1 and how to build it."""
    node = shutil.which("node")
    if node is None or not (WEB / "node_modules").is_dir():
        return 0
    check = [node, "node_modules/typescript/bin/tsc", "--noEmit", "-p"]
    if any(subprocess.run([*check, name], cwd=WEB, check=False).returncode for name in TYPED):
        print("web: the types do not fit; see above", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run([node, "build.mjs", folder], cwd=WEB, check=False).returncode:
            print("web: the bundle does not build; see above", file=sys.stderr)
            return 1
        old = differing(Path(folder), STATIC)
    if old:
        there = STATIC.relative_to(ROOT).as_posix()
        way = "run: cd web && npm ci && npm run build"
        print(f"web: {', '.join(old)} in {there} is not what web/ builds; {way}", file=sys.stderr)
    return bool(old)


if __name__ == "__main__":
    raise SystemExit(main())
