"""`Model.generate` and `Model.stream`: continuing prompts by sampling, with beams or with guesses, and the Results."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qkv import sampling
from qkv.errors import QkvError
from qkv.generation.beam import Hypothesis, beam
from qkv.generation.engine import Engine, Settings, check_memory, count_fitting
from qkv.generation.grammar import build_grammar
from qkv.generation.request import Handle
from qkv.generation.runner import Runner
from qkv.generation.sequence import DecodeOptions
from qkv.generation.sequence import Sequence as Text
from qkv.generation.speculate import Draft, Lookup, Speculation
from qkv.messages import Message
from qkv.options import replace_from_dict
from qkv.tasks.generate_options import GRAMMARS, GenerateOptions, list_ignored_keys
from qkv.tasks.special_tokens import blank_ids, with_blank
from qkv.tasks.text_constraints import read_bias
from qkv.tasks.types import RENORMALIZE, Model, Prompt, Result, as_ids, as_list, start_ids

TIMING = ("prefill", "decode", "tokens_per_second")


def generate(
    model: Model, prompt: Any, *, engine: Engine | Runner | None = None, trace: Any = None,
    draft: Model | None = None, **given: Any,
) -> Any:
    """Continue a prompt, or a list of prompts: one Result, or a list of them; see `Model.generate`."""
    many, prompts = as_list(prompt)
    options = parse_options(model, given)
    check_draft(model, draft, options)
    decode, ids = decode_options(model, options), [read_prompt(model, p) for p in prompts]
    copies = options.n if options.beam == 1 else 1
    ids = [prompt for prompt in ids for _ in range(copies)]
    if draft is not None or options.speculate != "off":
        refuse_company(engine, trace)
        each = [write_with_guesses(one) for one in speculate(model, ids, options, decode, draft)]
    elif options.search and options.groups > 1 and engine is None and trace is None and not options.batch_invariant:
        found = beam(model.core, ids, search=options.search, options=decode)
        each = [result_of(model, hypotheses) for hypotheses in found]
    else:
        each = write_prompts(model, ids, options, decode, engine, trace)
    results = [replace(each[at], others=tuple(each[at + 1 : at + copies])) if copies > 1 else each[at]
               for at in range(0, len(each), copies)]
    return results if many else results[0]


def write_prompts(
    model: Model, ids: list[list[int]], options: GenerateOptions, decode: DecodeOptions,
    engine: Engine | Runner | None, trace: Any,
) -> list[Result]:
    """The Results of prompts in an engine; one that failed has its error in it.

    Raises:
        QkvError: as `submit_prompts`; the first one's where all failed.
    """
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
    return results


def stream(
    model: Model, prompt: Prompt, *, engine: Engine | Runner | None = None, trace: Any = None,
    draft: Model | None = None, **given: Any,
) -> Iterator[str]:
    """The text of `generate`, piece by piece as it is chosen; see `Model.stream`."""
    options = parse_options(model, given)
    check_draft(model, draft, options)
    if options.beam > 1 or options.n > 1:
        raise QkvError("stream: found beam {beam} and n {n}, but one text comes piece by piece; remove them, or use "
                       "generate", code="contradiction", beam=options.beam, n=options.n)
    ids, decode = [read_prompt(model, prompt)], decode_options(model, options)
    if draft is not None or options.speculate != "off":
        refuse_company(engine, trace)
        (events,) = speculate(model, ids, options, decode, draft)
    else:
        (events,) = submit_prompts(model, ids, options, decode, engine, trace)
    return (event.text for event in events)


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
    if engine is None and trace is None:
        own = make_engine(model, {"batch_invariant": True}) if options.batch_invariant else Engine(model.core)
        return own.submit_batch(ids, decode, sampling=options, search=options.search)
    if engine is None:
        raise QkvError("trace: it is for a request in an engine; without one write `with trace:` around the call")
    if engine.core is not model.core:
        raise QkvError("engine: it is of another model; make it by model.engine()")
    if trace is not None and len(ids) > 1:
        raise QkvError("trace: it listens to one request, and found {found} prompts", found=len(ids))
    handles: list[Handle] = []
    try:
        for one, seed in zip(ids, sampling.seeds(options.seed, ids), strict=True):
            handles.append(engine.submit(one, decode, sampling=options, search=options.search, trace=trace, seed=seed))
    except QkvError:
        for handle in handles:
            handle.cancel()
        raise
    return handles


def refuse_company(engine: Engine | Runner | None, trace: Any) -> None:
    """QkvError for guesses in an engine or under its trace: a text that is written with guesses is written alone."""
    if engine is not None or trace is not None:
        raise QkvError("draft and speculate: a text with guesses is written alone; remove them, or engine and trace",
                       code="contradiction")


def wait_for_result(model: Model, handle: Handle) -> Result:
    """The Result of a request; one that failed while it was written has its error in it."""
    try:
        row = handle.result()
    except QkvError:
        row = handle.sequence
    if handle.hypotheses:
        return result_of(model, handle.hypotheses)
    return replace(make_result(row), error=handle.error)


def make_result(row: Text) -> Result:
    """What a row wrote, as a Result."""
    return Result(row.text, list(row.tokens), list(row.logprobs), row.finish_reason or "length",
                  {name: getattr(row.timing, name) for name in TIMING}, top_logprobs=list(row.top_logprobs))


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
    """The options given, for a model; it warns once of the keys of its generation_config.json that are ignored."""
    given = dict(given)
    if given.get("logit_bias") is not None:
        given["logit_bias"] = read_bias(model, given["logit_bias"])
    if isinstance(mode := given.get("sampling"), str) and mode == "model" and (keys := find_ignored_keys(model, given)):
        warnings.warn(IgnoredKeys(Message("generation_config.json: ignored: {keys}", keys=", ".join(keys))),
                      stacklevel=4)
    options = GenerateOptions.parse(given, model.generation_config, count_start(model))
    as_ids([token for token, _ in options.logit_bias], model.spec.vocabulary)  # refuses ids that there are not
    return options


def find_ignored_keys(model: Model, given: Mapping[str, Any]) -> list[str]:
    """The keys of a model's generation_config.json that sampling="model" ignores, beside the options given."""
    return list_ignored_keys(model.generation_config, given, count_start(model))


def count_start(model: Model) -> int:
    """How many ids begin what an encoder-decoder writes; 0 of others."""
    return len(start_ids(model)) if model.encoder_decoder else 0


class IgnoredKeys(UserWarning):
    """Keys of a model's generation_config.json that change what others write and nothing here."""


def decode_options(model: Model, options: GenerateOptions) -> DecodeOptions:
    """The options as generation/ takes them, with the special tokens and the tokenizer of the model."""
    check_writes(model)
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
        cache=options.cache, top_logprobs=options.top_logprobs, guides=guides,
        continues="start" if model.encoder_decoder else "prompt",
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
