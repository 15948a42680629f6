"""Runs over your own data: as a TOML file describes them, or as the files alone say. Next: assemble.py."""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from qkv.data import sources
from qkv.data.bad_rows import dry_run
from qkv.data.kind import find_kind
from qkv.data.text_files import COMPRESSED
from qkv.errors import QkvError, nearest
from qkv.families import Config
from qkv.hub import spec_of
from qkv.json_files import TOO_DEEP, read_json
from qkv.messages import Message
from qkv.options import flatten, nest, replace_from_dict
from qkv.spec import Spec
from qkv.training.data_files import KINDS, Data, read_shared
from qkv.training.facts import measure_data
from qkv.training.planner import Choice, plan
from qkv.training.run import OWN_PARTS, PARTS, PLAIN, Run, parse_overrides, refuse_key, suggest_key
from qkv.training.run_dir import SETTINGS
from qkv.training.settings import Settings
from qkv.training.shape import LEARNT_BY, TRAINED_FOR, Shape
from qkv.training.splits import Splits

MOST_PARTS = 32
DEEP_KEY = re.compile(rf"^[ \t]*\[{{0,2}}(?:[\w\"'-]+[ \t]*\.[ \t]*){{{MOST_PARTS}}}", re.MULTILINE)


def from_toml(path: Path, words: Iterable[str] = (), *, recipe: bool = False) -> Run:
    """The run that a TOML file describes: [data], and what differs from the defaults in [model], [training], ….

    `words` such as data.valid=50 change any of it. Paths are relative to the file; those of a `recipe`, one of this
    package, to the working directory or QKV_DATA.

    Raises:
        QkvError: not TOML (with the line), an unknown table or key (with the nearest), or a wrong value.
    """
    text = sources.read_document(path)
    if deep := DEEP_KEY.search(text):  # which tomllib would read for minutes
        raise QkvError("{path}, line {line}: a key of more than {most} parts, expected two such as training.lr",
                       code="not-toml", path=path, line=text.count("\n", 0, deep.start()) + 1, most=MOST_PARTS)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise QkvError("{path}: not TOML: {e}", code="not-toml", path=path, e=e) from None
    except (ValueError, RecursionError):  # digits and brackets without end
        raise QkvError("{path}: not TOML: {e}", code="not-toml", path=path, e=TOO_DEEP) from None
    values.pop("about", None)  # what a recipe says of itself
    known = (*OWN_PARTS, *PLAIN)
    for key in (key for key in values if key not in known):
        table = Message("table [{key}]", key=key)
        what = table if isinstance(values[key], dict) else Message("key {key!r}", key=key)
        raise QkvError("{path}: unknown {what}{hint} (known: {known})", path=path, what=what, hint=suggest_key(key),
                       known=", ".join(known))
    return make_run(values, words, path, Path() if recipe else path.parent, recipe=recipe)


def from_files(paths: Sequence[Path], words: Iterable[str] = ()) -> Run:
    """The run over data alone, files, folders and globs, with `words` such as training.lr=0.002 put in.

    Raises:
        QkvError: as of kind.find_kind, and of parse_overrides.
    """
    words = tuple(words)
    typed = parse_overrides(words, OWN_PARTS)
    if {*KINDS, "target"} & typed.get("data", {}).keys():  # what is read was said
        return make_run({}, words, paths[0], Path())
    family = typed.get("model", {}).get("family", "")
    objective = typed.get("objective") or ("pairs" if LEARNT_BY.get(family) == "pairs" else "")
    found = find_kind([str(path) for path in paths], typed.get("data", {}), objective)
    labels = found.name == "labels" and objective in ("", "labels")
    labelled = {"objective": "labels", "model": {"family": "bert"}} if labels else {}
    first = paths[0] if paths[0].exists() else Path(next(iter(found.data.values()))[0])  # of a glob the first file
    values = {"data": found.data, **labelled}
    run = make_run(values, words, first.with_suffix("") if first.suffix.lower() in COMPRESSED else first, Path())
    return replace(run, about=(found.describe_kind(run.objective or guess_objective(run)), *found.notes))


def from_run(directory: Path, words: Iterable[str] = (), *, recipe: bool = False) -> Run:
    """The run that a directory holds, with the settings that it wrote down and `words` put in; nothing is planned anew.

    Raises:
        QkvError: its run.json is broken, or has keys that there are not.
    """
    file = directory / SETTINGS
    try:
        kept = read_json(file)
        values, name = {key: kept[key] for key in (*OWN_PARTS, *PLAIN) if key in kept}, str(kept["name"])
    except (ValueError, TypeError, KeyError) as e:
        raise QkvError("{path}: cannot be read: {e}", path=file, e=e) from None
    why = Message("chosen when the run began")
    choices = tuple(Choice(key, value, why) for key, value in Config(kept, str(file)).part("chosen").values.items())
    return replace(make_run(values, words, file, Path(), recipe=recipe), name=name, choices=choices)


