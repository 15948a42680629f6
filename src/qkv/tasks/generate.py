"""`Model.generate` and `Model.stream`: options, continuing prompts by sampling or with beams, and the Results."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from qkv import sampling
from qkv.errors import QkvError
from qkv.generation import batch
from qkv.generation.beam import Hypothesis, Search, beam
from qkv.generation.grammar import Kind, build_grammar
from qkv.generation.sequence import DecodeOptions
from qkv.generation.sequence import Sequence as Text
from qkv.generation.speculate import Draft, Lookup, Speculation
from qkv.messages import Message
from qkv.options import AT_LEAST_ONE, replace_from_dict
from qkv.sampling import Adjustments, Sampling
from qkv.tasks.special_tokens import blank_ids, with_blank
from qkv.tasks.types import RENORMALIZE, Model, Prompt, Result, as_ids, as_list, start_ids
from qkv.tasks.wishes import read_bias

TIMING = ("prefill", "decode", "tokens_per_second")
GRAMMARS: tuple[Kind, ...] = ("json_schema", "regex", "grammar")
# keys of a generation_config.json by what they are called here; others are in read_defaults
NAMES = {"num_beams": "beam", "repetition_penalty": "repetition_penalty", "no_repeat_ngram_size": "no_repeat_ngram",
         "min_new_tokens": "min_new_tokens", "max_new_tokens": "max_new_tokens", "length_penalty": "length_penalty",
         "num_beam_groups": "groups", "diversity_penalty": "diversity_penalty", "num_return_sequences": "n"}
# what is heeded always (special ids), or says nothing about the text
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
    sampling: Literal["greedy", "model"] = "greedy"
    n: int = 1
    length_penalty: float = 0.0
    groups: int = 1
    diversity_penalty: float = 0.0
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
        usual = read_defaults(generation_config, given, start) if given.get("sampling") == "model" else {}
        schema = given.get("json_schema")
        text = schema if isinstance(schema, str) else "" if schema is None else json.dumps(schema, ensure_ascii=False)
        options: dict[str, Any] = {**usual, **given, "stop": given.get("stop") or (), "json_schema": text}
        plain = {name: value.item() if hasattr(value, "item") else value for name, value in options.items()}
        found = replace_from_dict(GenerateOptions(), plain)
        for name in ("beam", "n"):
            if getattr(found, name) < 1:
                raise QkvError("{name}: found {value}, expected {wanted}", name=name, value=getattr(found, name),
                               wanted=AT_LEAST_ONE)
        check_consistent(found)
        return found

    @property
    def search(self) -> Search:
        """The search of its beams."""
        own = {name: getattr(self, name) for name in ("length_penalty", "groups", "diversity_penalty")}
        changes = {name: getattr(self, name) for name in vars(Adjustments())}
        return Search(self.beam, self.n, **own, **changes)


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
    if o.beam > 1 and (o.temperature or o.stop or not o.cache):
        raise QkvError("beam: beam search looks for the most probable text; remove temperature, stop and cache=False",
                       code="contradiction")
    if o.beam == 1 and (o.groups > 1 or o.diversity_penalty or o.length_penalty):
        raise QkvError("groups, diversity_penalty and length_penalty are for beams; give beam=2 or more",
                       code="contradiction")
    if 1 < o.beam < o.n:
        raise QkvError("n is {n} and beam {beam}: beams find as many texts as there are; raise beam or lower n",
                       code="contradiction", n=o.n, beam=o.beam)
    if o.beam > 1:
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
    if draws or given.get("beam", found.get("beam", 1)) == 1:
        for name in ("beam", "length_penalty", "groups", "diversity_penalty", *(() if draws else ("n",))):
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


def list_unheeded(config: Mapping[str, Any], given: Mapping[str, Any], start: int = 0) -> list[str]:
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


def generate(model: Model, prompt: Any, **given: Any) -> Any:
    """Continue a prompt, or a list of prompts: one Result, or a list of them; see `Model.generate`."""
    many, prompts = as_list(prompt)
    draft = given.pop("draft", None)
    options = parse_options(model, given)
    check_draft(model, draft, options)
    decode, ids = decode_options(model, options), [model.ids(p) for p in prompts]
    if decode.blanks:
        ids = [with_blank(prompt, decode.blanks) for prompt in ids]
    if options.beam > 1:
        results = continue_with_beams(model, ids, options, decode)
    else:
        ids = [p for p in ids for _ in range(options.n)]
        if draft is not None or options.speculate != "off":
            each = [write_with_guesses(w) for w in speculate(model, ids, options, decode, draft)]
        else:
            each = [make_result(row) for row in batch.generate(model.core, ids, sampling=options, options=decode)]
        results = [replace(each[at], others=tuple(each[at + 1 : at + options.n]))
                   for at in range(0, len(each), options.n)]
    return results if many else results[0]


def make_result(row: Text) -> Result:
    """What a row wrote, as a Result."""
    return Result(row.text, list(row.tokens), list(row.logprobs), row.finish_reason or "length",
                  {name: getattr(row.timing, name) for name in TIMING})


def speculate(
    model: Model, ids: list[list[int]], options: GenerateOptions, decode: DecodeOptions, draft: Model | None
) -> list[Speculation]:
    """The writing of each prompt with guesses, by a draft or from the text itself."""
    seeds = sampling.seeds(options.seed, ids) if options.temperature else [0] * len(ids)
    return [Speculation(model.core, Text(tuple(prompt), seed),
                        Lookup() if draft is None else Draft(draft.core, prompt, replace(decode, guides=())),
                        sampling=options, options=decode)
            for prompt, seed in zip(ids, seeds, strict=True)]


def write_with_guesses(writing: Speculation) -> Result:
    """What was written with guesses; its timing counts them."""
    for _ in writing:
        pass
    result, gain = make_result(writing.sequence), writing.gain
    return replace(result, timing={**result.timing, **{k: getattr(gain, k) for k in ("passes", "guessed", "accepted")}})


def check_draft(model: Model, draft: Any, options: GenerateOptions) -> None:
    """QkvError for a draft that cannot guess for a model, or guesses beside what has no use for them."""
    if draft is None and options.speculate == "off":
        return
    if draft is not None and options.speculate != "off":
        raise QkvError("draft and speculate: one of them guesses; give one", code="contradiction")
    if options.beam > 1:
        raise QkvError("beams need no guesses: remove draft and speculate, or beam", code="contradiction")
    if draft is not None and (not hasattr(draft, "core") or describe_vocabulary(draft) != describe_vocabulary(model)):
        raise QkvError("draft: found {draft!r}, expected a model of the same kind and vocabulary", code="draft",
                       draft=draft)


def describe_vocabulary(model: Model) -> tuple[Any, ...]:
    """What two models must share for one to guess for the other."""
    tokenizer = model.tokenizer
    return model.spec.architecture, model.spec.vocabulary, tokenizer and tokenizer.vocabulary, start_ids(model)


def parse_options(model: Model, given: Mapping[str, Any]) -> GenerateOptions:
    """The options given, for a model; once for each of its keys that sampling="model" does not heed, it warns."""
    given = dict(given)
    if given.get("logit_bias") is not None:
        given["logit_bias"] = read_bias(model, given["logit_bias"])
    if given.get("sampling") == "model" and (keys := find_unheeded(model, given)):
        warnings.warn(UnheededKeys(Message("generation_config.json: not heeded: {keys}", keys=", ".join(keys))),
                      stacklevel=4)
    options = GenerateOptions.parse(given, model.generation_config, count_start(model))
    as_ids([token for token, _ in options.logit_bias], model.spec.vocabulary)  # refuses ids that there are not
    return options


def find_unheeded(model: Model, given: Mapping[str, Any]) -> list[str]:
    """The keys of a model's generation_config.json that sampling="model" does not heed, beside the options given."""
    return list_unheeded(model.generation_config, given, count_start(model))


