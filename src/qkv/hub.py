"""Where core, checkpoint, tokenizer and verbs meet: `load`, `build`, and `Model`, whose methods only delegate."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv import baselines, cost, evaluate, fold, inputs, paths, reading
from qkv.adapt import lora
from qkv.adapt.pack import pack
from qkv.convert import checkpoint, peft, store
from qkv.convert.heads import groups_of, regrouped
from qkv.core.dropout import Drop, keep
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.recurrent import Recurrent, core_of
from qkv.core.step import Given, begin
from qkv.errors import QkvError, nearest
from qkv.generation import beam as beams
from qkv.generation import engine
from qkv.generation.rows import Feed, by_length
from qkv.generation.sequence import Limits, Stops
from qkv.sample import Sampling
from qkv.spec import Spec
from qkv.text import chat as chats
from qkv.text import tokenizer as text
from qkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.lens.trace import Trace


@dataclass(frozen=True)
class Special:
    """The special ids of a model: where to begin, where to stop, what fills up, what is never said."""

    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None
    start: int | None = None
    forbid: tuple[int, ...] = ()
    forced: int | None = None  # what a target begins with after `start`, such as the language of a translation

    @property
    def keys(self) -> dict[str, Any]:
        """The same as a Hugging Face config writes it."""
        found = {"bos_token_id": self.bos, "pad_token_id": self.pad, "decoder_start_token_id": self.start,
                 "forced_bos_token_id": self.forced}  # fmt: skip
        found["eos_token_id"] = self.eos[0] if len(self.eos) == 1 else list(self.eos) or None  # type: ignore[assignment]
        return {k: v for k, v in found.items() if v is not None}


@dataclass(frozen=True)
class Output:
    """What one forward pass gives: `logits` [B, T, V] (None without a head) and the last `hidden` states [B, T, D]."""

    logits: Tensor | None
    hidden: Tensor


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


@dataclass(frozen=True)
class Verdict:
    """What classification gives: the likeliest label, its probability, and the probability of every label."""

    label: str
    probability: float
    probabilities: dict[str, float]

    @staticmethod
    def of(probabilities: dict[str, float]) -> "Verdict":
        """The verdict that some probabilities amount to."""
        label = max(probabilities, key=probabilities.__getitem__)
        return Verdict(label, probabilities[label], probabilities)


Prompt = str | Sequence[int]


class Model:
    """A core with its tokenizer and everything that one can ask of it. Not an nn.Module: `.core` is."""

    def __init__(
        self, core: Transformer, tokenizer: Tokenizer | None = None, special: Special | None = None,
        config: dict[str, Any] | None = None, habits: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.core, self.tokenizer, self.config = core, tokenizer, config
        self.special = special or Special()
        self.habits = habits or {}  # generation_config.json as it was loaded: how its makers let it write
        self.base = ""  # the model that its adapters stand beside, where it has some

    @property
    def spec(self) -> Spec:
        """The frozen spec of the core."""
        return self.core.spec

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.core.embed.weight.device

    @property
    def encoder_decoder(self) -> bool:
        """Whether there is a source to read besides the text to write."""
        return bool(self.spec.encoder and self.spec.decoder)

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.core.parameters())
        kind = (self.config or {}).get("model_type", "qkv")
        return f"Model({kind}, {count:,} parameters, {self.core.embed.weight.dtype}, {self.device})"

    def __call__(
        self, ids: Tensor | None = None, *, source: Tensor | None = None, target: Tensor | None = None,
        padding: Tensor | None = None, segments: Tensor | None = None, prefix: Tensor | None = None, drop: Drop = keep,
    ) -> Output:  # fmt: skip
        """One forward pass with autograd on: ids [B, T] -> logits [B, T, V].

        Encoder-decoders take `source` [B, S] and `target` [B, T], and `padding` (True = real) belongs to the source.
        `segments` [B, T] numbers the texts of a pair; `prefix` [B] says how many tokens a prefix decoder sees freely.
        """
        core = self.core
        if self.encoder_decoder:
            if source is None or target is None:
                raise QkvError("this model has an encoder and a decoder: call it with source= and target=")
            memory = core.encode(source, begin(core.encoder, source, Given(real=padding), drop=drop))
            stack, ids, given = core.decoder, target, Given(memory=memory, memory_real=padding)
        else:
            if ids is None or source is not None or target is not None:
                raise QkvError("this model has one stack: call it with ids (and padding=)")
            stack = core.decoder if self.spec.decoder else core.encoder
            given = Given(real=padding, segments=segments, prefix=prefix)
        step = begin(stack, ids, given, drop=drop)
        hidden = core.hidden(ids, step)
        return Output(step.tap(core, "logits", core.head(hidden)) if self.spec.head else None, hidden)

    def save(self, directory: str | Path, *, family: str | None = None, dtype: torch.dtype | None = None) -> Path:
        """Write a Hugging Face directory, whole or not at all; what other files it holds stays.

        The config that was loaded is kept; else the family that can say the spec, else type `qkv` with the spec in it.

        Raises:
            QkvError: `family` cannot say the spec; the message names the field.
        """
        directory = Path(directory)
        with store.replacing(directory) as aside:
            extra = self.special.keys
            if lora.adapters(self.core):
                save_adapters(aside, self)
            else:
                checkpoint.write(aside, self.core, family=family, config=self.config, extra=extra, dtype=dtype)
            never = {"bad_words_ids": [[i] for i in self.special.forbid]} if self.special.forbid else {}
            store.write_json(aside / "generation_config.json", {**self.habits, **extra, **never})
            if self.tokenizer is not None:
                self.tokenizer.save(aside)
        return directory

    def generate(self, prompt: Any, **how: Any) -> Any:
        """Continue a prompt (text or ids), or a list of prompts: one Result, or a list of them.

        Greedy until an end id or the context's end by default; sampling="model" takes generation_config's values.
        Options: max_new_tokens, temperature, top_k, top_p, min_p, seed, beam, stop (strings), chunk, cache, sampling.

        Raises:
            QkvError: an option or prompt that cannot be meant; a prompt longer than the context.
        """
        many, prompts = several(prompt)
        results = way_of(self).write(self, prompts, Ask.of(how, self.habits))
        return results if many else results[0]

    def stream(self, prompt: Prompt, **how: Any) -> Iterator[str]:
        """The text of `generate`, piece by piece as it is chosen; never half a character, never a stop string."""
        ask = Ask.of(how, self.habits)
        events = engine.stream(self.core, [self.ids(prompt)], **ask.settings(self))
        return (event.text for event in events)

    def translate(self, text: Any, **how: Any) -> Any:
        """Translate a text, or a list of texts, by beam search: one Result, or a list of them.

        Options: beam (4), length_penalty (0.6), nbest (1), max_new_tokens, align (False).

        Raises:
            QkvError: the model has no encoder and decoder, or a text is empty.
        """
        many, texts = several(text)
        results = render(self, texts, **how)
        return results if many else results[0]

    def chat(self, messages: str | Sequence[chats.Message], **how: Any) -> Result:
        """The answer to a conversation, a list of {"role": …, "content": …}, or to one text of the user.

        Options are those of `generate`. Control tokens that somebody typed stay text.

        Raises:
            QkvError: the model has no chat template, or its template refuses the messages.
        """
        return self.generate(self.conversation(messages), **how)

    def conversation(self, messages: str | Sequence[chats.Message]) -> list[int]:
        """The ids of a conversation up to where the model answers, as its chat template writes them."""
        template = chats.of(self.tokenizer) if self.tokenizer else None
        if template is None or self.tokenizer is None:
            raise QkvError("this model has no chat template; it was not made to converse: use generate")
        rows = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return template.ids(self.tokenizer, rows)

    def score(self, text: Any) -> Any:
        """The log-probability (natural, summed over tokens) that the model gives a text, or each of a list of texts."""
        many, texts = several(text)
        totals = [reading.chance(self.core, self.ids(t)) for t in texts]
        return totals if many else totals[0]

    def embed(self, text: Any) -> Tensor:
        """A vector of length 1 for a text [D], or for each of a list of texts [B, D]: the mean of its last states."""
        many, texts = several(text)
        rows = [(self.ids(line), []) for line in present(texts)]
        found = by_batches(rows, lambda ids, _: reading.embed(self.core, ids))
        return found if many else found[0]

    def classify(self, text: Any, *, both: bool = False) -> Any:
        """The label of a text and the probability of each: one Verdict, or a list of them.

        A tuple is one question: a pair, which `both` reads in both orders and adds (are they alike?), as a model does
        that learnt it so, or, where one logit judges, (question, answer, ...): the label is the best answer's number.

        Raises:
            QkvError: the model has no labels; or a pair, and it reads none.
        """
        many, texts = (False, [text]) if parted(text) else several(text)
        verdicts = judged(self, texts, both=both)
        return verdicts if many else verdicts[0]

    def fill(self, text: str, *, top: int = 5) -> list[list[tuple[str, float]]]:
        """For each mask in a text the `top` most likely words with their probabilities, best first.

        Raises:
            QkvError: the model does not fill in words, or the text holds no mask.
        """
        if self.tokenizer is None or self.tokenizer.mask_id is None:
            raise QkvError("fill needs a model that was trained on masked words, with a mask token in its tokenizer; a "
                           "decoder continues a text: use generate")  # fmt: skip
        chances = reading.fill(self.core, self.ids(text), self.tokenizer.mask_id)
        chances = chances.topk(min(top, chances.shape[-1]))
        rows = zip(chances.indices.tolist(), chances.values.tolist(), strict=True)
        pieces = self.tokenizer.pieces
        return [[(w.strip(), p) for w, p in zip(pieces(i), ps, strict=True)] for i, ps in rows]

    def eval(self, **what: Any) -> evaluate.Translation | evaluate.Perplexity | evaluate.Accuracy:
        """How good the model is: `bleu=(source, reference)` files or lists, `ppl=` a text file, or `accuracy=` a file
        of label TAB text (or JSON lines with both).

        Options of bleu: tokenize, lowercase, joint, beam, length_penalty, max_new_tokens; of ppl: window, stride; and
        `tell`, a function of (done, all).

        Raises:
            QkvError: a broken file (with its line), an unknown option, or a model that cannot do it.
        """
        return evaluate.evaluate(voice(self), **what)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels that `classify` chooses from, in the order of its logits."""
        count = self.spec.labels.count if self.spec.labels else 0
        names = (self.config or {}).get("id2label") or {}
        return tuple(str(names.get(str(i), names.get(i, f"LABEL_{i}"))) for i in range(count))

    def trace(self, save: Sequence[str] = (), edit: Sequence[Any] = (), **where: Any) -> "Trace":
        """Listen to the taps (or readouts) named, and make the edits given, while the `with` block runs the model.

        `budget` ("2GB") refuses what would not fit into memory, `to` is a directory to write to instead. With
        `stop=True` the block ends as soon as all that was named has been heard: no later layer, no head, no logits.
        """
        from qkv.lens.trace import Trace

        return Trace(self.core, save=list(save), edit=list(edit), tokenizer=self.tokenizer, **where)

    def traced(self, directory: str | Path) -> "Trace":
        """A trace of this model that was written to disk."""
        from qkv.lens import tape

        return tape.load(directory, self.core, self.tokenizer)

    def ids(self, text: Prompt) -> list[int]:
        """Text as token ids; ids stay as they are."""
        if not isinstance(text, str):
            return list(text)
        if self.tokenizer is None:
            raise QkvError("this model has no tokenizer: give token ids instead of text")
        return self.tokenizer.encode(text)

    def text(self, ids: Sequence[int]) -> str:
        """Token ids as text; without a tokenizer the empty string."""
        return self.tokenizer.decode(ids) if self.tokenizer else ""


