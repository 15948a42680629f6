"""Reference outputs: record them once, compare them after a change that must not move a number, bit for bit.

    python tools/golden.py make DIR          record: drawn checkpoints, outputs.json, tensors.safetensors
    python tools/golden.py compare DIR       compute again from the recorded checkpoints; exit 1 where a bit differs
    python tools/golden.py compare DIR logits text      only these sections: logits text train labs

Everything goes through the public API and the command line, on one CPU thread. A reference belongs to the machine and
the torch build that made it: other kernels round differently.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from safetensors.torch import load_file, save_file

import qkv

ROOT = Path(__file__).resolve().parents[1]
DRAWS = (0, 1, 2)  # the seeds of transformers' drawn models
Found = Iterator[tuple[str, Any]]

# Families without a model in transformers: a small config in the format of their releases, or of their paper.
PAPERS: dict[str, dict[str, Any]] = {
    "gpt3": {"model_type": "gpt3", "n_layers": 4, "d_model": 48, "n_heads": 3, "d_head": 32, "vocab_size": 61,
             "n_ctx": 32, "band": 3},
    "palm": {"model_type": "palm", "n_layers": 4, "d_model": 48, "n_heads": 3, "d_head": 32, "vocab_size": 61,
             "n_ctx": 32},
    "gpt4": {"model_type": "gpt4", "n_layers": 4, "d_model": 48, "n_heads": 3, "d_head": 32, "vocab_size": 61,
             "n_ctx": 32, "experts": 5, "chosen": 2},
    "glm_blank": {"model_type": "glm", "vocab_size": 71, "hidden_size": 96, "num_layers": 3, "num_attention_heads": 3,
                  "max_sequence_length": 40, "block_position_encoding": True},
    "chatglm": {"model_type": "chatglm", "vocab_size": 71, "hidden_size": 96, "inner_hidden_size": 160, "num_layers": 3,
                "num_attention_heads": 3, "max_sequence_length": 40, "position_encoding_2d": True,
                "tie_word_embeddings": False},
}  # fmt: skip

SENTENCES = (
    "我爱学习。", "我看完了那本书。", "书和茶都在桌上，我看完了它。", "书和茶都在桌上，我喝完了它。",
    "他昨天买了一辆新车。",
    "苹果后天会生产新手机。", "老师在学校教我们。", "她很喜欢吃苹果。", "医生明天去北京。", "孩子们在公园里唱歌。",
    "我的朋友写了三封信。", "那只狗跑得很快。", "工程师修好了手机。", "我们今天不去学校。", "你喜欢喝茶吗？",
    "他把书放在桌上。", "小鸟在树上唱歌。", "妈妈给我做了饭。", "学生昨天没有来。", "我想买两本书。",
)  # fmt: skip
PROMPTS = ("One, Two,", "书放在桌上，它很", "Once upon a time")
PARTS = ("resid_in", "attn.q", "attn.k", "attn.v", "attn.pattern", "attn.z", "attn.out", "resid_mid", "resid_out")
NETWORK, EXPERTS = ("ffn.up", "ffn.act", "ffn.out"), ("moe.logits", "moe.index", "moe.weight")
MASKED = ("我爱[MASK]。", "The [MASK] is on the table.", "他昨天[MASK]了一本[MASK]。")


def draw(directory: Path) -> None:
    """Write the checkpoints that every later run reads: transformers' drawn models, and the families without one."""
    families = ROOT / "src" / "qkv" / "families"
    sys.path.insert(0, str(ROOT / "tests"))
    from support import oracles

    for family in sorted(p.stem for p in families.glob("[a-z]*.py")):
        for number in DRAWS if family not in PAPERS else ():
            oracle = oracles.draw(family, number)
            if oracle is None:
                raise SystemExit(f"golden: nothing draws a model of {family}; add a config to PAPERS")
            oracle.save_pretrained(directory / f"{family}-{number}")
    from qkv.hub import spec_of

    for family, config in PAPERS.items():
        place = directory / f"{family}-0"
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(config))
        model = qkv.build(spec_of(place), seed=1)
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for _, p in sorted(model.core.named_parameters()):
                p.add_(torch.randn(p.shape, generator=generator) * (0.3 if p.ndim == 1 else 0.14))
        model.save(place)


