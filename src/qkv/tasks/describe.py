"""What a model is for, in words: an error about a method that does not fit says which ones do."""

from qkv.spec import Spec


def describe_use(spec: Spec) -> tuple[str, str]:
    """What a model is and which verbs fit it, in English and Chinese."""
    if spec.encoder and spec.decoder:
        return "an encoder-decoder: use translate", "编码器加解码器：请用 translate"
    if spec.head is None:
        verbs = "embed" if spec.labels is None else "classify"
        one, zh = ("an encoder", "编码器") if spec.encoder else ("a decoder", "解码器")
        return f"{one} without a head for words: use {verbs}", f"没有词输出层的{zh}：请用 {verbs}"
    also, too = ("", "") if spec.labels is None else (", or classify", "，或 classify")
    if spec.encoder:
        return f"an encoder: use fill or embed{also}", f"编码器：请用 fill 或 embed{too}"
    if spec.fills_blanks:
        return f"a decoder that writes into blanks: use generate{also}", f"往空处写的解码器：请用 generate{too}"
    also, too = f"generate or score{also}", f"generate 或 score{too}"
    return f"a decoder, which continues a text: use {also}", f"续写的解码器：请用 {too}"
