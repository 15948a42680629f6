"""What a trained model learns next: labels of texts, answers in conversations; and documents packed side by side.

A run with `base` begins with a model that was trained before; without one it begins from nothing, which is what a
pre-trained one is measured against. Next: assemble.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from qkv.chat import template as chats
from qkv.data import bucket, collate, packing
from qkv.data.collate import IGNORED
from qkv.data.order import draw_permutation, draw_repeats, make_generator
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.model import Model
from qkv.tasks.task_format import SEPARATOR
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.losses import states, text_logits
from qkv.training.objectives import base
from qkv.training.objectives.base import Batches, Held, How, Objective, Rows
from qkv.training.plan import Plan, placed
from qkv.training.run import Run
from qkv.training.splits import Pair, Splits, Talk
from qkv.training.step_loss import measure

Row = tuple[list[int], list[int]]  # what goes in, what should come out
# Each message ends with the end symbol, so that an answer ends where its writer stopped.
TALKING = (
    "{% for m in messages %}{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
)


def alone(text: str) -> list[str]:
    """A text is one row."""
    return [text]


def swapped(text: str) -> list[str]:
    """Two texts in both orders: which of them is first says nothing about how alike they are."""
    return [text, SEPARATOR.join(reversed(text.split(SEPARATOR)))]


def choices(text: str) -> list[str]:
    """A question with each of its answers."""
    question, *answers = text.split(SEPARATOR)
    return [f"{question}{SEPARATOR}{answer}" for answer in answers]


@dataclass(frozen=True)
class Labeller:
    """Texts and labels on their way into batches; a text becomes `each` rows, whose words count `share` of a label."""

    run: Run
    tokenizer: Tokenizer
    rows_of: Callable[[str], list[str]]
    each: int
    known: Mapping[str, int]
    share: float

    def read(self, pairs: Sequence[Pair]) -> tuple[list[list[str]], list[Rows], list[int], list[int]]:
        """Of (text, label) pairs the rows as texts and as ids, the numbers of the labels, and the rows' true lengths.

        A label that training lacks counts as none.
        """
        each = self.each
        texts = [parted(self.rows_of, text, each, self.known, label) for text, label in pairs]
        whole = self.tokenizer.encode_batch([row for many in texts for row in many])
        ids = base.shortened(whole, self.run.model.context)
        rows: list[Rows] = [tuple(ids[i : i + each]) for i in range(0, len(ids), each)]
        return texts, rows, [self.known.get(name, IGNORED) for _, name in pairs], list(map(len, whole))

    def boxed(self, rows: list[Rows], often: np.ndarray | None = None) -> bucket.Buckets:
        """Batches of texts of like length."""
        s, longest = self.run.training, [max(map(len, many)) for many in rows]
        room = max(s.tokens // self.each, self.run.model.context + 4)
        return bucket.Buckets([(n, n) for n in longest], tokens=room, seed=s.seed, often=often)

    def maker(self, rows: list[Rows], boxes: bucket.Buckets, classes: list[int]) -> Callable[[Any], collate.Batch]:
        """What makes a batch of the texts of a key."""
        shape = {"orders": self.each if self.rows_of is swapped else 1,
                 "choices": self.each if self.rows_of is choices else 1}  # fmt: skip

        def batch(key: tuple[int, ...]) -> collate.Batch:
            # a box may be a little wider than the table of positions is long
            width = min(boxes.shape(key)[2], self.run.model.context)
            made = framed(self.tokenizer, [row for i in key for row in rows[i]], self.share, width)
            return collate.add_labels(made, [classes[i] for i in key], **shape)

        return batch

    def held(self, pairs: Sequence[Pair]) -> Batches:
        """The batches of held-out texts."""
        _, rows, classes, _ = self.read(pairs)
        boxes = self.boxed(rows)
        return tuple(map(self.maker(rows, boxes, classes), boxes.batches(0)))


def of_labels(
    run: Run, splits: Splits, model: Model, *, rows_of: Callable[[str], list[str]] = alone
) -> tuple[Plan, Held]:
    """Texts and their labels; a decoder learns its texts' words too, as much as `training.auxiliary` says.

    Radford et al. 2018, section 3.2, equation 5; an encoder learns labels alone (Devlin et al. 2018, section 3.2).
    `rows_of` gives the rows that a text becomes (their section 3.3), as many of each.
    """
    tokenizer, s, context = base.tokenizer_for(model), run.training, run.model.context
    each = len(rows_of(splits.train[0][0]))  # type: ignore[index]
    known = {name: i for i, name in enumerate(map(str, range(each)) if rows_of is choices else model.labels)}
    share = s.auxiliary / max(1, each) if model.spec.decoder and model.spec.head else 0.0
    labeller = Labeller(run, tokenizer, rows_of, each, known, share)
    texts, rows, classes, lengths = labeller.read(splits.train)  # type: ignore[arg-type]
    who = base.identity(run, base.flat(row for many in rows for row in many), classes)
    notes = base.left_out(lengths, context, ends=True)
    if run.tokenizer.dropout or s.word_dropout:
        cuts = base.recutting(run, tokenizer, texts, rows, context) if run.tokenizer.dropout else lambda epoch: rows
        some = partial(thinned, tokenizer=tokenizer, share=s.word_dropout, seed=s.seed)
        maker = partial(labeller.maker, classes=classes)
        plan = base.anew(lambda n: some(cuts(n), epoch=n), partial(labeller.boxed, often=splits.often), maker, who)
        return replace(plan, notes=notes), labeller.held
    boxes = labeller.boxed(rows, splits.often)
    return Plan(boxes.batches, labeller.maker(rows, boxes, classes), who, notes), labeller.held


def thinned(rows: list[Rows], *, tokenizer: Tokenizer, share: float, seed: int, epoch: int) -> list[Rows]:
    """Texts without some of their words, each left out with the probability `share`: a function of (seed, epoch).

    Special tokens stay, and so does a text of which no word would.
    """
    if not share:
        return rows
    draws = make_generator(seed=seed ^ base.THIN, epoch=epoch, index=0)
    special = {tokenizer.id(token) for token in tokenizer.roles.values()} - {tokenizer.unk_id}

    def some(row: list[int]) -> list[int]:
        kept = [i for i, drawn in zip(row, draws.random(len(row)).tolist(), strict=True)
                if drawn >= share or i in special]  # fmt: skip
        return kept if any(i not in special for i in kept) else row

    return [tuple(map(some, many)) for many in rows]


def parted(
    rows_of: Callable[[str], list[str]], text: str, each: int, known: Mapping[str, int], label: str
) -> list[str]:
    """The rows of a text; QkvError where there are not as many as of the first, or the label is none of the choices."""
    rows = rows_of(text)
    if len(rows) != each or (rows_of is swapped and SEPARATOR not in text) or (rows_of is choices and each < 2):
        parts = Message("two texts")
        if rows_of is not swapped:
            parts = Message("a question and {each} answers", each=max(each, 2))
        raise QkvError("{text!r}: expected {parts} with {separator} between", text=text[:60], parts=parts,
                       separator=SEPARATOR.strip())
    if rows_of is choices and label not in known:
        raise QkvError("{text!r}: found the label {label!r}, expected the number of the right answer, 0 to {each}",
                       text=text[:60], label=label, each=each - 1)
    return rows


def framed(tokenizer: Tokenizer, rows: list[list[int]], share: float, width: int | None) -> collate.Batch:
    """Rows of ids as a batch in which no word is learnt, or each by its share."""
    pad = tokenizer.pad_id or 0
    if share:
        return collate.collate_labelled_text(rows, pad=pad, share=share, width=width)
    silent = [(row, [IGNORED] * len(row)) for row in rows]
    return collate.collate_masked(silent, pad=pad, width=width, separator=tokenizer.sep_id)


@torch.inference_mode()
def decided(
    model: Model, sources: Sequence[str], how: How, *, rows_of: Callable[[str], list[str]]
) -> list[str]:  # fmt: skip
    """The label of each text that becomes several rows, or the number of the answer to each question."""
    tokenizer, said = base.tokenizer_for(model), list[str]()
    for text in sources:
        ids = base.shortened(tokenizer.encode_batch(rows_of(text)), model.spec.context)
        made = replace(framed(tokenizer, ids, 0.0, None), **{"orders" if rows_of is swapped else "choices": len(ids)})
        made = placed(made, model.device)
        best = int(text_logits(model.core, states(model.core, made), made).argmax())
        said.append(str(best) if rows_of is choices else model.labels[best])
    return said


def of_documents(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """Documents, which blank lines part, packed side by side in rows; none sees another.

    Of token shards windows are drawn, in which end symbols part them.
    """
    tokenizer = base.tokenizer_for(model)
    if isinstance(splits.train, Mixture):
        return base.of_shards(run, splits, model, partial(enclosed, end=ending(splits.train, tokenizer)))

    def read(text: Any) -> list[Row]:
        parts = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
        end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
        ids = [[*row, *end] for row in tokenizer.encode_batch(parts, special=False)]
        return [(row[:-1], row[1:]) for row in ids if len(row) > 1]

    return side_by_side(run, model, read(splits.train), read)


def ending(data: Mixture, tokenizer: Tokenizer) -> int:
    """The id that ends each text of shards; QkvError where none does."""
    place, end = data.shards[0].folder, tokenizer.eos_id
    if end is None or end >= data.shards[0].index["vocabulary"]:
        raise QkvError("{place}: its vocabulary has no end symbol, so nothing parts its texts; learn them as one: "
                       "objective=text", place=place)
    return end


def enclosed(windows: torch.Tensor, end: int) -> collate.Batch:
    """Windows [B, T + 1] in which each `end` closes a text: none sees another, or is to be guessed from another."""
    closed = (windows == end).long()
    return collate.collate_documents(windows, closed.cumsum(1) - closed)


def of_talks(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """Conversations as the model's chat template writes them, packed; only what an assistant says is learnt."""
    tokenizer, context = base.tokenizer_for(model), run.model.context

    def read(talks: Any) -> list[Row]:
        return [talk_row(tokenizer, talk, n) for n, talk in enumerate(talks, 1)]

    rows = read(splits.train)
    cut = sum(len(ids) > context for ids, _ in rows)
    notes = (Message("{cut} of {rows} conversations are longer than the context of {context}: their ends are left out",
                     cut=cut, rows=len(rows), context=context),)
    return side_by_side(run, model, rows, read, notes=notes if cut else (), often=splits.often)


