"""What training makes smaller: cross-entropy of words and of texts, one step of any model, and what validation reports.

The batch says what is learnt (data/collate.py): labels of words, of whole texts, or both.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.adapt.onednn_linear import multiply
from qkv.core.dropout import Drop, no_dropout
from qkv.core.model import Head, Transformer, build_step
from qkv.core.step import Inputs
from qkv.data.collate import IGNORED, Batch, duplicate_rows
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.training.load_balancing import balance_loss, collect_decisions, listen_to_routers, measure_imbalance


def step_loss(
    core: Transformer, batch: Batch, *, smoothing: float = 0.0, aux_loss_weight: float = 0.0, rdrop: float = 0.0,
    drop: Drop = no_dropout,
) -> tuple[Tensor, Tensor | None]:
    """(the loss summed over what is learnt, how many tokens chose each expert of each layer [L, E] or None).

    With experts, `aux_loss_weight` times the loss that evens them out (Fedus et al. 2021, equation 4), mean over
    layers, is added for each counted token; padding is left out of it. With `rdrop` the batch is read twice, and the
    loss is half the sum of both plus what their predictions differ (see token_loss).
    """
    batch, passes = (duplicate_rows(batch), 2) if rdrop else (batch, 1)
    if not any(block.moe for block in core.spec.stack.blocks):
        return token_loss(core, batch, smoothing=smoothing, rdrop=rdrop, drop=drop) / passes, None
    with listen_to_routers() as routes:
        total = token_loss(core, batch, smoothing=smoothing, rdrop=rdrop, drop=drop)
    logits, index, loads = collect_decisions(routes, batch)
    if aux_loss_weight:
        pulls = [balance_loss(one, of, logits.shape[-1]) for one, of in zip(logits, index, strict=True)]
        total = total + aux_loss_weight * batch.tokens * torch.stack(pulls).mean()
    return total / passes, loads


def token_loss(
    core: Transformer, batch: Batch, *, smoothing: float = 0.0, rdrop: float = 0.0, drop: Drop = no_dropout,
    last: Tensor | None = None,
) -> Tensor:
    """The sum over counted tokens of (1 - ε)·(-log p) + ε·mean over the vocabulary of (-log p).

    Label smoothing is that of Szegedy et al. 2016, section 7: the label has its own share of ε (in fairseq it has not).
    It is a sum, to be divided once by the tokens of the whole step, so that splitting a step changes nothing.
    `last` are the last states [B, T, D] where they are known. Labels of texts count as those of words do.

    With `rdrop` the batch stands twice in its rows (collate.duplicate_rows), under two draws of dropout, and rdrop/2
    times the divergence of their predictions, both ways, is added (R-Drop: Liang et al. 2021, equation 3).
    """
    last = states(core, batch, drop) if last is None else last
    check_label_range(batch.labels, core.spec.vocabulary, "word")
    hidden, labels = last.flatten(0, 1), batch.labels.flatten()  # N D, N
    weight = None if batch.weight is None else batch.weight.flatten()
    every = hidden.device.type != "cpu" and batch.classes is None and batch.tokens == len(labels)
    if not every:  # a GPU would wait for this count
        real = (labels != IGNORED).nonzero().squeeze(1)
        if len(real) < len(labels):  # padding never meets the vocabulary's matrix
            hidden, labels = hidden.index_select(0, real), labels[real]
            weight = None if weight is None else weight[real]
    if len(labels) and isinstance(core.head, Head):
        hidden = core.head.prepare(hidden)
        if core.head.spec.cap and weight is None:  # below, the way with weights writes logits out
            weight = torch.ones(len(labels), device=hidden.device)
    if not len(labels):
        total = hidden.sum() * 0
    elif weight is None:
        total = linear_cross_entropy(hidden, core.head, labels, smoothing=smoothing, rdrop=rdrop)
    else:
        total = weighted_cross_entropy(hidden, core.head, labels, weight, smoothing=smoothing, rdrop=rdrop)
    return total if batch.classes is None else total + text_loss(core, last, batch, smoothing, rdrop, drop)


def weighted_cross_entropy(
    hidden: Tensor, head: nn.Linear, labels: Tensor, weight: Tensor, *, smoothing: float, rdrop: float = 0.0
) -> Tensor:
    """The cross-entropy of `head(hidden)` [N, D] against `labels` [N], summed with a weight [N] for each.

    The logits exist a chunk of rows at a time; on the way back they are made again. With `rdrop` the rows are two
    passes over the same words, one after the other.
    """

    def part(h: Tensor, label: Tensor, counts: Tensor) -> Tensor:
        h, label, counts = h.flatten(0, 1), label.flatten(), counts.flatten()
        logits = F.linear(h, head.weight, head.bias).float()
        logits = head.limit(logits) if isinstance(head, Head) else logits
        total = (F.cross_entropy(logits, label, reduction="none", label_smoothing=smoothing) * counts).sum()
        return total + rdrop_kl(logits, rdrop, counts[: len(counts) // 2, None]) if rdrop else total

    passes = 2 if rdrop else 1
    rows = max(1, 2_500_000 // len(head.weight) // passes)
    parts = (x.unflatten(0, (passes, -1)).split(rows, 1) for x in (hidden, labels, weight))
    return torch.stack([checkpoint(part, *chunk, use_reentrant=False) for chunk in zip(*parts, strict=True)]).sum()


def rdrop_kl(logits: Tensor, rdrop: float, counts: Tensor | float = 1.0) -> Tensor:
    """rdrop / 2 times what the two halves of `logits` [2 N, V] differ by, both ways, summed with `counts` [N, 1]."""
    one, two = logits.log_softmax(-1).chunk(2)
    return rdrop / 2 * ((one.exp() - two.exp()) * (one - two) * counts).sum()  # KL(1 | 2) + KL(2 | 1)


def text_loss(
    core: Transformer, states: Tensor, batch: Batch, smoothing: float = 0.0, rdrop: float = 0.0, drop: Drop = no_dropout
) -> Tensor:
    """The sum over labelled texts of -log p(label), from the last states [B, T, D]; see token_loss."""
    assert batch.classes is not None
    logits, classes = text_logits(core, states, batch, drop), batch.classes
    check_label_range(classes[:, None], logits.shape[-1], "text")
    total = F.cross_entropy(logits, classes, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    return total + rdrop_kl(logits[classes != IGNORED], rdrop) if rdrop else total


def text_logits(core: Transformer, states: Tensor, batch: Batch, drop: Drop = no_dropout) -> Tensor:
    """The logits of the labels of each text [B, labels], from the last states [B, T, D].

    The orders of a text are added, and the one logit of each choice stands beside the others' (Radford et al. 2018,
    section 3.3): [B / orders, labels], or [B / choices, choices].
    """
    step = build_step(core.stack, batch.target, Inputs(padding_mask=batch.target_real), drop=drop)
    logits = core.labels(states, step).float()
    if batch.orders > 1:
        logits = logits.unflatten(0, (-1, batch.orders)).sum(1)
    return logits.view(-1, batch.choices) if batch.choices > 1 else logits


def check_label_range(labels: Tensor, count: int, what: str) -> None:
    """Refuse labels [B, T] outside 0 to `count` - 1; on a GPU the check would synchronise, and torch asserts it itself.

    Raises:
        QkvError: a label out of range, with its row and its place in the row.
    """
    if labels.device.type != "cpu" or not labels.numel():
        return
    wrong = ((labels < 0) & (labels != IGNORED)) | (labels >= count)
    if bool(wrong.any()):
        row, place = wrong.nonzero()[0].tolist()
        where = Message("row {row}", row=row)
        if labels.shape[1] > 1:
            where = Message("row {row}, place {place}", row=row, place=place)
        raise QkvError("the label of a {what} in {where} of the batch is {labels}, expected 0 to {count}, or "
                       "{ignored} for none: were the data made with another vocabulary or other labels?", what=what,
                       where=where, labels=int(labels[row, place]), count=count - 1, ignored=IGNORED)


def states(core: Transformer, batch: Batch, drop: Drop = no_dropout) -> Tensor:
    """The last states of the model over a batch [B, T, D]; with an encoder and a decoder, teacher forcing."""
    if batch.source is None:
        # what comes after a causal row cannot reach it, so its padding needs no mask
        ahead = any(m.kind != "causal" for m in core.stack.masks)
        given = Inputs(
            padding_mask=batch.target_real if ahead else None, document_ids=batch.documents,
            segments=batch.segments if core.stack.spec.segments > 1 else None,  # RoBERTa has one kind of text
            prefix_len=batch.prefix, blank_pos=batch.blank,
        )
        return core.hidden(batch.target, given, drop=drop)
    real = batch.source_real
    if real is not None and bool(real.all()):
        real = None
    return core.hidden(batch.target, Inputs(source=batch.source, source_padding_mask=real), drop=drop)


@torch.no_grad()
def mean_loss(core: Transformer, batches: list[Batch], *, smoothing: float = 0.0) -> float:
    """The loss per counted token over some batches, without dropout: what validation reports, in nats."""
    total = sum(float(token_loss(core, b, smoothing=smoothing)) for b in batches)
    return total / max(1, sum(b.tokens for b in batches))


@torch.no_grad()
def measure(core: Transformer, batches: Sequence[Batch]) -> dict[str, Any]:
    """What validation reports: `loss` per counted token in nats, and the share of right guesses.

    `accuracy` counts words (masked ones, or the next one given those before), `label_accuracy` the labels of texts;
    with experts, `busiest` is how uneven their loads are (1 is aux_loss_weight).
    """
    total, counted = 0.0, 0
    words, texts, loads = [0, 0], [0, 0], list[Tensor]()
    for batch in batches:
        with listen_to_routers() as routes:
            hidden = states(core, batch)  # B T D
        loads += [collect_decisions(routes, batch)[2]] if routes.heard else []
        total, counted = total + float(token_loss(core, batch, last=hidden)), counted + batch.tokens
        there = batch.labels != IGNORED
        if bool(there.any()):
            guesses = predict_tokens(hidden[there], core.head, core.spec.vocabulary)
            words[0] += int((guesses == batch.labels[there]).sum())
            words[1] += int(there.sum())
        if batch.classes is not None:
            guess = text_logits(core, hidden, batch).argmax(-1)
            texts[0] += int((guess == batch.classes).sum())  # a label that training lacks is never right
            texts[1] += len(batch.classes)
    found: dict[str, Any] = {"loss": total / max(1, counted)}
    for name, (right, of) in (("accuracy", words), ("label_accuracy", texts)):
        found |= {name: right / of} if of else {}
    return found | ({"busiest": measure_imbalance(torch.stack(loads).sum(0))} if loads else {})


class LinearCrossEntropy(torch.autograd.Function):
    """Output projection and cross-entropy in one: the [N, V] logits exist one chunk of rows at a time, both ways.

    The gradient is made on the way forward, while a chunk's probabilities are still in the cache; backward only scales
    it. Sum over rows of (1 - ε)·(-log p(label)) + ε·mean over the vocabulary of (-log p) (Szegedy et al. 2016, 7).

    With `rdrop`, what `add_rdrop_gradient` adds for two passes that differ.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, rdrop: float
    ) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            w = weight.detach().to(hidden.dtype)
            b = None if bias is None else bias.detach().to(hidden.dtype)
            if rdrop:  # the two passes over a word stand side by side
                hidden, labels = (x.view(2, -1, *x.shape[1:]).transpose(0, 1).flatten(0, 1) for x in (hidden, labels))
            dh, dw = [], torch.zeros_like(weight, dtype=torch.float32)
            db = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
            total = torch.zeros((), dtype=torch.float64, device=hidden.device)
            sums = w.float().sum(0)
            level = 0.0 if b is None else b.float().mean()
            rows = 2 * -(-chunk_rows(hidden, len(w)) // 2)
            # dw is as large as the vocabulary's matrix, and adding it up dear: one product for four chunks
            pile = rows * (4 if hidden.device.type == "cpu" else 1)
            for hs, ls in zip(hidden.split(pile), labels.split(pile), strict=True):
                ps = hidden.new_empty(len(hs), len(w))
                for h, label, p in zip(hs.split(rows), ls.split(rows), ps.split(rows), strict=True):
                    logits = multiply(h, w, b)  # N V
                    torch.softmax(logits, -1, out=p)
                    said = logits.gather(1, label[:, None])[:, 0].float()
                    # log of the sum of exponentials, from the one probability that is needed anyway
                    mass = said - p.gather(1, label[:, None])[:, 0].float().clamp_min(1e-30).log()
                    spread = h.float() @ sums / len(w) + level  # the mean logit, from D numbers and not from V
                    total += (mass - (1 - smoothing) * said - smoothing * spread).sum().double()
                    if rdrop:
                        total += add_rdrop_gradient(p, logits, rdrop).double()
                    dh.append(multiply(p, w.T))
                dw += multiply(ps.T, hs.T)
                if db is not None:
                    db += ps.sum(0)
            # the gradient is p - smoothing / V - (1 - smoothing) at the label; its two last terms never touch N V
            back = torch.cat(dh).sub_((smoothing / len(w)) * sums).sub_((1 - smoothing) * w[labels])
            if rdrop:
                back = back.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1)
            dw -= (smoothing / len(w)) * hidden.float().sum(0)
            dw.index_add_(0, labels, hidden.float(), alpha=smoothing - 1)
            if db is not None:
                db -= len(hidden) * smoothing / len(w)
                db.index_add_(0, labels, torch.ones(len(hidden), device=hidden.device), alpha=smoothing - 1)
        ctx.save_for_backward(back, dw.to(weight.dtype), None if db is None else db.to(bias.dtype))  # type: ignore[union-attr]
        return total.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        dh, dw, db = ctx.saved_tensors
        return dh * grad, dw * grad, None if db is None else db * grad, None, None, None


