"""One question put to a model: what it wrote, and the trace of the pass that reads what it wrote. Next: answers.py.

The words are written first (greedily, drawn, by beams, or forced), then read once more with the cache, token by token,
while the trace records, so that every way of writing gives one row, real phases and one trace.
Letters: B rows, T positions, V vocabulary.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation import beam as beams
from qkv.generation import engine
from qkv.generation.decoder import Decoder
from qkv.generation.sequence import DecodeOptions
from qkv.lens import attention_maps, edit, trace_storage
from qkv.lens.edge_ablation import Case
from qkv.lens.trace import Trace
from qkv.messages import Message, join
from qkv.model import Model
from qkv.options import NOT_NEGATIVE, check_range, replace_from_dict
from qkv.sampling import Sampling
from qkv.tasks.classify import find_segments, find_separator
from qkv.tasks.generate import decode_options
from qkv.tasks.generate_options import GenerateOptions
from qkv.tasks.task_format import mark_pair
from qkv.tasks.types import start_ids

FULL = ("check", "lens", "parts", "walk", "choices", "routes", "diff")
LIGHT = ("patterns", "lens", "routes")
BUDGET = 512 << 20  # bytes that one trace may keep
MOST = {"max_new_tokens": 4096, "beam": 64}  # that a question may ask for: one thread answers everybody
LOGITS = 64 << 20  # bytes of logits that may be made for the positions of a prompt, which generation skips


class Refused(QkvError):
    """A question that cannot be answered; `status` is its HTTP status."""

    def __init__(self, template: str, /, *, status: int = 422, **fields: Any) -> None:
        super().__init__(template, **fields)
        self.status = status


@dataclass(frozen=True)
class Cut:
    """A head to be silenced, or with `query` and `key` one edge of it to be removed; all count from 0."""

    part: str
    layer: int
    head: int
    query: int | None = None
    key: int | None = None

    @staticmethod
    def from_json(body: Any) -> "Cut":
        """The cut of a JSON object; a QkvError names a key that is missing, unknown or out of range."""
        cut = replace_from_dict(Cut("", 0, 0), body, "cut")
        if not {"part", "layer", "head"} <= set(body) or (cut.query is None) != (cut.key is None):
            raise Refused("cut: expected part, layer and head, and for an edge query and key")
        keys = ("layer", "head") if cut.query is None else ("layer", "head", "query", "key")
        check_range("cut", cut, NOT_NEGATIVE, lambda n: n >= 0, *keys)
        return cut


@dataclass(frozen=True)
class Question:
    """What a model is asked: a text (and a second one to compare), how to write, what to force and what to cut."""

    text: str
    second: str | None = None
    max_new_tokens: int | None = None
    beam: int | None = None
    sampling: tuple[tuple[str, float], ...] = ()
    force: tuple[int, ...] = ()
    cut: Cut | None = None

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "Question":
        """The question of a JSON object.

        Raises:
            QkvError: an unknown key, or a value that it cannot have.
        """
        texts = body.get("text"), body.get("second") or "x"
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise Refused("there is no text: write a sentence")
        cut = None if body.get("cut") is None else Cut.from_json(body["cut"])
        kept = {"second": body.get("second") or None, "force": body.get("force") or (), "sampling": (), "cut": cut}
        made = replace_from_dict(Question(""), {**body, **kept})
        for key, most in MOST.items():
            if getattr(made, key) is not None:
                wanted = Message("{low} to {high}", low=1, high=most)
                check_range("", made, wanted, lambda n, most=most: 1 <= n <= most, key)
        return replace(made, sampling=parse_sampling(body.get("sampling")))

    def id(self, model: str) -> str:
        """The name of the run that answers: the same for the same question to the same model."""
        asked = json.dumps([model, asdict(self)], ensure_ascii=False, sort_keys=True)
        return "r" + hashlib.sha256(asked.encode()).hexdigest()[:12]


def question_as_json(q: Question) -> dict[str, Any]:
    """A question as the page puts it."""
    cut = {key: value for key, value in vars(q.cut).items() if value is not None} if q.cut else None
    found = {**vars(q), "sampling": dict(q.sampling), "force": list(q.force), "cut": cut}
    return {key: value for key, value in found.items() if value}


def parse_sampling(sampling: object) -> tuple[tuple[str, float], ...]:
    """How words are drawn, as sorted pairs; filters that are off (null, or top_k 0) are left out."""
    known = ("temperature", "top_k", "top_p", "min_p", "seed")
    if sampling is None:
        return ()
    if not isinstance(sampling, dict) or not set(sampling) <= set(known):
        raise Refused("sampling: expected an object with some of {known}", known=", ".join(known))
    kept = {k: v for k, v in sampling.items() if v is not None and not (k == "top_k" and v == 0)}
    GenerateOptions.parse(kept, {})  # refuses what is no such number
    return tuple(sorted(kept.items()))


@dataclass(eq=False)
class Pass:
    """One text in one model: its ids, the ids written after it with their log-probabilities, and the trace."""

    text: str
    ids: list[int]
    written: list[int]
    logprobs: list[float]
    output: str
    t: Trace
    notes: list[Message] = field(default_factory=list)
    full: bool = True

    @property
    def bytes(self) -> int:
        """What the trace keeps."""
        return sum(x.numel() * x.element_size() for r in self.t.runs for c in r.calls for x in c.taps.values())


@dataclass(eq=False)
class Run:
    """A question with its answer: the pass over the text, and over the second text where one was given."""

    id: str
    name: str
    model: Model
    question: Question
    first: Pass
    second: Pass | None = None

    @property
    def t(self) -> Trace:
        """The trace that lines of Python call `t`."""
        return self.first.t

    @property
    def bytes(self) -> int:
        """What both traces keep."""
        return self.first.bytes + (self.second.bytes if self.second else 0)

    @property
    def scope(self) -> dict[str, Any]:
        """The names with which the lines of answers evaluate."""
        both = {"t": self.t, "model": self.model, "torch": torch, "qkv": import_module("qkv")}
        return {**both, "t2": self.second.t} if self.second else both


def kind(model: Model) -> str:
    """encoder-decoder, encoder, prefix or decoder."""
    short = {"prefix decoder": "prefix", "causal decoder": "decoder"}
    return short.get(model.spec.architecture, model.spec.architecture)


def ask(model: Model, question: Question, name: str = "model") -> Run:
    """Put a question to a model: `ask(qkv.load("demo"), Question("我看完了那本书。")).t` is the trace.

    Raises:
        QkvError: no tokenizer, a selector out of range, what the model itself refuses.
    """
    if not model.spec.has_blocks:
        raise Refused("{name} is an LSTM: it has no layers of attention to look into; qkv look {name} TEXT shows its "
                      "alignment", name=name)
    if model.tokenizer is None:
        raise Refused("{name} has no tokenizer, so a text cannot become tokens; save one beside it", name=name)
    first = read_text(model, question.text, question)
    second = read_text(model, question.second, question) if question.second else None
    return Run(question.id(name), name, model, question, first, second)


@torch.inference_mode()
def read_text(model: Model, text: str, question: Question, more: Sequence[edit.Edit] = ()) -> Pass:
    """One text: cut to what fits, continued or translated, and traced; `more` is edited beside what is cut."""
    text, notes = fit_text(model, mark_texts(model, text))
    ids = model.ids(text)
    missing = model.tokenizer.find_unknown(text) if model.tokenizer else []
    if missing:
        notes.append(Message("not in the vocabulary: {missing}", missing=join(", ", missing[:8])))
    edits = [*edits_of(model, question.cut), *more]
    speaks = model.spec.decoder is not None and model.spec.head is not None
    words = write_words(model, ids, question, edits) if speaks else None
    found = trace_words(model, ids, words, question, edits)
    return replace(found, text=text, notes=[*notes, *found.notes])


@torch.inference_mode()
def read_again(model: Model, name: str, run: str, prompt: Sequence[int], words: tuple[list[int], list[float]]) -> Run:
    """The run of ids that were read and written elsewhere, as in an engine: what stands in `words` with its logprobs.

    Raises:
        Refused: nothing was written, or more than a trace may keep.
    """
    most, tokens = BUDGET // bytes_per_token(model.core, LIGHT), len(prompt) + len(words[0])
    if not words[0]:
        raise Refused("nothing was written, so there is nothing to look into", status=404)
    if tokens > most:
        raise Refused("this text has {size} tokens; this page reads at most {most}", size=tokens, most=most)
    question = Question(model.text(prompt), max_new_tokens=len(words[0]))
    return Run(run, name, model, question, trace_words(model, list(prompt), words, question, []))


def trace_words(
    model: Model, ids: list[int], words: tuple[list[int], list[float]] | None, question: Question,
    edits: Sequence[edit.Edit],
) -> Pass:
    """The pass that reads ids and, where the model writes, the words after them, while a trace records."""
    written, logprobs = words or ([], [])
    notes, tokens = list[Message](), len(ids) + len(written)
    size = tokens * bytes_per_token(model.core, FULL)
    full = size <= BUDGET
    if not full:
        notes.append(Message("this text has {tokens} tokens, and all of it takes {size} MB: no walk, parts or check "
                             "here, but the rest", tokens=tokens, size=f"{size / 2**20:,.0f}"))
    save = [*(FULL if full else LIGHT), *["labels.out"] * bool(model.spec.labels)]
    with Trace(model.core, save, edits, model.tokenizer) as t:
        reread(model, ids, written, question) if words else read_once(model, ids)
    return Pass(question.text, ids, written, logprobs, output_text(model, t, ids, written), t, notes, full)


def mark_texts(model: Model, text: str) -> str:
    """A text as it is read: of two for a classifier the separator stands where the tab is, as `classify` has it."""
    return mark_pair(text, find_separator(model)) if model.spec.labels else text


def fit_text(model: Model, text: str) -> tuple[str, list[Message]]:
    """As much of a text as the page takes, and a message where that is not all of it."""
    most, size = max_text_tokens(model), len(model.ids(text))
    if size <= most:
        return text, []
    low, high = 0, len(text)  # the longest beginning that fits
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(model.ids(text[:middle])) <= most else (low, middle)
    if not text[:low].strip():
        raise Refused("this text has {size} tokens; this page reads at most {most}", size=size, most=most)
    return text[:low], [
        Message("this text has {size} tokens; the page reads the first {most}, the rest is neither read nor shown",
                size=size, most=most)
    ]


def max_text_tokens(model: Model) -> int:
    """How many tokens of a text the page takes: what the model reads, and what a trace may keep."""
    spec = model.spec
    stack = spec.encoder or spec.stack
    bounds = [stack.longest, spec.context if spec.decoder and not spec.encoder else None]
    known = [b - (0 if spec.encoder else 2) for b in bounds if b]  # a word of its own and its start need room
    return max(1, min([*known, BUDGET // bytes_per_token(model.core, LIGHT)]))


def bytes_per_token(core: Transformer, save: Sequence[str]) -> int:
    """Bytes that a trace with these taps keeps for one token of a source and one that is written; logits apart."""
    each = trace_storage.bytes_per_token(core)
    return sum(each.get(name, 0) for name in Trace(core, save).needed if name != "logits")


def make_case(model: Model, one: Pass, written: Sequence[int]) -> Case:
    """A text with words after it, the first of them asked about; for an encoder a word at its first [MASK]."""
    ids = tuple(one.ids)
    if model.spec.decoder is None:
        at = ids.index(mask_token(model))
        return Case(ids, (*ids[:at], *written), at)
    both = model.encoder_decoder
    given = (*(() if both else ids), *start_ids(model))
    return Case(ids if both else (), (*given, *written), len(given), len(ids) * (kind(model) == "prefix"))


def mask_token(model: Model) -> int:
    """The token that stands for a word to be guessed, -1 where there is none."""
    found = model.tokenizer.mask_id if model.tokenizer else None
    return -1 if found is None else found


def edits_of(model: Model, cut: Cut | None) -> list[edit.Edit]:
    """The cut of a question as an edit of its attention."""
    if cut is None:
        return []
    path = attention_path(model, cut.part, cut.layer, cut.head)
    if cut.query is None:
        return [edit.ablate(f"{path}.z", heads=cut.head)]
    return [edit.cut(path, heads=cut.head, query=cut.query, key=cut.key)]


def attention_path(model: Model, part: str, layer: int, head: int = 0) -> str:
    """The path of an attention; a Refused says what there is."""
    paths = attention_paths(model)
    if part not in paths:
        raise Refused("part={part}: this model has {paths}", part=part, paths=join(", ", paths))
    rows = paths[part]
    if not 0 <= layer < len(rows):
        raise Refused("layer={layer}: expected 0 to {rows}", layer=layer, rows=len(rows) - 1)
    stack: Any = model.spec.encoder if part == "encoder" else model.spec.decoder
    heads = getattr(stack.blocks[layer], "cross" if part == "cross" else "attn").heads
    if not 0 <= head < heads:
        raise Refused("head={head}: expected 0 to {heads}", head=head, heads=heads - 1)
    return rows[layer]


def attention_paths(model: Model) -> dict[str, list[str]]:
    """The paths of each part's attentions, from the first layer up."""
    spec = model.spec
    there = {"encoder": spec.encoder, "decoder": spec.decoder, "cross": spec.encoder and spec.decoder}
    parts: tuple[attention_maps.AttentionPart, ...] = ("encoder", "decoder", "cross")
    return {part: attention_maps.attention_paths(spec, part) for part in parts if there[part]}


