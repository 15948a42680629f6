"""Starting is cheap: `qkv --help` takes under 150 ms and `import qkv` under 100 ms, beside an empty Python."""

import subprocess
import sys

from harness import in_turn, options, summary, write

LIMITS = {"help": 150.0, "import": 100.0}  # milliseconds


def main() -> None:
    given = options(__doc__ or "")
    rounds = 2 if given.smoke else max(given.rounds, 15)
    code = {"python": "pass", "import": "import qkv", "help": "from qkv.cli import main; main(['--help'])"}
    runs = {name: lambda text=text: started(text) for name, text in code.items()}
    times = {name: summary([1000 * t for t, _ in found], 1) for name, found in in_turn(runs, rounds).items()}
    reached = {name: times[name]["median"] < limit for name, limit in LIMITS.items()}
    write(
        "start",
        __doc__ or "",
        given,
        milliseconds=times,
        wanted=LIMITS,
        reached=reached,
        limit={"an empty Python, ms": times["python"]["median"]},
    )


def started(code: str) -> None:
    """A fresh interpreter that runs `code`, as the installed command does."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


if __name__ == "__main__":
    main()
