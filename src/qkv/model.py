"""`Model`: a core with its tokenizer and all that one can ask of it; its methods only delegate."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv import evaluate, reading
from qkv.adapt import lora
from qkv.chat import template as chats
from qkv.checkpoints import model_dir, peft, storage
from qkv.core.dropout import Drop, keep
from qkv.core.model import Transformer
from qkv.core.step import Given, begin
from qkv.errors import QkvError
from qkv.generation import engine
from qkv.judging import by_batches, compares, divided, parted, present, together
from qkv.messages import Message
from qkv.spec import Spec
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.uses import kind
from qkv.writing import Ask, Prompt, Result, chance, free, render, way_of, whole

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

        Raises:
            QkvError: what the model does not read, or ids that are no whole numbers in rows.
        """
        core = self.core
        well_formed(ids=ids, source=source, target=target)
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
        if not str(directory):
            raise QkvError("save: the name of the directory is empty")
        directory = Path(directory)
        with storage.replacing(directory) as aside:
            extra = self.special.keys
            if lora.adapters(self.core):
                save_adapters(aside, self)
            else:
                model_dir.write(aside, self.core, family=family, config=self.config, extra=extra, dtype=dtype)
            never = {"bad_words_ids": [[i] for i in self.special.forbid]} if self.special.forbid else {}
            storage.write_json(aside / "generation_config.json", {**self.habits, **extra, **never})
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

        Options: beam (4), length_penalty (0.6), nbest (1), max_new_tokens, align (False), and `ensemble`: other models
        that search with this one, by the mean of their probabilities.

        Raises:
            QkvError: the model has no encoder and decoder, a text is empty, or an ensemble is of several vocabularies.
        """
        many, texts = several(text)
        results = render(self, texts, **how)
        return results if many else results[0]

    def chat(self, messages: str | Sequence[chats.Turn], **how: Any) -> Result:
        """The answer to a conversation, a list of {"role": …, "content": …}, or to one text of the user.

        Options are those of `generate`. Control tokens that somebody typed stay text.

        Raises:
            QkvError: the model has no chat template, or its template refuses the messages.
        """
        return self.generate(self.conversation(messages), **how)

    def conversation(self, messages: str | Sequence[chats.Turn]) -> list[int]:
        """The ids of a conversation up to where the model answers, as its chat template writes them."""
        template = chats.of(self.tokenizer) if self.tokenizer else None
        if template is None or self.tokenizer is None:
            raise QkvError("this model has no chat template; it was not made to converse: use generate")
        rows = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return template.ids(self.tokenizer, rows)

    def score(self, text: Any) -> Any:
        """The log-probability (natural, summed over tokens) that the model gives a text, or each of a list of texts.

        Of a tuple of two texts the second is scored, after the first: a translation after its source, end included,
        what a prefix decoder writes after what it reads, or how a decoder's text goes on. Ids are taken as they are.

        Raises:
            QkvError: the model says no words, or not after this: an encoder-decoder wants two texts, others one or two.
        """
        many, texts = (False, [text]) if parted(text) else several(text)
        totals = [chance(self, t) for t in texts]
        return totals if many else totals[0]

    def embed(self, text: Any) -> Tensor:
        """A vector of length 1 for a text [D], or for each of a list of texts [B, D]: the mean of its last states."""
        many, texts = several(text)
        if not texts:
            return torch.empty(0, self.spec.stack.width)
        rows = [(self.ids(line), []) for line in present(texts)]
        found = by_batches(rows, lambda ids, _: reading.embed(self.core, ids))
        return found if many else found[0]

    def classify(self, text: Any, *, both: bool = False, ensemble: Sequence["Model"] = ()) -> Any:
        """The label of a text and the probability of each: one Verdict, or a list of them.

        A tuple is one question: a pair, which `both` reads in both orders and adds (are they alike?), as a model does
        that learnt it so, or, where one logit judges, (question, answer, ...): the label is the best answer's number.
        The models of `ensemble` judge with this one, by the mean of their probabilities.

        Raises:
            QkvError: the model has no labels; or a pair, and it reads none; an ensemble is of other labels.
        """
        many, texts = (False, [text]) if parted(text) else several(text)
        verdicts = together([self, *ensemble], texts, both=both) if texts else []
        return verdicts if many else verdicts[0]

    def fill(self, text: str, *, top: int = 5) -> list[list[tuple[str, float]]]:
        """For each mask in a text the `top` most likely words with their probabilities, best first.

        Raises:
            QkvError: the model does not fill in words, the text holds no mask, or `top` is none.
        """
        if top < 1:
            raise QkvError("top: found {top}, expected 1 or more words", top=top)
        if self.tokenizer is None or self.tokenizer.mask_id is None:
            raise QkvError("fill needs a model that was trained on masked words, and this one's tokenizer has no mask "
                           "token; it is {kind}", kind=kind(self.spec))
        chances = reading.fill(self.core, self.ids(text), self.tokenizer.mask_id)
        chances = chances.topk(min(top, chances.shape[-1]))
        rows = zip(chances.indices.tolist(), chances.values.tolist(), strict=True)
        pieces = self.tokenizer.pieces
        return [[(w.strip(), p) for w, p in zip(pieces(i), ps, strict=True)] for i, ps in rows]

    def eval(self, **what: Any) -> evaluate.Translation | evaluate.Perplexity | evaluate.Accuracy:
        """How good the model is: `bleu=(source, reference)` files or lists, `ppl=` a text file, or `accuracy=` a file
        of label TAB text (or JSON lines with both).

        Options of bleu: tokenize, lowercase, joint, beam, length_penalty, max_new_tokens, ensemble; of ppl: window,
        stride; of accuracy: ensemble; and `tell`, a function of (done, all).

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