ANSWERS = 100  # to one question at most, where a model is judged by which it chooses


def voice(model: Model) -> evaluate.Voice:
    """What an evaluation may ask of a model."""

    def answer(texts: list[str], **search: Any) -> list[str]:
        found = model.translate(texts, **search) if model.encoder_decoder else model.generate(texts, **search)
        return [result.text for result in found]

    def classify(texts: list[Any]) -> list[str]:
        return [verdict.label for verdict in model.classify([divided(model, text) for text in texts])]

    labels = tuple(map(str, range(ANSWERS))) if compares(model) else model.labels
    return evaluate.Voice(model.core, model.ids, model.text, answer, classify, labels)


def several(given: Any) -> tuple[bool, list[Any]]:
    """Whether a list of prompts was meant, and the prompts: a str or a list of ints is one."""
    if isinstance(given, str) or (given and all(isinstance(i, int) for i in given)):
        return False, [given]
    return True, list(given)


def parted(line: Any) -> bool:
    """Whether texts that belong together were meant, (first, second, ...), and not a list of texts or of ids."""
    return isinstance(line, tuple) and len(line) > 1 and not any(isinstance(part, int) for part in line)


def present(texts: Sequence[Any]) -> Sequence[Any]:
    """The texts, none of which is empty."""
    for n, line in enumerate(texts):
        for part in line if parted(line) else (line,):
            if len(part) == 0 or (isinstance(part, str) and not part.strip()):
                raise QkvError(f"text {n + 1} of {len(texts)} is empty: there is nothing to read")
    return texts


