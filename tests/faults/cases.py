"""The fault corpus: each case is a bad input, or a fault at one operation, with what must come of it.

A case runs in a folder of its own and raises AssertionError where something else comes: an error that is not ours or
does not name the key or file, a half-made file, a stray, a good twin that is refused. Keys: as declared.
"""

# ruff: noqa: PT017  the error is what a case judges

import atexit
import contextlib
import dataclasses
import errno
import inspect
import itertools
import json
import os
import random
import reprlib
import shutil
import signal
import typing
from collections.abc import Callable, Iterator
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from qkv import files, hub
from qkv.adapt.lora import Lora, attach
from qkv.checkpoints import storage
from qkv.checkpoints.model_dir import spec_from_config
from qkv.checkpoints.run_weights import read_checkpoint
from qkv.cli import data as cli_data
from qkv.cli.common import Common
from qkv.data import shards
from qkv.data.text_files import open_text
from qkv.errors import QkvError
from qkv.families import Config, modules
from qkv.lens import edit
from qkv.model import Model
from qkv.spec import Attention, Block, Ffn, Head, Mask, Norm, Rotary, Spec, Stack
from qkv.tasks.generate import GenerateOptions
from qkv.tokenizers.tokenizer import load as load_tokenizer
from qkv.tokenizers.vocabulary import train_vocabulary
from qkv.training import checkpoint, own_data
from qkv.training.data_files import Data
from qkv.training.recipes import configure, train
from qkv.training.run import OWN_PARTS, Run, override_run
from qkv.training.splits import Splits

Act = Callable[[Path], object]
Judge = Callable[[Path], object]
Named = Iterator[tuple[str, Judge]]


class Case(NamedTuple):
    """One input: its group, what it is called, and what runs and judges it in an empty folder."""

    group: str
    name: str
    judge: Judge


def refuses(act: Act, *named: str, strict: bool = True) -> Judge:
    """A judge: `act` ends in a QkvError whose English has all of `named`; not `strict`, it may succeed as well."""

    def judge(folder: Path) -> None:
        try:
            act(folder)
        except QkvError as e:
            missing = [word for word in named if word not in str(e)] + ["words"] * ("unsupported operand" in str(e))
            assert not missing, f"lacks {missing}: {e}"
        else:
            assert not strict, "was taken"

    return judge


answers = partial(refuses, strict=False)


def on_file(name: str, content: bytes, act: Act) -> Act:
    """An act on a file of that content."""
    return lambda folder: ((folder / name).write_bytes(content), act(folder / name))


# Settings: every field of every part, through Python, words and TOML
HUGE, PAIRS = 1 << 70, b"".join(b"one %d\ttwo %d\n" % (i, i) for i in range(90))
TINY = ["training.steps=4", "training.tokens=64", "training.save_every=1", "training.precision=fp32", "model.width=16",
        "model.layers=1", "model.heads=1", "model.context=32", "tokenizer.kind=char", "check.sentences=0",
        "training.warmup=1", "training.evaluate_every=4", "training.lr=0.01"]
WRONG: dict[Any, list[Any]] = {
    int: ["abc", 2.5, True, [1, 2], HUGE, -HUGE, "", {"a": 1}, float("nan"), [[]], [None]],
    float: ["abc", True, [1, 2], float("nan"), float("inf"), -float("inf"), "", {"a": 1}, HUGE, 1e39, [[1]]],
    bool: ["abc", 1, 0, 2.5, [True], "", {"a": 1}, HUGE, [], -1],
    str: [3, True, 2.5, [1], {"a": 1}, [], float("nan"), HUGE],
    tuple: [3, True, {"a": 1}, [["a"]], 2.5, [[]], [{}], HUGE]}
BESIDE: dict[str, list[Any]] = {
    **{k: [0, -1] for k in ("model.width", "model.heads", "model.context", "check.beam")},
    **{k: [-1, 10**9] for k in ("training.threads", "training.steps", "check.ngrams")}, "data.valid": [-1],
    **{k: [1.1, -0.1] for k in ("training.ema", "training.decay", "model.dropout", "watch.share")}, "data.test": [-1],
    "model.layers": [0, -1, 501, 10**9], "tokenizer.size": [0, -1, 10**9], "training.lr": [1001.0, -1.0],
    "training.tokens": [0, 1 << 25, -1], "training.eps": [0.0, -1.0], "training.log_every": [0],
    "training.accumulate": [0, -1, 10**9]}


