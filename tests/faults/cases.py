"""The fault corpus: each case is a bad input, or a fault at one operation, with what must come of it.

A case runs in a folder of its own and raises AssertionError where something else comes: an error that is not ours or
does not name the key or file, a half-made file, a stray, or a good twin that is refused. Keys come from the tables that
declare them: the settings' dataclasses, and the config keys that each family reads.
"""

# ruff: noqa: PT017  the error is what a case judges

import atexit
import contextlib
import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from qkv import files, hub
from qkv.adapt.lora import Lora, attach
from qkv.checkpoints import storage
from qkv.checkpoints.model_dir import spec_from_config
from qkv.checkpoints.run_weights import read_checkpoint
from qkv.data import shards
from qkv.data.text_files import open_text
from qkv.errors import QkvError
from qkv.families import Config, modules
from qkv.model import Model
from qkv.spec import Attention, Block, Ffn, Head, Mask, Norm, Rotary, Spec, Stack
from qkv.tokenizers.tokenizer import load as load_tokenizer
from qkv.tokenizers.vocabulary import train_vocabulary
from qkv.training import checkpoint, own_data
from qkv.training.data_files import Data
from qkv.training.recipes import configure, train
from qkv.training.run import OWN_PARTS, Run, override_run
from qkv.training.splits import Splits

Act = Callable[[Path], object]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that goes."""
    with files.tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Case:
    """One input: its group, what it is called, and what runs and judges it in an empty folder."""

    group: str
    name: str
    judge: Callable[[Path], None]


def refuses(act: Act, *named: str, strict: bool = True) -> Callable[[Path], None]:
    """A judge: `act` ends in a QkvError whose English has all of `named`; not `strict`, it may succeed as well."""

    def judge(folder: Path) -> None:
        try:
            act(folder)
        except QkvError as e:
            missing = [word for word in named if word not in str(e)]
            assert not missing, f"lacks {missing}: {e}"
            assert "unsupported operand" not in str(e), str(e)
        else:
            assert not strict, "was taken"

    return judge


def takes(act: Act) -> Callable[[Path], None]:
    """A judge: `act` succeeds."""
    return lambda folder: [act(folder), None][1]


answers = partial(refuses, strict=False)


# Settings: every field of every part, through Python, words and TOML

HUGE = 1 << 70
WRONG: dict[Any, list[Any]] = {
    int: ["abc", 2.5, True, [1, 2], HUGE, -HUGE, "", {"a": 1}, float("nan"), [[]], [None]],
    float: ["abc", True, [1, 2], float("nan"), float("inf"), -float("inf"), "", {"a": 1}, HUGE, 1e39, [[1]]],
    bool: ["abc", 1, 0, 2.5, [True], "", {"a": 1}, HUGE, [], -1],
    str: [3, True, 2.5, [1], {"a": 1}, [], float("nan"), HUGE],
    tuple: [3, True, {"a": 1}, [["a"]], 2.5, [[]], [{}], HUGE],
}
BESIDE = {"training.threads": [1025, -1], "training.lr": [1001.0, -1.0], "training.steps": [10**9, -1],
          "training.tokens": [0, 1 << 25, -1], "model.layers": [0, -1, 501, 1000, 10**9], "model.width": [0, -1],
          "model.heads": [0, -1], "model.dropout": [0.999999, 1.0, -0.1], "tokenizer.size": [0, -1, 10**9],
          "check.ngrams": [-1, 33, 10**9], "check.beam": [0, -1], "training.eps": [0.0, -1.0],
          "watch.share": [0.0, 2.0], "training.ema": [1.0, -0.1], "training.decay": [1.1, -0.1], "data.valid": [-1],
          "data.test": [-1], "training.accumulate": [0, -1], "training.log_every": [0], "model.context": [0, -1]}


def declared_type(kind: Any) -> Any:
    """The plain type that a field's declaration means."""
    origin, args = typing.get_origin(kind), [a for a in typing.get_args(kind) if a is not type(None)]
    if origin is typing.Literal:
        return str
    return tuple if origin is tuple else declared_type(args[0]) if args else kind


