"""`qkv generate MODEL [PROMPT|-]`: continue a text; on a terminal the words appear as they come."""

import secrets
import sys
from collections.abc import Iterator
from typing import Any

import click

from qkv.cli.batches import batches
from qkv.cli.common import Common, FiniteRange, answer_lines, drop_unset, is_single, option, read_lines, verb
from qkv.cli.decoding import diverse_beams, grammars, guesses, penalties, read_decoding
from qkv.cli.models import note_other_script
from qkv.errors import QkvError


@verb("Continue a text: greedily, unless a sampling option such as -t is given. With -, read one prompt per line and "
      "write one line for each (line breaks are written as \\n).", examples=(
        'qkv generate demo-lm "One, two,"',
        'qkv generate gpt2 "Once upon a time" -n 100 -t 0.8 --top-p 0.95 --seed 1',
        'qkv generate demo-lm "My name is" --json-schema schema.json --json',
    ))
@click.argument("model")
@click.argument("prompt", required=False, metavar="[PROMPT|-]")
@option("-n", "--max-new-tokens", type=click.IntRange(1), help="maximum number of new tokens")
@option("-t", "--temperature", type=FiniteRange(0), help="sampling temperature (0: greedy)")
@option("--top-p", type=FiniteRange(0, 1, min_open=True), help="sample from the smallest set of tokens with this "
        "total probability")
@option("--top-k", type=click.IntRange(1), help="sample from the k most likely tokens")
@option("--min-p", type=FiniteRange(0, 1), help="minimum probability, relative to the most likely token")
@option("--sampling", type=click.Choice(["greedy", "model"]), help="model: the settings that come with the model")
@option("--seed", type=int, help="random seed (default: a fresh one, which is printed)")
@option("--beam", type=click.IntRange(1), help="beam width")
@option("--stop", multiple=True, help="stop at this text (may be repeated)")
@option("--samples", "n", type=click.IntRange(1), help="number of texts: drawn, or the best of the beams")
@penalties
@diverse_beams
@grammars
@guesses
@batches
def command(common: Common, model: str, prompt: str | None, stop: tuple[str, ...], **how: Any) -> None:
    how = read_decoding(drop_unset(**how, stop=list(stop) or None))
    lines, loaded = read_lines(prompt), common.load_model(model)
    single = is_single(prompt)
    if single and not str(prompt).strip() and not loaded.ids(str(prompt)):
        raise QkvError("PROMPT is empty, and this model has no token that begins a text: give it a word to go on from, "
                       "or a line break")
    if single:
        note_other_script(common, model, str(prompt))
    how |= {"draft": common.load_model(how["draft"])} if "draft" in how else {}
    drawn = draw_seed(common, loaded, how)
    note_ignored_keys(common, loaded, how)
    beams = how.get("beam", loaded.generation_config.get("num_beams", 1) if how.get("sampling") == "model" else 1)
    if single and sys.stdout.isatty() and not common.json and max(beams, how.get("n", 1)) == 1:
        how.pop("beam", None)
        for piece in loaded.stream(prompt, **how):
            click.echo(piece, nl=False)
            sys.stdout.flush()
        return click.echo()

    def list_continuations(lines: Iterator[str]) -> Iterator[tuple[Any, Any]]:
        failed: list[QkvError] = []
        for line, result in answer_lines(lines, lambda texts: loaded.generate(texts, **how)):
            text = "" if result is None else result.text
            failed += [result.error] if result is not None and result.error else []
            more = {key: getattr(result, key, None) for key in ("tokens", "logprobs", "finish_reason", "timing")}
            others = [other.text for other in getattr(result, "others", ())]
            more |= {"others": others} if others else {}
            shown = [t if single and not others else t.replace("\\", "\\\\").replace("\n", "\\n")
                     for t in (text, *others)]
            yield {"prompt": line, "text": text, **more, **drawn}, shown
        if failed:
            raise failed[0]

    return common.answer(lines, list_continuations)


def note_ignored_keys(common: Common, model: Any, how: dict[str, Any]) -> None:
    """Tell once which keys of the model's own settings change nothing here; the library's warning says no more."""
    import warnings

    from qkv.tasks import generate

    if how.get("sampling") == "model":
        warnings.simplefilter("ignore", generate.IgnoredKeys)
        if keys := generate.find_ignored_keys(model, how):
            common.note("generation_config.json: ignored: {keys}", keys=", ".join(keys))


def draw_seed(common: Common, model: Any, how: dict[str, Any]) -> dict[str, int]:
    """A fresh seed where tokens are drawn and none was given: put into `how`, told, and returned for JSON."""
    sampling = bool(how.get("temperature")) or (
        how.get("sampling") == "model" and "temperature" not in how and model.generation_config.get("do_sample"))
    if not sampling or how.get("beam", 1) > 1:
        return {}
    if "seed" not in how:
        how["seed"] = secrets.randbelow(1 << 31)
        common.note("drawn with --seed {seed}", seed=how["seed"])
    return {"seed": how["seed"]}