def logits(directory: Path) -> Found:
    """Logits of every drawn checkpoint on a padded batch, and what `build` draws for its spec."""
    for place in sorted((directory / "models").iterdir()):
        try:
            model = qkv.load(place, device="cpu", dtype="fp32")
        except qkv.QkvError as e:
            yield f"logits {place.name}", f"cannot be loaded: {e}"
            continue
        first = sorted(qkv.build(model.spec, seed=3).core.named_parameters())
        yield f"build {place.name}", [float(p.detach().double().norm()) for _, p in first]
        config = json.loads((place / "config.json").read_text())
        vocabulary = config.get("vocab_size") or 61
        ids = torch.randint(7, vocabulary, (4, 13), generator=torch.Generator().manual_seed(4))
        real = torch.arange(13)[None] < torch.tensor([13, 9, 5, 12])[:, None]
        with torch.no_grad():
            if config.get("is_encoder_decoder"):
                target = torch.randint(7, vocabulary, (4, 7), generator=torch.Generator().manual_seed(5))
                out = model(source=ids, target=target, padding=real)
                yield f"logits {place.name}", out.logits
            elif place.name.startswith(("glm_blank", "chatglm")):
                out = model(ids, prefix=torch.tensor([5, 6, 7, 8]))
                yield f"logits {place.name}", out.logits
            else:
                out = model(ids, padding=real)
                yield f"logits {place.name}", out.logits[real]
        yield f"hidden {place.name}", out.hidden


def text(directory: Path) -> Found:
    """What the bundled models write, translate, fill in and score, and every tap of a forward pass."""
    for name in ("demo-lm", "demo-moe"):
        model = qkv.load(name, device="cpu", dtype="fp32")
        for prompt in PROMPTS[:2]:
            found = model.generate(prompt, max_new_tokens=200)
            yield f"greedy {name} {prompt}", [list(found.tokens), list(found.logprobs), found.finish_reason]
        drawn = model.generate(PROMPTS[2], max_new_tokens=60, temperature=0.8, top_p=0.9, top_k=40, seed=7)
        yield f"drawn {name}", [list(drawn.tokens), list(drawn.logprobs)]
        yield f"beam {name}", model.generate(PROMPTS[0], max_new_tokens=20, beam=3).text
        yield f"embed {name}", model.embed(list(SENTENCES[:4]))
    model = qkv.load("demo-lm", device="cpu", dtype="fp32")
    yield "score demo-lm", model.score(["One, Two, Buckle my shoe", SENTENCES[0]])

    cloze = qkv.load("demo-bert", device="cpu", dtype="fp32")
    yield "fill demo-bert", [cloze.fill(line, top=5) for line in MASKED]

    model = qkv.load("demo", device="cpu", dtype="fp32")
    for beam in (4, 1):
        results = model.translate(list(SENTENCES), beam=beam)
        yield f"translate beam {beam}", [[r.text, r.score] for r in results]
    yield "translate nbest", cli("translate", "demo", "--nbest", "3", "--scores", "--align", SENTENCES[2], at=str(ROOT))
    yield "score demo", model.score([(SENTENCES[0], "I love studying.")])
    for name in ("demo-lm", "demo-bert", "demo-moe"):
        model = qkv.load(name, device="cpu", dtype="fp32")
        ids = torch.tensor([model.ids("One, Two, Buckle my shoe")])
        parts = (*PARTS, *(EXPERTS if name == "demo-moe" else NETWORK))
        taps = ("embed", *(f"layers.{i}.{part}" for i in (0, 1) for part in parts), "logits")
        with model.trace(save=taps) as trace, torch.no_grad():
            model(ids)
        for tap in taps:
            yield f"tap {name} {tap}", trace[tap]


def train(directory: Path) -> Found:
    """Fifty steps on a text by the command line, and every bundled recipe's short run: losses and final weights."""
    pick = random.Random(0)
    words = ["".join(pick.choice("abcdefghij") for _ in range(pick.randint(2, 6))) for _ in range(80)]
    lines = [" ".join(pick.choice(words) for _ in range(pick.randint(4, 12))) + "." for _ in range(600)]
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "golden.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        runs = {
            "text": ["golden.txt", "training.steps=50", "training.tokens=512"],
            **{recipe: [recipe, "--smoke"] for recipe in ("demo", "demo_lm", "demo_bert", "demo_moe")},
        }
        for name, what in runs.items():
            out = Path(scratch, name)
            said = cli("train", *what, "--seed", "0", "--dtype", "fp32", "--out", str(out), at=scratch)
            yield f"train {name} result", {k: said[k] for k in ("steps", "tokens", "loss", "metrics", "test")}
            rows = [json.loads(line) for line in (out / "train" / "log.jsonl").read_text("utf-8").splitlines()]
            yield f"train {name} losses", [[r["step"], r["loss"]] for r in rows if r["kind"] in ("step", "evaluation")]
            for tensor, value in load_file(out / "model.safetensors").items():
                yield f"train {name} weights {tensor}", value