def judged(model: Model, texts: Sequence[Any], *, both: bool) -> list[Verdict]:
    """The verdict on each text, pair, or question with its answers (Radford et al. 2018, section 3.3)."""
    tasks = [asked(model, line, both=both) for line in present(texts)]
    rows = [row for laid, _ in tasks for row in laid]
    logits = by_batches(rows, lambda ids, kinds: reading.judge(model.core, ids, kinds, model.special.start))
    verdicts: list[Verdict] = []
    for (_, join), group in zip(tasks, logits.split([len(laid) for laid, _ in tasks]), strict=True):
        names = map(str, range(len(group))) if join == "compared" else model.labels
        chances = inputs.answer(group, join).softmax(-1).tolist()
        verdicts.append(Verdict.of(dict(zip(names, chances, strict=True))))
    return verdicts


def asked(model: Model, line: Any, *, both: bool) -> tuple[list[tuple[list[int], list[int]]], inputs.Join]:
    """The ids and segments of the rows that a text, a pair, or a question with answers becomes; how they are joined."""
    texts, made = line if parted(line) else (line,), model.tokenizer
    both = both or (len(texts) == 2 and unordered(model))
    if len(texts) > 2 and not compares(model):
        raise QkvError(f"found {len(texts)} texts in one question, but this model does not compare answers: its labels "
                       "judge a text or a pair")  # fmt: skip
    if both and len(texts) != 2:
        raise QkvError(f"both orders: expected a pair of texts, found {len(texts)}")
    spelled = made is not None and all(isinstance(text, str) for text in texts)
    if (both or len(texts) > 2) and not spelled:
        raise QkvError("texts that are compared are given as texts, and to a model with a tokenizer")
    if made and spelled and marked(model):
        laid = inputs.laid([made.encode(text, special=False) for text in texts], inputs.Marks.of(made), both=both)
    elif made and (both or len(texts) > 2):
        laid = inputs.unmarked(texts, made.encode)
    else:
        return [segmented(model, line)], "single"
    return [(list(row), [0] * len(row)) for row in laid.ids], laid.join


