"""What came before: LSTMs with and without attention, trained as any core is, and n-grams of the same batches.

A `Recurrent` core stands where a Transformer stands: the same embedding, head, batches, losses and loop; its two stacks
differ. They exist so that "why the Transformer" is a measurement. Letters: B batch, T target, S source, D width, L
layers, N grams, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.convert import store
from qkv.core.init import initialise
from qkv.core.model import Stack, Transformer
from qkv.core.step import Given, Step, begin
from qkv.data.collate import IGNORED, Batch, filled
from qkv.errors import QkvError
from qkv.spec import Head, Init, Mask, Spec, as_json, from_json
from qkv.spec import Stack as StackSpec

TYPE = "lstm"  # what config.json says
State = tuple[Tensor, Tensor]  # h and c, each L B D
MEMORY = Mask("memory")


@dataclass(frozen=True)
class Recurrence(Spec):
    """The spec of a recurrent model: stacks without blocks, and how many LSTM layers stand in for them.

    `attention` none: the decoder knows the source by one vector alone (Sutskever et al. 2014; here both ends of a
    bidirectional encoder). additive: it looks at all of the source before each word (Bahdanau et al. 2014).
    """

    layers: int = 1
    attention: Literal["none", "additive"] = "none"

    def __post_init__(self) -> None:
        if self.decoder is None or self.decoder.width % 2:
            raise QkvError("an LSTM model needs a decoder, and an even width: each direction of its encoder is half")
        if self.attention == "additive" and self.encoder is None:
            raise QkvError("additive attention looks at a source; this model has no encoder")


def recurrence(
    vocabulary: int, *, width: int, layers: int = 1, attention: Literal["none", "additive"] = "none",
    source: bool = True, dropout: float = 0.0, context: int | None = None, tied: bool = True,
) -> Recurrence:  # fmt: skip
    """The spec of an LSTM model; without a `source` it is a language model."""
    stack = StackSpec(width, (), embed_scale=width**0.5, dropout=dropout, context=context)
    return Recurrence(vocabulary, stack, stack if source else None, Head("tied" if tied else "untied"),
                      init=Init("xavier"), layers=layers, attention=attention)  # fmt: skip


class Reader(Stack):
    """A bidirectional LSTM over the source: each state knows what stands before and after it."""

    def __init__(self, s: Recurrence, path: str) -> None:
        nn.Module.__init__(self)
        assert s.encoder is not None
        self.spec, self.path, width = s.encoder, path, s.encoder.width
        self.masks, self.rotaries = (), ()
        self.rnn = nn.LSTM(width, width // 2, s.layers, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = step.drop(step.tap(self, "embed", x * s.embed_scale), s.dropout)  # B S D
        lengths = (step.place.token.amax(1) + 1).expand(len(x)).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])
        return step.drop(states, s.dropout)  # B S D


class Writer(Stack):
    """An LSTM over the target, begun from what the source amounts to, and looking back at it where it has attention."""

    def __init__(self, s: Recurrence, path: str) -> None:
        nn.Module.__init__(self)
        assert s.decoder is not None
        self.spec, self.path, width = s.decoder, path, s.decoder.width
        self.depth, self.attention = s.layers, s.attention
        self.masks, self.rotaries = (MEMORY,) if s.encoder else (), ()
        if s.encoder:
            self.bridge = nn.Linear(width, 2 * s.layers * width)
        if s.attention == "additive":
            self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width)
            self.score, self.readout = nn.Linear(width, 1, bias=False), nn.Linear(2 * width, width)
        self.rnn = nn.LSTM(width * (2 if s.attention == "additive" else 1), width, s.layers, batch_first=True)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.write(x, self.start(len(x), step), step)[0]

    def start(self, rows: int, step: Step) -> State:
        """The first state: zeros, or made of both ends of the source."""
        if not self.masks:
            first = torch.zeros(self.depth, rows, self.spec.width, device=step.memory.device)
            return first, first
        memory, half = step.memory, self.spec.width // 2  # B S D
        bias = step.mask[MEMORY].bias
        last = memory.shape[1] - 1 if bias is None else (bias[:, 0, 0] == 0).sum(-1) - 1
        forward = memory[torch.arange(rows, device=memory.device), last, :half]
        ends = torch.cat((forward, memory[:, 0, half:]), -1)  # B D
        h, c = self.bridge(ends).unflatten(-1, (2, self.depth, -1)).permute(1, 2, 0, 3).contiguous()  # 2 L B D
        return h.tanh(), c

    def write(self, x: Tensor, state: State, step: Step) -> tuple[Tensor, Tensor, State]:
        """The states of more words [B, T, D], where each looked [B, T, S] (no S without attention), the state after."""
        s = self.spec
        x = step.drop(step.tap(self, "embed", x * s.embed_scale), s.dropout)  # B T D
        if self.attention == "none":
            states, state = self.rnn(x, state)  # B T D
            return step.drop(states, s.dropout), x.new_zeros(*x.shape[:2], 0), state
        memory, bias = step.memory, step.mask[MEMORY].bias  # B S D
        keys, hidden = self.key(memory), 0.0 if bias is None else bias[:, 0, 0]  # B S D, B S
        states, patterns = list[Tensor](), list[Tensor]()
        for word in x.unbind(1):
            energy = self.score(torch.tanh(keys + self.query(state[0][-1])[:, None]))[..., 0]  # B S
            pattern = (energy + hidden).softmax(-1)  # B S
            context = (pattern[:, None] @ memory)[:, 0]  # B D
            out, state = self.rnn(torch.cat((word, context), -1)[:, None], state)
            states.append(torch.cat((out[:, 0], context), -1))
            patterns.append(pattern)
        # a tanh layer in the place of the paper's maxout
        read = self.readout(step.drop(torch.stack(states, 1), s.dropout)).tanh()  # B T D
        pattern = step.tap(self, "pattern", torch.stack(patterns, 1))  # B T S
        return step.drop(read, s.dropout), pattern, state


class Recurrent(Transformer):
    """A core whose stacks are LSTMs; whoever calls, trains or saves a core does the same with it."""

    spec: Recurrence

    def __init__(self, s: Recurrence) -> None:
        nn.Module.__init__(self)
        self.spec, self.path = s, ""
        self.embed = nn.Embedding(s.vocabulary, s.stack.width)
        if s.encoder:
            self.encoder = Reader(s, "encoder")
        self.decoder = Writer(s, "decoder" if s.encoder else "")
        self.head = nn.Linear(s.stack.width, s.vocabulary, bias=False)
        self.tie()

    @property
    def writer(self) -> Writer:
        """The decoder."""
        assert isinstance(self.decoder, Writer)
        return self.decoder


def begun(s: Recurrence, seed: int = 0) -> Recurrent:
    """A recurrent core with first weights drawn from `seed`; forget gates begin open (Jozefowicz et al. 2015)."""
    core = Recurrent(s)
    initialise(core, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for rnn in (m for m in core.modules() if isinstance(m, nn.LSTM)):
            for name, weight in rnn.named_parameters():
                bound = rnn.hidden_size**-0.5
                weight.uniform_(-bound, bound, generator=generator) if weight.ndim > 1 else weight.zero_()
                if name.startswith("bias_ih"):
                    weight[rnn.hidden_size : 2 * rnn.hidden_size] = 1.0
    return core


def save(directory: Path, core: Recurrent, extra: dict[str, Any]) -> None:
    """Weights as safetensors and the spec as config.json into `directory`; `extra` keys stand beside it."""
    store.write(directory, {name: p.detach() for name, p in core.named_parameters()})
    store.write_json(directory / "config.json", {"model_type": TYPE, "spec": as_json(core.spec), **extra})


def restored(directory: Path, config: dict[str, Any], device: torch.device, dtype: torch.dtype | None) -> Recurrent:
    """The core that `save` wrote.

    Raises:
        QkvError: a config or weights that do not fit each other; both sides are listed.
    """
    core = Recurrent(from_json(Recurrence, config.get("spec"), f"{directory / 'config.json'}: spec"))
    own, found = dict(core.named_parameters()), store.tensors(directory)
    missing, extra = sorted(own.keys() - found.keys()), sorted(found.keys() - own.keys())
    shapes = {name: list(get().shape) for name, get in found.items() if name in own}
    other = [f"{name} {shape}, expected {list(own[name].shape)}" for name, shape in shapes.items()
             if shape != list(own[name].shape)]  # fmt: skip
    if missing or extra or other:
        raise QkvError(f"{directory}: the weights do not fit config.json: never filled: {missing[:5]}; never read: "
                       f"{extra[:5]}; other shapes: {other[:5]}")  # fmt: skip
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(found[name]())
    return core.to(device, dtype).eval()


@dataclass(frozen=True)
class Written:
    """A translation: its ids, the log-probability of each, whether an end id ended it."""

    tokens: list[int]
    logprobs: list[float]
    ended: bool


def over(core: Recurrent, sources: Sequence[Sequence[int]], ids: Tensor) -> Step:
    """The step of a decoder that reads `ids` with these sources as its memory."""
    source, real = filled(sources, ids.device)
    memory = core.encode(source, begin(core.encoder, source, Given(real=real)))
    return begin(core.decoder, ids, Given(memory=memory, memory_real=real), mode="decode")


@torch.inference_mode()
def translate(
    core: Recurrent, sources: Sequence[Sequence[int]], *, start: int, ends: Sequence[int], longest: int,
    forbid: Sequence[int] = (),
) -> list[Written]:  # fmt: skip
    """The likeliest next word, again and again, for a batch of sources: an end id, or `longest`, ends a row."""
    ids = torch.full((len(sources), 1), start, device=core.embed.weight.device)
    step, ending = over(core, sources, ids), torch.tensor(list(ends), device=ids.device)
    state, going = core.writer.start(len(ids), step), torch.ones_like(ids[:, 0], dtype=torch.bool)
    chosen, chances = list[Tensor](), list[Tensor]()
    while len(chosen) < longest and bool(going.any()):
        states, _, state = core.writer.write(core.embed(ids), state, step)
        scores = core.head(states[:, 0]).float().log_softmax(-1)  # B V
        scores[:, list(forbid)] = -torch.inf
        best = scores.max(-1)
        chosen.append(best.indices)
        chances.append(best.values)
        ids, going = best.indices[:, None], going & ~torch.isin(best.indices, ending)
    rows = zip(torch.stack(chosen, 1).tolist(), torch.stack(chances, 1).tolist(), strict=True)
    return [cut(tokens, logprobs, ends) for tokens, logprobs in rows]


def cut(tokens: list[int], logprobs: list[float], ends: Sequence[int]) -> Written:
    """A row up to and with its end id."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in ends), 0)
    size = end or len(tokens)
    return Written(tokens[:size], logprobs[:size], bool(end))


