"""`qkv translate MODEL [TEXT|-]`: one line in, one line out; a blank line stays blank."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from qkv.cli.batches import batches
from qkv.cli.common import BATCH, Common, answer_lines, drop_unset, ensemble, option, read_lines, verb
from qkv.cli.decoding import diverse_beams, penalties, read_decoding
from qkv.cli.models import note_other_script
from qkv.files import to_json_value
from qkv.messages import Message

KEYS = ("text", "score", "tokens", "alignment", "unknown")  # of a translation, as JSON
CONSTRAINTS = Message("What a translation holds")
ROWS = 1024  # hypotheses of the lines that are read together: enough lines to sort by length, and memory for them


@verb("Translate a text, or standard input line by line with -: one line in, one line out; blank lines stay blank.",
      examples=(
        "qkv translate demo 我爱学习。",
        "qkv translate demo --nbest 3 --scores --align 书和茶都在桌上，我看完了它。",
        "qkv translate facebook/nllb-200-distilled-600M --from zho_Hans --to eng_Latn - < source.zh",
    ))
@click.argument("model")
@click.argument("text", required=False, metavar="[TEXT|-]")
@option("--from", "source", metavar="LANGUAGE", help="language of the text, for models between many (zho_Hans, zh, "
        "zh_CN: as the model's tokenizer calls it)")
@option("--to", "target", metavar="LANGUAGE", help="language to translate into, for models between many")
@option("--beam", type=click.IntRange(1), default=4, help="beam width (1: greedy)")
@option("--length-penalty", type=float, default=0.6, help="length penalty (alpha in the paper)")
@option("--nbest", type=click.IntRange(1), default=1, help="print the N best translations of each line")
@option("--max-new-tokens", type=click.IntRange(1), help="maximum number of tokens per translation")
@option("--scores", is_flag=True, help="print the score before each line")
@option("--align", is_flag=True, help="print the source token that each target token attends to most")
@option("--target-prefix", metavar="TEXT", group=CONSTRAINTS, help="begin each translation with this text")
@option("--must-include", metavar="TEXT", multiple=True, group=CONSTRAINTS,
        help="each translation holds this text (may be repeated)")
@option("--must-avoid", metavar="TEXT", multiple=True, group=CONSTRAINTS,
        help="no translation holds this text (may be repeated)")
@penalties
@diverse_beams
@ensemble
@batches
def command(
    common: Common, model: str, text: str | None, scores: bool, align: bool, ensemble: tuple[str, ...], **how: Any
) -> None:
    if how["nbest"] > how["beam"]:
        raise click.UsageError(Message("--nbest {nbest} needs --beam {nbest} or more; --beam is {beam}",
                                       nbest=how["nbest"], beam=how["beam"]))
    lines, loaded, others = read_lines(text, "translate"), common.load_model(model), common.load_models(ensemble)
    how = read_decoding(drop_unset(**how, **({"align": True} if align else {}))) | others
    most = max(BATCH, ROWS // how["beam"])

    def list_best(lines: Iterator[str]) -> Iterator[tuple[Any, Any]]:
        noted = False
        for line, result in answer_lines(lines, lambda texts: loaded.translate(texts, **how), most=most):
            best = [] if result is None else [result, *result.others]
            told = [{key: getattr(r, key, None) for key in KEYS} for r in best] or [{"text": ""}]
            noted = noted or note_other_script(common, model, line)
            missing = getattr(result, "unknown", ())
            if missing:
                common.note("not in the vocabulary: {words}{plural}", words=", ".join(missing),
                            plural=Message("; in [ ]") if any(f"[{w}]" in str(told[0]["text"]) for w in missing)
                            else "")
            rows = list_translations(best, scores, align) if best else [""]
            yield {"source": line, **told[0], **({"nbest": told} if len(told) > 1 else {})}, rows

    common.answer(lines, list_best)


def list_translations(best: Sequence[Any], scores: bool, align: bool) -> Iterator[str]:
    """The best translations of a line, each with the source position that each target token looked at most."""
    for r in best:
        yield f"{r.score:.4f}\t{r.text}" if scores else r.text
        if align and r.alignment is not None:
            yield "\t" + " ".join(f"{t}-{max(range(len(row)), key=row.__getitem__)}"
                                  for t, row in enumerate(to_json_value(r.alignment)))
