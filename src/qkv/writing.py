"""What the verbs that write share: options, where a text begins, continuing, translating, and the Result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_type_hints

import torch
from torch import Tensor

from qkv import baselines, reading
from qkv.core.recurrent import Recurrent
from qkv.errors import QkvError, nearest
from qkv.generation import beam as beams
from qkv.generation import engine
from qkv.generation.rows import BLANKS, PIECE, Feed, by_length, places
from qkv.generation.sequence import Limits, Stops
from qkv.messages import Message
from qkv.sampling import Sampling
from qkv.spec import Spec
from qkv.tokenizers import tokenizer as text
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.settings import fitting
from qkv.uses import fills_blanks, kind

if TYPE_CHECKING:
    from qkv.model import Model


@dataclass(frozen=True)
class Result:
    """What generation gives: text, token ids, their log-probabilities, why it ended, how long it took.

    `score` ranks beams; `others` are the next best; `alignment` [T, S] says which source token each token looked at;
    `unknown` names the words of the source that the vocabulary lacks.
    """

    text: str
    tokens: list[int]
    logprobs: list[float]
    finish_reason: str
    timing: dict[str, float]
    score: float | None = None
    others: tuple["Result", ...] = ()
    alignment: Tensor | None = None
    unknown: tuple[str, ...] = ()


Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Ask:
    """The options of `generate` by name."""

    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    beam: int = 1
    stop: tuple[str, ...] = ()
    chunk: int | None = None
    cache: bool = True
    sampling: str = "greedy"

    @staticmethod
    def of(how: dict[str, Any], habits: dict[str, Any]) -> "Ask":
        """The options given; an unknown one is a QkvError naming the nearest.

        With sampling="model" those left out are what the model's own generation_config.json says.
        """
        known = Ask.__dataclass_fields__
        for name in how:
            if name not in known:
                raise QkvError("unknown option {name!r}{hint} (known: {known})", name=name, hint=nearest(name, known),
                               known=", ".join(known))
        stop: Any = how.get("stop") or ()
        way = how.get("sampling", "greedy")
        if way not in ("greedy", "model"):
            raise QkvError("sampling is {way!r}, expected 'greedy', or 'model' for what its makers chose",
                           way=way)
        usual = drawn(habits) if way == "model" else {}
        options: dict[str, Any] = {**usual, **how, "stop": (stop,) if isinstance(stop, str) else stop}
        hints = get_type_hints(Ask)
        plain = {name: value.item() if hasattr(value, "item") else value for name, value in options.items()}
        options = {name: fitting(hints[name], value, name) for name, value in plain.items()}
        if options.get("beam", 1) < 1:
            raise QkvError("beam: found {beam}, expected at least 1", beam=options["beam"])
        return Ask(**options)

    def settings(self, model: "Model") -> dict[str, Any]:
        """The same as generation/ takes it."""
        special, tokenizer = model.special, model.tokenizer
        speech = None if tokenizer is None else of_source(tokenizer) if model.encoder_decoder else tokenizer.stream
        return {
            "sampling": Sampling(self.temperature, self.top_k, self.top_p, self.min_p, self.seed),
            "stops": Stops(special.eos, self.stop, speech),
            "limits": Limits(self.max_new_tokens, model.spec.context, special.forbid),
            "feed": Feed(start_of(model), blanks_of(model), chunk=self.chunk, cache=self.cache),
        }


def drawn(habits: dict[str, Any]) -> dict[str, Any]:
    """The sampling of a generation_config.json, with the defaults that the format defines; greedy where it says so."""
    if not habits.get("do_sample", False):
        return {}
    usual = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None}
    found = {key: habits.get(key, value) for key, value in usual.items()}
    return {key: None if key != "temperature" and not value else value for key, value in found.items()}


def of_source(tokenizer: Tokenizer) -> Callable[[Sequence[int]], text.Stream]:
    """A translation continues no text: the prompt is its source."""
    return lambda _: tokenizer.stream()


def start_of(model: "Model") -> tuple[int, ...]:
    """What the target of an encoder-decoder begins with, or what a prefix decoder writes after its free prefix."""
    special = model.special
    if not model.encoder_decoder:
        return () if special.start is None or not free(model.spec) else (special.start,)
    if special.start is None:
        raise QkvError("this encoder-decoder says no decoder_start_token_id; add it to its config.json")
    return (special.start,) if special.forced is None else (special.start, special.forced)


def blanks_of(model: "Model") -> tuple[int, ...]:
    """The ids of what stands for words to be filled in, where the model writes into such blanks."""
    if not fills_blanks(model.spec) or model.tokenizer is None:
        return ()
    return tuple(i for name in BLANKS if (i := model.tokenizer.id(name)) is not None)


def blanked(model: "Model", ids: list[int]) -> list[int]:
    """A prompt with a blank: without one, what is to be written is its end."""
    blanks = blanks_of(model)
    return ids if not blanks or set(blanks) & set(ids) else [*ids, blanks[0]]


def free(spec: Spec) -> bool:
    """Whether the decoder sees its prompt freely, as a prefix."""
    return bool(spec.decoder) and any(block.attn.mask.kind == "prefix" for block in spec.decoder.blocks)


def chance(model: "Model", text: Any) -> float:
    """The log-probability of a text after its first token, or of the second of two texts after the first."""
    if not isinstance(text, tuple) or all(isinstance(part, int) for part in text):
        if model.encoder_decoder:
            raise QkvError("score: found one text, expected two: what an encoder-decoder says is scored after its "
                           "source, (source, target); in a line a tab stands between them")
        return reading.chance(model.core, model.ids(text))
    if len(text) != 2:
        raise QkvError("score: found {text} texts in a tuple, expected two: the second is scored after the first",
                       text=len(text))
    source, said = map(model.ids, text)
    if model.encoder_decoder or free(model.spec):
        source, said = blanked(model, source), whole(model, text[1])
        place = places([source], blanks_of(model))[0] if fills_blanks(model.spec) else None
        return reading.chance(model.core, said, source, start=start_of(model), blank=place)
    if all(isinstance(part, str) for part in text) and (both := model.ids("".join(text)))[: len(source)] == source:
        said = both[len(source) :]  # a text is cut into tokens as one
    return reading.chance(model.core, said, source)


def whole(model: "Model", target: Prompt) -> list[int]:
    """The ids of a target with its end symbol; ids stay as they are."""
    if not isinstance(target, str) or model.tokenizer is None:
        return model.ids(target)
    piece = model.tokenizer.id(PIECE[1]) if fills_blanks(model.spec) else None
    end = model.special.eos[:1] if piece is None else (piece,)
    return [*model.tokenizer.encode(target, special=False), *end]


def write(model: "Model", prompts: Sequence[Prompt], ask: Ask) -> list[Result]:
    """Continue prompts by sampling, greedily, or with beams."""
    ids = [blanked(model, model.ids(p)) for p in prompts]
    settings = ask.settings(model)
    if ask.beam > 1:
        if ask.temperature or ask.stop or not ask.cache:
            raise QkvError("beam: beams search for the best text; leave out temperature, stop and "
                           "cache=False")
        del settings["sampling"]
        settings["stops"] = Stops(model.special.eos)
        found = beams.beam(model.core, ids, search=beams.Search(ask.beam, length_penalty=0.0), **settings)
        return [of_hypotheses(model, hypotheses) for hypotheses in found]
    done = engine.generate(model.core, ids, **settings)
    return [
        Result(
            s.text, list(s.tokens), list(s.logprobs), s.finish_reason or "length",
            {"prefill": s.timing.prefill, "decode": s.timing.decode, "tokens_per_second": s.timing.tokens_per_second},
        )
        for s in done
    ]  # fmt: skip


def of_hypotheses(model: "Model", hypotheses: Sequence[beams.Hypothesis], unknown: tuple[str, ...] = ()) -> Result:
    """The best hypothesis as a Result, the next best in `others`."""
    best, *rest = (
        Result(
            model.text([t for t in h.tokens if t not in model.special.eos]), list(h.tokens), list(h.logprobs),
            h.finish_reason, {}, h.score, unknown=unknown,
        )
        for h in hypotheses
    )  # fmt: skip
    return replace(best, others=tuple(rest))


def render(
    model: "Model", texts: Sequence[str], *, beam: int = 4, length_penalty: float = 0.6, nbest: int = 1,
    max_new_tokens: int | None = None, align: bool = False, batch_tokens: int = 2048, ensemble: Sequence["Model"] = (),
) -> list[Result]:  # fmt: skip
    """Translate texts, those of like length together; the models of `ensemble` search with this one."""
    for other in ensemble:
        agree(model, other)
    if not model.encoder_decoder:
        what = kind(model.spec)
        raise QkvError("translate needs an encoder and a decoder; this is {what}", what=what)
    for n, line in enumerate(texts):
        if isinstance(line, str) and not line.strip():
            raise QkvError("text {text} of {texts} is empty: there is nothing to translate", text=n + 1,
                           texts=len(texts))
    ids, way = [model.ids(t) for t in texts], way_of(model)
    search = beams.Search(beam, nbest, length_penalty)
    limits = Limits(max_new_tokens, model.spec.context, model.special.forbid)
    results: list[Result | None] = [None] * len(ids)
    for rows in by_length(ids, batch_tokens):
        batch = [ids[r] for r in rows]
        found = way.search([model, *ensemble], batch, search, limits)
        for r, hypotheses in zip(rows, found, strict=True):
            missing = tuple(model.tokenizer.unknown(texts[r])) if model.tokenizer and isinstance(texts[r], str) else ()
            result = of_hypotheses(model, hypotheses, missing)
            results[r] = replace(result, alignment=way.align(model, ids[r], result.tokens)) if align else result
    return [r for r in results if r is not None]


def searched(
    models: Sequence["Model"], sources: list[list[int]], search: beams.Search, limits: Limits
) -> list[list[beams.Hypothesis]]:
    """The translations that a Transformer's beams find, or those of several together."""
    model, beside = models[0], [other.core for other in models[1:]]
    stops, feed = Stops(model.special.eos), Feed(start_of(model))
    return beams.beam(model.core, sources, search=search, stops=stops, limits=limits, feed=feed, beside=beside)