def settings() -> Iterator[Case]:
    for part, kind in OWN_PARTS.items():
        for name, hint in typing.get_type_hints(kind).items():
            if dataclasses.is_dataclass(hint) or name.startswith(("where", "ranges")):
                continue
            key = f"{part}.{name}"
            plain = declared_type(hint)
            for value in [*WRONG[plain], *BESIDE.get(key, [])]:
                yield from three_doors(part, kind, name, value)
            good = getattr(kind(), name)
            yield Case("settings", f"{key} twin", takes(lambda _, k=kind, n=name, v=good: k(**{n: v})))


def three_doors(part: str, kind: Any, name: str, value: Any) -> Iterator[Case]:
    """A value given in Python, as a word and in TOML."""
    key = f"{part}.{name}"
    yield Case("settings", f"{key}={value!r:.40}", refuses(lambda _: kind(**{name: value}), key))
    text = to_toml(value)
    if part != "data":
        run = Run("a", lambda: Splits("", ""))
        yield Case("settings", f"word {key}={text[:40]}", refuses(lambda _: override_run(run, [f"{key}={text}"]), key))

    def from_file(folder: Path) -> object:
        (folder / "r.toml").write_text(f"{key} = {text}\n", encoding="utf-8")
        return own_data.from_toml(folder / "r.toml")

    yield Case("settings", f"toml {key}={text[:40]}", refuses(from_file, key, "r.toml"))