def write_words(
    model: Model, ids: list[int], question: Question, edits: list[edit.Edit]
) -> tuple[list[int], list[float]]:
    """The ids that follow a text, what is forced first, and the log-probability of each that was chosen (forced: 0)."""
    force = list(question.force)
    if bad := [i for i in force if not 0 <= i < model.spec.vocabulary]:
        raise Refused("force: there is no id {bad}, the last one is {vocabulary}", bad=bad[0],
                      vocabulary=model.spec.vocabulary - 1)
    if force and force[-1] in model.special.eos:
        return force, [0.0] * len(force)
    ids, options, sampling = decoding_setup(model, ids, question)
    with Trace(model.core, edit=edits) if edits else nullcontext():
        if search := choose_search(model, question):
            best = beams.beam(model.core, [ids], search=search, options=options)[0][0]
            return [*force, *best.tokens], [0.0] * len(force) + list(best.logprobs)
        done = engine.generate(model.core, [ids], sampling=sampling, options=options)[0]
    return [*force, *done.tokens], [0.0] * len(force) + list(done.logprobs)


def decoding_setup(model: Model, ids: list[int], question: Question) -> tuple[list[int], DecodeOptions, Sampling]:
    """What is read before anything is chosen, how it is decoded, and how tokens are chosen."""
    most = question.max_new_tokens or (None if model.encoder_decoder else 12)
    asked = GenerateOptions.parse({"max_new_tokens": most, **dict(question.sampling)}, {})
    options = replace(decode_options(model, asked), stop_strings=(), text_stream=None)
    if kind(model) == "decoder":
        return [*ids, *question.force], options, asked
    return ids, replace(options, start=(*options.start, *question.force)), asked