def agree(model: "Model", other: "Model") -> None:
    """Nothing, if two models can search together.

    Raises:
        QkvError: one does not translate by beams, or a number is not the same token to both; the first such is named.
    """
    for each in (model, other):
        if not each.encoder_decoder or isinstance(each.core, Recurrent):
            raise QkvError("ensemble: {each!r} does not translate by beam search, so it cannot be one of several",
                           each=each)
    if (model.special, start_of(model)) != (other.special, start_of(other)):
        raise QkvError("ensemble: the models begin or end a text with other ids; were they trained alike?")
    ours, theirs = (m.tokenizer.vocabulary if m.tokenizer else {} for m in (model, other))
    if ours != theirs or model.spec.vocabulary != other.spec.vocabulary:
        odd = next((word for word in ours | theirs if ours.get(word) != theirs.get(word)), None)
        which = Message("{vocabulary:,} tokens and {vocabulary2:,}", vocabulary=model.spec.vocabulary,
                        vocabulary2=other.spec.vocabulary)
        if odd is not None:
            which = Message("{odd!r} is {ours} to the first, {theirs} to the other", odd=odd,
                            ours=ours.get(odd, Message("unknown")),
                            theirs=theirs.get(odd, Message("unknown")))
        raise QkvError("ensemble: the models have other vocabularies ({which}); train them with one tokenizer",
                       which=which)