def to_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {to_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join("[]" if v is None else to_toml(v) for v in value) + "]"
    return str(value) if isinstance(value, float) else json.dumps(value)


def words() -> Iterator[Case]:
    run = Run("a", lambda: Splits("", ""))
    for word in ("training.lr", "=3", "training.=3", ".lr=3", "training..lr=3", "training.lr.x=3", "training=3",
                 "training.lr=1=2", "training.lr=1\nmodel.width=64", "training.lr=" + "[" * 5000, "a.b.c=1",
                 "training.lr=" + "9" * 10_000, "TRAINING.LR=1", "training.lr=\0", "model.famly=gpt2", "modle.width=3",
                 "training.lora=4", "training.lora.rank=-1", "training.lora.rnk=1", "training.betas=[0.9]",
                 "training.betas=[1, 1]", "training.betas=[nan, 0.9]", "training.lr=true", "data.text=a.txt",
                 "training.seed=1e3", "training.steps=1.0", "check.prompts=[3]", "watch=true", "training.smoothing=1"):
        yield Case("words", f"{word[:40]!r}", refuses(lambda _, w=word: override_run(run, [w])))
    for name, content in {
        "deep list": b"a=" + b"[" * 100_000, "deep key": b"a." * 20_000 + b"a=1\n", "NUL": b"a\0=1", "none": b"",
        "long integer": b"data.valid=" + b"9" * 10_000, "latin-1": b"[data]\ntext='caf\xe9.txt'\n", "a list": b"[1]",
        "utf-16": "[data]\n".encode("utf-16"), "bytes": bytes(range(256)), "PDF": b"%PDF-1.4\n" * 9, "blank": b"\n \n",
        "twice": b"[data]\ntext='a'\n[data]\ntext='b'\n", "unknown": b"[modle]\nwidth=3\n",
        "no steps": b"data.text='a'\ntraining.steps=0\n",
    }.items():
        def read(folder: Path, content: bytes = content) -> object:
            (folder / "r.toml").write_bytes(content)
            (folder / "a").write_text("one two\n" * 50, encoding="utf-8")
            return own_data.from_toml(folder / "r.toml")

        named = ("training.steps",) if name == "no steps" else ("r.toml",)
        yield Case("words", f"toml {name}", refuses(read, *named))


# Configs: the keys that each family reads, by the method that reads them

BAD_CONFIG: dict[type, list[Any]] = {
    int: ["4", None, True, [1], {"a": 1}, -1, 2.5, 10**40, float("nan"), 10**12],
    float: ["1e-5", None, True, [1], {"a": 1}, -1.0, 1e40, 10**40, float("nan"), float("inf")],
    bool: ["true", 1, 0, None, [True], {"a": 1}, 2.5],
    str: [3, None, True, ["gelu"], {"a": 1}, "nosuch", ""],
}


@cache
def read_keys(family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A good config of a family, and each key that reading it declares, with its value or default."""
    module, found, real = modules()[family], dict[str, Any](), Config.value
    config = {"model_type": module.TYPES[0].partition("+")[0], **next(iter(module.SIZES.values()))}
    if "+" in module.TYPES[0]:
        config[module.TYPES[0].partition("+")[2]] = True

    def value(self: Any, key: str, default: Any, *rest: Any, **more: Any) -> Any:
        got = real(self, key, default, *rest, **more)
        if self.values is config and not more.get("null") and self.defaults.get(key, default) is not None:
            found[key] = got
        return got

    with mock.patch.object(Config, "value", value):
        spec_from_config(config, "config.json")
    return config, found


def configs() -> Iterator[Case]:
    for family in modules():
        config, found = read_keys(family)
        yield Case("configs", f"{family} twin", takes(lambda _, c=config: spec_from_config(c, "config.json")))
        for key, good in found.items():
            for value in BAD_CONFIG.get(type(good), []):
                spoilt = {**config, key: value}
                act = lambda _, c=spoilt: spec_from_config(c, "config.json")  # noqa: E731
                free = type(value) is int and value in (10**12, 0, 1)
                free |= value is None and key in ("head_dim", "num_key_value_heads")  # null: from the heads
                judge = answers(act) if free else refuses(act, key)
                yield Case("configs", f"{family} {key}={value!r}", judge)


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
    "config_sentence_transformers.json": {"prompts": {"q": "query: "}, "default_prompt_name": "q"},
}
ADDED = {"content": "<x>", "lstrip": False, "normalized": False, "rstrip": False, "special": True}
VOCABULARIES: tuple[dict[str, Any], ...] = (
    {"vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijkl", "one", "##e"]),
     "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "unk_token": "[UNK]"}},
    {"vocab.json": {"a": 0, "b": 1, "ab": 2, "</s>": 3}, "merges.txt": "#version: 0.2\na b\n",
     "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "eos_token": "</s>",
                               "added_tokens_decoder": {"4": ADDED}, "chat_template": "{{ messages }}"},
     "special_tokens_map.json": {"eos_token": {"content": "</s>"}}, "added_tokens.json": {"<y>": 5}},
)


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
    """A file's bytes cut, flipped, filled and replaced, at places that `seed` draws."""
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


def spoilt_files() -> Iterator[Case]:
    """The files of a model, a checkpoint and a shard."""
    for file in ("config.json", "model.safetensors"):  # whose loss cannot be passed over
        yield from spoilt_parts("files", save, f"m/{file}", read_model, free=("bit", "zeros", "="))
    for file in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        yield from spoilt_parts("files", save, f"m/{file}", read_model)
    state = {"w": torch.arange(64.0), "v": torch.ones(3)}
    yield from spoilt_parts("files", lambda f: checkpoint.write(f / "x.safetensors", state, {"step": 3}),
                            "x.safetensors", lambda f: read_checkpoint(f / "x.safetensors"), free=())
    read_shard = lambda f: shards.read_shard(f / "s", verify=True)  # noqa: E731
    yield from spoilt_parts("files", pack, "s/tokens.bin", read_shard, free=())
    yield from spoilt_parts("files", pack, "s/index.json", read_shard)


def spoilt_parts(group: str, write: Act, file: str, read: Act, *, free: tuple[str, ...] = ("",)) -> Iterator[Case]:
    """One file of what is written: its bytes spoilt, its values if it is JSON, and gone; then read.

    Only what has one of `free` in its name may be taken.
    """
    with scratch() as folder:
        write(folder)
        whole = (folder / file).read_bytes()
    values = spoilt_values(json.loads(whole)) if file.endswith("json") else ()
    others = [*spoil(whole, file), *((f"={what}", json.dumps(doc).encode()) for what, doc in values), ("no file", None)]
    for what, content in others:
        def act(folder: Path, content: bytes | None = content) -> object:
            write(folder)
            (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
            return read(folder)

        yield Case(group, f"{file} {what}", refuses(act, strict=not any(name in what for name in free)))
    yield Case(group, f"{file} twin", takes(lambda folder: (write(folder), read(folder))))


def spoilt_values(doc: Any) -> Iterator[tuple[str, Any]]:
    """A JSON value with each of its parts absent, or something else."""
    rows = list(doc.items() if isinstance(doc, dict) else enumerate(doc))[:9]
    for key, value in rows:
        yield f"{key} absent", {k: v for k, v in rows if k != key}
        inner = list(spoilt_values(value)) if isinstance(value, dict | list) else []
        others = [None, -3, 10**40, float("nan"), "abc", "", "(", [1], [], {"a": 1}, {}, True, 2.5, [[["a"]]]]
        for what, bad in [*inner, *((repr(bad), bad) for bad in others)]:
            changed = {**dict(rows), key: bad}
            yield f"{key}={what}", changed if isinstance(doc, dict) else list(changed.values())


def directories() -> Iterator[Case]:
    """What stands beside the weights of a model, and other ways to hold them."""
    embed = lambda f: hub.load(f / "m").embed("one two")  # noqa: E731
    for file in POOLING:
        yield from spoilt_parts("directories", lambda f: (save(f), write_parts(f / "m", POOLING)), f"m/{file}", embed)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        yield from spoilt_parts("directories", write_adapted, f"m/{file}", read_model)
    yield from spoilt_parts("directories", lambda f: small_model().save(f / "m.gguf"), "m.gguf",
                            lambda f: hub.load(f / "m.gguf").generate("one", max_new_tokens=2))
    for contents in VOCABULARIES:
        for file in contents:
            yield from spoilt_parts("directories", partial(write_parts, contents=contents), file,
                                    lambda f: load_tokenizer(f).encode("one two [MASK]"))  # type: ignore[union-attr]


# Data: bytes that are no text, and rows that are no rows, at the beginning, in the midst and at the end
def data() -> Iterator[Case]:
    line, pair = b"one two three %d\n", b"one %d\ttwo %d\n"
    row = b'{"source": "one %d", "target": "two %d"}\n'
    both = {"latin-1": b"caf\xe9\n", "cut letter": b"\xe6\x88\n", "CESU": b"\xed\xa0\x80\n", "overlong": b"\xc0\xaf\n",
            "NUL": b"a\0b\n", "high byte": b"\xff\n"}
    rows = {
        "text": ("a.txt", [line % i for i in range(60)], both),
        "tsv": ("a.tsv", [pair % (i, i) for i in range(60)],
                {**both, "one column": b"abc\n", "no source": b"\tabc\n", "blank target": b"abc\t  \n"}),
        "jsonl": ("a.jsonl", [row % (i, i) for i in range(60)], {
            **both, "no JSON": b"{bad\n", "list": b"[1]\n", "null": b"null\n", "no key": b'{"source": "a"}\n', "number":
            b'{"source": 1, "target": "b"}\n', "null text": b'{"source": null, "target": "b"}\n', "deep": b'{"source": '
            + b"[" * 100_000 + b"\n", "deep object": b'{"a":' * 50_000 + b"\n", "digits": b'{"source": ' + b"9" * 5000 +
            b', "target": "b"}\n', "empty": b'{"source": "", "target": "b"}\n', "cut": b'{"source": "a", "tar\n'}),
    }
    for kind, (file, good, wrong) in rows.items():
        def read(folder: Path, content: bytes, kind: str = kind, file: str = file) -> object:
            (folder / file).write_bytes(content)
            return Data(**{kind: (str(folder / file),)}, valid=5).splits(folder)  # type: ignore[arg-type]

        yield Case("data", f"{kind} twin", takes(partial(read, content=b"".join(good))))
        for what, bad in wrong.items():
            for at in (0, 1, 7, 30, 59, 60):
                content = b"".join([*good[:at], bad, *good[at:]])
                yield Case("data", f"{kind} {what} at {at}",
                           refuses(partial(read, content=content), f"{file}:{at + 1}" if at else file))
        for what, content in {
            "empty": b"", "blank": b"\n" * 99, "utf-16": "我爱学习\n".encode("utf-16") * 99, "CR": b"one\ttwo\r" * 99,
            "PDF": b"%PDF-1.4\n" + b"one two\n" * 99, "PNG": b"\x89PNG\r\n\x1a\n" + bytes(999), "program": b"\x7fELF" +
            bytes(99), "pickle": b"\x80\x04\x95" + bytes(99), "zip": b"PK\x03\x04" + bytes(99),
        }.items():
            yield Case("data", f"{kind} {what}", refuses(partial(read, content=content), file))
    for what, make in {"named pipe": os.mkfifo, "device": lambda p: p.symlink_to("/dev/urandom"), "zero": lambda p:
                       p.symlink_to("/dev/zero"), "null": lambda p: p.symlink_to("/dev/null"), "directory": Path.mkdir,
                       "dangling": lambda p: p.symlink_to("nowhere"), "ring": lambda p: p.symlink_to(p.name), "absent":
                       lambda p: None}.items():
        for act in (open_text, configure):
            def read_special(folder: Path, make: Any = make, act: Any = act) -> object:
                make(folder / "a.txt")
                return act(folder / "a.txt")

            yield Case("data", f"{act.__name__} {what}", refuses(read_special, "a.txt"))


# Prompts: what is neither a text nor ids
def prompts() -> Iterator[Case]:
    model = small_model()
    asks: dict[str, Callable[[Any], object]] = {
        "generate": lambda p: model.generate(p, max_new_tokens=1), "score": model.score, "embed": model.embed,
        "stream": lambda p: list(model.stream(p, max_new_tokens=1)), "ids": model.ids,
    }
    wrong = [b"abc", bytearray(b"a"), {"a": 1}, {1, 2}, [True], [[["a"]]], [b"a"], 3, 2.5, None, [None], [1.5],
             [[1, 2], [True]], ["a", 3], [-1], [10**9], [10**30], [1, None], [[{}]], [{"role": "user"}], object, True]
    for name, ask in asks.items():
        for value in wrong:
            yield Case("prompts", f"{name} {value!r:.40}", refuses(lambda _, a=ask, v=value: a(v)))
        yield Case("prompts", f"{name} twin", takes(lambda _, a=ask: a([1, 2, 3])))
    for key, values in {"max_new_tokens": [-1, "a", 2.5, True], "temperature": [-1, "a", float("nan")],
                        "top_k": [-1, 2.5], "top_p": [-0.1, 1.5, "a"], "beam": [0, -1, "a"], "seed": ["a", 2.5, HUGE],
                        "stop": [3, [3]], "chunk": ["a", -1], "cache": [3, "no"], "sampling": ["no", 3],
                        "nosuch": [1]}.items():
        for value in values:
            yield Case("prompts", f"{key}={value!r}", refuses(lambda _, k=key, v=value: model.generate([1], **{k: v})))


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


def pack(folder: Path) -> object:
    keep: Any = small_model().tokenizer
    return shards.write_shard(folder / "s", [[1, 2, 3], [4, 5]] * 50, vocabulary=280, save=keep.save)


@cache
def corpus_text() -> Path:
    atexit.register(shutil.rmtree, folder := Path(files.tempfile.mkdtemp()))
    (folder / "a.txt").write_text("".join(f"one two {i} three {i % 7}.\n" for i in range(120)), encoding="utf-8")
    return folder / "a.txt"


def learn(folder: Path) -> object:
    """A run of a few steps, which goes on where one was begun."""
    words = ["training.steps=4", "training.tokens=64", "training.save_every=1", "training.precision=fp32",
             "model.width=16", "model.layers=1", "model.heads=1", "model.context=32", "tokenizer.kind=char",
             "check.sentences=0", "training.warmup=1", "training.evaluate_every=4", "training.lr=0.01"]
    begun = (folder / "r" / "train" / "run.json").is_file() and checkpoint.find_last(folder / "r" / "train") is not None
    if not begun:
        shutil.rmtree(folder / "r", ignore_errors=True)
    return train(corpus_text(), overrides=words, out=folder / "r", device="cpu", quiet=True, resume=begun)


ACTS: dict[str, tuple[Act, str]] = {
    "save": (save, "m"), "encode": (pack, "s"), "train": (learn, "r"),
    "page": (lambda f: files.write_text_file(f / "x.html", "页" * 999), "x.html"),
    "convert": (lambda f: small_model().save(f / "m", family="llama"), "m"),
}


def content(place: Path) -> dict[str, bytes]:
    """What a file or a directory holds, without what is different in every run."""
    if place.is_file():
        return {"": place.read_bytes()}
    found = {p.relative_to(place).as_posix(): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}
    return {name: raw for name, raw in found.items() if "train/" not in name}


@cache
def rehearsal(name: str, old: bool) -> tuple[int, dict[str, bytes], dict[str, bytes]]:
    """How many operations an act takes, and what there is before and after it."""
    act, place = ACTS[name]
    with scratch() as folder:
        before = prepare(name, folder) if old else {}
        with fault(-1, lambda: None) as done:
            act(folder)
        return len(done), before, content(folder / place)


def prepare(name: str, folder: Path) -> dict[str, bytes]:  # something old in the act's place
    place, like = folder / ACTS[name][1], small_model()
    place.write_text("old") if name == "page" else hub.build(like.spec, seed=7, tokenizer=like.tokenizer).save(place)
    return content(place)


def faults() -> Iterator[Case]:
    corpus_text()
    for name in ACTS:
        for old in (False, True) if name in ("save", "page") else (False,):
            count = rehearsal(name, old)[0]
            for at in range(count):
                for what, number in ERRORS.items() if name != "train" else [*ERRORS.items()][at % 4 : at % 4 + 1]:
                    yield Case("faults", f"{name}{' over' * old} {what} at {at}", fails(name, old, at, number))
                yield Case("kills", f"{name}{' over' * old} killed at {at}", dies(name, old, at))


def reads() -> Iterator[Case]:
    """A disk that cannot be read, at each read of loading a model and of training: told with the file's name."""
    for name, act in {"load": read_model, "train": learn}.items():
        def tell(folder: Path, act: Act, at: int) -> None:
            save(folder)
            try:
                with fault(at, lambda: raise_error(errno.EIO, str(folder / "m")), READS):
                    act(folder)
            except OSError as e:
                raise QkvError("{path}", path=e.filename) from e  # as the command line tells it

        with scratch() as folder, fault(-1, lambda: None, READS) as done:
            save(folder)
            act(folder)
        for at in range(len(done)):
            yield Case("reads", f"{name} at {at}", answers(partial(tell, act=act, at=at), "m"))


def raise_error(number: int, *path: str) -> None:
    raise OSError(number, os.strerror(number), *path)


def fails(name: str, old: bool, at: int, number: int) -> Callable[[Path], None]:
    """A judge: an error at an operation is told, what was there is there, and the next try gives what it should."""

    def judge(folder: Path) -> None:
        act, place = ACTS[name]
        before = prepare(name, folder) if old else {}

        try:
            with fault(at, lambda: raise_error(number)):
                act(folder)
        except QkvError as e:
            assert name == "train" or place in str(e), str(e)
            now = content(folder / place) if (folder / place).exists() else {}
            assert name == "train" or now == before, "changed by what failed"
        come_out(name, folder, old)

    return judge


def dies(name: str, old: bool, at: int) -> Callable[[Path], None]:
    """A judge: a process killed before an operation leaves the old or the new, and the next try what it should."""

    def judge(folder: Path) -> None:
        act, place = ACTS[name]
        before = prepare(name, folder) if old else {}
        child = os.fork()
        if child == 0:
            with fault(at, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                act(folder)
            os._exit(0)
        os.waitpid(child, 0)
        now = content(folder / place) if (folder / place).exists() else {}
        after = rehearsal(name, old)[2]
        whole = all(raw in (before.get(key), after.get(key)) for key, raw in now.items())
        assert name == "train" or (whole and before.keys() <= now.keys()), "half a file, or an old one is gone"
        if (folder / place / "config.json").is_file():  # which comes last
            hub.load(folder / place)
        come_out(name, folder, old)

    return judge


def come_out(name: str, folder: Path, old: bool) -> None:
    """What was cut off, done again: the bits of a run that nothing befell, and no stray."""
    act, place = ACTS[name]
    with contextlib.suppress(QkvError) if name == "encode" and (folder / place).exists() else contextlib.nullcontext():
        act(folder)  # a shard that is there is not written again
    assert content(folder / place) == rehearsal(name, old)[2], "other bits than an unbroken run"
    strays = [p.name for p in folder.rglob("*") if p.name.startswith(".") and p.name != ".gitignore"]
    assert not strays, f"strays: {strays}"


@cache
def all_cases() -> tuple[Case, ...]:
    """The whole corpus, in its order."""
    groups = (settings, words, configs, spoilt_files, directories, data, prompts, reads, faults)
    return tuple(case for group in groups for case in group())


def sample(count: int) -> list[Case]:
    """A part of the corpus that is the same each time: as much of each group, and of slow cases, those of runs, few."""
    groups: dict[tuple[str, bool], list[Case]] = {}
    for case in all_cases():
        groups.setdefault((case.group, case.name.startswith("train")), []).append(case)
    draw, chosen = random.Random(31), list[Case]()
    fewest = sorted(groups.items(), key=lambda item: (not item[0][1], len(item[1])))  # slow ones, then small groups
    for left, ((_, slow), some) in zip(range(len(fewest), 0, -1), fewest, strict=True):
        chosen += draw.sample(some, min(len(some), 4 if slow else (count - len(chosen)) // left))
    return chosen