def count_start(model: Model) -> int:
    """How many ids begin what an encoder-decoder writes; 0 of others."""
    return len(start_ids(model)) if model.encoder_decoder else 0


class UnheededKeys(UserWarning):
    """Keys of a model's generation_config.json that change what others write and nothing here."""


def stream(model: Model, prompt: Prompt, **given: Any) -> Iterator[str]:
    """The text of `generate`, piece by piece as it is chosen; see `Model.stream`."""
    draft = given.pop("draft", None)
    options = parse_options(model, given)
    check_draft(model, draft, options)
    if options.beam > 1 or options.n > 1:
        raise QkvError("stream: found beam {beam} and n {n}, but one text comes piece by piece; remove them, or use "
                       "generate", code="contradiction", beam=options.beam, n=options.n)
    decode = decode_options(model, options)
    if draft is not None or options.speculate != "off":
        events = iter(speculate(model, [model.ids(prompt)], options, decode, draft)[0])
    else:
        events = batch.stream_tokens(model.core, [model.ids(prompt)], sampling=options, options=decode)
    return (event.text for event in events)


def decode_options(model: Model, options: GenerateOptions) -> DecodeOptions:
    """The options as generation/ takes them, with the special tokens and the tokenizer of the model."""
    if not model.spec.has_blocks:
        raise QkvError("an LSTM baseline can translate and be evaluated; it cannot continue texts")
    special, tokenizer = model.special, model.tokenizer
    blanks = blank_ids(model) if model.spec.fills_blanks else ()
    text_stream = None
    if tokenizer is not None:  # a translation continues no text: its prompt is the source
        text_stream = (lambda _: tokenizer.stream()) if model.encoder_decoder else tokenizer.stream
    guides = tuple(build_grammar(name, source, tokenizer, model.spec.vocabulary, special.eos)
                   for name in GRAMMARS if (source := getattr(options, name)))
    return DecodeOptions(
        options.max_new_tokens, special.eos, start_ids(model), blanks, forbid=special.forbid, stop_strings=options.stop,
        renormalize=model.generation_config.get(RENORMALIZE) is True, text_stream=text_stream, chunk=options.chunk,
        cache=options.cache, guides=guides, continues="start" if model.encoder_decoder else "prompt",
    )


def continue_with_beams(
    model: Model, ids: list[list[int]], options: GenerateOptions, decode: DecodeOptions
) -> list[Result]:
    """Continue prompts with the likeliest texts that beams find."""
    found = beam(model.core, ids, search=options.search, options=decode)
    return [result_of(model, hypotheses) for hypotheses in found]


def result_of(model: Model, hypotheses: Sequence[Hypothesis], unknown: tuple[str, ...] = ()) -> Result:
    """The best hypothesis as a Result, the next best in `others`."""
    best, *rest = (
        Result(
            model.text([t for t in h.tokens if t not in model.special.eos]), list(h.tokens), list(h.logprobs),
            h.finish_reason, {}, h.score, unknown=unknown,
        )
        for h in hypotheses
    )
    return replace(best, others=tuple(rest))
