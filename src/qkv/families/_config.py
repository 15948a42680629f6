"""Reading a config strictly: every key is read, ignored with a reason, or an error; nothing is silently dropped."""

import copy
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from qkv.errors import QkvError, nearest
from qkv.messages import Message

# Keys that say nothing about the model's numbers: who wrote the file, how to generate, what labels are called.
HOUSEKEEPING = re.compile(
    r"_.*|architectures|auto_map|model_type|transformers_version|(torch_)?dtype|use_cache|id2label|label2id|is_decoder"
    r"|(bos|eos|pad|unk|sep|cls|mask|decoder_start|forced_bos|forced_eos)_token_id|task_specific_params|is_encoder_decoder"
    r"|output_.*|return_dict.*|gradient_checkpointing|finetuning_task|problem_type|tokenizer_class|prefix|num_labels"
    r"|max_length|min_length|num_beams.*|do_sample|early_stopping|temperature|top_[kp]|length_penalty|bad_words_ids"
    r"|no_repeat_ngram_size|repetition_penalty|classif(ier)?_dropout|torchscript|chunk_size_feed_forward|language|license"
)


class Config:
    """A config as a mapping that remembers which of its keys were read; `defaults` stand for keys that it lacks."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where
        self.defaults: dict[str, Any] = {}
        self.read: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.values)

    def with_defaults(self, **defaults: Any) -> "Config":
        """The config as a parent family reads it: absent keys take the defaults of the derived format."""
        made = copy.copy(self)
        made.defaults = defaults | self.defaults
        return made

    def __getitem__(self, key: str) -> Any:
        if key not in self.values:
            if key in self.defaults:
                return self.defaults[key]
            raise QkvError("{where}: the key {key!r} is missing{hint}", where=self.where, key=key,
                           hint=nearest(key, self.values))
        self.read.add(key)
        value = self.values[key]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and (not math.isfinite(value) or value < 0):
            raise self.error(key, value, Message("a finite number that is not negative"))
        return value

    def get(self, key: str, default: Any) -> Any:
        """The value of `key`, or the default that the format defines."""
        return self[key] if key in self.values else self.defaults.get(key, default)

    def choice(self, key: str, known: Mapping[str, Any], default: str | None = None) -> Any:
        """The value of `key` translated by a table; an unknown word is an error that lists the known ones."""
        value = self[key] if default is None else self.get(key, default)
        if value not in known:
            raise self.error(key, value,
                             Message("one of {known}{hint}", known=", ".join(known), hint=nearest(str(value), known)))
        return known[value]

    def part(self, key: str) -> "Config":
        """A nested config; empty (and false) where it is absent or null."""
        self.read.add(key)
        return Config(self.values.get(key) or {}, f"{self.where}: {key}")

    def error(self, key: str, found: object, expected: str) -> QkvError:
        """An error that names the key, what was found and what was expected."""
        return QkvError("{where}: {key!r} is {found!r}, expected {expected}", where=self.where, key=key, found=found,
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
