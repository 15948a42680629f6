"""`Model.translate`: beam search over sources of like length, ensembles, and which source token each word looked at."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, cast

import torch
from torch import Tensor

from qkv.arguments import Range, check_arguments
from qkv.baselines import lstm
from qkv.core.step import Inputs
from qkv.errors import QkvError, nearest
from qkv.generation.beam import Hypothesis, Search
from qkv.generation.beam import beam as beam_search
from qkv.generation.decoder import batch_by_length
from qkv.generation.sequence import DecodeOptions
from qkv.messages import Message
from qkv.options import replace_from_dict
from qkv.sampling import Adjustments
from qkv.tasks.describe import describe_use
from qkv.tasks.generate import result_of
from qkv.tasks.languages import find_language, mark_source, mark_target
from qkv.tasks.text_constraints import CONSTRAINTS, make_guides, read_bias
from qkv.tasks.types import RENORMALIZE, Model, Result, as_list, start_ids
from qkv.tokenizers.vocabulary import is_closed

OPTIONS = ("source", "target", "beam", "length_penalty", "nbest", "max_new_tokens", "align", "ensemble", *CONSTRAINTS,
           *vars(Adjustments()), "groups", "diversity_penalty")
LEAST_WEIGHT = 0.3  # of the attention to an unknown word, from which a written word counts as its translation


@check_arguments
def translate(
    model: Model, text: Any, *, source: str | None = None, target: str | None = None, beam: int = 4,
    length_penalty: Annotated[float, Range(-10, 10)] = 0.6, nbest: int = 1, max_new_tokens: int | None = None,
    align: bool = False, batch_tokens: int = 2048, ensemble: Sequence[Model] = (), **more: Any,
) -> Any:
    """Translate a text, or a list of texts: one Result, or a list of them; see `Model.translate`."""
    for key in more:
        if key not in OPTIONS:
            raise QkvError("{name}: unknown key{hint} (known: {known})", name=key, hint=nearest(key, OPTIONS),
                           known=", ".join(OPTIONS))
    many, texts = as_list(text)
    for other in ensemble:
        check_ensemble(model, other)
    check_sources(model, texts)
    constraints = {name: more.pop(name, None) for name in CONSTRAINTS}
    if more.get("logit_bias") is not None:
        more["logit_bias"] = read_bias(model, more["logit_bias"])
    ids, search = [model.ids(t) for t in texts], replace_from_dict(Search(beam, nbest, length_penalty), more)
    if max_new_tokens is not None and search.min_new_tokens > max_new_tokens:
        raise QkvError("min_new_tokens is {least} and max_new_tokens {most}: the least is more than the most",
                       code="contradiction", least=search.min_new_tokens, most=max_new_tokens)
    if source is not None:
        language = find_language(model, "source", source)
        ids = [mark_source(model, row, language) for row in ids]
    start, guides = start_ids(model, mark_target(model, target)), make_guides(model, len(texts), constraints)
    options = DecodeOptions(max_new_tokens, model.special.eos, start, forbid=model.special.forbid,
                            renormalize=model.generation_config.get(RENORMALIZE) is True, continues="start")
    others, results = [other.core for other in ensemble], dict[int, Result]()
    find_best = partial(beam_search, ensemble=others) if model.spec.has_blocks else translate_greedily
    for rows in batch_by_length(ids, batch_tokens):
        mine = replace(options, guides=tuple(guides[r] for r in rows)) if guides else options
        try:
            found = find_best(model.core, [ids[r] for r in rows], search=search, options=mine)
        except QkvError as error:
            raise renumber(error, rows) from None
        for r, hypotheses in zip(rows, found, strict=True):
            tokenizer, line = model.tokenizer, texts[r]
            read = tokenizer is not None and isinstance(line, str)
            missing = tuple(tokenizer.find_unknown(line)) if read else ()  # type: ignore[union-attr]
            result = result_of(model, hypotheses, missing)
            if missing and is_closed(tokenizer):  # type: ignore[arg-type]
                result = mark_unknown(model, ids[r], start, result)
            aligned = align_tokens(model, ids[r], start, result.tokens) if align else None
            results[r] = result if aligned is None else replace(result, alignment=aligned)
    return [results[r] for r in range(len(ids))] if many else results[0]


def renumber(error: QkvError, rows: Sequence[int]) -> QkvError:
    """The error of a text of a batch, with the number that the text has among all."""
    said = error.message
    if "number" not in said.fields:
        return error
    return QkvError(said.template, code=error.code, **{**said.fields, "number": rows[said.fields["number"] - 1] + 1})


def mark_unknown(model: Model, source: list[int], start: tuple[int, ...], result: Result) -> Result:
    """The Result, in whose texts `[word]` stands for each word that was guessed from an unknown one of the source."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    places = [i for i, token in enumerate(source) if token == tokenizer.unk_id]
    marked = list[Result]()
    for each in (result, *result.others):
        words = [t for t in each.tokens if t not in model.special.eos]
        weights = align_tokens(model, source, start, each.tokens)[: len(words), places]  # T S
        text = each.text
        strongest = weights.argmax(0).tolist() if words else []
        guessed = {at: word for at, word, w in zip(strongest, result.unknown, weights.amax(0).tolist() if words else [],
                                                   strict=False) if w >= LEAST_WEIGHT}
        for at in sorted(guessed, reverse=True):  # from the end, so that what comes before stays in place
            end, word = len(model.text(words[: at + 1])), model.text([words[at]]).strip()
            text = f"{text[: end - len(word)]}[{guessed[at]}]{text[end:]}"
        marked.append(replace(each, text=text))
    return replace(marked[0], others=tuple(marked[1:]))


