"""Runs over your own data: as a TOML file describes them, or as the files alone say. Next: assemble.py."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from qkv.data import sources
from qkv.data.bad_rows import BadRowPolicy
from qkv.data.json_rows import parse_object
from qkv.errors import QkvError
from qkv.hub import spec_of
from qkv.messages import Message
from qkv.options import replace_from_dict
from qkv.training.built_in import list_words
from qkv.training.data_files import Data, read_shared
from qkv.training.run import KINDS, PARTS, PLAIN, Run, check_keys, parse_overrides, suggest_key
from qkv.training.settings import Settings, refuse_old_key
from qkv.training.shape import Shape

ABOUT = ("about",)  # what a recipe says of itself
SUFFIXES = {".txt": "text", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}  # files that say what they are
KEYS = (("source", "target"), ("prompt", "completion"), ("text", "label"))  # of JSON lines that hold pairs

OWN_PAIRS = Settings(
    epochs=20,
    lr=1e-3,
    schedule="inverse",
    warmup=1000,
    label_smoothing=0.1,
    clip=1.0,
    metric="bleu",
    average=3,
    patience=5,
)
OWN_TEXT = Settings(
    epochs=10, optimizer="adamw", lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, schedule="cosine", warmup=100,
    floor=0.1, clip=1.0, patience=3,
)
OWN_CHAT = Settings(
    epochs=3, optimizer="adamw", lr=3e-4, betas=(0.9, 0.95), schedule="linear", warmup=20, clip=1.0, patience=2
)
OWN_LABELS = Settings(
    epochs=10, tokens=2048, optimizer="adamw", lr=3e-4, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01,
    schedule="linear", warmup=20, clip=1.0, metric="label_accuracy", patience=3,
)
# the family that is trained if only the objective is given
FAMILIES: dict[str, Any] = {
    "labels": "bert", "similarity": "bert", "choice": "bert", "masked": "bert", "prefixes": "prefix", "spans": "t5",
    "denoise": "bart", "blanks": "glm_blank",
}
OWN = {"labels": OWN_LABELS, "similarity": OWN_LABELS, "choice": OWN_LABELS, "chat": OWN_CHAT}


def from_toml(path: Path, words: Iterable[str] = (), *, recipe: bool = False) -> Run:
    """The run that a TOML file describes: [data], and what differs from the defaults in [model], [training], ….

    `words` such as data.valid=50 change any of it. Paths are relative to the file; those of a `recipe`, one of this
    package, to the working directory or QKV_DATA.

    Raises:
        QkvError: not TOML (with the line), an unknown table or key (with the nearest), or a wrong value.
    """
    try:
        values = tomllib.loads(sources.read_document(path))
    except tomllib.TOMLDecodeError as e:
        raise QkvError("{path}: not TOML: {e}", path=path, e=e) from None
    for key in ABOUT:
        values.pop(key, None)
    for key in values:
        if key not in (*KINDS, *PLAIN):
            what = Message("table [{key}]", key=key) if isinstance(values[key], dict) else Message(
                "key {key!r}", key=key)
            hint, known = suggest_key(key), ", ".join((*KINDS, *PLAIN))
            raise QkvError("{path}: unknown {what}{hint} (known: {known})", path=path, what=what, hint=hint,
                           known=known)
    check_keys(values, f"{path}: ")
    return make_run(values, words, path, Path() if recipe else path.parent, recipe=recipe)


def from_files(paths: Sequence[Path], words: Iterable[str] = ()) -> Run:
    """The run over data alone: two parallel files, some of TSV or JSON lines, folders of shards, or one text.

    Raises:
        QkvError: more files of another kind, or of several, or one whose name or first row does not say what it holds.
    """
    names, words = [str(path) for path in paths], tuple(words)
    kinds = {"shards" if path.is_dir() else SUFFIXES.get(path.suffix.lower(), "") for path in paths}
    kind = next(iter(kinds)) if len(kinds) == 1 else ""
    if len(kinds) > 1 and kinds & {"tsv", "jsonl", "shards"}:
        raise QkvError("{names}: found files of different kinds, expected two parallel ones, one text, or some of TSV "
                       "or JSON lines; use one format for all rows, *.tsv or *.jsonl, and pack texts that go with "
                       "shards (qkv data pack)", names=", ".join(names))
    if kind == "jsonl":
        values = describe_json_lines(paths, parse_overrides(words, KINDS).get("data", {}))
    elif kind in ("tsv", "shards") or (kind and len(paths) == 1):
        values = {"data": {kind: names}}
    elif len(paths) == 2:
        values = {"data": {"source": names[0], "target": names[1]}}
    else:
        raise QkvError("{names}: found {paths} files, expected two parallel ones, one text, or some of TSV or JSON "
                       "lines; name others in a TOML file", names=", ".join(names), paths=len(paths))
    return make_run(values, words, paths[0], Path())


def describe_json_lines(paths: Sequence[Path], data: Mapping[str, Any]) -> dict[str, Any]:
    """What files of JSON lines hold, by the keys of the first row: conversations, pairs, labelled texts, texts.

    Keys that `data`, which was typed, names are those of pairs. Where it lets bad rows pass, the first good one counts.
    """
    path, lenient = paths[0], data.get("on_bad_row", "error") != "error"
    found = sources.read_rows(path, parse_object, policy=BadRowPolicy("skip" if lenient else "error"))
    number, first = next(found)
    for row in chain([first], (row for _, row in found) if lenient else ()):
        if values := describe_row(row, [str(path) for path in paths], data.get("keys")):
            return values
    raise QkvError("{path}:{number}: found the keys {first}; name those to learn from: data.keys='[\"A\", "
                   "\"B\"]'", path=path, number=number,
                   first=", ".join(first) or Message("none"))


def describe_row(row: Mapping[str, object], names: list[str], said: object) -> dict[str, Any]:
    """What files with such a row hold: by the keys in `said`, or by those that it has; None if unknown."""
    if "messages" in row and not said:
        return {"data": {"messages": names}}
    keys = said if isinstance(said, list) else next((keys for keys in KEYS if row.keys() >= {*keys}), None)
    if keys is None:
        return {"data": {"text": names}} if "text" in row else {}
    values: dict[str, Any] = {"data": {"jsonl": names, "keys": list(keys)}}
    return values | ({"objective": "labels", "model": {"family": "bert"}} if "label" in keys else {})


def make_run(values: Mapping[str, Any], words: Iterable[str], path: Path, folder: Path, *, recipe: bool = False) -> Run:
    """The run of nested `values`, those of a file, then of typed `words`; errors of the former name the file."""
    typed = parse_overrides(words, PARTS if recipe else KINDS)
    with name_file_in_errors(path):
        data = replace_from_dict(Data(), values.get("data", {}), "data", refuse_old_key)
    data = replace_from_dict(data, typed.pop("data", {}), "data", refuse_old_key)
    said = {**{key: values[key] for key in PLAIN if key in values}, **typed}
    objective = str(said.get("objective", ""))
    shape = Shape(family=FAMILIES.get(objective, "gpt2" if data.is_text or data.messages else Shape.family))
    usual = OWN_CHAT if data.messages else OWN_TEXT if data.is_text else OWN_PAIRS
    usual = OWN.get(objective, usual)
    if usual is OWN_PAIRS and hides_words([typed, values], shape.family, folder):
        usual = replace(usual, metric="loss")  # words are guessed, nothing is translated
    read = partial(read_shared, data) if recipe else partial(data.splits, folder)
    known = list_words if data.corpus else None
    run = Run(path.stem, read, shape, training=usual, words=known, data=data)
    rest = {key: value for key, value in values.items() if key != "data"}
    with name_file_in_errors(path):
        run = replace_from_dict(run, drop_default_epochs(resolve_paths(rest, folder)), on_unknown=refuse_old_key)
    own = values.get("training")
    chosen = isinstance(own, dict) and "epochs" in own  # the file's own epochs stay beside the steps that were typed
    typed = resolve_paths(typed, folder)
    return replace_from_dict(run, typed if chosen else drop_default_epochs(typed), on_unknown=refuse_old_key)


def hides_words(said: Sequence[Mapping[str, Any]], family: str, folder: Path) -> bool:
    """Whether these settings, the stronger first, make pairs into texts whose words are masked and predicted."""
    base = next((str(part["base"]) for part in said if part.get("base")), "")
    models = [part["model"] for part in said if isinstance(part.get("model"), dict)]
    family = next((model["family"] for model in models if "family" in model), family)
    objective = next((part["objective"] for part in said if "objective" in part), "")
    if base and not objective:
        try:
            return spec_of(folder / base if (folder / base).is_dir() else base).architecture == "encoder"
        except QkvError:  # reported when it is loaded
            return False
    return objective == "masked" or (not objective and family == "bert")


def resolve_paths(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values with those that name something in `folder` made to point there."""
    base, cut = values.get("base"), values.get("tokenizer")
    if isinstance(base, str) and base and (folder / base).is_dir():
        values = {**values, "base": str(folder / base)}
    if isinstance(cut, dict):
        here = {key: str(folder / str(cut[key])) for key in ("merges", "of") if cut.get(key)}
        values = {**values, "tokenizer": {**cut, **{key: path for key, path in here.items() if Path(path).exists()}}}
    return values


def drop_default_epochs(values: dict[str, Any]) -> dict[str, Any]:
    """The values without the usual epochs where they have an end of their own."""
    training = values.get("training")
    if isinstance(training, dict) and {"steps", "seconds"} & training.keys():
        return {**values, "training": {"epochs": 0, **training}}
    return values


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Puts the file before what is wrong in it."""
    try:
        yield
    except QkvError as e:
        raise QkvError("{path}: {e}", path=path, e=e) from None