def chunk_rows(hidden: Tensor, vocabulary: int) -> int:
    """The rows whose logits exist at the same time."""
    # 10 MB of fp32 logits stay in a CPU's cache; a GPU wants few large products (1 GB)
    return max(1, (2_500_000 if hidden.device.type == "cpu" else 1 << 28) // vocabulary)


def predict_tokens(hidden: Tensor, head: nn.Module, vocabulary: int) -> Tensor:
    """The likeliest word [N] after each of `hidden` [N, D], a chunk of rows at a time."""
    return torch.cat([head(part).argmax(-1) for part in hidden.split(chunk_rows(hidden, vocabulary))])


def add_rdrop_gradient(p: Tensor, logits: Tensor, rdrop: float) -> Tensor:
    """The sum of rdrop/2 · (KL(p1 | p2) + KL(p2 | p1)); its gradient at the logits is added to `p` in place.

    Rows 0, 2, 4 of p [N, V] are one pass's probabilities, the row after each the other's (Liang et al. 2021, equation
    2). The logits are used up.
    """
    (one, two), (high, low) = p.unflatten(0, (-1, 2)).unbind(1), logits.unflatten(0, (-1, 2)).unbind(1)
    ratio, gap = high.sub_(low), one - two  # log(p1 / p2), but for a constant a row that its mean takes away
    means = [torch.linalg.vecdot(q, ratio)[:, None] for q in (one, two)]
    left, right = (torch.addcmul(gap, q, ratio - mean) for q, mean in zip((one, two), means, strict=True))
    one.add_(left, alpha=rdrop / 2)
    two.sub_(right, alpha=rdrop / 2)
    return rdrop / 2 * (means[0].float() - means[1].float()).sum()


def linear_cross_entropy(
    hidden: Tensor, head: nn.Linear, labels: Tensor, *, smoothing: float = 0.0, rdrop: float = 0.0
) -> Tensor:
    """The summed, label-smoothed cross-entropy of `head(hidden)` [N, D] against `labels` [N], without its logits.

    With `rdrop` the rows are two passes over the same words, one after the other; differing costs (see
    `add_rdrop_gradient`).
    """
    weight, bias = head.weight, head.bias
    if not torch.is_grad_enabled():
        rows, total = chunk_rows(hidden, len(weight)), torch.zeros((), device=hidden.device)
        for part, label in zip(hidden.split(rows), labels.split(rows), strict=True):
            logits = F.linear(part, weight, bias).float()  # it is prepared already
            total += F.cross_entropy(logits, label, reduction="sum", label_smoothing=smoothing)
        return total
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    return LinearCrossEntropy.apply(hidden, weight, bias, labels, smoothing, rdrop)  # type: ignore[no-any-return]