@torch.inference_mode()
def alignment(core: Recurrent, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Where a core with attention looks in the source before each word that follows `target` ids: [T, S].

    Raises:
        QkvError: the core has no attention.
    """
    if core.spec.attention == "none":
        raise QkvError("this LSTM knows its source by one vector; only one with attention has an alignment")
    ids = torch.tensor([list(target)], device=core.embed.weight.device)
    step = over(core, [source], ids)
    return core.writer.write(core.embed(ids), core.writer.start(1, step), step)[1][0]


@dataclass(frozen=True)
class Order:
    """The counts of one order: sorted codes of histories and of histories with a word, and what KN needs of each."""

    histories: np.ndarray  # code of (history one shorter, word before it)
    grams: np.ndarray  # code of (history, word)
    counts: np.ndarray  # by gram
    totals: np.ndarray  # by history
    kinds: np.ndarray  # by history: different words after it
    discount: float


@dataclass(frozen=True)
class Ngrams:
    """An n-gram model of token ids: interpolated Kneser-Ney with one discount an order (Chen & Goodman 1998, 3)."""

    vocabulary: int
    orders: tuple[Order, ...]

    def chances(self, grams: np.ndarray) -> np.ndarray:
        """The probability of the last id of each row [N, n] given the others (`vocabulary` stands for the edge)."""
        words, history = grams[:, -1], np.zeros(len(grams), dtype=np.int64)
        found = np.full(len(grams), 1.0 / self.vocabulary)
        for k, order in enumerate(self.orders):
            if k:
                history = place(order.histories, coded(history, grams[:, -1 - k], self.vocabulary))
            known = history >= 0
            at = place(order.grams, coded(history, words, self.vocabulary))
            counts = np.where(at >= 0, order.counts[at], 0.0)
            totals, kinds = order.totals[history], order.kinds[history]
            new = (np.maximum(counts - order.discount, 0.0) + order.discount * kinds * found) / np.maximum(totals, 1)
            found = np.where(known, new, found)
        return found

    def loss(self, batches: Iterable[Batch]) -> float:
        """The loss per counted token in nats over some batches; a source, where there is one, is not read."""
        logs = np.log(np.concatenate([self.chances(grams_of(b, len(self.orders), self.vocabulary)) for b in batches]))
        return float(-logs.mean())


def counted(batches: Iterable[Batch], *, order: int, vocabulary: int) -> Ngrams:
    """The n-grams of a run's own batches, one pass over them: `order` 3 counts triples.

    Raises:
        QkvError: an order below 1, or batches that do not ask for next words.
    """
    if order < 1:
        raise QkvError(f"n-grams: found order {order}, expected 1 or more")
    grams = np.concatenate([grams_of(batch, order, vocabulary) for batch in batches])
    words, history = grams[:, -1], np.zeros(len(grams), dtype=np.int64)
    tables, ids = [np.zeros(1, dtype=np.int64)], list[np.ndarray]()
    for k in range(order):
        if k:
            known, history = np.unique(coded(history, grams[:, -1 - k], vocabulary), return_inverse=True)
            tables.append(known)
        ids.append(coded(history, words, vocabulary))
    return Ngrams(vocabulary, tuple(tallied(tables[k], ids[k], ids[k + 1 : k + 2], vocabulary) for k in range(order)))


def tallied(histories: np.ndarray, codes: np.ndarray, longer: Sequence[np.ndarray], vocabulary: int) -> Order:
    """The counts of an order: of the highest as they are, of a lower one the different words before each gram."""
    if longer:
        codes = codes[np.unique(longer[0], return_index=True)[1]]
    grams, counts = np.unique(codes, return_counts=True)
    owner = grams // (vocabulary + 1)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    # Ney et al. 1994's estimate; where no count is one, nothing tells how much the unseen are worth
    discount = once / (once + 2 * twice) if once else 0.5
    size = len(histories)
    totals = np.bincount(owner, weights=counts, minlength=size)
    return Order(histories, grams, counts, totals, np.bincount(owner, minlength=size), min(discount, 0.95))


def grams_of(batch: Batch, order: int, vocabulary: int) -> np.ndarray:
    """Each counted label of a batch behind the `order` - 1 ids before it [N, n]; `vocabulary` is before the edge."""
    target, labels = batch.target.cpu().numpy(), batch.labels.cpu().numpy()
    if (target[:, 1:] != labels[:, :-1])[labels[:, :-1] != IGNORED][:1000].mean() > 0.5:
        raise QkvError("n-grams guess the next word; these batches ask for hidden ones")
    edge = np.full((len(target), order - 1), vocabulary)
    row = np.concatenate((edge, target), 1)
    windows = np.lib.stride_tricks.sliding_window_view(row, order, axis=1)[:, :, 1:]  # what the label follows
    return np.concatenate((windows, labels[..., None]), -1)[labels != IGNORED].astype(np.int64)


def coded(history: np.ndarray, word: np.ndarray, vocabulary: int) -> np.ndarray:
    """One number for a history's number and a word; negative where the history is unknown."""
    return np.where(history >= 0, history * (vocabulary + 1) + word, -1)


def place(known: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Where each code stands among the sorted known ones, -1 where it does not."""
    at = np.searchsorted(known, codes).clip(max=len(known) - 1)
    return np.where(known[at] == codes, at, -1)