def compares(model: Model) -> bool:
    """Whether a model's one logit tells how well an answer fits, so that answers are compared."""
    return model.spec.labels is not None and model.spec.labels.count == 1


def unordered(model: Model) -> bool:
    """Whether a model learnt pairs in both orders (objective `similarity`)."""
    return bool((model.config or {}).get("both_orders"))


def marked(model: Model) -> bool:
    """Whether a decoder's vocabulary has the tokens that open a text, stand between two, and end it."""
    made = model.tokenizer
    return made is not None and not model.spec.encoder and all(made.id(t) is not None for t in inputs.SPELLED)


def divided(model: Model, line: str, *, both: bool = False) -> str | tuple[str, ...]:
    """A line as `classify` takes it: a tab parts texts that belong together, where the model tells them apart."""
    apart = both or unordered(model) or model.spec.stack.segments or marked(model) or compares(model)
    if "\t" not in line or not apart:
        return line
    return tuple(line.split("\t", -1 if compares(model) else 1))


def segmented(model: Model, line: Any) -> tuple[list[int], list[int]]:
    """The ids of a text, or of a pair, and the segment of each."""
    if not parted(line):
        ids = model.ids(line)
        return ids, [0] * len(ids)
    made = model.tokenizer
    if made is None or made.cls_id is None or made.sep_id is None or not model.spec.stack.segments:
        raise QkvError(
            "this model reads no pairs: that takes segments in the model, and a cls and a sep token in its tokenizer, "
            f"or a decoder whose vocabulary has {', '.join(inputs.SPELLED)}; give a list for several texts"
        )
    first, second = (made.encode(part, special=False) if isinstance(part, str) else part for part in line)
    both = inputs.pair(first, second, cls=made.cls_id, sep=made.sep_id)
    return list(both[0]), list(both[1])


