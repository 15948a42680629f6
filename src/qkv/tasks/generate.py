"""`Model.generate` and `Model.stream`: options, continuing prompts by sampling or with beams, and the Results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from qkv.errors import QkvError
from qkv.generation.beam import Hypothesis, Search
from qkv.generation.engine import Engine, Settings, check_memory, count_fitting
from qkv.generation.request import Handle
from qkv.generation.runner import Runner
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
    top_logprobs: int = 0
    batch_invariant: bool = False
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


def generate(
    model: Model, prompt: Any, *, engine: Engine | Runner | None = None, trace: Any = None, **given: Any
) -> Any:
    """Continue a prompt, or a list of prompts: one Result, or a list of them; see `Model.generate`."""
    many, prompts = as_list(prompt)
    options = GenerateOptions.parse(given, model.generation_config)
    decode, ids = decode_options(model, options), [read_prompt(model, p) for p in prompts]
    handles: list[Handle] = []
    try:
        handles += submit_prompts(model, ids, options, decode, engine, trace)
        results = [wait_for_result(model, handle) for handle in handles]
    finally:  # whatever happens, nothing stays behind in an engine that goes on
        for handle in handles:
            handle.cancel()
    failed = [result.error for result in results if result.error]
    if failed and len(failed) == len(results):
        raise failed[0]
    return results if many else results[0]


def stream(
    model: Model, prompt: Prompt, *, engine: Engine | Runner | None = None, trace: Any = None, **given: Any
) -> Iterator[str]:
    """The text of `generate`, piece by piece as it is chosen; see `Model.stream`."""
    options = GenerateOptions.parse(given, model.generation_config)
    if options.beam > 1:
        raise QkvError("stream: beams find their text at the end; remove beam, or use generate")
    (handle,) = submit_prompts(
        model, [read_prompt(model, prompt)], options, decode_options(model, options), engine, trace)
    return (event.text for event in handle)


def make_engine(model: Model, settings: Mapping[str, Any]) -> Engine:
    """An engine for requests that come at any time; see `Model.engine`."""
    check_writes(model)
    usual = min(max(Settings.tokens, model.spec.context or 0), max(1, count_fitting(model.core) // 2))
    chosen = replace_from_dict(Settings(tokens=usual), settings)
    check_memory(model.core, chosen.tokens)
    return Engine(model.core, chosen)


def check_writes(model: Model) -> None:
    """QkvError for a model that continues no texts in a cache."""
    if not model.spec.has_blocks:
        raise QkvError("an LSTM baseline can translate and be evaluated; it cannot continue texts")


def read_prompt(model: Model, prompt: Prompt) -> list[int]:
    """The ids of a prompt; where the model fills blanks it has one."""
    ids = model.ids(prompt)
    return with_blank(ids, blank_ids(model)) if model.spec.fills_blanks else ids


def submit_prompts(
    model: Model, ids: list[list[int]], options: GenerateOptions, decode: DecodeOptions,
    engine: Engine | Runner | None, trace: Any,
) -> list[Handle]:
    """The requests of some prompts: side by side in an engine of their own, each by itself in one that others use.

    Raises:
        QkvError: as `Engine.submit`; then none of them is left; an engine of another model, a trace of several prompts.
    """
    search = choose_search(options)
    if engine is None and trace is None:
        own = make_engine(model, {"batch_invariant": True}) if options.batch_invariant else Engine(model.core)
        return own.submit_batch(ids, decode, sampling=options, search=search)
    if engine is None:
        raise QkvError("trace: it is for a request in an engine; without one write `with trace:` around the call")
    if engine.core is not model.core:
        raise QkvError("engine: it is of another model; make it by model.engine()")
    if trace is not None and len(ids) > 1:
        raise QkvError("trace: it listens to one request, and found {found} prompts", found=len(ids))
    handles: list[Handle] = []
    try:
        for one in ids:
            handles.append(engine.submit(one, decode, sampling=options, search=search, trace=trace))
    except QkvError:
        for handle in handles:
            handle.cancel()
        raise
    return handles


def choose_search(options: GenerateOptions) -> Search | None:
    """How beams look for the likeliest text; None where tokens are chosen one by one."""
    if options.beam == 1:
        return None
    if options.temperature or options.stop or not options.cache or options.top_logprobs:
        raise QkvError("beam: beam search looks for the most probable text; remove temperature, stop, top_logprobs and "
                       "cache=False")
    return Search(options.beam, length_penalty=0.0)


def wait_for_result(model: Model, handle: Handle) -> Result:
    """The Result of a request; one that failed while it was written has its error in it."""
    try:
        row = handle.result()
    except QkvError:
        row = handle.sequence
    if handle.hypotheses:
        return result_of(model, handle.hypotheses)
    timing = {name: getattr(row.timing, name) for name in TIMING}
    return Result(row.text, list(row.tokens), list(row.logprobs), row.finish_reason or "length", timing,
                  top_logprobs=list(row.top_logprobs), error=handle.error)


def decode_options(model: Model, options: GenerateOptions) -> DecodeOptions:
    """The options as generation/ takes them, with the special tokens and the tokenizer of the model."""
    check_writes(model)
    special, tokenizer = model.special, model.tokenizer
    blanks = blank_ids(model) if model.spec.fills_blanks else ()
    text_stream = None
    if tokenizer is not None:  # a translation continues no text: its prompt is the source
        text_stream = (lambda _: tokenizer.stream()) if model.encoder_decoder else tokenizer.stream
    return DecodeOptions(
        options.max_new_tokens, special.eos, start_ids(model), blanks, forbid=special.forbid, stop_strings=options.stop,
        renormalize=model.generation_config.get(RENORMALIZE) is True, text_stream=text_stream, chunk=options.chunk,
        cache=options.cache, top_logprobs=options.top_logprobs,
    )


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
