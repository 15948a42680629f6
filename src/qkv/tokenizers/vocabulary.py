"""A new vocabulary from text or from word lists, for one language or two at once."""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Literal, TypeVar, cast

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from qkv.errors import QkvError
from qkv.messages import Message
from qkv.tokenizers.backends import guard_panics
from qkv.tokenizers.backends import template as around
from qkv.tokenizers.bigrams import find_bigrams, learn_bigrams
from qkv.tokenizers.tokenizer import Tokenizer

R = TypeVar("R")
Kind = Literal["char", "word", "bpe", "bpe-cjk", "lexicon", "split"]
Template = Literal["none", "eos", "bos", "cls", "frame"]
LATIN = "0-9A-Za-zÀ-ɏ"
CJK = r"\p{Han}\p{Hiragana}\p{Katakana}"
WIDE = CJK + "，。、；：？！（）《》〈〉「」『』【】“”‘’…—～·"
NAMES = {
    "<pad>": "pad", "[PAD]": "pad", "</s>": "eos", "<eos>": "eos", "<|endoftext|>": "eos", "<s>": "bos", "<bos>": "bos",
    "<unk>": "unk", "[UNK]": "unk", "<mask>": "mask", "[MASK]": "mask", "[CLS]": "cls", "[SEP]": "sep",
}
LONGEST = 256  # characters of a word from which the vocabulary is trained
LONG_WORD = re.compile(rf"(?<!\w)\w{{{LONGEST},}}|(?<!\s)\s{{{LONGEST},}}|(?<![^\w\s])[^\w\s]{{{LONGEST},}}")
PATIENCE = 5.0  # seconds between two calls that say how long training takes
NEVER = "\0"  # a prefix that no token has: every token is joined with a space
# In place of words' spaces: none at Chinese, before closing marks, after opening ones, or within What's.
TIGHT = rf" (?=[{WIDE},.?!;:%)\]'’])|(?<=[{WIDE}(\[]) |(?<=['’]) (?=(?:s|t|m|d|re|ve|ll|clock)\b)"

LARGEST = 10_000_000  # tokens of a vocabulary; at a billion the library ends the process


def train_vocabulary(
    texts: Iterable[str], *, kind: Kind, size: int = 8000, words: Sequence[str] = (),
    specials: Sequence[str] = ("<pad>", "</s>", "<unk>"), template: Template = "none", bigrams: bool = False,
    note: Callable[[Message], object] = lambda text: None, wait: Callable[[float], object] = lambda seconds: None,
) -> Tokenizer:
    """A tokenizer of at most `size` tokens, the special ones first.

    `char`: each character; `word`: words and punctuation; `bpe`: byte-level BPE (Sennrich et al. 2016), which spells
    any text; `bpe-cjk`: the same, but no piece joins two Chinese or Japanese characters; `split`: what spaces
    separate, with "@@ " as a joint; `lexicon`: the given `words` alone, English ones whole, runs of Chinese cut into
    the fewest words. `template` adds the end symbol behind or the begin symbol before; `cls` adds [CLS] before and
    [SEP] behind, `frame` the end symbol on both sides. With `bigrams` what the words or characters leave of `size`
    goes to bigrams, tokens that stand behind their first part (bigrams.py). `note` is told once if words are so
    long that they were cut for this; `wait` is called with the seconds that training has taken, again and again.

    Raises:
        QkvError: no text or words, a special token that the kind or the template needs, too small a size, or bigrams
            of another kind.
    """
    roles = {NAMES[token]: token for token in specials if token in NAMES}
    if not kind.startswith("bpe") and "unk" not in roles:
        raise QkvError("a vocabulary of kind {kind!r} needs a token for unknown text: add '<unk>' to specials "
                       "{specials}", kind=kind, specials=list(specials))
    if bigrams and kind not in ("char", "word"):
        raise QkvError("bigrams: only of a vocabulary of kind char or word, this one is {kind!r}",
                       kind=kind)
    needed = {"none": set[str](), "cls": {"cls", "sep"}, "frame": {"eos"}}
    missing = needed.get(template, {template}) - roles.keys()
    if missing:
        raise QkvError("template {template_!r} needs such a token among specials {specials}", template_=template,
                       specials=list(specials))
    if size <= len(specials) + (256 if kind.startswith("bpe") else 0):
        least = len(specials) + (257 if kind.startswith("bpe") else 1)
        raise QkvError("size {size} is too small for kind {kind!r}, expected at least {least}", size=size, kind=kind,
                       least=least)
    if size > LARGEST:
        raise QkvError("size {size} is too large, expected at most {most:,}", size=size, most=LARGEST)
    with guard_panics(Message("the vocabulary cannot be trained")):
        if kind == "lexicon":
            backend = _lexicon(words, specials, roles["unk"])
        else:
            texts = cut_long_words(texts, note) if kind.startswith("bpe") else texts
            texts = list(texts) if bigrams else texts
            backend = wait_for(lambda: _train(texts, kind, size, list(specials), roles.get("unk", "")), wait)
            if bigrams:
                wait_for(lambda: learn_bigrams(backend, texts, size, roles["unk"]), wait)
        if template != "none":
            backend.post_processor = _ends(backend, template, roles)
    if backend.get_vocab_size() <= len(specials):
        raise QkvError("no text to train a vocabulary of kind {kind!r} on", kind=kind)
    made = Tokenizer(backend, target=None, sources=None, **roles)
    made.bigrams = find_bigrams(made.vocabulary) if bigrams else None
    return made