def by_batches(
    rows: Sequence[tuple[list[int], list[int]]], read: Callable[[list[list[int]], list[list[int]]], Tensor]
) -> Tensor:
    """What `read` makes of rows of ids with their segments, those of like length together, in the order of the rows."""
    found: dict[int, Tensor] = {}
    for batch in by_length([ids for ids, _ in rows], 4096):
        found.update(zip(batch, read([rows[r][0] for r in batch], [rows[r][1] for r in batch]), strict=True))
    return torch.stack([found[i] for i in range(len(rows))])


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
                raise QkvError(f"unknown option {name!r}{nearest(name, known)} (known: {', '.join(known)})")
        stop: Any = how.get("stop") or ()
        way = how.get("sampling", "greedy")
        if way not in ("greedy", "model"):
            raise QkvError(f"sampling is {way!r}, expected 'greedy', or 'model' for what its makers chose")
        usual = drawn(habits) if way == "model" else {}
        options: dict[str, Any] = {**usual, **how, "stop": (stop,) if isinstance(stop, str) else tuple(stop)}
        return Ask(**options)

    def settings(self, model: Model) -> dict[str, Any]:
        """The same as generation/ takes it."""
        special, tokenizer = model.special, model.tokenizer
        speech = None if tokenizer is None else of_source(tokenizer) if model.encoder_decoder else tokenizer.stream
        return {
            "sampling": Sampling(self.temperature, self.top_k, self.top_p, self.min_p, self.seed),
            "stops": Stops(special.eos, self.stop, speech),
            "limits": Limits(self.max_new_tokens, model.spec.context, special.forbid),
            "feed": Feed(start_of(model), chunk=self.chunk, cache=self.cache),
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


def start_of(model: Model) -> tuple[int, ...]:
    """What the target of an encoder-decoder begins with, or what a prefix decoder writes after its free prefix."""
    special = model.special
    if not model.encoder_decoder:
        return () if special.start is None or not free(model.spec) else (special.start,)
    if special.start is None:
        raise QkvError("this encoder-decoder says no decoder_start_token_id; add it to its config.json")
    return (special.start,) if special.forced is None else (special.start, special.forced)


def free(spec: Spec) -> bool:
    """Whether the decoder sees its prompt freely, as a prefix."""
    return bool(spec.decoder) and any(block.attn.mask.kind == "prefix" for block in spec.decoder.blocks)


def write(model: Model, prompts: Sequence[Prompt], ask: Ask) -> list[Result]:
    """Continue prompts by sampling, greedily, or with beams."""
    ids = [model.ids(p) for p in prompts]
    settings = ask.settings(model)
    if ask.beam > 1:
        if ask.temperature or ask.stop or not ask.cache:
            raise QkvError("beam: beams search for the best text; leave out temperature, stop and cache=False")
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


def of_hypotheses(model: Model, hypotheses: Sequence[beams.Hypothesis], unknown: tuple[str, ...] = ()) -> Result:
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
    model: Model, texts: Sequence[str], *, beam: int = 4, length_penalty: float = 0.6, nbest: int = 1,
    max_new_tokens: int | None = None, align: bool = False, batch_tokens: int = 2048,
) -> list[Result]:  # fmt: skip
    """Translate texts, those of like length together."""
    if not model.encoder_decoder:
        raise QkvError("this model has no encoder and decoder: it can generate, not translate")
    for n, line in enumerate(texts):
        if isinstance(line, str) and not line.strip():
            raise QkvError(f"text {n + 1} of {len(texts)} is empty: there is nothing to translate")
    ids, way = [model.ids(t) for t in texts], way_of(model)
    search = beams.Search(beam, nbest, length_penalty)
    limits = Limits(max_new_tokens, model.spec.context, model.special.forbid)
    results: list[Result | None] = [None] * len(ids)
    for rows in by_length(ids, batch_tokens):
        batch = [ids[r] for r in rows]
        found = way.search(model, batch, search, limits)
        for r, hypotheses in zip(rows, found, strict=True):
            missing = tuple(model.tokenizer.unknown(texts[r])) if model.tokenizer and isinstance(texts[r], str) else ()
            result = of_hypotheses(model, hypotheses, missing)
            results[r] = replace(result, alignment=way.align(model, ids[r], result.tokens)) if align else result
    return [r for r in results if r is not None]


