"""What a model is for, read off its spec: which verbs fit it, and whether it writes into blanks."""

from qkv.errors import Note
from qkv.spec import Spec


def kind(spec: Spec) -> Note:
    """What a model is and the verbs that it is for."""
    if spec.encoder and spec.decoder:
        return Note("an encoder-decoder: use translate", zh="编码器加解码器：请用 translate")
    if spec.head is None:
        verbs = "embed" if spec.labels is None else "classify"
        one, zh = ("an encoder", "编码器") if spec.encoder else ("a decoder", "解码器")
        return Note(f"{one} without a head for words: use {verbs}", zh=f"没有词输出层的{zh}：请用 {verbs}")
    also = Note("") if spec.labels is None else Note(", or classify", zh="，或 classify")
    if spec.encoder:
        return Note(f"an encoder: use fill or embed{also}", zh=f"编码器：请用 fill 或 embed{also}")
    if fills_blanks(spec):
        return Note(f"a decoder that writes into blanks: use generate{also}", zh=f"往空处写的解码器：请用 generate{also}")
    return Note(f"a decoder, which continues a text: use generate or score{also}", zh=f"续写的解码器：请用 generate 或 score{also}")


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
