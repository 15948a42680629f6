"""`Model.generate` and `Model.stream`: options, continuing prompts by sampling or with beams, and the Results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from qkv.errors import QkvError
from qkv.generation import batch
from qkv.generation.beam import Hypothesis, Search, beam
from qkv.generation.sequence import DecodeOptions
from qkv.options import AT_LEAST_ONE, replace_from_dict
from qkv.sampling import Sampling
from qkv.tasks.special_tokens import blank_ids, with_blank
from qkv.tasks.types import RENORMALIZE, Model, Prompt, Result, as_list, start_ids

TIMING = ("prefill", "decode", "tokens_per_second")


@dataclass(frozen=True)
class GenerateOptions(Sampling):
    """The options of `generate` by name: how each token is chosen, and the rest."""

    max_new_tokens: int | None = None
    beam: int = 1
    stop: tuple[str, ...] = ()
    chunk: int | None = None
    cache: bool = True
    sampling: Literal["greedy", "model"] = "greedy"

    @staticmethod
    def parse(given: Mapping[str, Any], generation_config: Mapping[str, Any]) -> "GenerateOptions":
        """The options given; with sampling="model" those left out are as the model's generation_config.json says.

        Raises:
            QkvError: an unknown option, with the nearest one, or a value that it cannot have.
        """
        given = {name: value for name, value in given.items() if name != "stop" or value is not None}
        asks_model = isinstance(mode := given.get("sampling"), str) and mode == "model"
        usual = sampling_defaults(generation_config) if asks_model else {}
        found = replace_from_dict(GenerateOptions(), {**usual, **given})
        if found.beam < 1:
            raise QkvError("{name}: found {value}, expected {wanted}", name="beam", value=found.beam,
                           wanted=AT_LEAST_ONE)
        return found


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling of a generation_config.json, with the defaults that the format defines; greedy if it says so."""
    if not generation_config.get("do_sample", False):
        return {}
    usual = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None}
    found = {key: generation_config.get(key, value) for key, value in usual.items()}
    return {key: None if key != "temperature" and not value else value for key, value in found.items()}


def generate(model: Model, prompt: Any, **given: Any) -> Any:
    """Continue a prompt, or a list of prompts: one Result, or a list of them; see `Model.generate`."""
    many, prompts = as_list(prompt)
    options = GenerateOptions.parse(given, model.generation_config)
    decode, ids = decode_options(model, options), [model.ids(p) for p in prompts]
    if decode.blanks:
        ids = [with_blank(prompt, decode.blanks) for prompt in ids]
    if options.beam > 1:
        results = continue_with_beams(model, ids, options, decode)
    else:
        rows = batch.generate(model.core, ids, sampling=options, options=decode)
        results = [Result(r.text, list(r.tokens), list(r.logprobs), r.finish_reason or "length",
                          {name: getattr(r.timing, name) for name in TIMING}) for r in rows]
    return results if many else results[0]


def stream(model: Model, prompt: Prompt, **given: Any) -> Iterator[str]:
    """The text of `generate`, piece by piece as it is chosen; see `Model.stream`."""
    options = GenerateOptions.parse(given, model.generation_config)
    decode = decode_options(model, options)
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
    return DecodeOptions(
        options.max_new_tokens, special.eos, start_ids(model), blanks, forbid=special.forbid, stop_strings=options.stop,
        renormalize=model.generation_config.get(RENORMALIZE) is True, text_stream=text_stream, chunk=options.chunk,
        cache=options.cache,
    )


def continue_with_beams(
    model: Model, ids: list[list[int]], options: GenerateOptions, decode: DecodeOptions
) -> list[Result]:
    """Continue prompts with the likeliest texts that beams find."""
    if options.temperature or options.stop or not options.cache:
        raise QkvError("beam: beam search looks for the most probable text; remove temperature, stop and cache=False")
    found = beam(model.core, ids, search=Search(options.beam, length_penalty=0.0), options=decode)
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