def choose_search(model: Model, question: Question) -> beams.Search | None:
    """How beams are searched for a question; None where its words are chosen one by one."""
    edge = question.cut is not None and question.cut.query is not None and question.cut.part != "encoder"
    both = model.encoder_decoder
    size = 1 if question.sampling or edge else question.beam or (4 if both else 1)
    return beams.Search(size, nbest=size, length_penalty=0.6 if both else 0.0) if size > 1 else None


class FullLogitsDecoder(Decoder):
    """A decoder that computes logits at every position: guesses inside a prompt are shown as thrown away."""

    def forward(self, ids: Tensor, real: Tensor | None, *, head: bool = True, decode: bool = False) -> Tensor:
        inputs, mode = replace(self.inputs, padding_mask=real), "decode" if decode else "prefill"
        return self.core(ids, inputs, self.cache, mode=mode).logits[:, -1]


def reread(model: Model, ids: list[int], written: list[int], question: Question) -> None:
    """Read the text and what was written after it: what was given at once, the rest a token a step with the cache.

    The last token is not read, as in writing: nothing was said after it.
    """
    core, given = model.core, len(question.force)
    forced = written[:given] if given < len(written) else written[: given - 1]
    options, goes_on = decode_options(model, GenerateOptions()), kind(model) == "decoder"
    options = replace(options, start=() if goes_on else (*options.start, *forced))
    loud = (len(ids) + len(forced)) * core.spec.vocabulary * 4 <= LOGITS
    decoder = (FullLogitsDecoder if loud else Decoder)(core, options)
    decoder.prefill([[*ids, *forced] if goes_on else ids], len(written) + 1)
    for token in written[len(forced) : -1]:
        decoder.decode(torch.tensor([token], device=model.device))


