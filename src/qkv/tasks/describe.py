"""What a model is for, in words: an error about a method that does not fit says which ones do."""

from qkv.messages import Message
from qkv.spec import Spec


def describe_use(spec: Spec) -> Message:
    """What a model is and which verbs fit it."""
    if spec.encoder and spec.decoder:
        return Message("an encoder-decoder: use translate")
    if spec.head is None:
        verbs = "embed" if spec.labels is None else "classify"
        one = Message("an encoder") if spec.encoder else Message("a decoder")
        return Message("{one} without an output head: use {verbs}", one=one, verbs=verbs)
    also = Message("") if spec.labels is None else Message(", or classify")
    if spec.encoder:
        return Message("an encoder: use fill or embed{also}", also=also)
    if spec.fills_blanks:
        return Message("a decoder that writes into blanks: use generate{also}", also=also)
    return Message("a decoder, which continues a text: use generate or score{also}", also=also)
