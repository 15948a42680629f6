"""Reading a config strictly: every key is read, ignored with a reason, or an error; nothing is silently dropped."""

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from qkv.errors import QkvError, nearest
from qkv.messages import Message
from qkv.spec import LAYERS, MOST

# Keys that say nothing about the model's numbers: who wrote the file, how to generate, what labels are called.
HOUSEKEEPING = re.compile(
    r"_.*|architectures|auto_map|model_type|transformers_version|(torch_)?dtype|use_cache|id2label|label2id|is_decoder"
    r"|(bos|eos|pad|unk|sep|cls|mask|decoder_start|forced_bos|forced_eos)_token_id|task_specific_params|is_encoder_decoder"
    r"|output_.*|return_dict.*|gradient_checkpointing|finetuning_task|problem_type|tokenizer_class|prefix|num_labels"
    r"|max_length|min_length|num_beams.*|do_sample|early_stopping|temperature|top_[kp]|length_penalty|bad_words_ids"
    r"|no_repeat_ngram_size|repetition_penalty|classif(ier)?_dropout|torchscript|chunk_size_feed_forward|language|license"
)


REQUIRED: Any = object()


class Config:
    """A config as a mapping that remembers which of its keys were read; `defaults` stand for keys that it lacks.

    A key is read by what it holds: `size`, `layers`, `count`, `number`, `share`, `flag`, `texts`, `choice`, `part`.
    Null is an error, unless the default is None or `null` allows it.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where
        self.defaults: dict[str, Any] = {}
        self.read: set[str] = set()
        self.assumed: dict[str, Any] = {}  # keys that it lacks, with what was taken for them

    def __bool__(self) -> bool:
        return bool(self.values)

    def with_defaults(self, **defaults: Any) -> "Config":
        """The config as a parent family reads it: absent keys take the defaults of the derived format."""
        made = copy.copy(self)
        made.defaults = defaults | self.defaults
        return made

    def value(
        self, key: str, default: Any, expected: Message, fits: Callable[[Any], bool], *, null: bool = False
    ) -> Any:
        """The value of `key`, which `fits`, or the default that the format defines.

        Raises:
            QkvError: the key is missing and has no default, or the value is not what was `expected`.
        """
        if key not in self.values:
            found = self.defaults.get(key, default)
            if found is REQUIRED:
                raise QkvError("{where}: the key {key!r} is missing{hint}", where=self.where, key=key,
                               hint=nearest(key, self.values))
            self.assumed[key] = found
            return found
        self.read.add(key)
        found = self.values[key]
        if not (fits(found) or (found is None and (null or default is None))):
            raise self.error(key, found, expected)
        return found

    def whole(self, key: str, default: Any, least: int, most: int, null: bool) -> Any:
        """A whole number from `least` to `most`."""
        expected = Message("a whole number from {least} to {most:,}", least=least, most=most)
        return self.value(key, default, expected, lambda v: type(v) is int and least <= v <= most, null=null)

    def size(self, key: str, default: Any = REQUIRED, *, null: bool = False) -> Any:
        """A width, a number of heads, tokens or positions: 1 or more."""
        return self.whole(key, default, 1, MOST, null)

    def heads(self, key: str, width: int) -> int:
        """A number of heads, which divide the width."""
        found = self.size(key)
        if width % found:
            raise self.error(key, found, Message("a number that divides the width {width}{keys}", width=width,
                                                 keys=self.name_keys(width, key)))
        return found

    def name_keys(self, number: int, key: str) -> Message:
        """The keys beside `key` that hold a number, in brackets."""
        keys = ", ".join(k for k in sorted(self.read) if k != key and self.values.get(k) == number)
        return Message(" ({keys})", keys=keys) if keys else Message()

    def count(self, key: str, default: Any = REQUIRED, *, null: bool = False) -> Any:
        """A number of things of which there may be none."""
        return self.whole(key, default, 0, MOST, null)

    def layers(self, key: str, default: Any = REQUIRED) -> Any:
        """How many blocks a stack has."""
        return self.whole(key, default, 1, LAYERS, null=False)

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A positive number that fp32 can hold, such as an epsilon or a base."""
        fits: Callable[[Any], bool] = lambda v: type(v) in (int, float) and 0 < v < 1e38  # noqa: E731
        return self.value(key, default, Message("a number above 0 and below 1e38"), fits)

    def share(self, key: str, default: Any = REQUIRED) -> Any:
        """A number from 0 to 1, such as a dropout or the spread of first weights."""
        fits: Callable[[Any], bool] = lambda v: type(v) in (int, float) and 0 <= v <= 1  # noqa: E731
        return self.value(key, default, Message("a number from 0 to 1"), fits)

    def flag(self, key: str, default: Any = REQUIRED) -> Any:
        """True or false."""
        return self.value(key, default, Message("true or false"), lambda v: type(v) is bool)

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        """A text."""
        return self.value(key, default, Message("text"), lambda v: isinstance(v, str))

    def texts(self, key: str, default: Any = REQUIRED, *, length: int | None = None) -> Any:
        """A list of texts, one for each of `length` layers where it is given."""
        fits: Callable[[Any], bool] = lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v)  # noqa: E731
        found = self.value(key, default, Message("a list of texts"), fits)
        if found is not None and length is not None and length != len(found):
            raise self.error(key, found, Message("one for each of {blocks} layers{keys}", blocks=length,
                                                 keys=self.name_keys(length, key)))
        return found

    def factors(self, key: str, length: int) -> tuple[float, ...]:
        """As many positive numbers that fp32 can hold."""
        fits: Callable[[Any], bool] = lambda v: isinstance(v, list) and len(v) == length and all(  # noqa: E731
            type(n) in (int, float) and 0 < n < 1e38 for n in v)
        expected = Message("a list of {length} positive numbers", length=length)
        return tuple(map(float, self.value(key, REQUIRED, expected, fits)))

    def choice(self, key: str, known: Mapping[str, Any], default: Any = REQUIRED) -> Any:
        """The value of `key` translated by a table; an unknown word is an error that lists the known ones."""
        found = self.text(key, default)
        if found not in known:
            raise self.error(key, found,
                             Message("one of {known}{hint}", known=", ".join(known), hint=nearest(found, known)))
        return known[found]

    def fixed(self, key: str, usual: Any, expected: Message | None = None) -> Any:
        """The one value of `key` that the family knows, which is also its default."""
        fits: Callable[[Any], bool] = lambda v: type(v) is type(usual) and v == usual  # noqa: E731
        return self.value(key, usual, expected or Message(repr(usual)), fits)

    def part(self, key: str) -> "Config":
        """A nested config; empty (and false) where it is absent or null."""
        found = self.value(key, None, Message("an object with keys"), lambda v: isinstance(v, dict))
        return Config(found or {}, f"{self.where}: {key}")

    def error(self, key: str, found: object, expected: str) -> QkvError:
        """An error that names the key, what was found and what was expected."""
        text = repr(found)
        shown = text if len(text) <= 100 else f"{text[:99]}…"
        return QkvError("{where}: {key!r} is {shown}, expected {expected}", where=self.where, key=key, shown=shown,
                        expected=expected)

    def finish(self, ignore: Iterable[str]) -> None:
        """Stop at keys that are set, were never read, and match no regular expression of `ignore`."""
        known = [HOUSEKEEPING, *(re.compile(p) for p in ignore)]
        left = {k: v for k, v in self.values.items()
                if v and k not in self.read and not any(p.fullmatch(k) for p in known)}
        if left:
            keys = "; ".join(f"{k} = {v!r}{nearest(k, self.read)}" for k, v in left.items())
            raise QkvError("{where}: keys that are not read and that may change the model: {keys}. Remove them, or "
                           "list them in the family's IGNORE with the reason why they are harmless", where=self.where,
                           keys=keys)
