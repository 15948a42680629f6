"""How good a model is on a file: BLEU and chrF of its translations, perplexity of a text, accuracy of its labels.

Letters: B windows, T tokens, D width, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from qkv.arguments import Count, check_arguments
from qkv.core.model import Transformer
from qkv.data import sources
from qkv.data.labelled_rows import read_labelled_rows
from qkv.errors import QkvError, nearest, show_value
from qkv.messages import Message, join
from qkv.tasks.classify import classify, count_texts, is_multiple_choice, split_line
from qkv.tasks.describe import describe_use
from qkv.tasks.generate import generate
from qkv.tasks.label_scores import Accuracy, score_labels
from qkv.tasks.likelihood import Choice, LastWord, evaluate_choice, evaluate_last_word
from qkv.tasks.score import logprob
from qkv.tasks.special_tokens import with_end
from qkv.tasks.translate import translate
from qkv.tasks.types import Model, Tell, be_silent, name_row

Tokenize = Literal["auto", "13a", "none", "zh", "char", "intl"]
Lines = str | Path | Sequence[str]
BATCH_TEXTS = 128  # texts given to the model in one call
BATCH_TOKENS = 4096  # tokens read in one pass
HEAD_POSITIONS = 512  # positions whose distributions exist at the same time
MOST_ANSWERS = 100  # to one question, where a model is judged by which answer it chooses


@dataclass(frozen=True)
class Translation:
    """BLEU and chrF with sacreBLEU's signatures, and the translations, one for each line of the source."""

    bleu: float
    chrf: float
    exact_match: float
    sentences: int
    signature: str
    chrf_signature: str
    hypotheses: tuple[str, ...]


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean loss in nats a token, the same a word (between spaces; None beyond any number), bits a byte.

    Each token but the first is predicted once, from at least `window - stride` tokens where so many come before it. Of
    pairs each target is predicted whole, its end too, after its source; `window` and `stride` are None then.
    """

    perplexity: float
    word_perplexity: float | None
    bits_per_byte: float
    loss: float
    tokens: int
    words: int
    bytes: int
    window: int | None
    stride: int | None
    character_perplexity: float | None = None


def evaluate(
    model: Model, *, bleu: tuple[Lines, Lines] | None = None, tell: Tell | None = None, **how: Any
) -> Translation | Perplexity | Accuracy | LastWord | Choice:
    """One evaluation: `bleu` (sources, references), or of a file `ppl`, `accuracy` (`text TAB label` or JSONL),
    `last_word` (a text a line) or `choice` (JSON lines of question, choices and answer).

    A model that writes after a source has the perplexity of pairs: `source TAB target` in a *.tsv.

    Raises:
        QkvError: none or several of these are given; a file is broken; the model cannot do it.
    """
    files = {kind: how.pop(kind, None) for kind in FILE_EVALUATIONS}
    name = choose_evaluation({"bleu": bleu, **files}, how)
    known = {"bleu": ("tokenize", "lowercase", "joint", "beam", "length_penalty", "max_new_tokens", "ensemble"),
             "ppl": ("window", "stride"), "accuracy": ("ensemble",)}.get(name, ())
    for key in how:
        if key not in known:
            raise QkvError("eval: unknown option {key!r} of {name}{hint} (known: {known})", key=key, name=name,
                           hint=nearest(key, known), known=", ".join(known) or Message("none"))
    how["tell"] = be_silent if tell is None else tell
    if bleu is not None:
        return evaluate_translation(model, *bleu, **how)
    return FILE_EVALUATIONS[name](model, Path(files[name]), **how)


def choose_evaluation(asked: dict[str, Any], how: dict[str, Any]) -> str:
    """The one evaluation requested; none or several, or something that is not a file, is a QkvError."""
    named = [name for name, value in asked.items() if value is not None]
    if len(named) != 1:
        odd = "".join(f" (and {key}={value!r:.40}{nearest(key, asked)})" for key, value in [*how.items()][:1])
        raise QkvError("eval: found {named}, expected one of {known}", known=", ".join(asked),
                       named=join(" and ", named) or Message("none{odd}", odd=odd))
    for name in FILE_EVALUATIONS:
        if not isinstance(asked[name], str | Path | None):
            raise QkvError("eval: {name} is {asked}, expected the path of a file", name=name,
                           asked=show_value(asked[name]))
    both = asked["bleu"]
    if both is not None and (not isinstance(both, tuple | list) or len(both) != 2):
        raise QkvError("eval: bleu is {both}, expected (sources, references): two files, or two lists of lines",
                       both=show_value(both))
    return named[0]


@check_arguments
def evaluate_translation(
    model: Model, source: Lines, reference: Lines, *, tokenize: Tokenize = "auto", lowercase: bool = False,
    joint: str = "", tell: Tell = be_silent, **search: Any,
) -> Translation:
    """Translate each line of the source and compare with the references; a blank line's translation is blank.

    `joint` (such as "@@ ") is what joins the parts of a word in the files; BLEU sees whole words.

    Raises:
        QkvError: unequal numbers of lines; a line that is longer than the model can read.
    """
    texts, wanted = (read_lines(given) for given in (source, reference))
    names = [str(given) if isinstance(given, str | Path) else word
             for given, word in ((source, "the source"), (reference, "the reference"))]
    if len(texts) != len(wanted):
        raise sources.explain_unequal((Path(names[0]), len(texts)), (Path(names[1]), len(wanted)),
                              min(len(texts), len(wanted)) + 1)
    real = [i for i, text in enumerate(texts) if text.strip()]
    if not real:
        raise QkvError("{names}: the file is empty, expected text", names=names[0])
    check_source_lengths(model, texts, names[0])
    said, task = [""] * len(texts), translate if model.encoder_decoder else generate
    answer = partial(task, model, **search)
    for part in iter_parts(real, texts, tell):
        for i, result in zip(part, answer([texts[i] for i in part]), strict=True):
            said[i] = result.text.replace("\n", " ")
    return score_translations([join_parts(line, joint) for line in wanted], [join_parts(line, joint) for line in said],
                    tokenize=tokenize, lowercase=lowercase)


def score_translations(
    references: Sequence[str], said: Sequence[str], *, tokenize: Tokenize = "auto", lowercase: bool = False
) -> Translation:
    """What `measure_bleu` measures, and chrF (Popović 2015) by sacreBLEU."""
    from sacrebleu.metrics.chrf import CHRF

    bleu, exact, signature = measure_bleu(references, said, tokenize=tokenize, lowercase=lowercase)
    chrf = CHRF(lowercase=lowercase)
    score = round(chrf.corpus_score(list(said), [list(references)]).score, 2)
    return Translation(bleu, score, exact, len(said), signature, str(chrf.get_signature()), tuple(said))


def measure_bleu(
    references: Sequence[str], said: Sequence[str], *, tokenize: Tokenize = "auto", lowercase: bool = False
) -> tuple[float, float, str]:
    """BLEU (Papineni et al. 2002) by sacreBLEU, the share that equals its reference, and BLEU's signature.

    `auto` cuts Chinese as zh and Japanese by char.
    """
    from sacrebleu.metrics.bleu import BLEU

    cut = choose_tokenization(references) if tokenize == "auto" else tokenize
    metric = BLEU(tokenize=cut, lowercase=lowercase, force=True)
    bleu = metric.corpus_score(list(said), [list(references)]).score
    exact = sum(a.strip() == b.strip() for a, b in zip(said, references, strict=True)) / len(references)
    return round(bleu, 2), round(exact, 4), str(metric.get_signature())


def choose_tokenization(references: Sequence[str]) -> Literal["13a", "zh", "char"]:
    """How sacreBLEU should cut these references into words."""
    text = "".join(references)
    kana = sum("\u3040" <= c <= "\u30ff" for c in text)
    han = sum("\u4e00" <= c <= "\u9fff" for c in text)
    if han + kana < 0.3 * sum(not c.isspace() for c in text):
        return "13a"
    return "char" if kana > 0.2 * han else "zh"


def check_source_lengths(model: Model, texts: Sequence[str], name: str) -> None:
    """Refuse a source that the encoder has no positions for."""
    longest = model.core.encoder.spec.longest if model.core.spec.encoder and model.core.spec.decoder else None
    for number, text in enumerate(texts, 1):
        if longest is not None and len(text) > longest // 8 and (count := len(model.ids(text))) > longest:
            raise QkvError("{name}:{number}: {count} tokens, and the model reads at most {longest}; split the line",
                           name=name, number=number, count=count, longest=longest)


@check_arguments
def evaluate_perplexity(
    model: Model, path: Path, *, window: Count | None = None, stride: Count | None = None, tell: Tell = be_silent
) -> Perplexity:
    """The perplexity of a whole text under a decoder, read in windows that overlap; of pairs where a source is read.

    `window` is the context by default (at most 1,024 where nothing bounds it), `stride` half of it.

    Raises:
        QkvError: no decoder that says words; a window or stride that cannot be; a text of less than two tokens.
    """
    core = model.core
    if core.spec.decoder is None or core.spec.head is None:
        what = describe_use(core.spec)
        raise QkvError("ppl needs a decoder with an output head; this is {what}", what=what)
    if core.spec.encoder or (core.spec.architecture == "prefix decoder" and path.suffix.lower() == ".tsv"):
        if window or stride:
            raise QkvError("ppl: pairs are read whole; remove window and stride")
        return evaluate_pairs(model, path, tell)
    text = sources.read_document(path)
    ids = model.ids(text)
    if len(ids) < 2:
        raise QkvError("{path}: {ids} token, expected at least two: the first is given, the others are predicted",
                       path=path, ids=len(ids))
    longest = core.spec.context
    window = window or longest or 1024
    if (longest is not None and window > longest) or window < 2:
        raise QkvError("window: found {window}, expected 2 to {longest}, the model's context", window=window,
                       longest=longest)
    stride = stride or window // 2
    if not 1 <= stride < window:
        raise QkvError("stride: found {stride}, expected 1 to {window}: a window must begin within the one before",
                       stride=stride, window=window - 1)
    total = sum_window_losses(core, ids, window=window, stride=stride, tell=tell)
    return make_perplexity(total, len(ids) - 1, [text], model.text(ids[:1]), min(window, len(ids)), stride)


def make_perplexity(
    total: float, tokens: int, texts: Sequence[str], given: str = "", window: int | None = None,
    stride: int | None = None,
) -> Perplexity:
    """What a summed loss over so many tokens of texts amounts to; the first token's text was `given`.

    Raises:
        QkvError: the loss is not finite.
    """
    if not math.isfinite(total):
        raise QkvError("ppl: the model's loss is not a finite number; `qkv check` scans its weights")
    words, text = sum(len(one.split()) for one in texts), "".join(texts)
    size, characters = max(1, len(text.encode()) - len(given.encode())), max(1, len(text) - len(given))
    return Perplexity(
        exp_or_none(total / tokens) or math.inf, exp_or_none(total / words), total / math.log(2) / size,
        total / tokens, tokens, words, size, window, stride, exp_or_none(total / characters),
    )


def evaluate_pairs(model: Model, path: Path, tell: Tell) -> Perplexity:
    """The perplexity of the targets of a file of pairs, each after its source.

    Raises:
        QkvError: a file that is not *.tsv; a row that is not a pair, or too long (file and line).
    """
    if path.suffix.lower() != ".tsv":
        raise QkvError("{path}: this model predicts a text from its source; expected lines of source TAB target in a "
                       "*.tsv", path=path)
    rows = list(sources.read_tsv_rows(path))
    total, tokens = 0.0, 0
    for n, (number, pair) in enumerate(rows, 1):
        with name_row(path, number):
            total, tokens = total - logprob(model, pair), tokens + len(with_end(model, pair[1]))
        tell(n, len(rows))
    return make_perplexity(total, tokens, [target for _, (_, target) in rows])


def exp_or_none(value: float) -> float | None:
    """e to the value, None where no float holds it."""
    return math.exp(value) if value < 700 else None


@torch.inference_mode()
def sum_window_losses(
    core: Transformer, ids: Sequence[int], *, window: int, stride: int, tell: Tell = be_silent
) -> float:
    """The summed loss in nats of every token but the first, each predicted once."""
    places = list(iter_windows(len(ids), window, stride))
    width = min(window, len(ids))
    all_ids = torch.tensor(ids, device=core.embed.weight.device)
    rows, total = max(1, BATCH_TOKENS // width), 0.0
    for at in range(0, len(places), rows):
        part = places[at : at + rows]
        read = torch.stack([all_ids[start : start + width] for start, _ in part])  # B T
        hidden = core.hidden(read)  # B T D
        for row, (start, first) in enumerate(part):
            states = hidden[row, first - start - 1 : width - 1]
            total += sum_losses(core, states, read[row, first - start :])
        tell(part[-1][0] + width, len(ids))
    return total


def iter_windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int]]:
    """(start, first predicted token) of windows that predict each token but the first once; the last one is full."""
    start, done = 0, 1
    while done < count:
        yield max(0, min(start, count - window)), done
        done = min(start + window, count)
        start += stride


def sum_losses(core: Transformer, states: Tensor, wanted: Tensor) -> float:
    """The loss of tokens [T] that states [T, D] predict, a few positions at a time."""
    total = 0.0
    for some, ids in zip(states.split(HEAD_POSITIONS), wanted.split(HEAD_POSITIONS), strict=True):
        total += float(torch.nn.functional.cross_entropy(core.head(some).float(), ids, reduction="sum"))
    return total


@check_arguments
def evaluate_accuracy(model: Model, path: Path, *, tell: Tell = be_silent, **how: Any) -> Accuracy:
    """How many texts of a file get their label; `how` goes to who classifies.

    Raises:
        QkvError: the model has no labels; a row with a label that it does not have (file and line).
    """
    names = tuple(map(str, range(MOST_ANSWERS))) if is_multiple_choice(model) else model.labels
    if not names:
        raise QkvError("accuracy needs a model with labels; this one is not a classifier")
    numbers, rows = zip(*read_labelled_rows(path, names, texts=count_texts(model)), strict=True)
    texts = [text for text, _ in rows]
    said = [""] * len(rows)
    for part in iter_parts(range(len(rows)), texts, tell):
        try:
            answers = classify(model, [split_line(model, texts[i]) for i in part], **how)
        except QkvError:  # which of them it is
            for i in sorted(part):
                with name_row(path, numbers[i]):
                    classify(model, [split_line(model, texts[i])], **how)
            raise
        for i, found in zip(part, answers, strict=True):
            said[i] = found.label
    return score_labels([label for _, label in rows], said, names)


def iter_parts(numbers: Sequence[int], texts: Sequence[str], tell: Tell) -> Iterator[list[int]]:
    """Some texts' numbers, long ones first, a few at a time, so that what is worked on together is of like length."""
    order = sorted(numbers, key=lambda i: -len(texts[i]))
    for at in range(0, len(order), BATCH_TEXTS):
        yield order[at : at + BATCH_TEXTS]
        tell(min(at + BATCH_TEXTS, len(order)), len(order))


def join_parts(line: str, joint: str) -> str:
    """A line whose words were cut into parts, whole again."""
    return line.replace(joint, "").removesuffix(joint.rstrip()) if joint else line


def read_lines(given: Lines) -> list[str]:
    """The lines of a file, or those given."""
    return sources.read_lines(Path(given)) if isinstance(given, str | Path) else list(given)


FILE_EVALUATIONS: dict[str, Callable[..., Any]] = {
    "ppl": evaluate_perplexity, "accuracy": evaluate_accuracy, "last_word": evaluate_last_word,
    "choice": evaluate_choice}
