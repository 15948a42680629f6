"""What a model is for, in words: an error about a method that does not fit says which ones do."""

from qkv.errors import Note
from qkv.spec import Spec


def describe_use(spec: Spec) -> Note:
    """What a model is and which verbs fit it."""
    if spec.encoder and spec.decoder:
        return Note("an encoder-decoder: use translate", zh="编码器加解码器：请用 translate")
    if spec.head is None:
        verbs = "embed" if spec.labels is None else "classify"
        one = Note("an encoder", zh="编码器") if spec.encoder else Note("a decoder", zh="解码器")
        return Note(f"{one} without a head for words: use {verbs}", zh=f"没有词输出层的{one.zh}：请用 {verbs}")
    also = Note("") if spec.labels is None else Note(", or classify", zh="，或 classify")
    if spec.encoder:
        return Note(f"an encoder: use fill or embed{also}", zh=f"编码器：请用 fill 或 embed{also.zh}")
    if spec.fills_blanks:
        return Note(f"a decoder that writes into blanks: use generate{also}", zh=f"往空处写的解码器：请用 generate{also.zh}")
    return Note(f"a decoder, which continues a text: use generate or score{also}", zh=f"续写的解码器：请用 generate 或 score{also.zh}")