def searched(
    model: Model, sources: list[list[int]], search: beams.Search, limits: Limits
) -> list[list[beams.Hypothesis]]:
    """The translations that a Transformer's beams find."""
    stops, feed = Stops(model.special.eos), Feed(start_of(model))
    return beams.beam(model.core, sources, search=search, stops=stops, limits=limits, feed=feed)


def aligned(model: Model, source: list[int], tokens: list[int]) -> Tensor:
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

    write: Callable[[Model, Sequence[Prompt], Ask], list[Result]]
    search: Callable[[Model, list[list[int]], beams.Search, Limits], list[list[beams.Hypothesis]]]
    align: Callable[[Model, list[int], list[int]], Tensor]


def way_of(model: Model) -> Way:
    """The way of a model: the one place that asks whether its core is a Transformer or the LSTM before it."""
    core = model.core
    if not isinstance(core, Recurrent):
        return Way(write, searched, aligned)

    def refuse(model: Model, prompts: Sequence[Prompt], ask: Ask) -> list[Result]:
        raise QkvError("an LSTM baseline translates, or is measured; it does not continue texts")

    def greedy(
        model: Model, sources: list[list[int]], search: beams.Search, limits: Limits
    ) -> list[list[beams.Hypothesis]]:
        longest = limits.max_new_tokens or min(limits.context or 512, 50 + 2 * max(map(len, sources)))
        found = baselines.translate(core, sources, start=start_of(model)[0], ends=model.special.eos, longest=longest,
                                    forbid=limits.forbid)  # fmt: skip
        why = ("length", "stop")
        return [[beams.Hypothesis(w.tokens, sum(w.logprobs), w.logprobs, why[w.ended])] for w in found]

    def looked(model: Model, source: list[int], tokens: list[int]) -> Tensor:
        return baselines.alignment(core, source, [*start_of(model), *tokens[:-1]])

    return Way(refuse, greedy, looked)


def spec_of(name: str | Path | Model) -> Spec:
    """The spec of a model, of `family:size`, of a family (its first size), or of a MODEL's config; loads no weights."""
    if isinstance(name, Model):
        return name.spec
    family = checkpoint.called(str(name))
    config = checkpoint.named(str(name)) or (checkpoint.named(f"{name}:{next(iter(family.SIZES))}") if family else None)
    if config is None and ":" in str(name) and not Path(name).exists():
        known = [*checkpoint.modules(), *(a for m in checkpoint.modules().values() for a in getattr(m, "ALSO", ()))]
        family, size = str(name).split(":", 1)
        raise QkvError(f"{name}: there is no family {family!r}{nearest(family, known)} with a size {size!r} (families: "
                       f"{', '.join(known)})")  # fmt: skip
    if config is None:
        directory = locate(name, wanted=("config.json", peft.CONFIG))
        if (directory / peft.CONFIG).is_file() and not (directory / "config.json").is_file():
            return spec_of(peft.base_of(directory))
        return checkpoint.spec_of(store.read_json(directory / "config.json"), directory / "config.json")
    return checkpoint.spec_of(config, name)


