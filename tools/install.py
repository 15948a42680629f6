"""Make .venv and install qkv into it with pip: `python3 tools/install.py run|dev`. Stdlib only; the Makefile calls it.

It obeys pip's own settings. One thing it adds: on Linux without an NVIDIA driver it asks PyTorch's CPU index for the
CPU build first, because the ordinary build for Linux brings gigabytes of CUDA. Parses on old Pythons, to say so.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "Scripts" if os.name == "nt" else "bin", "python")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def stop(what, remedy):
    sys.exit("\ninstall: %s\n         %s" % (what, remedy))


def say(text):
    print("install: " + text, flush=True)


def run(command, what, remedy):
    """Run a command with its output in sight; stop, naming the remedy, when it fails."""
    if subprocess.call(command, cwd=ROOT, stdin=subprocess.DEVNULL) != 0:
        stop(what + " failed; the reason stands above.", remedy)


def has_nvidia():
    if not shutil.which("nvidia-smi"):
        return False
    try:
        quiet = subprocess.DEVNULL
        return subprocess.call(["nvidia-smi", "-L"], stdout=quiet, stderr=quiet, timeout=20) == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def reachable(url):
    """Whether an index answers within a few seconds (proxies of the environment are honoured)."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=4) as answer:
            return answer.status < 400
    except (OSError, ValueError, urllib.error.URLError):
        return False


def pinned(name):
    with open(os.path.join(ROOT, "constraints.txt"), encoding="utf-8") as file:
        found = re.search(r"(?m)^%s==(\S+)" % re.escape(name), file.read())
    if not found:
        stop("constraints.txt does not pin %s." % name, "Restore the file: git checkout constraints.txt")
    return found.group(1)


def has_torch(version):
    code = "import importlib.metadata as m; print(m.version('torch').split('+')[0])"
    out = subprocess.run([PYTHON, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)
    return out.stdout.decode().strip() == version


def make_venv():
    if os.path.exists(PYTHON):
        return
    say("making .venv with Python %d.%d.%d" % sys.version_info[:3])
    run(
        [sys.executable, "-m", "venv", VENV],
        "python -m venv",
        "On Debian and Ubuntu: apt install python3-venv. Then `make clean` and again.",
    )


def install_torch():
    """The CPU build from PyTorch's own index where that is wanted and answers; otherwise what pip is set to."""
    version = pinned("torch")
    if has_torch(version):
        return
    wanted = ["torch==" + version]
    pip = [PYTHON, "-m", "pip", "install"]
    if sys.platform == "linux" and not has_nvidia():
        if reachable(CPU_INDEX + "/torch/"):
            say("PyTorch %s, CPU build (no NVIDIA driver here): about 200 MB" % version)
            # --no-deps: only torch comes from that index, the rest from the index that pip is set to
            if subprocess.call(pip + ["--no-deps", "--index-url", CPU_INDEX] + wanted, stdin=subprocess.DEVNULL) == 0:
                return
            say("that failed; trying what pip is set to")
        say("PyTorch %s from where pip is set to look; this may be the build with CUDA (gigabytes)" % version)
        say("if so and you want the small one: set PIP_FIND_LINKS to a folder that holds PyTorch's CPU wheel")
    else:
        say("PyTorch %s (hundreds of MB; gigabytes with CUDA)" % version)
    run(
        pip + ["-c", "constraints.txt"] + wanted,
        "installing PyTorch",
        "If it was the network: set PIP_INDEX_URL or PIP_FIND_LINKS to a place that has it. Then run make again.",
    )


def main(kind):
    if sys.version_info < (3, 11):
        newer = [n for n in ("python3.14", "python3.13", "python3.12", "python3.11") if shutil.which(n)]
        name = newer[0] if newer else "python3.12"
        hint = "%s: make PYTHON=%s …" % (("you have " if newer else "install ") + name, name)
        stop("Python 3.11 or newer is needed, this is %d.%d." % sys.version_info[:2], hint)
    start = time.time()
    make_venv()
    install_torch()
    say("qkv and %s" % ("what tests and checks need" if kind == "dev" else "what it needs to run"))
    target = ".[dev]" if kind == "dev" else "."
    run(
        [PYTHON, "-m", "pip", "install", "-c", "constraints.txt", "-e", target],
        "installing qkv",
        "If it was the network: pip's settings (PIP_INDEX_URL, a proxy …) are obeyed. Then run make again.",
    )
    for stamp in ("run", "dev") if kind == "dev" else ("run",):
        with open(os.path.join(VENV, stamp + ".stamp"), "w", encoding="utf-8"):
            pass
    say("ready after %d s" % (time.time() - start))


if __name__ == "__main__":
    if sys.argv[1:] not in (["run"], ["dev"]):
        sys.exit("usage: python3 tools/install.py run|dev")
    main(sys.argv[1])