def talk_row(tokenizer: Tokenizer, talk: Talk, number: int) -> Row:
    """A conversation's ids, and as labels what its assistant says up to the symbol that ends each answer.

    What an answer is, is read off the template: it is what a finished turn has more than its generation prompt.

    Raises:
        QkvError: the template writes earlier turns otherwise once later ones follow, so that no answer can be found.
    """
    template = chats.find_template(tokenizer)
    assert template is not None  # assemble() gave it one
    ids = template.ids(tokenizer, talk, add_generation_prompt=False)
    labels, special = [IGNORED] * len(ids), {tokenizer.id(t) for t in tokenizer.roles.values()}
    for n, message in enumerate(talk):
        if message["role"] != "assistant":
            continue
        before = template.ids(tokenizer, talk[:n]) if n else []
        after = template.ids(tokenizer, talk[: n + 1], add_generation_prompt=False)
        if after[: len(before)] != before or ids[: len(after)] != after:
            raise QkvError("conversation {number}, message {text}: the chat template writes this turn otherwise when "
                           "more follows, so the answer cannot be told from the rest", number=number,
                           text=n + 1)
        own = range(len(before), len(after))
        control = [i for i in own if after[i] in special or tokenizer.decode([after[i]]) == ""]
        end = control[-1] + 1 if control else len(after)  # a line's end behind the last symbol is not the answer's
        labels[len(before) : end] = ids[len(before) : end]
    return ids[:-1], labels[1:]


