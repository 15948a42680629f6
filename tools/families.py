"""docs/families.md, from what the family tests measure: `python tools/families.py [--nightly]` runs and writes."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import size

ROOT = Path(__file__).parents[1]
TICKS = ("loads", "saves", "generates", "trains", "traces", "shows", "counts")
HEAD = """# Families

Every row is one file in `src/qkv/families`, tested against transformers on random models (head dim of at least 32,
at least three layers, every weight, norm and bias moved off its initial value, a padded batch of unequal lengths).
This page is written by `python tools/families.py` from the measurements of the tests{how}; do not edit it.

- **largest difference** of logits in fp32, and the same as a share of the allowed difference. Allowed is four times
  what rounding alone does to this model on the same machine: the largest distance among transformers' eager and
  SDPA kernels in fp32 and its float64. For a family held to a paper it is 1e-5 of the spread of the logits.
- **fp64**: largest difference of logits in float64. Where transformers itself casts to fp32 inside (rotary
  positions, norms, softmax) up to 1e-5 is allowed, otherwise 1e-9.
- **bf16**: our error against fp32 as a multiple of transformers' error (allowed: 1.25), summed over the models.
- **cached**: largest difference between decoding in chunks with a cache and a single pass.
- **lines** of code, as `make size` counts them, not including what families share: {shared}.
- Ticks: it loads and saves (bit-equal, and transformers loads what we save); its greedy text equals that of
  transformers (padding at the start of a decoder's text is never generated); it trains for a step; its traced
  attention explains what was computed; the program that `qkv show` prints computes the same bits; parameter counts
  equal those of transformers. A dash means that it does not apply.

| family | model types | lines | held to | largest difference | of allowed | fp64 | bf16 | cached | {ticks} |
|---|---|---:|---|---:|---:|---:|---:|---:|{rules}
"""


AFTER = """
Held to the paper: transformers has no such model, so the tests contain a slow reference in plain PyTorch, written from
the paper's text. Such a family is saved under the names of its release, or as type `qkv` if there was none.

GGUF files are read and written for {gguf}. Each is held to the tensor names of the `gguf` package, to transformers'
logits and, by `make real`, to llama.cpp; what llama.cpp does not know of a model is refused by name.

Not read, with the reason: gpt_oss (sinks, clamped gates and biased experts would be parts for one family, and its weights are
MXFP4); qwen3_next (three of four layers are a gated delta rule: a recurrent state and a convolution in place of attention, so a second
kind of mixer with a cache of its own, for one family; its attention gates its output besides); Falcon with ALiBi (it scales the bias too); Command R+ and StableLM with norms of q and k that have weights of each head's
own; Phi-3's long rotary factors, switched by length; OPT-350m, whose embeddings are narrower than its states; EmbeddingGemma's
bidirectional attention. Such a config ends in an error that names the key.

"""


def main() -> None:
    """Run the tests with a place to write to, then write the page."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--nightly", action="store_true", help="all 20 random configurations of each family")
    ask.add_argument("--from", dest="made", type=Path, help="numbers that a run with QKV_RECORD left")
    given = ask.parse_args()
    found = json.loads((given.made or measured(nightly=given.nightly)).read_text(encoding="utf-8"))
    (ROOT / "docs" / "families.md").write_text(page(found, nightly=given.nightly), encoding="utf-8")


def measured(*, nightly: bool) -> Path:
    """The file of numbers that the family tests leave; a failing test stops it."""
    path = Path(tempfile.mkdtemp()) / "families.json"
    which = ["-m", "nightly or not nightly"] if nightly else []
    command = [sys.executable, "-m", "pytest", "-q", "tests/families", *which]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, "QKV_RECORD": str(path)}, check=False).returncode:
        raise SystemExit("a family test failed: the page stays as it is")
    return path


def lines_of(path: Path) -> int:
    """Lines of code of a file."""
    return size.code_lines(path.read_text(encoding="utf-8"))


def page(found: dict[str, dict[str, Any]], *, nightly: bool) -> str:
    """The page's text."""
    from qkv.checkpoints import gguf, model_dir

    how = ", 20 random models per family" if nightly else ", 3 random models per family"
    shared = ", ".join(f"`{p.name}` {lines_of(p)}" for p in sorted((size.PACKAGE / "families").glob("_*.py")))
    text = HEAD.format(how=how, shared=shared, ticks=" | ".join(TICKS), rules="---|" * len(TICKS))
    notes: list[str] = []
    for name, module in sorted(model_dir.modules().items()):
        lines = lines_of(Path(str(module.__file__)))
        types = ", ".join(f"`{t}`" for t in module.TYPES)
        own = found.get(name, {})
        own |= {"bf16": own["bf16 of 20"]} if "bf16 of 20" in own else {}
        forms = {"difference": ".1e", "share_of_bound": ".2f", "fp64": ".0e", "bf16": ".2f", "cached": ".1e"}
        numbers = [format(own[key], form) if key in own else "–" for key, form in forms.items()]
        ticks = ["✓" if own.get(t) else "–" for t in TICKS]
        peer = "transformers" if "bf16" in own else "paper"
        text += f"| {name} | {types} | {lines} | {peer} | {' | '.join(numbers + ticks)} |\n"
        if note := getattr(module, "UNPUBLISHED", ""):
            notes.append(f"- {name}: {note}")
    listed = ", ".join(f"`{name}`" for name in sorted({a.name for a in gguf.architectures().values()}))
    return text + AFTER.format(gguf=listed) + "\n".join(notes) + "\n"


if __name__ == "__main__":
    main()