def make_run(values: Mapping[str, Any], words: Iterable[str], path: Path, folder: Path, *, recipe: bool = False) -> Run:
    """The run of nested `values`, those of a file, then of typed `words`; errors of the former name the file.

    They are put in twice: into the defaults, which shows what the run is of, then into what is usual for that.
    """
    typed = resolve_paths(parse_overrides(words, PARTS if recipe else OWN_PARTS), folder)
    values = resolve_paths(values, folder)
    given = flatten(values) | flatten(typed)
    if {"training.steps", "training.seconds"} & given.keys() and "training.epochs" not in given:
        typed["training"] = {"epochs": 0, **typed.get("training", {})}  # usual epochs are not an end beside these

    def put_in(run: Run) -> Run:
        try:
            run = replace_from_dict(run, values, on_unknown=refuse_key)
        except QkvError as e:
            raise QkvError("{path}: {e}", path=path, e=e) from None
        return replace_from_dict(run, typed, on_unknown=refuse_key)

    first = put_in(Run(path.stem, lambda: Splits("", ""), data=Data()))
    data = first.data
    assert data is not None
    family = TRAINED_FOR.get(first.objective, "gpt2" if data.is_text or data.messages else Shape.family)
    read: Callable[[], Splits] = partial(read_shared, data) if recipe else partial(data.splits, folder)
    read = read if data.on_bad_row == "quarantine" else cache(read)  # the reading below writes no quarantine
    usual = put_in(replace(first, splits=read, model=Shape(family=family)))
    if given.get("training.steps") == 0 and not (usual.training.seconds or given.get("training.epochs")):
        raise QkvError("training.steps: found 0, expected 1 or more; without it training.epochs or training.seconds "
                       "ends the run", code="no-steps")
    if recipe:
        return usual
    objective, spec = usual.objective or guess_objective(usual), find_spec(usual.base)
    given |= {"model.family": usual.model.family} | ({"model.width": spec.stack.width} if spec else {})
    with dry_run():
        splits = read()
        two_texts = usual.data is not None and usual.data.two_texts
        choices = plan(replace(measure_data(splits, objective), two_texts=two_texts), given)
    if splits.share:
        why = Message("{held:,} of {rows:,} rows, by hash: with this share a longer file holds them out too",
                      held=len(splits.valid), rows=len(splits.train) + len(splits.valid))
        choices += (Choice("data.valid", splits.share, why),)
    chosen = {choice.key: choice.value for choice in choices}
    chosen |= {"training.epochs": 0} if "training.steps" in chosen else {}
    return put_in(replace_from_dict(replace(usual, choices=choices), nest(chosen)))


def guess_objective(run: Run) -> str:
    """What a run learns that does not say it, as compatibility.py decides when it has read data and base."""
    spec = find_spec(run.base)
    if spec and spec.architecture == "causal decoder" and run.data and not run.data.is_text:
        return "chat"
    return "masked" if spec and spec.architecture == "encoder" else LEARNT_BY[run.model.family]


def find_spec(base: str) -> Spec | None:
    """The spec of the model that a run begins with; None without one, or where loading will report what is wrong."""
    try:
        return spec_of(base) if base else None
    except QkvError:
        return None


def resolve_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The values with those that name something in `folder` made to point there."""
    base, cut = values.get("base"), values.get("tokenizer")
    values = dict(values)
    if isinstance(base, str) and base and (folder / base).exists():
        values["base"] = str(folder / base)
    if isinstance(cut, dict):
        here = {key: str(folder / str(cut[key])) for key in ("merges", "of") if cut.get(key)}
        values["tokenizer"] = {**cut, **{key: path for key, path in here.items() if Path(path).exists()}}
    return values


def write_toml(run: Run, say: Callable[..., str] = str) -> str:
    """A run over your own data as a TOML file that gives the same run, with the reason of each choice beside it."""
    reasons = {choice.key: say(choice.why) for choice in run.choices}
    lines = [f"{key} = {format_value(getattr(run, key))}" for key in PLAIN if getattr(run, key)]
    for part in OWN_PARTS:
        options = getattr(run, part)
        usual = flatten(asdict(Settings(steps=1) if part == "training" else type(options)()), f"{part}.")
        values = {key: value for key, value in flatten(asdict(options), f"{part}.").items()
                  if key in reasons or value != usual[key]}
        rows = {key: f"{key.partition('.')[2]} = {format_value(value)}" for key, value in values.items()}
        width = max(map(len, rows.values()), default=0)
        told = [f"{row:<{width}}  # {reasons[key]}" if key in reasons else row for key, row in rows.items()]
        lines += ["", f"[{part}]", *told] if told else []
    return "\n".join(lines).strip()


def describe_settings(word: str = "") -> dict[str, tuple[Any, Message]]:
    """The default and the meaning of each setting with a word in its name, such as "training.warmup".

    Raises:
        QkvError: no setting has it (with the nearest name).
    """
    told = flatten(tomllib.loads((Path(__file__).parent / "settings.toml").read_text(encoding="utf-8")))
    usual = flatten({part: asdict(kind()) for part, kind in OWN_PARTS.items()}) | {"training.epochs": 0}
    found = {name: (value, Message(told[f"{name}.about"])) for name, value in usual.items() if word in name}
    if not found:
        raise QkvError("settings: none has {word!r} in its name{hint}", word=word,
                       hint=nearest(word, [*OWN_PARTS, *usual, *(name.rpartition(".")[2] for name in usual)]))
    return found


def format_value(value: Any) -> str:
    """A value as TOML writes it."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
