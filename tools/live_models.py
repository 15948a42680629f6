"""The bundled models as TypeScript for the page that computes: this writes web/src/live/models.

tests/specialize/test_typescript.py compares them with what the printer prints.
"""

from pathlib import Path

from qkv import hub
from qkv.specialize.typescript import print_typescript

MODELS = Path(__file__).parents[1] / "web" / "src" / "live" / "models"
RUNTIME = "../../../../src/qkv/specialize/runtime"
NAMES = ("demo", "demo-lm", "demo-bert", "demo-moe")


def main() -> int:
    """Write every file anew."""
    for name in NAMES:
        text = print_typescript(hub.spec_of(name), runtime=RUNTIME)
        (MODELS / f"{name}.ts").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