def cut_long_words(texts: Iterable[str], note: Callable[[Message], object]) -> Iterator[str]:
    """The texts, in pieces where a word has LONGEST characters or more: training BPE takes their square."""
    told = False
    for text in texts:
        at = 0
        for word in LONG_WORD.finditer(text):
            if not told:
                note(Message("there is a word of {length:,} characters; to train the vocabulary, such words are cut "
                             "every {longest}", length=len(word[0]), longest=LONGEST))
            told = True
            yield text[at : word.start()]
            yield from (word[0][i : i + LONGEST] for i in range(0, len(word[0]), LONGEST))
            at = word.end()
        yield text[at:]


def wait_for(work: Callable[[], R], wait: Callable[[float], object], *, patience: float = PATIENCE) -> R:
    """What `work` gives, done in a thread, so that Ctrl-C need not wait for it; `wait` hears the seconds so far."""
    done: Future[R] = Future()
    context = copy_context()

    def run() -> None:
        try:
            done.set_result(context.run(work))
        except BaseException as e:  # also a panic of the backend
            done.set_exception(e)

    begun = time.monotonic()
    threading.Thread(target=run, daemon=True).start()
    while True:
        try:
            return done.result(timeout=patience)
        except TimeoutError:
            if done.done():
                raise
            wait(time.monotonic() - begun)


def _ends(backend: tokenizers.Tokenizer, template: Template, roles: dict[str, str]) -> Any:
    """What a template puts around each text."""
    ids = {role: (token, int(backend.token_to_id(token) or 0)) for role, token in roles.items()}
    if template == "cls":
        (cls, _), (sep, _) = ids["cls"], ids["sep"]
        return processors.TemplateProcessing(
            single=[cls, "$A", sep], pair=[cls, "$A", sep, "$B:1", sep + ":1"], special_tokens=[ids["cls"], ids["sep"]]
        )
    before, after = {"bos": ("bos", ""), "eos": ("", "eos"), "frame": ("eos", "eos")}[template]
    return around(ids.get(before), ids.get(after))


