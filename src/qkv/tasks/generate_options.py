"""The options of `Model.generate`: what a generation_config.json says of them, and which contradict each other."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from qkv.errors import QkvError, show_value
from qkv.generation.beam import WIDEST, Search
from qkv.generation.grammar import Kind
from qkv.messages import Message
from qkv.options import as_plain, replace_from_dict
from qkv.sampling import Adjustments, Sampling
from qkv.tasks.types import RENORMALIZE

GRAMMARS: tuple[Kind, ...] = ("json_schema", "regex", "grammar")
# keys of a generation_config.json by what they are called here; others are in read_defaults
NAMES = {"num_beams": "beam", "repetition_penalty": "repetition_penalty", "no_repeat_ngram_size": "no_repeat_ngram",
         "min_new_tokens": "min_new_tokens", "max_new_tokens": "max_new_tokens", "length_penalty": "length_penalty",
         "num_beam_groups": "groups", "diversity_penalty": "diversity_penalty", "num_return_sequences": "n"}
# what always counts (special ids), or says nothing about the text
SILENT = {"eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id", "use_cache",
          "bad_words_ids", RENORMALIZE, "transformers_version", "do_sample", "sequence_bias", "_from_model_config"}
DRAWN = ("temperature", "top_k", "top_p", "min_p")
OF_DRAWING = (*DRAWN, "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")  # which says nothing where nothing is drawn
OF_BEAMS = ("early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty")
NEUTRAL = {"typical_p": 1.0, "encoder_repetition_penalty": 1.0, "early_stopping": True, "max_length": 20}


@dataclass(frozen=True)
class GenerateOptions(Sampling):
    """The options of `generate` by name: how each token is chosen, and the rest."""

    max_new_tokens: int | None = None
    beam: int = 1
    stop: tuple[str, ...] = ()
    chunk: int | None = None
    cache: bool = True
    top_logprobs: int = 0
    batch_invariant: bool = False
    sampling: Literal["greedy", "model"] = "greedy"
    n: int = 1
    length_penalty: float = 0.0
    groups: int = 1
    diversity_penalty: float = 0.0
    early_stopping: bool = False
    json_schema: str = ""
    regex: str = ""
    grammar: str = ""
    speculate: Literal["off", "lookup"] = "off"

    @staticmethod
    def parse(given: Mapping[str, Any], generation_config: Mapping[str, Any], start: int = 0) -> "GenerateOptions":
        """The options given; with sampling="model" those left out are as the model's generation_config.json says.

        An encoder-decoder begins what it writes with `start` ids, which lengths of that file count.

        Raises:
            QkvError: an unknown option, with the nearest one, a value that it cannot have, or options that contradict
                each other.
        """
        asks_model = isinstance(mode := given.get("sampling"), str) and mode == "model"
        usual = read_defaults(generation_config, given, start) if asks_model else {}
        if usual:
            try:
                replace_from_dict(make_default(), {name: as_plain(value) for name, value in usual.items()})
            except QkvError as e:
                raise QkvError("generation_config.json: {e}", code=e.code, e=e) from e
        stop = given.get("stop")
        stop = () if stop is None or (isinstance(stop, str) and not stop) else stop
        options: dict[str, Any] = {**usual, **given, "stop": stop, "json_schema": read_schema(given.get("json_schema"))}
        plain = {name: as_plain(value) for name, value in options.items()}
        found = replace_from_dict(make_default(), plain)
        for name in ("beam", "n"):
            if not 1 <= getattr(found, name) <= WIDEST:
                raise QkvError("{name}: found {value}, expected {wanted}", name=name, value=getattr(found, name),
                               wanted=Message("1 to {most:,}", most=WIDEST))
        check_consistent(found)
        return found

    @property
    def search(self) -> Search | None:
        """How beams look for the likeliest text; None where tokens are chosen one by one."""
        if self.beam == 1:
            return None
        own = {name: getattr(self, name) for name in ("length_penalty", "groups", "diversity_penalty")}
        changes = {name: getattr(self, name) for name in vars(Adjustments())}
        return Search(self.beam, self.n, stop="first" if self.early_stopping else "settled", **own, **changes)


@cache
def make_default() -> GenerateOptions:
    """The options where nothing is said."""
    return GenerateOptions()


def read_schema(given: Any) -> str:
    """A JSON schema as text, given as text, as an object or as true or false."""
    if given is None or isinstance(given, str):
        return given or ""
    try:
        if isinstance(given, Mapping | list | bool):  # of a list the grammar says what is wrong
            return json.dumps(given, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        pass
    raise QkvError("json_schema: found {given}, expected a JSON schema as an object or as text", code="argument",
                   given=show_value(given))


def check_consistent(options: GenerateOptions) -> None:
    """QkvError for options that contradict each other; both are named."""
    o, grammars = options, [name for name in GRAMMARS if getattr(options, name)]
    if o.max_new_tokens is not None and o.min_new_tokens > o.max_new_tokens:
        raise QkvError("min_new_tokens is {least} and max_new_tokens {most}: the least is more than the most",
                       code="contradiction", least=o.min_new_tokens, most=o.max_new_tokens)
    if len(grammars) > 1:
        raise QkvError("{first} and {second}: a text follows one grammar; give one of them", code="contradiction",
                       first=grammars[0], second=grammars[1])
    if o.beam == 1 and o.n > 1 and o.temperature == 0:
        raise QkvError("n is {n}, but greedy decoding has one text; give a temperature, or beam={n} or more",
                       code="contradiction", n=o.n)
    if o.beam > 1 and (o.temperature or o.stop or not o.cache or o.top_logprobs):
        raise QkvError("beam: beam search looks for the most probable text; remove temperature, stop, top_logprobs and "
                       "cache=False", code="contradiction")
    if o.beam == 1 and (o.groups > 1 or o.diversity_penalty or o.length_penalty or o.early_stopping):
        raise QkvError("groups, diversity_penalty, length_penalty and early_stopping are for beams; give beam=2 or "
                       "more", code="contradiction")
    if 1 < o.beam < o.n:
        raise QkvError("n is {n} and beam {beam}: beams find as many texts as there are; raise beam or lower n",
                       code="contradiction", n=o.n, beam=o.beam)
    _ = o.search  # checks its own


def read_defaults(config: Mapping[str, Any], given: Mapping[str, Any], start: int = 0) -> dict[str, Any]:
    """What a generation_config.json says, by our names and with the defaults of that format.

    What is `given` decides whether tokens are drawn or searched by beams. An encoder-decoder begins with `start` ids.
    """
    stated = {key: value for key, value in config.items() if value is not None}
    found = {name: stated[key] for key, name in NAMES.items() if key in stated}
    draws = bool(given.get("temperature", stated.get("do_sample") and given.get("beam", 1) == 1))
    if draws and stated.get("do_sample"):
        usual = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None}
        drawn = {key: stated.get(key, value) for key, value in usual.items()}
        found |= {key: None if key != "temperature" and not value else value for key, value in drawn.items()}
    if start:  # of an encoder-decoder; lengths of other models count the prompt
        found |= {f"{side}_new_tokens": max(0, most - start) for side in ("min", "max")
                  if type(most := stated.get(f"{side}_length")) is int and f"{side}_new_tokens" not in found}
    if bias := read_sequence_bias(stated.get("sequence_bias")):
        found["logit_bias"] = bias
    if stated.get("early_stopping") is True:  # "never" is another rule
        found["early_stopping"] = True
    if draws or given.get("beam", found.get("beam", 1)) == 1:
        of_beams = ("beam", "length_penalty", "groups", "diversity_penalty", "early_stopping")
        for name in (*of_beams, *(() if draws else ("n",))):
            found.pop(name, None)
    most = given.get("max_new_tokens", found.get("max_new_tokens"))
    if type(most) is int and type(found.get("min_new_tokens")) is int:
        found["min_new_tokens"] = min(found["min_new_tokens"], most)
    return found


def read_sequence_bias(stated: Any) -> tuple[tuple[int, float], ...]:
    """The biases of single tokens as a generation_config.json has them; none where one is of several."""
    rows = stated if isinstance(stated, list) else []
    plain = [(row[0][0], float(row[1])) for row in rows if isinstance(row, list) and len(row) == 2
             and isinstance(row[0], list) and len(row[0]) == 1 and type(row[0][0]) is int
             and isinstance(row[1], int | float)]
    return tuple(plain) if len(plain) == len(rows) else ()


def list_ignored_keys(config: Mapping[str, Any], given: Mapping[str, Any], start: int = 0) -> list[str]:
    """The keys of a generation_config.json that would change the text and that `read_defaults` does not know."""
    stated = {key: value for key, value in config.items() if value not in (None, False, 0)}
    found = read_defaults(config, given, start)
    known = {*NAMES, *SILENT, *DRAWN, *({"min_length", "max_length"} if start else ())}
    known |= set() if "temperature" in found or given.get("temperature") else {*OF_DRAWING}
    known |= set() if given.get("beam", found.get("beam", 1)) > 1 else {*OF_BEAMS}
    if stated.get("sequence_bias") and "logit_bias" not in found:
        known.remove("sequence_bias")
    if any(len(ids) > 1 for ids in stated.get("bad_words_ids", ())):  # checked when the model was loaded
        known.remove("bad_words_ids")
    if stated.get("num_beams", 1) != 1 and "beam" not in found and given.get("beam") is None:
        known.remove("num_beams")  # drawing with beams
    return sorted(key for key, value in stated.items() if key not in known and NEUTRAL.get(key) != value)