def check_sources(model: Model, texts: Sequence[Any]) -> None:
    """QkvError for a model that does not translate, or for the first text that is empty."""
    if not model.encoder_decoder:
        what = describe_use(model.spec)
        raise QkvError("translate needs an encoder and a decoder; this is {what}", what=what)
    for n, line in enumerate(texts):
        if isinstance(line, str) and not line.strip():
            raise QkvError("text {text} of {texts} is empty: there is nothing to translate", text=n + 1,
                           texts=len(texts))


def check_ensemble(model: Model, other: Model) -> None:
    """Check that two models can search together.

    Raises:
        QkvError: one does not translate by beams, or a number is not the same token to both; the first such is named.
    """
    for each in (model, other):
        if not each.encoder_decoder or not each.spec.has_blocks:
            raise QkvError("ensemble: {each!r} does not translate by beam search, so it cannot be one of several",
                           each=each)
    if (model.special, start_ids(model)) != (other.special, start_ids(other)):
        raise QkvError("ensemble: the models begin or end a text with different ids; were they trained alike?")
    ours, theirs = (m.tokenizer.vocabulary if m.tokenizer else {} for m in (model, other))
    if ours != theirs or model.spec.vocabulary != other.spec.vocabulary:
        odd = next((word for word in ours | theirs if ours.get(word) != theirs.get(word)), None)
        which = Message("{vocabulary:,} tokens and {vocabulary2:,}", vocabulary=model.spec.vocabulary,
                        vocabulary2=other.spec.vocabulary)
        if odd is not None:
            which = Message("{odd!r} is {ours} in the first, {theirs} in the other", odd=odd,
                            ours=ours.get(odd, Message("unknown")), theirs=theirs.get(odd, Message("unknown")))
        raise QkvError("ensemble: the models have different vocabularies ({which}); train them with one tokenizer",
                       which=which)


def translate_greedily(
    core: Any, sources: list[list[int]], *, search: Search, options: DecodeOptions
) -> list[list[Hypothesis]]:
    """The one translation of each source that an LSTM baseline gives."""
    if search.nbest > 1:
        raise QkvError("nbest: found {nbest}, but an LSTM baseline translates greedily and has one translation of a "
                       "text; remove it", nbest=search.nbest)
    if options.guides or search.adjusts or search.groups > 1:
        raise QkvError("an LSTM baseline translates greedily: remove penalties, biases, groups and what the text must "
                       "begin with, hold or avoid", code="greedy-baseline")
    longest = options.max_new_tokens or min(core.spec.context or 512, 50 + 2 * max(map(len, sources)))
    found = lstm.translate(core, sources, start=options.start[0], ends=options.eos, longest=longest,
                                forbid=options.forbid)
    return [[Hypothesis(w.tokens, sum(w.logprobs), w.logprobs, "stop" if w.ended else "length")] for w in found]


def align_tokens(model: Model, source: list[int], start: tuple[int, ...], tokens: list[int]) -> Tensor:
    """Which source token each written token looked at: [T, S], mean over the heads of the last cross-attention."""
    from qkv.lens.trace import Trace

    core = model.core
    target = [*start, *tokens[:-1]]
    if not core.spec.has_blocks:
        return lstm.compute_alignment(cast("lstm.LSTMModel", core), source, target)
    name = f"decoder.layers.{len(core.decoder.layers) - 1}.cross.pattern"
    with Trace(core, save=[name]) as trace, torch.inference_mode():
        ids, read = (torch.tensor([row], device=model.device) for row in (target, source))
        core(ids, Inputs(source=read))
    return trace[name][0].mean(0)[len(start) - 1 :]