def several(given: Any) -> tuple[bool, list[Any]]:
    """Whether a list of prompts was meant, and the prompts: a str or a list of ints is one."""
    given = given.tolist() if hasattr(given, "tolist") else given  # a tensor or an array of ids
    rows = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if isinstance(given, str) or (rows and all(isinstance(i, int) for i in rows) and isinstance(given, Iterable)):
        return False, [given]
    if wrong := [row for row in rows if not isinstance(row, Iterable)]:
        raise QkvError("found {wrong!r} of type {kind}, expected a text, the ids of one, or a list of them",
                       wrong=wrong[0], kind=type(wrong[0]).__name__)
    return True, rows


ANSWERS = 100  # to one question at most, where a model is judged by which it chooses


def voice(model: Model) -> evaluate.Voice:
    """What an evaluation may ask of a model."""

    def answer(texts: list[str], **search: Any) -> list[str]:
        found = model.translate(texts, **search) if model.encoder_decoder else model.generate(texts, **search)
        return [result.text for result in found]

    def classify(texts: list[Any], **how: Any) -> list[str]:
        return [verdict.label for verdict in model.classify([divided(model, text) for text in texts], **how)]

    def said(source: str, target: str) -> tuple[float, int]:
        return chance(model, (source, target)), len(whole(model, target))

    labels = tuple(map(str, range(ANSWERS))) if compares(model) else model.labels
    after = model.encoder_decoder or free(model.spec)
    return evaluate.Voice(model.core, model.ids, model.text, answer, classify, said, after, labels)


def well_formed(**given: Tensor | None) -> None:
    """QkvError where ids are no rows [B, T] of whole numbers."""
    for name, rows in given.items():
        if rows is not None and (rows.ndim != 2 or rows.is_floating_point() or rows.dtype == torch.bool):
            hint = Message("; one row of ids is {name}[None]", name=name) if rows.ndim == 1 else ""
            raise QkvError("{name}: found {shape} of {dtype}, expected whole numbers [rows, positions]{hint}",
                           name=name, shape=list(rows.shape), dtype=str(rows.dtype).removeprefix("torch."),
                           hint=hint)


def save_adapters(directory: Path, model: Model) -> None:
    """The adapters of a model as PEFT writes them, with a config where the model has more than its base."""
    parts = {name: (m.a, m.b, m.scale) for name, m in lora.adapters(model.core).items()}
    inside = {f"{name}.{side}" for name in parts for side in "ab"}
    also = [n for n, p in model.core.named_parameters() if p.requires_grad and n not in inside]
    base = str(Path(model.base).resolve()) if Path(model.base).is_dir() else model.base
    peft.write(directory, model.core, model.config or {}, parts, base=base, also=also)
    if model.spec.labels:
        storage.write_json(directory / "config.json", model.config or {})
