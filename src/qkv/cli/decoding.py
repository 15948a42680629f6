"""The options of decoding that several verbs share: penalties, diverse beams, grammars, constraints."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import option
from qkv.errors import QkvError
from qkv.messages import Message

Decorator = Callable[[Any], Any]
PENALTIES, BEAMS = Message("Penalties and limits"), Message("Diverse beams")
GRAMMAR, GUESSES = Message("Grammar"), Message("Speculative decoding")


class Bias(click.ParamType):
    """TOKEN=NUMBER, where #17 is the token with this id."""

    name = "bias"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str | int, float]:
        """The token and its number."""
        token, _, number = str(value).rpartition("=")
        known = int(token[1:]) if token.startswith("#") and token[1:].isdecimal() else token
        try:
            return known, float(number)
        except ValueError:
            raise QkvError("--logit-bias {value!r}: expected TOKEN=NUMBER, such as {some}", code="logit-bias",
                           value=value, some='" tea=2.5" or "#17=-100"') from None


def combine(*options: Decorator) -> Decorator:
    """One decorator out of several, in the order of the help."""
    def decorate(function: Any) -> Any:
        for one in reversed(options):
            function = one(function)
        return function

    return decorate


penalties = combine(
    option("--repetition-penalty", type=float, group=PENALTIES, help="divide the scores of tokens that occur already "
           "by this (1: off)"),
    option("--presence-penalty", type=float, group=PENALTIES, help="subtract this from tokens that were written (0: "
           "off)"),
    option("--frequency-penalty", type=float, group=PENALTIES, help="subtract this for each time that a token was "
           "written (0: off)"),
    option("--no-repeat-ngram", type=click.IntRange(0), metavar="N", group=PENALTIES, help="never write the same N "
           "tokens in a row twice"),
    option("--min-new-tokens", type=click.IntRange(0), metavar="N", group=PENALTIES, help="minimum number of new "
           "tokens"),
    option("--logit-bias", type=Bias(), multiple=True, metavar="TOKEN=NUMBER", group=PENALTIES, help="add a number to "
           "the score of a token, named by its text or as #ID (may be repeated)"),
)
diverse_beams = combine(
    option("--groups", type=click.IntRange(1), metavar="N", group=BEAMS, help="search in N groups of beams that avoid "
           "each other's words"),
    option("--diversity-penalty", type=float, group=BEAMS, help="what a group pays for a token that another chose at "
           "the same place"),
)
grammars = combine(
    option("--json-schema", metavar="FILE|JSON", group=GRAMMAR, help="write JSON that follows this schema"),
    option("--regex", group=GRAMMAR, help="write text that this regular expression matches whole"),
    option("--grammar", metavar="FILE", group=GRAMMAR, help="write text that this Lark grammar generates"),
)
guesses = combine(
    option("--speculate", type=click.Choice(["off", "lookup"]), group=GUESSES, help="lookup: guess several tokens at "
           "once from what stood in the text before; the text stays the same"),
    option("--draft", metavar="MODEL", group=GUESSES, help="a smaller model of the same vocabulary guesses"),
)


def read_decoding(how: dict[str, Any]) -> dict[str, Any]:
    """The options as the library takes them: pairs as a mapping, files as what they hold.

    Raises:
        QkvError: a file that cannot be read.
    """
    from qkv.json_files import read_text

    pairs: Sequence[tuple[str | int, float]] = how.get("logit_bias") or ()
    schema, grammar = how.get("json_schema"), how.get("grammar")
    changed = {"logit_bias": dict(pairs) or None, "grammar": read_text(Path(grammar)) if grammar else None,
               "json_schema": read_text(Path(schema)) if schema and not schema.lstrip().startswith("{") else schema}
    return {key: value for key, value in {**how, **changed}.items() if value is not None}