def aligned(model: "Model", source: list[int], tokens: list[int]) -> Tensor:
    """Which source token each written token looked at: [T, S], mean over the heads of the last cross-attention."""
    name = f"decoder.layers.{len(model.core.decoder.layers) - 1}.cross.pattern"
    with model.trace(save=[name]) as trace, torch.inference_mode():
        begun = start_of(model)
        target = torch.tensor([[*begun, *tokens[:-1]]], device=model.device)
        model(source=torch.tensor([source], device=model.device), target=target)
    return trace[name][0].mean(0)[len(begun) - 1 :]


@dataclass(frozen=True)
class Way:
    """What a kind of core does in its own way: continue texts, search for translations, say where each word looked."""

    write: Callable[["Model", Sequence[Prompt], Ask], list[Result]]
    search: Callable[[Sequence["Model"], list[list[int]], beams.Search, Limits], list[list[beams.Hypothesis]]]
    align: Callable[["Model", list[int], list[int]], Tensor]


def way_of(model: "Model") -> Way:
    """The way of a model: the one place that asks whether its core is a Transformer or the LSTM before it."""
    core = model.core
    if not isinstance(core, Recurrent):
        return Way(write, searched, aligned)

    def refuse(model: "Model", prompts: Sequence[Prompt], ask: Ask) -> list[Result]:
        raise QkvError("an LSTM baseline translates, or is measured; it does not continue texts")

    def greedy(
        models: Sequence["Model"], sources: list[list[int]], search: beams.Search, limits: Limits
    ) -> list[list[beams.Hypothesis]]:
        if search.nbest > 1:
            raise QkvError("nbest: found {nbest}, but an LSTM baseline translates greedily and has one translation of "
                           "a text; leave it out", nbest=search.nbest)
        longest = limits.max_new_tokens or min(limits.context or 512, 50 + 2 * max(map(len, sources)))
        found = baselines.translate(core, sources, start=start_of(model)[0], ends=model.special.eos, longest=longest,
                                    forbid=limits.forbid)  # fmt: skip
        why = ("length", "stop")
        return [[beams.Hypothesis(w.tokens, sum(w.logprobs), w.logprobs, why[w.ended])] for w in found]

    def looked(model: "Model", source: list[int], tokens: list[int]) -> Tensor:
        return baselines.alignment(core, source, [*start_of(model), *tokens[:-1]])

    return Way(refuse, greedy, looked)
