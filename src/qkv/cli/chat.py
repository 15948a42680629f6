"""`qkv chat MODEL`: a conversation, by the model's own chat template."""

import sys
from typing import Any

import click

from qkv.cli.common import Common, FiniteRange, drop_unset, option, read_lines, verb
from qkv.cli.decoding import grammars, guesses, penalties, read_decoding
from qkv.cli.generate import draw_seed, note_ignored_keys


@verb("Chat with a model through its own chat template: each line is one turn, blank lines are ignored, /new starts "
      "over, Ctrl-D ends. Control tokens in your input are plain text.", examples=(
        "qkv chat Qwen/Qwen2.5-0.5B-Instruct",
        'qkv chat ./my-model --system "Answer in one sentence." -t 0.7 --seed 1',
        "qkv chat ./my-model --json < questions.txt",
    ))
@click.argument("model")
@option("--system", help="system prompt")
@option("-n", "--max-new-tokens", type=click.IntRange(1), default=512, help="maximum number of tokens per answer")
@option("-t", "--temperature", type=FiniteRange(0), help="sampling temperature (0: greedy)")
@option("--top-p", type=FiniteRange(0, 1, min_open=True), help="sample from the smallest set of tokens with this "
        "total probability")
@option("--seed", type=int, help="random seed (default: a fresh one, which is printed)")
@option("--sampling", type=click.Choice(["greedy", "model"]), help="model: the settings that come with the model")
@penalties
@grammars
@guesses
def command(common: Common, model: str, system: str | None, **how: Any) -> None:
    how = read_decoding(drop_unset(**how))
    loaded = common.load_model(model)
    how |= {"draft": common.load_model(how["draft"])} if "draft" in how else {}
    draw_seed(common, loaded, how)
    note_ignored_keys(common, loaded, how)
    first = [{"role": "system", "content": system}] if system else []
    loaded.conversation([*first, {"role": "user", "content": "?"}])  # says at once where there is no template
    engine = loaded.engine(page_size=1)  # which keeps what it read: each turn reads what is new
    said = list(first)
    lines, shown = read_lines("-"), sys.stdin.isatty() and not common.json
    while True:
        if shown:  # a mark to type behind
            click.echo("> ", nl=False, err=True)
        line = next(lines, None)
        if line is None:
            return
        line = line.strip()
        if not line:
            continue
        if line == "/new":
            said = list(first)
            continue
        said.append({"role": "user", "content": line})
        pieces: list[str] = []
        for piece in loaded.stream(loaded.conversation(said), engine=engine, **how):
            pieces.append(piece)
            if not common.json:
                click.echo(piece, nl=False)
                sys.stdout.flush()
        answer = "".join(pieces)
        said.append({"role": "assistant", "content": answer})
        common.print_result({"user": line, "assistant": answer}, [""])