def declared_type(kind: Any) -> Any:
    origin, args = typing.get_origin(kind), [a for a in typing.get_args(kind) if a is not type(None)]
    return (str if origin is typing.Literal else tuple if origin is tuple else declared_type(args[0]) if args else kind)


def settings() -> Named:
    for part, kind in OWN_PARTS.items():
        for name, hint in typing.get_type_hints(kind).items():
            if dataclasses.is_dataclass(hint) or name.startswith(("where", "ranges")):
                continue
            for value in [*WRONG[declared_type(hint)], *BESIDE.get(f"{part}.{name}", [])]:
                yield from three_doors(part, kind, name, value)
            yield f"{part}.{name} twin", lambda _, k=kind, n=name: k(**{n: getattr(k(), n)})


def three_doors(part: str, kind: Any, name: str, value: Any) -> Named:
    key, text, run = f"{part}.{name}", to_toml(value), Run("a", lambda: Splits("", ""))
    yield f"{key}={value!r:.40}", refuses(lambda _: kind(**{name: value}), key)
    if part != "data":
        yield f"word {key}={text[:40]}", refuses(lambda _: override_run(run, [f"{key}={text}"]), key)
    from_file = on_file("r.toml", f"{key} = {text}\n".encode(), own_data.from_toml)
    yield f"toml {key}={text[:40]}", refuses(from_file, key, "r.toml")


def to_toml(value: Any) -> str:
    same = {"NaN": "nan", "Infinity": "inf", '{"a": 1}': "{a = 1}", "null": "[]"}
    return reduce(lambda text, pair: text.replace(*pair), same.items(), json.dumps(value))


def words() -> Named:
    run = Run("a", lambda: Splits("", ""))
    for word in ("training.lr", "=3", "training.=3", ".lr=3", "training..lr=3", "training.lr.x=3", "training=3",
                 "training.lr=1=2", "training.lr=1\nmodel.width=64", "training.lr=" + "[" * 5000, "a.b.c=1",
                 "training.lr=" + "9" * 10_000, "TRAINING.LR=1", "training.lr=\0", "model.famly=gpt2", "modle.width=3",
                 "training.lora=4", "training.lora.rank=-1", "training.lora.rnk=1", "training.betas=[0.9]",
                 "training.betas=[1, 1]", "training.betas=[nan, 0.9]", "check.prompts=[3]", "watch=1", "data.text=a"):
        yield f"{word[:40]!r}", refuses(lambda _, w=word: override_run(run, [w]))
    bad = (b"a=" + b"[" * 100_000, b"a." * 20_000 + b"a=1\n", b"data.valid=" + b"9" * 10_000, b"data.text='caf\xe9'\n",
           b"[1]", b"[modle]\nwidth=3\n", b"[data]\ntext='a'\n[data]\ntext='b'\n", b"data.text='a'\ntraining.steps=0\n")
    for content in bad:
        read, named = on_file("r.toml", content, own_data.from_toml), "steps" if b"steps" in content else "r.toml"
        yield f"toml {content[:30]!r}", refuses(read, named)
    good = lambda f: write_parts(f, {"a": "one two\n" * 50, "r.toml": "[data]\ntext = 'a'\nvalid = 5\n"})  # noqa: E731
    yield from spoilt_parts(good, "r.toml", lambda f: own_data.from_toml(f / "r.toml"))


# Configs: the keys that each family reads, by the method that reads them
BAD_CONFIG: dict[type, list[Any]] = {
    int: ["4", None, True, [1], {"a": 1}, -1, 2.5, 10**40, float("nan"), 10**12],
    float: ["1e-5", None, True, [1], {"a": 1}, -1.0, 1e40, 10**40, float("nan"), float("inf")],
    bool: ["true", 1, 0, None, [True], {"a": 1}, 2.5],
    str: [3, None, True, ["gelu"], {"a": 1}, "nosuch", ""]}