def show(name: str | Path | Model, *, mode: Any = None, taps: bool = False) -> str:
    """The core folded into the single-model forward pass that one would have written by hand, as Python text.

    A comment comes first where the family's numbers were never published.
    """
    text, note = fold.show(spec_of(name), mode=mode, taps=taps), unpublished(name)
    return f"# {note}\n{text}" if note else text


def unpublished(name: str | Path | Model) -> str | None:
    """What a family says of numbers that nobody published and that it has all the same."""
    return getattr(checkpoint.called(str(name).partition(":")[0]), "UNPUBLISHED", None)


def report(
    name: str | Path | Model, *, dtype: str = "fp32", context: int | None = None, attention: str | None = None
) -> dict[str, Any]:
    """Parameters, FLOPs and bytes of a model, counted from the core built without memory.

    Bytes are of numbers in `dtype`; `attention` (mha, mqa, gqa:N) asks what other key/value heads would cost. A family
    whose model was never published says so under `note`, and adapters say whose cost is counted.
    """
    spec = spec_of(name)
    if attention:
        spec = regrouped(spec, groups_of(attention))
    note = unpublished(name)
    if not isinstance(name, Model) and (Path(name) / peft.CONFIG).is_file():
        note = f"adapters for {peft.base_of(Path(name))}; counted as loaded, merged into it"
    return cost.report(spec, dtype=dtype, context=context, note=note)


def device_of(name: str) -> torch.device:
    """The device of a name: auto takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.device(name)
    except RuntimeError:
        raise QkvError(f"unknown device {name!r} (known: auto, cpu, cuda, cuda:0, mps)") from None


DTYPES = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
          "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}  # fmt: skip


def dtype_of(name: str) -> torch.dtype | None:
    """The dtype of a name; auto is None: the checkpoint decides."""
    if name not in DTYPES:
        raise QkvError(f"unknown dtype {name!r}{nearest(name, DTYPES)} (known: {', '.join(DTYPES)})")
    return DTYPES[name]


def load(name: str | Path, *, device: str = "auto", dtype: str = "auto", revision: str | None = None) -> Model:
    """The model of a path, a bundled name or a hub id, strictly loaded, in eval mode.

    Raises:
        QkvError: nothing of that name, or a checkpoint that does not fit its config (both sides are listed).
    """
    directory = locate(name, revision)
    if (directory / peft.CONFIG).is_file():
        return adapted(directory, device, dtype)
    core, config = checkpoint.read(directory, device=device_of(device), dtype=dtype_of(dtype))
    pack(core)
    tokenizer = text.load(directory)
    if tokenizer is not None:
        tokenizer.fits(core.spec.sources or core.spec.vocabulary)
    file = directory / "generation_config.json"
    habits = store.read_json(file) if file.is_file() else {}
    return Model(core, tokenizer, special_of(directory, config, tokenizer), config, habits)


def adapted(directory: Path, device: str, dtype: str) -> Model:
    """A model with the adapters of a directory merged into it; the directory's own config says what else is new."""
    begun, file = load(peft.base_of(directory), device=device, dtype=dtype), directory / "config.json"
    config = store.read_json(file) if file.is_file() else begun.config or {}
    core = extended(begun.core, checkpoint.spec_of(config, file), 0)
    parts, whole = peft.read(directory, core, config)
    lora.load(core, parts)
    own = dict(core.named_parameters())
    with torch.no_grad():
        for key, tensor in whole.items():
            own[key].copy_(tensor)
    lora.merge(core)
    pack(core.eval())
    tokenizer = text.load(directory) or begun.tokenizer
    return Model(core, tokenizer, special_of(directory, config, tokenizer), config, begun.habits)


def extended(core: Transformer, spec: Spec, seed: int) -> Transformer:
    """A core of a spec with the weights of another where both have them; the core itself where nothing is new."""
    if core.spec == spec:
        return core
    made = core_of(spec)
    initialise(made, seed)
    made.to(core.embed.weight)
    old = dict(core.named_parameters())
    with torch.no_grad():
        for name, p in made.named_parameters():
            if name in old and old[name].shape == p.shape:
                p.copy_(old[name])
    return made