def side_by_side(
    run: Run, model: Model, rows: list[Row], read: Any, *, notes: tuple[str, ...] = (),
    often: np.ndarray | None = None,
) -> tuple[Plan, Held]:  # fmt: skip
    """Rows packed into the context's width, each seeing itself alone; the same company in each epoch but for `often`,
    by which each epoch has rows of its own.
    """
    s, width = run.training, run.model.context
    if not rows:
        raise QkvError("{name}: no text to train on", name=run.name)
    pad, count = base.tokenizer_for(model).pad_id or 0, max(1, s.tokens // width)

    def laid(found: list[Row]) -> collate.Batch:
        found = [(ids[:width], labels[:width]) for ids, labels in found] if notes else found
        ids, numbers = packing.pack_documents([ids for ids, _ in found], width, pad=pad)
        labels, _ = packing.pack_documents(
            [labels for _, labels in found], width, pad=IGNORED
        )  # as long, so laid alike
        return collate.collate_packed_labels(ids, labels, numbers)

    def part(whole: collate.Batch, index: torch.Tensor) -> collate.Batch:
        assert whole.documents is not None
        return collate.collate_packed_labels(whole.target[index], whole.labels[index], whole.documents[index])

    whole = laid(rows)

    @lru_cache(maxsize=2)
    def mixed(epoch: int) -> collate.Batch:
        assert often is not None
        times = draw_repeats(often, seed=s.seed, epoch=epoch)
        return laid([row for row, n in zip(rows, times, strict=True) for _ in range(n)])

    def of(epoch: int) -> collate.Batch:
        return whole if often is None else mixed(epoch)

    def order(epoch: int) -> list[tuple[int, tuple[int, ...]]]:
        index = draw_permutation(len(of(epoch).target), seed=s.seed, epoch=epoch).tolist()
        return [(epoch, tuple(index[i : i + count])) for i in range(0, len(index), count)]

    def make(key: tuple[int, tuple[int, ...]]) -> collate.Batch:
        return part(of(key[0]), torch.tensor(key[1]))

    def held(given: Any) -> Batches:
        found = laid(read(given))
        return tuple(part(found, index) for index in torch.arange(len(found.target)).split(count))

    return Plan(order, make, base.identity(run, whole.target.flatten().numpy()), notes), held


def answered(model: Model, sources: Sequence[Any], how: How) -> list[str]:
    """What a model answers to each conversation."""
    return [model.chat(talk, beam=how.beam, max_new_tokens=how.longest or 256).text for talk in sources]


def questions(talks: Sequence[Talk]) -> list[tuple[list[dict[str, Any]], str]]:
    """(a conversation up to its last answer, that answer) of each conversation."""
    last = [max(i for i, m in enumerate(talk) if m["role"] == "assistant") for talk in talks]
    return [(list(talk[:n]), str(talk[n]["content"])) for talk, n in zip(talks, last, strict=True) if n]


LABELS = Objective("pairs", base.ENDED, "none", of_labels, measure, base.named, "labels", ("encoder", "causal decoder"),
                   recuts=True)  # fmt: skip
SIMILAR, CHOICES = (
    Objective("pairs", base.ENDED, "none", partial(of_labels, rows_of=rows), measure, partial(decided, rows_of=rows),
              "labels", ("encoder", "causal decoder"), recuts=True)
    for rows in (swapped, choices)
)  # fmt: skip
JUDGING = (LABELS, SIMILAR, CHOICES)  # these learn the labels of texts, and words beside them at most
DOCUMENTS = Objective(base.TEXTS, base.ENDED, "none", of_documents, base.spoken, base.continued, models=base.SPEAKS)
TALKS = Objective("conversations", base.ENDED, "none", of_talks, base.spoken, answered, models=base.SPEAKS)