def read_once(model: Model, ids: list[int]) -> None:
    """A model that writes nothing: one pass over a text, with the outputs of its heads."""
    core = model.core
    if model.encoder_decoder:
        raise Refused("this encoder-decoder has no head, so it writes no words")
    x = torch.tensor([ids], device=model.device)
    free = torch.tensor([len(ids)], device=model.device) if kind(model) == "prefix" else None
    two = core.spec.labels and core.spec.stack.segments > 1
    segments = torch.tensor([find_segments(model, ids)], device=model.device) if two else None
    hidden, step = core.run_stack(x, Inputs(prefix_len=free, segments=segments), mode="prefill")
    if core.spec.head:
        step.tap(core, "logits", core.head(hidden))
    if core.spec.labels:
        core.labels(hidden, step)


def output_text(model: Model, t: Trace, ids: list[int], written: list[int]) -> str:
    """The model's output: what it wrote, or the text with its blanks filled in."""
    if model.spec.decoder:
        return model.text([i for i in written if i not in model.special.eos])
    mask = mask_token(model)
    if model.spec.head is None or mask not in ids:
        return ""
    best = t["logits"][0].argmax(-1).tolist()
    return model.text([b if i == mask else i for i, b in zip(ids, best, strict=True)])


class RecentRuns:
    """The latest runs, at most `count` of them and `limit` bytes; the one asked for longest ago goes first."""

    def __init__(self, count: int = 8, limit: int = 2 * BUDGET) -> None:
        self.count, self.limit = count, limit
        self.runs: OrderedDict[str, Run] = OrderedDict()

    def get(self, name: str) -> Run:
        """A run that is kept; a Refused with status 404 where it was dropped."""
        if name not in self.runs:
            raise Refused("there is no {name}: the last {num_experts} are kept; ask again", status=404, name=name,
                          num_experts=self.count)
        self.runs.move_to_end(name)
        return self.runs[name]

    def get_or_make(self, name: str, make: Callable[[], Run]) -> Run:
        """The run of a name, made where it is not kept."""
        if name not in self.runs:
            self.runs[name] = make()
        self.runs.move_to_end(name)
        while len(self.runs) > 1 and (
            len(self.runs) > self.count or sum(r.bytes for r in self.runs.values()) > self.limit
        ):
            self.runs.popitem(last=False)
        return self.runs[name]
