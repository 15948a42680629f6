"""What a model is for, read off its spec: which verbs fit it, and whether it writes into blanks."""

from qkv.messages import Message
from qkv.spec import Spec


def kind(spec: Spec) -> Message:
    """What a model is and the verbs that it is for."""
    if spec.encoder and spec.decoder:
        return Message("an encoder-decoder: use translate")
    if spec.head is None:
        verbs = "embed" if spec.labels is None else "classify"
        one = Message("an encoder") if spec.encoder else Message("a decoder")
        return Message("{one} without a head for words: use {verbs}", one=one, verbs=verbs)
    also = Message("") if spec.labels is None else Message(", or classify")
    if spec.encoder:
        return Message("an encoder: use fill or embed{also}", also=also)
    if fills_blanks(spec):
        return Message("a decoder that writes into blanks: use generate{also}", also=also)
    return Message("a decoder, which continues a text: use generate or score{also}", also=also)


def fills_blanks(spec: Spec) -> bool:
    """Whether what is written takes the place of a blank in the prompt."""
    if spec.decoder is None:
        return False
    turns = [getattr(block.attn, "rotary", None) for block in spec.decoder.blocks]
    counted = spec.decoder.positions is not None and spec.decoder.positions.blanks == "counted"
    return counted or any(turn is not None and turn.axes == 2 for turn in turns)


def is_prefix_decoder(spec: Spec) -> bool:
    """Whether the decoder sees its whole prompt at once, as a prefix."""
    return spec.decoder is not None and any(block.attn.mask.kind == "prefix" for block in spec.decoder.blocks)
