"""The core of one model for a runtime of our own: taps and cache stay, forks are decided, a step is its open parts."""

import ast
from typing import Any

from qkv import spec as parts
from qkv.core.cache import Cache
from qkv.core.model import Stack
from qkv.core.step import Inputs
from qkv.specialize.classes import Classes
from qkv.specialize.program import Program, fills_blanks, has_prefix
from qkv.specialize.trees import make_name, parse_expression
from qkv.specialize.values import Code, Frame, Function, Known, Record

WITH_CACHE = {  # where keys of earlier calls are kept, numbers have one type, and rows are of one length
    "queries == keys": "False",
    "queries == 1": "False",
    "padding = cache.extend_mask(inputs.padding_mask, rows, tokens)": "padding = inputs.padding_mask",
    "tap=tracer.tap if tracer else pass_through": "tap=inputs.tap",
    "attention.attend if tracer and tracer.needs_eager_attention else cache.choose_attend(kernels.attend)":
        "attention.attend",
    "(q @ k.mT).to(torch.promote_types(q.dtype, torch.float32))": "(q @ k.mT)",
    "score.softmax(-1).to(v.dtype)": "score.softmax(-1)",
    "turn[0].to(x.dtype), turn[1].to(x.dtype)": "turn",
    "layout).to(x.dtype)": "layout)",
    "out.to(x.dtype)": "out",
    "x, weight = to_fp32(x), to_fp32(weight)": "",
    "weight.to(torch.promote_types(weight.dtype, torch.float32))": "weight",
    "torch.finfo(score.dtype).min": "LOWEST",
    "torch.finfo(torch.float32).min": "LOWEST",
    "(rows, tokens), start = ids.shape, cache.length": "start, tokens = cache.length, ids.shape[1]",
    "self.head(x[:, -logits_to_keep:])": "self.head(x)",
}


class TracedProgram(Program):
    """The core's classes with their taps and its cache, for rows of one length; kernels are the formula written out."""

    merged = splices = False
    open_attributes = ("layer",)

    def __init__(self, s: parts.Spec) -> None:
        super().__init__(s)
        self.rewrites = tuple((dict(self.rewrites) | WITH_CACHE).items())
        self.both = False  # stacks have classes of their own

    def make(self, module: Any, kind: type, args: list[Any], f: Frame) -> Any:
        if isinstance(module, Stack):
            return Classes.make(self, module, kind, args, f)
        return super().make(module, kind, args, f)

    def invoke(self, function: Function, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        return Classes.invoke(self, function, args, given, f)

    def construct(self, kind: type, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        return Code(parse_expression("Cache()")) if kind is Cache else super().construct(kind, args, given, f)

    def read_name(self, node: ast.Name, f: Frame) -> Any:
        return Code(make_name("LOWEST")) if node.id == "LOWEST" else super().read_name(node, f)

    def truth(self, value: Any) -> bool | None:
        given = isinstance(value, Code) and getattr(value.node, "id", "") == "cache"  # a cache that is passed is there
        return True if given else super().truth(value)

    def build_definitions(self) -> list[Any]:
        s, tap = self.spec, Code(make_name("tap"))
        opened = {"memory": s.encoder and s.decoder, "prefix_len": has_prefix(s), "blank_pos": fills_blanks(s)}
        nothing = dict.fromkeys(Inputs.__dataclass_fields__, Known(None)) | {"tap": tap}
        inputs = Record(Inputs, nothing | {k: Code(make_name(k)) for k, v in opened.items() if v})
        self.write_init()
        if s.encoder and s.decoder:
            self.write_root("encode", "source", {"inputs": Record(Inputs, nothing)})
        if s.head or not s.labels:
            self.write_root("forward", "ids", {"inputs": inputs, "cache": Code(make_name("cache"))})
        if s.labels:
            self.write_root("classify", "ids", {"inputs": inputs})
        return self.finish()