def _train(texts: Iterable[str], kind: Kind, size: int, specials: list[str], unk: str) -> tokenizers.Tokenizer:
    """Byte-level BPE, or one token for each character, word or blank-separated symbol; the frequent ones stay."""
    about: dict[str, Any] = {"vocab_size": size, "special_tokens": specials, "show_progress": False}
    if kind in ("bpe", "bpe-cjk"):
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if kind == "bpe-cjk":
            single = pre_tokenizers.Split(Regex(f"[{CJK}]"), "isolated")
            backend.pre_tokenizer = pre_tokenizers.Sequence([single, backend.pre_tokenizer])
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **about)
    else:
        backend = tokenizers.Tokenizer(models.WordLevel({unk: 0}, unk_token=unk))
        backend.pre_tokenizer, backend.decoder = {
            "char": (pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"), decoders.Fuse()),
            "word": (pre_tokenizers.Whitespace(), _join_words(TIGHT)),
            "split": (pre_tokenizers.WhitespaceSplit(), _join_words("@@(?: |$)")),
        }[kind]
        trainer = trainers.WordLevelTrainer(**about)
    backend.train_from_iterator(texts, trainer)
    return backend


def _lexicon(words: Sequence[str], specials: Sequence[str], unk: str) -> tokenizers.Tokenizer:
    """English words match whole or not at all, so they are added tokens; Viterbi with equal scores cuts the rest."""
    listed = [w for w in dict.fromkeys(w.strip() for w in words) if w and w not in specials]
    english = [w for w in listed if re.match(f"[{LATIN}]", w)]
    others = [w for w in listed if not re.match(f"[{LATIN}]", w)]
    # An unknown character costs ten more than a piece: all known pieces come before fewer pieces.
    pieces = [*((s, 0.0) for s in specials), *((w, -0.1) for w in others)]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, list(specials).index(unk), False))
    backend.normalizer = _split_scripts()
    marks = sorted((w for w in others if len(w) > 1 and not re.match(r"\w", w)), key=len, reverse=True)
    units = [*(re.escape(m) + (r"(?!\w)" if m[-1].isalnum() else "") for m in marks), rf"[{LATIN}]+", r"[^\w\s]"]
    cut = pre_tokenizers.Split(Regex("|".join(units)), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), cut])
    backend.decoder = _join_words(TIGHT)
    backend.add_special_tokens([AddedToken(s, normalized=False) for s in specials])
    backend.add_tokens([AddedToken(w, single_word=True, normalized=True) for w in english])
    return backend


def _split_scripts() -> normalizers.Normalizer:
    """A space between Chinese and Latin letters."""
    border = rf"(?<=[{CJK}])(?=[{LATIN}])|(?<=[{LATIN}])(?=[{CJK}])"
    return normalizers.Replace(Regex(border), " ")


def is_closed(tokenizer: Tokenizer) -> bool:
    """Whether a vocabulary is of kind `lexicon`: what has a word outside of it is not to be guessed at."""
    found: Any = tokenizer.backend.normalizer
    return found is not None and found.__getstate__() == cast(Any, _split_scripts()).__getstate__()


def _join_words(tight: str) -> decoders.Decoder:
    """Tokens joined with spaces, but for the spaces (and joints) that `tight` matches."""
    join = decoders.WordPiece(prefix=NEVER, cleanup=False)
    return decoders.Sequence([join, decoders.Fuse(), decoders.Replace(Regex(tight), "")])


def equip(tokenizer: Tokenizer, specials: Sequence[str], template: Template) -> Tokenizer:
    """The tokenizer with those special tokens that it lacks behind its own, and a template's ends where it has none.

    Ids that it gave before stay as they are.

    Raises:
        QkvError: its files cannot say more tokens.
    """
    lacking = [token for token in specials if (token in NAMES and NAMES[token] not in tokenizer.roles)
               or (token not in NAMES and tokenizer.id(token) is None)]
    bare = template != "none" and not tokenizer.encode("")
    if not lacking and not bare:
        return tokenizer
    if tokenizer.files:
        what = Message("lacks {lacking}", lacking=", ".join(lacking[:5])) if lacking else Message("ends no text")
        raise QkvError("this vocabulary {what}, and no tokens can be added to its files; use another one", what=what)
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in lacking])
    roles = {**tokenizer.roles, **{NAMES[token]: token for token in lacking if token in NAMES}}
    if bare:
        backend.post_processor = _ends(backend, template, roles)
    made = Tokenizer(backend, target=None, sources=None, **roles)
    made.config, made.bigrams = dict(tokenizer.config), tokenizer.bigrams
    return made


def frame_texts(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with its end symbol before and behind each text, where it adds nothing of its own.

    A decoder that labels texts is judged at the last symbol, which has read all of a text.

    Raises:
        QkvError: there is no end symbol.
    """
    if tokenizer.eos_id is None and not tokenizer.encode(""):
        raise QkvError("the vocabulary has no end symbol to frame texts with; add '</s>' to it")
    return equip(tokenizer, (), "frame")