@cache
def read_keys(family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A good config of a family, and each key that reading it declares, with its value or default."""
    module, found, real = modules()[family], dict[str, Any](), Config.value
    config = {"model_type": module.TYPES[0].partition("+")[0], **next(iter(module.SIZES.values()))}
    if "+" in module.TYPES[0]:
        config[module.TYPES[0].partition("+")[2]] = True

    def value(self: Any, key: str, default: Any, *rest: Any, **more: Any) -> Any:
        got = real(self, key, default, *rest, **more)
        if self.values == config and not more.get("null") and self.defaults.get(key, default) is not None:
            found[key] = got
        return got

    with mock.patch.object(Config, "value", value):
        spec_from_config(config, "config.json")
    return config, found


def configs() -> Named:
    for family in modules():
        config, found = read_keys(family)
        yield f"{family} twin", lambda _, c=config: spec_from_config(c, "config.json")
        for key, good in found.items():
            for value in BAD_CONFIG.get(type(good), []):
                act = lambda _, c={**config, key: value}: spec_from_config(c, "config.json")  # noqa: E731
                free = type(value) is int and value in (10**12, 0, 1)
                free |= value is None and key.endswith(("head_dim", "num_key_value_heads", "window", "softcapping"))
                yield f"{family} {key}={value!r}", answers(act) if free else refuses(act, key)
    for key, bad in {"use_sliding_window": {"sliding_window": 0}, "num_hidden_layers": {"layer_types": [""]}}.items():
        moe = {**read_keys("qwen2_moe")[0], "use_sliding_window": True, **bad}
        yield f"qwen2_moe {bad}", refuses(lambda _, c=moe: spec_from_config(c, "config.json"), key)


# Files: truncated, with flipped bits, exchanged, absent
@cache
def small_model() -> Model:
    """A decoder of a few thousand weights with a vocabulary."""
    made = train_vocabulary(["one two three four"] * 3, kind="bpe", size=280)
    block = Block(Attention(2, 2, 8, Mask("causal"), rotary=Rotary(8)), Ffn(32, "silu", gated=True),
                  norm_in=Norm("rms", 1e-6))
    spec = Spec(len(made), Stack(16, (block,) * 2, final_norm=Norm("rms", 1e-6), context=64), head=Head("untied"))
    return hub.build(spec, tokenizer=made)


save = lambda folder: small_model().save(folder / "m")  # noqa: E731
read_model = lambda folder: hub.load(folder / "m").generate([1, 2], max_new_tokens=2)  # noqa: E731
KIND = "sentence_transformers.models."
POOLING: dict[str, Any] = {
    "modules.json": [{"path": "", "type": KIND + "Transformer"}, {"path": "1_Pooling", "type": KIND + "Pooling"}],
    "1_Pooling/config.json": {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
    "config_sentence_transformers.json": {"prompts": {"q": "query: "}, "default_prompt_name": "q"}}
ADDED = {"content": "<x>", "lstrip": False, "normalized": False, "rstrip": False, "special": True}
VOCABULARIES: tuple[dict[str, Any], ...] = (
    {"vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijkl", "one", "##e"]),
     "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "unk_token": "[UNK]"}},
    {"vocab.json": {"a": 0, "b": 1, "ab": 2, "</s>": 3}, "merges.txt": "#version: 0.2\na b\n",
     "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "eos_token": "</s>",
                               "added_tokens_decoder": {"4": ADDED}, "chat_template": "{{ messages }}"},
     "special_tokens_map.json": {"eos_token": {"content": "</s>"}}, "added_tokens.json": {"<y>": 5}})


def write_parts(folder: Path, contents: dict[str, Any]) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def write_adapted(folder: Path) -> None:
    small_model().save(folder / "base")
    model = hub.load(folder / "base")
    attach(model.core, Lora(rank=2))
    model.base = str(folder / "base")
    model.save(folder / "m")


def spoil(whole: bytes, seed: str) -> Iterator[tuple[str, bytes]]:
    draw = random.Random(seed)
    for at in [0, 1, 8, len(whole.rstrip()) - 1, *(draw.randrange(len(whole)) for _ in range(8))]:
        yield f"cut at {at}", whole[:at]
    for _ in range(16):
        at, bit = draw.randrange(min(len(whole), 4096)), draw.randrange(8)
        yield f"bit {bit} of {at}", whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    at = draw.randrange(len(whole))
    yield f"zeros at {at}", (whole[:at] + bytes(4096) + whole[at + 4096 :])[: len(whole)]
    yield from {"empty object": b"{}", "list": b"[]", "null": b"null", "text": "文".encode() * 9, "PDF": b"%PDF-1.4",
                "zip": b"PK\x03\x04" * 99, "deep": b"[" * 100_000, "digits": b"9" * 10_000}.items()


def spoilt_files() -> Named:
    lost = {"config.json", "model.safetensors"}  # whose loss cannot be passed over
    for file in (*sorted(lost), "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        yield from spoilt_parts(save, f"m/{file}", read_model, free=("bit", "zeros", "=") if file in lost else ("",))
    state = {"w": torch.arange(64.0), "v": torch.ones(3)}
    yield from spoilt_parts(lambda f: checkpoint.write(f / "x.safetensors", state, {"step": 3}),
                            "x.safetensors", lambda f: read_checkpoint(f / "x.safetensors"), free=())
    read_shard = lambda f: shards.read_shard(f / "s", verify=True)  # noqa: E731
    yield from spoilt_parts(pack, "s/tokens.bin", read_shard, free=())
    yield from spoilt_parts(pack, "s/index.json", read_shard)


def spoilt_parts(write: Act, file: str, read: Act, *, free: tuple[str, ...] = ("",)) -> Named:
    """One file of what is written: its bytes spoilt, its values if it is JSON, and gone; then read.

    Only what has one of `free` in its name may be taken.
    """
    with files.tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder)
        whole = (folder / file).read_bytes()
    values = spoilt_values(json.loads(whole)) if file.endswith("json") else ()
    others = [*spoil(whole, file), *((f"={what}", json.dumps(doc).encode()) for what, doc in values), ("no file", None)]
    for what, content in others:
        def act(folder: Path, content: bytes | None = content) -> object:
            write(folder)
            (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
            return read(folder)

        yield f"{file} {what}", refuses(act, strict=not any(name in what for name in free))
    yield f"{file} twin", lambda folder: (write(folder), read(folder))


def spoilt_values(doc: Any) -> Iterator[tuple[str, Any]]:
    rows = list(doc.items() if isinstance(doc, dict) else enumerate(doc))[:9]
    for key, value in rows:
        yield f"{key} absent", {k: v for k, v in rows if k != key}
        inner = list(spoilt_values(value)) if isinstance(value, dict | list) else []
        others = [None, -3, 10**40, float("nan"), "abc", "", "(", [1], [], {"a": 1}, {}, True, 2.5, [[["a"]]]]
        for what, bad in [*inner, *((repr(bad), bad) for bad in others)]:
            changed = {**dict(rows), key: bad}
            yield f"{key}={what}", changed if isinstance(doc, dict) else list(changed.values())


def directories() -> Named:
    embed = lambda f: hub.load(f / "m").embed("one two")  # noqa: E731
    for file in POOLING:
        yield from spoilt_parts(lambda f: (save(f), write_parts(f / "m", POOLING)), f"m/{file}", embed)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        yield from spoilt_parts(write_adapted, f"m/{file}", read_model)
    yield from spoilt_parts(lambda f: small_model().save(f / "m.gguf"), "m.gguf",
                            lambda f: hub.load(f / "m.gguf").generate("one", max_new_tokens=2))
    for contents in VOCABULARIES:
        for file in contents:
            yield from spoilt_parts(partial(write_parts, contents=contents), file,
                                    lambda f: load_tokenizer(f).encode("one two [MASK]"))  # type: ignore[union-attr]
    twins = {**VOCABULARIES[1], "vocab.json": {"a": 0, "b": 1, "ab": 1, "</s>": 3}}
    yield "twins", refuses(lambda f: (write_parts(f, twins), load_tokenizer(f)), "vocab.json", "both have the id 1")


# Data: bytes that are no text, and rows that are no rows, at the beginning, in the midst and at the end
def data() -> Named:
    both = (b"caf\xe9\n", b"\xe6\x88\n", b"\xed\xa0\x80\n", b"\xc0\xaf\n", b"a\0b\n", b"\xff\n")
    rows = {
        "text": ("a.txt", b"one two three %d\n", both),
        "tsv": ("a.tsv", b"one %d\ttwo\n", (*both, b"abc\n", b"\tabc\n", b"abc\t  \n")),
        "jsonl": ("a.jsonl", b'{"source": "one %d", "target": "two"}\n', (
            *both, b"{bad\n", b"[1]\n", b"null\n", b'{"a":' * 50_000 + b"\n", b'{"source": "a"}\n', b'{"source": "a\n',
            *(b'{"source":%s,"target": "b"}\n' % x for x in (b"1", b"null", b'""', b"9" * 5000, b"[" * 9**5))))}
    whole = (b"", b"\n" * 99, "我爱学习\n".encode("utf-16") * 99, b"one\ttwo\r" * 99, b"%PDF-1.4\n" + b"one two\n" * 99,
             b"\x89PNG\r\n\x1a\n" + bytes(999), b"\x7fELF" + bytes(99), b"\x80\4\x95" + bytes(99), b"PK\3\4" + bytes(9))
    for kind, (file, line, wrong) in rows.items():
        def split(path: Path, kind: str = kind) -> object:
            return Data(**{kind: (str(path),)}, valid=5).splits(path.parent)  # type: ignore[arg-type]

        good = [line % i for i in range(60)]
        yield f"{kind} twin", on_file(file, b"".join(good), split)
        for bad, at in itertools.product(wrong, (0, 1, 7, 30, 59, 60)):
            spoilt = on_file(file, b"".join([*good[:at], bad, *good[at:]]), split)
            yield f"{kind} {bad[:30]!r} at {at}", refuses(spoilt, f"{file}:{at + 1}" if at else file)
        for content in whole:
            yield f"{kind} {content[:20]!r}", refuses(on_file(file, content, split), file)
    for key, value in {"tsv": ("no",), "valid_file": "no", "test_file": "no", "columns": (1, 2)}.items():
        part = Data(**{"tsv": ("a.tsv",), key: value})  # type: ignore[arg-type]
        act = on_file("a.tsv", PAIRS, lambda path, part=part: part.splits(path.parent))
        yield f"data.{key}={value}", refuses(act, f"data.{key}")
    act = on_file("a.tsv", PAIRS, lambda path: train(path, overrides=TINY, out=path.parent / "r"))
    yield "no sentences for bleu", refuses(act, "check.sentences")
    for what, make in {"named pipe": os.mkfifo, "device": lambda p: p.symlink_to("/dev/urandom"), "zero": lambda p:
                       p.symlink_to("/dev/zero"), "null": lambda p: p.symlink_to("/dev/null"), "directory": Path.mkdir,
                       "dangling": lambda p: p.symlink_to("nowhere"), "ring": lambda p: p.symlink_to(p.name), "absent":
                       lambda p: None}.items():
        for act in (open_text, configure):
            special: Act = lambda f, make=make, act=act: (make(f / "a.txt"), act(f / "a.txt"))  # noqa: E731
            yield f"{act.__name__} {what}", refuses(special, "a.txt")


# Arguments: every parameter of public functions, with what fits none of them, and with what fits a few
NO_PROMPT = [b"abc", {"a": 1}, {1, 2}, [True], [[["a"]]], [b"a"], 3, 2.5, None, [None], [1.5], object, [[1, 2], [True]],
             ["a", 3], [-1], [10**9], [10**30], [1, None], [[{}]], [{"role": "user"}], True, 1j]
NEVER = [b"abc", {"a": 1}, HUGE, float("nan"), 1j, [object()], [[["a"]]], slice(2), ..., object(), np.ones((2, 2))]
SELDOM = [None, True, -1, 0, 3, 10**9, 2.5, 1e40, "abc", "", "4", "\ud800", "a\0b", [], [1], ["a"], (1, 2), {1},
          range(3), np.int64(3), torch.zeros(2), torch.zeros(1, 3).long(), torch.tensor([[-1]]), Path("x"), iter("ab")]


def arguments() -> Named:
    model, ids, at = small_model(), torch.tensor([[1, 2, 3]]), "layers.0.attn"
    with (trace := model.trace(save=["*"])):
        model(ids)
    asks: dict[Callable[..., Any], dict[str, Any]] = {
        model.__call__: {"ids": ids}, model.save: {"directory": "m"}, model.embed: {"text": "one"}, model.trace: {},
        model.fill: {"text": "a"}, model.classify: {"text": "a"}, model.load_trace: {"directory": "t"}, trace.lens: {},
        model.ids: {"text": [1]}, model.score: {"text": [1, 2]}, model.text: {"ids": []}, hub.load: {"name": "demo-lm"},
        trace.parts: {"token": 1}, trace.walk: {"path": at}, trace.neighbours: {"word": "a"}, trace.plan: {"tokens": 3},
        trace.row: {"path": at, "head": 0, "query": 0}, edit.scale: {"name": at, "by": 0.5}, edit.cut: {"name": at},
        model.generate: {"prompt": [1]}, model.stream: {"prompt": [1]}, configure: {"recipe": "nosuch.txt"},
        hub.build: {"spec": model.spec}, hub.show: {"name": "demo-lm"}, hub.report: {"name": "demo-lm"},
        hub.load("demo").translate: {"text": "我", "beam": 1}}
    options = {"translate": ("beam", "length_penalty", "nbest", "max_new_tokens", "align", "ensemble"),
               "trace": ("budget", "to", "stop")}
    options |= dict.fromkeys(("generate", "stream"), tuple(f.name for f in dataclasses.fields(GenerateOptions)))
    for ask, good in asks.items():
        name = ask.__name__
        names = [key for key, p in inspect.signature(ask).parameters.items() if p.kind is not p.VAR_KEYWORD]
        for key in [*names, *options.get(name, ()), "nosuch"]:
            never = NO_PROMPT if f"{name} {key}" in "generate prompt, stream prompt, score text, ids text" else NEVER
            for value in never + SELDOM:
                act, wrong = partial(call_in, ask, {**good, key: value}), any(value is one for one in never)
                sure = wrong and key not in ("drop", "tell", "nosuch")  # which take any function, or nothing
                sure = sure and not (key in ("logit_bias", "json_schema") and isinstance(value, dict))
                judge = refuses(act, *[key] * (never is NEVER)) if sure else answers(act)
                yield f"{name} {key}={reprlib.repr(value)}", judge


def call_in(ask: Callable[..., Any], given: dict[str, Any], folder: Path) -> None:
    with contextlib.chdir(folder):
        got = ask(**given)
        list(got) if inspect.isgenerator(got) else None


# Faults at each operation: an error of the disk, or the end of the process
WRITES = [(os, "replace"), (os, "fsync"), (os, "link"), (os, "mkdir"), (Path, "write_bytes"), (Path, "open"),
          (storage, "save_file"), (files.tempfile, "mkdtemp"), (shutil, "copymode")]
READS = [(Path, "read_text"), (Path, "read_bytes"), (Path, "open"), (storage, "safe_open")]
ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO, "large": errno.EFBIG, "quota": errno.EDQUOT}


@contextlib.contextmanager
def fault(at: int, act: Callable[[], None], operations: list[tuple[Any, str]] = WRITES) -> Iterator[list[str]]:
    """Within it, `act` happens before the operation number `at`; the names of those that were begun."""
    done: list[str] = []

    def wrap(real: Any, name: str) -> Any:
        def instead(*given: Any, **more: Any) -> Any:
            reads = name == "open" and "r" in (given[1] if len(given) > 1 else more.get("mode", "r"))
            if operations is READS or not reads:
                done.append(name)
                if len(done) == at + 1:
                    act()
            return real(*given, **more)

        return instead

    with contextlib.ExitStack() as stack:
        for owner, name in operations:
            stack.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name), name)))
        yield done


def pack(folder: Path) -> object:  # as `qkv data pack` does
    return cli_data.pack_files(Common(quiet=True), (str(corpus_text()),), folder / "s", None, 280)


@cache
def corpus_text() -> Path:
    atexit.register(shutil.rmtree, folder := Path(files.tempfile.mkdtemp()))
    (folder / "a.txt").write_text("".join(f"one two {i} three {i % 7}.\n" for i in range(120)), encoding="utf-8")
    return folder / "a.txt"


def learn(folder: Path) -> object:
    """A run of a few steps, which goes on where one was begun."""
    begun = (folder / "r" / "train" / "run.json").is_file() and checkpoint.find_last(folder / "r" / "train") is not None
    shutil.rmtree(folder / "nothing" if begun else folder / "r", ignore_errors=True)
    return train(corpus_text(), overrides=TINY, out=folder / "r", device="cpu", quiet=True, resume=begun)


ACTS: dict[str, tuple[Act, str]] = {
    "save": (save, "m"), "pack": (pack, "s"), "train": (learn, "r"),
    "page": (lambda f: files.write_text_file(f / "x.html", "页" * 999), "x.html"),
    "convert": (lambda f: small_model().save(f / "m", family="llama"), "m")}


def content(place: Path) -> dict[str, bytes]:
    """What a file or a directory holds, without what is different in every run."""
    some = [place] if place.is_file() else sorted(place.rglob("*"))
    found = {p.relative_to(place).as_posix(): p.read_bytes() for p in some if p.is_file()}
    return {name: raw for name, raw in found.items() if "train/" not in name}


@cache
def rehearsal(name: str, old: bool) -> tuple[int, dict[str, bytes], dict[str, bytes]]:
    act, place = ACTS[name]
    with files.tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        before = prepare(name, folder) if old else {}
        with fault(-1, lambda: None) as done:
            act(folder)
        return len(done), before, content(folder / place)


def prepare(name: str, folder: Path) -> dict[str, bytes]:  # something old in the act's place
    place, like = folder / ACTS[name][1], small_model()
    place.write_text("old") if name == "page" else hub.build(like.spec, seed=7, tokenizer=like.tokenizer).save(place)
    return content(place)


def faults(errors: dict[str, Any] = ERRORS) -> Named:
    corpus_text()
    for name, old in itertools.product(ACTS, (False, True)):
        for at in range(rehearsal(name, old)[0] if not old or name in ("save", "page") else 0):
            some = [*errors.items()]
            for what, number in some if name != "train" else some[at % len(some) :][:1]:
                yield f"{name}{' over' * old} {what} at {at}", breaks(name, old, at, number)


def kills() -> Named:
    return faults({"killed": None})


def reads() -> Named:
    """A disk that cannot be read, at each read of loading a model and of training: told with the file's name."""
    for name, act in {"load": read_model, "train": learn}.items():
        def tell(folder: Path, act: Act, at: int) -> None:
            save(folder)
            try:
                with fault(at, lambda: raise_error(errno.EIO, str(folder / "m")), READS):
                    act(folder)
            except OSError as e:
                raise QkvError("{path}", path=e.filename) from e  # as the command line tells it

        with files.tempfile.TemporaryDirectory() as made, fault(-1, lambda: None, READS) as done:
            save(Path(made))
            act(Path(made))
        for at in range(len(done)):
            yield f"{name} at {at}", answers(partial(tell, act=act, at=at), "m")


def raise_error(number: int, *path: str) -> None:
    raise OSError(number, os.strerror(number), *path)


def breaks(name: str, old: bool, at: int, number: int | None) -> Judge:
    """A judge: an error (None: SIGKILL) before an operation leaves the old or the new, and the next try is right."""

    def judge(folder: Path) -> None:
        (act, place), after = ACTS[name], rehearsal(name, old)[2]
        before, failed = prepare(name, folder) if old else {}, False
        if number is None and (child := os.fork()):
            os.waitpid(child, 0)
        else:
            try:
                with fault(at, lambda: raise_error(number) if number else os.kill(os.getpid(), signal.SIGKILL)):
                    act(folder)
            except QkvError as e:
                failed = True
                assert name == "train" or place in str(e), str(e)
            if number is None:
                os._exit(0)  # a child that came to the end
        now = content(folder / place) if (folder / place).exists() else {}
        assert name == "train" or not failed or now == before, "changed by what failed"
        whole = all(raw in (before.get(key), after.get(key)) for key, raw in now.items())
        assert name == "train" or (whole and before.keys() <= now.keys()), "half a file, or an old one is gone"
        if (folder / place / "config.json").is_file():  # which comes last
            hub.load(folder / place)
        come_out(name, folder, old)

    return judge


def come_out(name: str, folder: Path, old: bool) -> None:  # the next try has all bits, and leaves no stray
    act, place = ACTS[name]
    with contextlib.suppress(QkvError) if name == "pack" and (folder / place).exists() else contextlib.nullcontext():
        act(folder)  # a shard that is there is not written again
    assert content(folder / place) == rehearsal(name, old)[2], "other bits than an unbroken run"
    strays = [p.name for p in folder.rglob("*") if p.name.startswith(".") and p.name != ".gitignore"]
    assert not strays, f"strays: {strays}"


GROUPS = (settings, words, configs, spoilt_files, directories, data, arguments, reads, faults, kills)


@cache
def all_cases() -> tuple[Case, ...]:
    return tuple(Case(group.__name__, *one) for group in GROUPS for one in group())


def sample(count: int) -> list[Case]:
    """A part of the corpus that is the same each time: as much of each group, and of slow cases, those of runs, few."""
    groups: dict[str, list[Case]] = {}
    for case in all_cases():
        groups.setdefault(case.group if not case.name.startswith("train") else "runs", []).append(case)
    draw, chosen = random.Random(31), random.Random(31).sample(groups.pop("runs"), 12)
    for left, some in zip(range(len(groups), 0, -1), sorted(groups.values(), key=len), strict=True):  # small ones first
        chosen += draw.sample(some, min(len(some), (count - len(chosen)) // left))
    return chosen
