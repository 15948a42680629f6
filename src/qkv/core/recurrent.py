"""The core before attention was all: LSTMs where a Transformer has blocks; the same embedding, head and step.

They exist so that "why the Transformer" is a measurement; baselines.py asks them. Letters: B batch, T target, S source,
D width, L layers.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.core.model import Stack, Transformer
from qkv.core.step import Step
from qkv.spec import Mask, Recurrence, Spec

State = tuple[Tensor, Tensor]  # h and c, each L B D
MEMORY = Mask("memory")


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


def core_of(s: Spec) -> Transformer:
    """The core that a spec describes, its weights not yet set: the one place that asks whether it has LSTMs."""
    return Recurrent(s) if isinstance(s, Recurrence) else Transformer(s)
