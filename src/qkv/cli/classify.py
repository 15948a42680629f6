"""`qkv classify MODEL [TEXT …|-]`: the label of each text."""

from typing import Any

import click

from qkv.cli.common import Common, answer_lines, ensemble, is_single, option, read_lines, verb

MOST_LABELS = 20  # that are listed beside the answer to one text


@verb("Print the label of each TEXT with its probability; with -, of each line that is read. A model that learnt pairs "
      "reads two TEXTs as one; a tab between them says the same. A model that scores answers reads a question and its "
      "answers; the label is the index of the best answer, starting at 0.", examples=(
        'qkv classify demo-bert "你喜欢苹果吗？"',
        "qkv classify demo-bert - < sentences.txt | cut -f1 | sort | uniq -c",
        "qkv classify ./my-model - --json < pairs.tsv",
    ))
@click.argument("model")
@click.argument("text", nargs=-1, metavar="[TEXT …|-]")
@option("--both", is_flag=True, help="read each pair in both orders and add the results")
@ensemble
def command(common: Common, model: str, text: tuple[str, ...], both: bool, ensemble: tuple[str, ...]) -> None:
    first = text[0] if text else None
    lines, loaded, others = read_lines(first, "classify"), common.load_model(model), common.load_models(ensemble)
    from qkv.tasks.classify import join_judged, split_line

    lines = iter(join_judged(loaded, text)) if len(text) > 1 else lines
    if is_single(first) and 1 < len(loaded.labels) <= MOST_LABELS:
        common.note("its labels: {labels}", labels=", ".join(loaded.labels))

    def classify_lines(texts: list[str]) -> Any:
        return loaded.classify([split_line(loaded, line, both=both) for line in texts], both=both, **others)

    for line, found in answer_lines(lines, classify_lines):
        row = {"label": found and found.label, "probability": found and round(found.probability, 6),
               "probabilities": found and found.probabilities}
        common.print_result({"text": line} | row, [f"{found.label}\t{found.probability:.4f}\t{line}" if found else ""])