def labs(directory: Path) -> Found:
    """Every exact lab's verdict and numbers."""
    with tempfile.TemporaryDirectory() as scratch:
        for row in cli("lab", "--exact", "--out", scratch, at=scratch):
            yield f"lab {row['name']}", {key: row[key] for key in ("verdict", "effect", "spread", "numbers")}


SECTIONS: dict[str, Callable[[Path], Found]] = {"logits": logits, "text": text, "train": train, "labs": labs}


def cli(*words: str, at: str) -> Any:
    """The JSON that a verb prints, on one thread of the CPU."""
    command = [sys.executable, "-m", "qkv", *words, "--json", "--threads", "1", "--device", "cpu"]
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} exits {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def record(directory: Path, sections: list[str]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The outputs of some sections: values as JSON holds them, a tensor by its hash; and the tensors themselves."""
    values: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for section in sections:
        began = time.perf_counter()
        try:
            for key, value in SECTIONS[section](directory):
                key = f"{section}: {key}"
                if isinstance(value, torch.Tensor):
                    tensors[key] = value.detach().contiguous().clone()
                    values[key] = digest(tensors[key])
                else:
                    values[key] = json.loads(json.dumps(value))
        except Exception:  # the other sections can still be compared; what is missing is printed
            traceback.print_exc()
            print(f"{section} stopped after: {next(reversed(values), 'nothing')}", file=sys.stderr)
        print(f"{section:8} {time.perf_counter() - began:6.1f} s", file=sys.stderr)
    return values, tensors


def digest(tensor: torch.Tensor) -> str:
    """Shape, type and every bit of a tensor."""
    raw = tensor.flatten().view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(raw).hexdigest()[:16]}"


def difference(old: Any, new: Any, before: torch.Tensor | None, after: torch.Tensor | None) -> str:
    """What differs between two values, in one line."""
    if before is not None and after is not None and before.shape == after.shape:
        gap = (before.double() - after.double()).abs().max().item()
        return f"at most {gap:.3g} apart (spread {before.double().std().item():.3g})"
    return f"was {json.dumps(old, ensure_ascii=False)[:300]}\n      is {json.dumps(new, ensure_ascii=False)[:300]}"


def compare(directory: Path, sections: list[str]) -> int:
    """Print each output that is not what was recorded; 1 where there is one."""
    values, tensors = record(directory, sections)
    stored = json.loads((directory / "outputs.json").read_text("utf-8"))
    if stored["torch"] != torch.__version__:
        print(f"recorded with torch {stored['torch']}, this is {torch.__version__}: bits may differ")
    known = {k: v for k, v in stored["values"].items() if k.split(":")[0] in sections}
    before = load_file(directory / "tensors.safetensors")
    differing = [k for k in sorted({*known, *values}) if known.get(k) != values.get(k)]
    for key in differing:
        if key not in values or key not in known:
            print(f"{key}: {'gone' if key not in values else 'new'}")
        else:
            print(f"{key}: {difference(known[key], values[key], before.get(key), tensors.get(key))}")
    print(f"{len(known) - len(differing)} of {len(known)} outputs are equal bit for bit, {len(differing)} differ")
    return 1 if differing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "compare"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of: {' '.join(SECTIONS)} (default: all)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sections = asked.sections or list(SECTIONS)
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"unknown section {', '.join(sorted(unknown))} (known: {', '.join(SECTIONS)})")
    if asked.what == "compare":
        return compare(asked.directory, sections)
    draw(asked.directory / "models")
    values, tensors = record(asked.directory, sections)
    small = {k: t for k, t in tensors.items() if not k.startswith("train")}  # of trained weights the hash is enough
    save_file(small, asked.directory / "tensors.safetensors")
    said = {"torch": torch.__version__, "values": values}
    (asked.directory / "outputs.json").write_text(json.dumps(said, ensure_ascii=False, indent=1) + "\n", "utf-8")
    print(f"{len(values)} outputs recorded in {asked.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
