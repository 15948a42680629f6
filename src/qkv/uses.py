"""What a model is for, read off its spec: which verbs fit it, and whether it writes into blanks."""

from qkv.spec import Spec


def kind(spec: Spec) -> tuple[str, str]:
    """What a model is and the verbs that it is for, in English and Chinese."""
    if spec.encoder and spec.decoder:
        return "an encoder-decoder: use translate", "编码器加解码器：请用 translate"
    if spec.head is None:
        verbs = "embed" if spec.labels is None else "classify"
        one, zh = ("an encoder", "编码器") if spec.encoder else ("a decoder", "解码器")
        return f"{one} without a head for words: use {verbs}", f"没有词输出层的{zh}：请用 {verbs}"
    also, too = ("", "") if spec.labels is None else (", or classify", "，或 classify")
    if spec.encoder:
        return f"an encoder: use fill or embed{also}", f"编码器：请用 fill 或 embed{too}"
    if fills_blanks(spec):
        return f"a decoder that writes into blanks: use generate{also}", f"往空处写的解码器：请用 generate{too}"
    also, too = f"generate or score{also}", f"generate 或 score{too}"
    return f"a decoder, which continues a text: use {also}", f"续写的解码器：请用 {too}"


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