def save_adapters(directory: Path, model: Model) -> None:
    """The adapters of a model as PEFT writes them, with a config where the model has more than its base."""
    parts = {name: (m.a, m.b, m.scale) for name, m in lora.adapters(model.core).items()}
    inside = {f"{name}.{side}" for name in parts for side in "ab"}
    also = [n for n, p in model.core.named_parameters() if p.requires_grad and n not in inside]
    base = str(Path(model.base).resolve()) if Path(model.base).is_dir() else model.base
    peft.write(directory, model.core, model.config or {}, parts, base=base, also=also)
    if model.spec.labels:
        store.write_json(directory / "config.json", model.config or {})


def build(spec: Spec, *, seed: int = 0, tokenizer: Tokenizer | None = None, special: Special | None = None) -> Model:
    """A new model of a spec with first weights drawn from `seed`, in train mode."""
    if tokenizer is not None:
        tokenizer.fits(spec.sources or spec.vocabulary)
    core = core_of(spec)
    initialise(core, seed)
    if special is None and tokenizer is not None:
        eos = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
        start = tokenizer.pad_id if spec.encoder and spec.decoder else tokenizer.bos_id if free(spec) else None
        forbid = () if start is None else (start,)
        special = Special(tokenizer.bos_id, eos, tokenizer.pad_id, start, forbid)
    return Model(core.train(), tokenizer, special)


FILES = ("*.json", "*.safetensors", "*.model", "*.spm", "merges.txt", "vocab.*", "*.jinja")  # data, never code


def locate(name: str | Path, revision: str | None = None, wanted: Sequence[str] = FILES) -> Path:
    """The directory of a MODEL: an existing path, else a bundled name, else a hub id (`./x` forces a path)."""
    path, bundled = Path(name), paths.bundled_dir()
    if path.is_dir():
        if (path / "config.json").is_file() or (path / peft.CONFIG).is_file():
            return path
        here = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        raise QkvError(f"{path}: no config.json in this directory (found: {here}); is it a model's or a run's?")
    known = sorted(p.name for p in bundled.iterdir()) if bundled.is_dir() else []
    if str(name) in known:
        return bundled / str(name)
    if path.is_file():
        raise QkvError(f"{path}: is a file, expected the directory of a model")
    if str(name).startswith((".", "/", "~")) or str(name).count("/") > 1 or (os.sep != "/" and os.sep in str(name)):
        raise QkvError(f"{name}: no such directory (bundled models: {', '.join(known) or 'none'})")
    return download(str(name), revision, known, wanted)


def download(name: str, revision: str | None, known: Sequence[str], wanted: Sequence[str]) -> Path:
    """The wanted files of a hub id, from the cache where they lie there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(wanted)))
    except Exception as e:
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise QkvError(
            f"{name}: no such directory and no bundled model{nearest(name, known)} (bundled: "
            f"{', '.join(known) or 'none'}), and the hub did not give it ({type(e).__name__}: {reason[:160]}). "
            f"Check the name, and HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN and HF_HOME; ./{name} forces a path"
        ) from None


def special_of(directory: Path, config: dict[str, Any], tokenizer: Tokenizer | None) -> Special:
    """Special ids: generation_config.json first, then config.json, then the tokenizer's own."""
    file = directory / "generation_config.json"
    stated = {**config, **(store.read_json(file) if file.is_file() else {})}

    def one(key: str, own: int | None = None) -> int | None:
        value = stated.get(key)
        return own if value is None else int(value[0] if isinstance(value, list) else value)

    eos = stated.get("eos_token_id")
    ends = tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),)
    if not ends and tokenizer is not None and tokenizer.eos_id is not None:
        ends = (tokenizer.eos_id,)
    bad = tuple(int(w[0]) for w in stated.get("bad_words_ids") or () if len(w) == 1)
    pad = one("pad_token_id", tokenizer.pad_id if tokenizer else None)
    start = one("decoder_start_token_id")
    if start is not None and start == pad and not bad:
        bad = (start,)  # a decoder that starts with padding never says it
    bos = one("bos_token_id", tokenizer.bos_id if tokenizer else None)
    return Special(bos, ends, pad, start, bad, one("forced_bos_token_id"))
