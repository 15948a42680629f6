"""LSTMs with and without attention, behind the core's interface: the same embedding, head, step, losses and loop.

They make "why the Transformer" a measurement. Letters: B batch, T target, S source, D width, L layers, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv import spec
from qkv.core.dropout import no_dropout
from qkv.core.model import Stack, Transformer, build_step, read_source
from qkv.core.step import Inputs, Step
from qkv.data.collate import pad_with_mask
from qkv.errors import QkvError


@dataclass(frozen=True)
class LSTMSpec(spec.Spec):
    """Stacks without blocks, and how many LSTM layers stand in for them.

    `attention` none: the decoder knows the source by one vector alone (Sutskever et al. 2014; here both ends of a
    bidirectional encoder). additive: it attends to all of the source before each word (Bahdanau et al. 2014).
    """

    layers: int = 1
    attention: Literal["none", "additive"] = "none"

    def __post_init__(self) -> None:
        if self.decoder is None or self.decoder.width % 2:
            raise QkvError("an LSTM model needs a decoder, and an even width: each direction of its encoder is half")
        if self.attention == "additive" and self.encoder is None:
            raise QkvError("additive attention looks at a source; this model has no encoder")


class LSTM(nn.LSTM):
    """An LSTM that draws its own first weights."""

    def draw_weights(self, generator: torch.Generator) -> None:
        """Matrices uniform within 1/sqrt(width); biases 0, but forget gates begin open (Jozefowicz et al. 2015)."""
        bound = self.hidden_size**-0.5
        for name, weight in self.named_parameters():
            weight.uniform_(-bound, bound, generator=generator) if weight.ndim > 1 else weight.zero_()
            if name.startswith("bias_ih"):
                weight[self.hidden_size : 2 * self.hidden_size] = 1.0


State = tuple[Tensor, Tensor]  # h and c, each L B D
MEMORY = spec.Mask("memory")


class LSTMEncoder(Stack):
    """A bidirectional LSTM over the source: each state depends on the words before and after it."""

    def __init__(self, s: LSTMSpec, path: str) -> None:
        nn.Module.__init__(self)
        assert s.encoder is not None
        self.spec, self.path, width = s.encoder, path, s.encoder.width
        self.masks, self.rotaries = (), ()
        self.rnn = LSTM(width, width // 2, s.layers, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = step.drop(step.tap(self, "embed", x * s.embed_scale), s.dropout)  # B S D
        lengths = (step.positions.token.amax(1) + 1).expand(len(x)).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])
        return step.drop(states, s.dropout)  # B S D


class LSTMDecoder(Stack):
    """An LSTM over the target, started from the ends of the source; with attention it reads all of the source."""

    def __init__(self, s: LSTMSpec, path: str) -> None:
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
        self.rnn = LSTM(width * (2 if s.attention == "additive" else 1), width, s.layers, batch_first=True)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.unroll(x, self.initial_state(len(x), step), step)[0]

    def initial_state(self, rows: int, step: Step) -> State:
        """The first state: zeros, or a projection of both ends of the source."""
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

    def unroll(self, x: Tensor, state: State, step: Step) -> tuple[Tensor, Tensor, State]:
        """The states of more words [B, T, D], their attention [B, T, S] (no S without attention), the state after."""
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


class LSTMModel(Transformer):
    """A core whose stacks are LSTMs; it is called, trained and saved as any core is."""

    spec: LSTMSpec

    def __init__(self, s: LSTMSpec) -> None:
        nn.Module.__init__(self)
        self.spec, self.path = s, ""
        self.embed = nn.Embedding(s.vocabulary, s.stack.width)
        if s.encoder:
            self.encoder = LSTMEncoder(s, "encoder")
        self.decoder = LSTMDecoder(s, "decoder" if s.encoder else "")
        self.head = nn.Linear(s.stack.width, s.vocabulary, bias=False)
        self.tie()

    @property
    def lstm_decoder(self) -> LSTMDecoder:
        """The decoder."""
        assert isinstance(self.decoder, LSTMDecoder)
        return self.decoder


def build_core(s: spec.Spec) -> Transformer:
    """The core that a spec describes, its weights not yet set."""
    return LSTMModel(s) if isinstance(s, LSTMSpec) else Transformer(s)


def lstm_spec(
    vocabulary: int, *, width: int, layers: int = 1, attention: Literal["none", "additive"] = "none",
    source: bool = True, dropout: float = 0.0, context: int | None = None, tied: bool = True,
) -> LSTMSpec:
    """The spec of an LSTM model; without a `source` it is a language model."""
    stack = spec.Stack(width, (), embed_scale=width**0.5, dropout=dropout, context=context)
    return LSTMSpec(vocabulary, stack, stack if source else None, spec.Head("tied" if tied else "untied"),
                    init=spec.Init("xavier"), layers=layers, attention=attention)


@dataclass(frozen=True)
class Written:
    """A translation: its ids, the log-probability of each, whether an end id ended it."""

    tokens: list[int]
    logprobs: list[float]
    ended: bool


def begin_decoding(core: LSTMModel, sources: Sequence[Sequence[int]], ids: Tensor) -> Step:
    """The step of a decoder that reads `ids` with these sources as its memory."""
    source, real = pad_with_mask(sources, ids.device)
    inputs = read_source(core, Inputs(source=source, source_padding_mask=real), "decode", no_dropout)
    return build_step(core.decoder, ids, inputs, mode="decode")


@torch.inference_mode()
def translate(
    core: LSTMModel, sources: Sequence[Sequence[int]], *, start: int, ends: Sequence[int], longest: int,
    forbid: Sequence[int] = (),
) -> list[Written]:
    """The likeliest next word, again and again, for a batch of sources: an end id, or `longest`, ends a row."""
    ids = torch.full((len(sources), 1), start, device=core.embed.weight.device)
    step, ending = begin_decoding(core, sources, ids), torch.tensor(list(ends), device=ids.device)
    state, going = core.lstm_decoder.initial_state(len(ids), step), torch.ones_like(ids[:, 0], dtype=torch.bool)
    chosen, chances = list[Tensor](), list[Tensor]()
    while len(chosen) < longest and bool(going.any()):
        states, _, state = core.lstm_decoder.unroll(core.embed(ids), state, step)
        scores = core.head(states[:, 0]).float().log_softmax(-1)  # B V
        scores[:, list(forbid)] = -torch.inf
        best = scores.max(-1)
        chosen.append(best.indices)
        chances.append(best.values)
        ids, going = best.indices[:, None], going & ~torch.isin(best.indices, ending)
    rows = zip(torch.stack(chosen, 1).tolist(), torch.stack(chances, 1).tolist(), strict=True)
    return [cut_at_end(tokens, logprobs, ends) for tokens, logprobs in rows]


def cut_at_end(tokens: list[int], logprobs: list[float], ends: Sequence[int]) -> Written:
    """A row up to and with its end id."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in ends), 0)
    size = end or len(tokens)
    return Written(tokens[:size], logprobs[:size], bool(end))


@torch.inference_mode()
def compute_alignment(core: LSTMModel, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """The attention to the source before each word that follows `target` ids: [T, S].

    Raises:
        QkvError: the core has no attention.
    """
    if core.spec.attention == "none":
        raise QkvError("this LSTM reads its source into one vector; only an LSTM with attention has an alignment")
    ids = torch.tensor([list(target)], device=core.embed.weight.device)
    step = begin_decoding(core, [source], ids)
    return core.lstm_decoder.unroll(core.embed(ids), core.lstm_decoder.initial_state(1, step), step)[1][0]
