"""Make the bundled models anew: `python tools/bundle.py [NAME ...] [--from DIR] [--smoke]`. Trained by our own
recipes on our own text, saved in bf16 into src/qkv/bundled; without names all of them."""

import argparse
from pathlib import Path

import torch

import qkv
from qkv.cli.train import Plain
from qkv.training import recipes

RECIPES = {"demo": "demo", "demo-lm": "demo_lm", "demo-bert": "demo_bert", "demo-moe": "demo_moe"}
MOST = 12_000_000  # bytes of safetensors, all together


def main() -> None:
    """Train what is named and write it."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("names", nargs="*", help=f"which of {', '.join(RECIPES)}")
    ask.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "src" / "qkv" / "bundled")
    ask.add_argument("--from", dest="made", type=Path, help="a run's directory: bundle it instead of training anew")
    ask.add_argument("--smoke", action="store_true", help="the whole way in seconds")
    given = ask.parse_args()
    for name in given.names or RECIPES:
        if given.made:
            model = qkv.load(given.made)
        else:
            model = recipes.train(recipes.configure(RECIPES[name], smoke=given.smoke), report=Plain()).model
        model.save(given.out / name, dtype=torch.bfloat16)
        print(f"{given.out / name}: {(given.out / name / 'model.safetensors').stat().st_size:,} bytes")
    size = sum(p.stat().st_size for p in given.out.rglob("*.safetensors"))
    if size > MOST:
        raise SystemExit(f"{given.out}: {size:,} bytes of weights, more than {MOST:,}")


if __name__ == "__main__":
    main()
