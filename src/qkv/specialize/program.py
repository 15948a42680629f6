"""One model as a program that stands alone: the classes of the model, a loader of its weights, a way to run it."""

import ast
import re
from itertools import groupby
from typing import Any

from qkv import spec as parts
from qkv.core import kernels
from qkv.core.attention import attend
from qkv.core.dropout import no_dropout
from qkv.core.experts import ExpertLinear
from qkv.core.model import Stack
from qkv.core.norm import Norm
from qkv.core.step import Inputs
from qkv.specialize import layout, loader, unify
from qkv.specialize.classes import SELF, Classes
from qkv.specialize.cleanup import clean
from qkv.specialize.constants import name_constants
from qkv.specialize.functions import bind_arguments
from qkv.specialize.naming import derive_naming
from qkv.specialize.source import annotate
from qkv.specialize.trees import load_names, make_name, parse_expression
from qkv.specialize.values import Code, Frame, Function, Known, Part, Record

REWRITES = {  # what holds in one pass over whole texts of one length, without a cache and outside of autocast
    "rule.window >= keys": "False",
    "queries == keys": "True",
    "queries == 1": "False",
    "blank.ndim == 2": "False",
    "x.is_meta": "False",
    "torch.compiler.is_compiling()": "False",
    "with torch.autocast(x.device.type, enabled=False):": "if True:",
    "x.to(torch.promote_types(x.dtype, torch.float32))": "x.float()",
    "self.cross_attend(q, k, v, step)": "step.attend(q, k, v, step.mask[s.mask], self, step)",
    "k.shape[1] < q.shape[1]": "getattr(at.spec, 'groups', at.spec.heads) < at.spec.heads",
    "mask.bias.to(q.dtype).clamp_min(torch.finfo(q.dtype).min)": "mask.bias.to(q.dtype)",
}
EVEN = {"torch.cat(pair, -1)[..., :width]": "torch.cat(pair, -1)", "(width + 1) // 2": "width // 2",
        "torch.stack(pair, -1).flatten(-2)[..., :width]": "torch.stack(pair, -1).flatten(-2)"}
WHOLE = {  # where every head is turned from end to end
    "s.dim < x.shape[-1]": "False",
    "x[..., s.dim // 2 : s.dim]": "x[..., s.dim // 2 :]",
    "x[..., 0 : s.dim : 2]": "x[..., ::2]",
    "x[..., 1 : s.dim : 2]": "x[..., 1::2]",
}


def print_program(s: parts.Spec, names: str) -> str:
    """The program of a model, which needs torch and safetensors; `names` is the table of its family's checkpoints."""
    return Program(s).module(names)


class Program(Classes):
    """The core for one pass over whole texts: no step, no cache, no taps, no dropout; a stack is its model's own."""

    may_be_none = False

    def __init__(self, s: parts.Spec) -> None:
        self.stacks = [t for t in (s.encoder, s.decoder) if t]
        super().__init__(s)
        around_0 = any(isinstance(m, Norm) and m.spec.offset for m in self.core.modules())
        self.native = () if around_0 else Norm  # PyTorch's norms know no offset
        self.constants, self.numbers = name_constants(s)
        self.both = len(self.stacks) == 2
        attention: Any = [a for t in self.stacks for b in t.blocks for a in (b.attn, b.cross) if a]
        heads = [(a.rotary, a.head_dim) for a in attention if isinstance(a, parts.Attention) and a.rotary]
        partly = any(turn.dim * turn.axes < size for turn, size in heads)
        rewrites = REWRITES | ({"s.dim < x.shape[-1]": "True"} if partly else WHOLE)
        self.rewrites = tuple((rewrites | (EVEN if s.stack.width % 2 == 0 else {})).items())

    def name_role(self, path: str, module: Any) -> str:
        """Blocks and attention of which the model has several kinds are called by what tells them apart."""
        s, blocks = getattr(module, "spec", None), [b for t in self.stacks for b in t.blocks]
        expert = isinstance(s, parts.Block) and s.moe and any(b.ffn for b in blocks)
        attn = s.attn if isinstance(s, parts.Block) else s
        local = isinstance(attn, parts.Attention) and attn.mask.window and any(not b.attn.mask.window for b in blocks)
        nope = isinstance(attn, parts.Attention) and not attn.rotary and any(b.attn.rotary for b in blocks)
        return "Nope" * bool(nope) + "Local" * bool(local) + "Expert" * bool(expert) + super().name_role(path, module)

    # ---- what differs from the core ------------------------------------------------------------------------------

    def make(self, module: Any, kind: type, args: list[Any], f: Frame) -> Any:
        if isinstance(module, self.native):
            s = module.spec
            given = {"eps": self.attribute(args[0], "eps")} if s.eps != 1e-5 or s.kind == "rms" else {}
            given |= {"bias": Known(False)} if s.kind == "unbiased" else {}
            norm = parse_expression("nn.RMSNorm" if s.kind == "rms" else "nn.LayerNorm")
            return super(Classes, self).write_call(Code(norm), args[1:2], given, f)
        if not isinstance(module, ExpertLinear | Stack):
            return super().make(module, kind, args, f)
        stack = isinstance(module, Stack)
        part = self.part_attribute(Part([self.core], SELF), f.target.attr) if stack else Part([module], SELF)
        function = self.read_function(kind.__init__, part)
        inner = Frame(function.source, bind_arguments(function, args, {}), set(), inner=True)
        self.run(function.definition.body, inner)
        if not stack:  # one tensor
            parameter = inner.body[-1].value  # type: ignore[attr-defined]
            parameter.args[0] = parameter.args[0].func.value
            return Code(parameter)
        f.body += inner.body
        return None

    def open_arguments(self, module: Any, given: dict[str, Any]) -> dict[str, Any]:
        opened = [n for n in given if n in self.open_attributes or (n == "width" and isinstance(module, Norm))]
        return given | {name: Code(make_name(name)) for name in opened}

    def call_part(self, part: Part, args: list[Any], f: Frame) -> Any:
        if isinstance(part.module, ExpertLinear):
            return Code(ast.Call(ast.Attribute(part.node, "unbind", ast.Load()), [], []))
        return super().call_part(part, args, f)

    def invoke(self, function: Function, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        if getattr(function.definition, "name", "") == "attend":
            function = self.read_function(attend if args[4].module.spec.cap else kernels.sdpa)
        return super().invoke(function, args, given, f)

    def write_call(self, function: Any, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        """Attention takes no argument that is its default."""
        if isinstance(function, Known) and getattr(function.value, "__name__", "") == "scaled_dot_product_attention":
            s = f.names["at"].module.spec
            if s.scale is None:
                given = {k: v for k, v in given.items() if k != "scale"}
            if len(args) > 3:
                given = {"attn_mask": args.pop(), **given}
        return super().write_call(function, args, given, f)

    def group(self, made: list[ast.expr]) -> ast.expr:
        """Runs of equal calls: [DenseBlock() for _ in range(3)] + [MoeBlock() …]."""
        texts = [ast.unparse(m) for m in made]
        kinds = list(dict.fromkeys(texts))
        if texts == sorted(texts, key=kinds.index) and len(kinds) < len(texts):
            pieces = [f"[{k} for _ in range({texts.count(k)})]" if texts.count(k) > 1 else f"[{k}]" for k in kinds]
            return parse_expression(" + ".join(pieces))
        period = next((n for n in range(2, len(texts)) if texts == texts[:n] * (len(texts) // n)), 0)
        if period and len(kinds) > 1:
            return parse_expression(f"(block() for _ in range({len(texts) // period}) for block in "
                         f"({', '.join(t.removesuffix('()') for t in texts[:period])}))")
        return super().group(made)

    # ---- the model -----------------------------------------------------------------------------------------------

    def build_definitions(self) -> list[Any]:
        """The model as specialised trees, which say nothing of how they are printed."""
        s, prefix = self.spec, has_prefix(self.spec)
        opened = {"memory": self.both, "segments": s.stack.segments, "prefix_len": prefix,
                  "blank_pos": prefix and fills_blanks(s)}
        fields = {k: Code(make_name(k)) if opened.get(k) else Known(None) for k in Inputs.__dataclass_fields__}
        inputs = {"inputs": Record(Inputs, fields)}
        self.write_init()
        if self.both:
            self.write_root("encode", "source", {})
        if s.head or not s.labels:
            self.write_root("forward", "ids", inputs)
        if s.labels:
            self.write_root("classify", "ids", inputs)
        return unify.merge_classes(self.finish())

    def write_root(self, name: str, ids: str, given: dict[str, Any]) -> None:
        """One of the ways into the model, for a single pass that learns nothing."""
        function: Any = self.part_attribute(Part([self.core], SELF), name)
        given = {"mode": Known("prefill"), "drop": Known(no_dropout), "cache": Known(None)} | given
        written = self.write_method(self.core, function, bind_arguments(function, [Code(make_name(ids))], given))
        last: Any = written.node.body[-1]
        if name == "forward":
            last.value = last.value.args[0 if self.spec.head else 1]  # of Output
            written.node.returns = ast.Name("Tensor", ast.Load())
            written.node.doc = "Token ids [B, T] to " + ("logits [B, T, V]." if self.spec.head else "states [B, T, D].")  # type: ignore[attr-defined]
            clean(written.node.body)
            written.used &= set(load_names(written.node.body))

    def module(self, names: str) -> str:
        """The whole text."""
        definitions = self.build_definitions()
        for d in definitions:
            drop_defaults(d)
            if isinstance(d, ast.ClassDef) and isinstance(d.body[0], ast.FunctionDef):
                d.body[0].body = join_assignments(d.body[0].body)
        naming = derive_naming(self.core, names, self.spell_parameter)
        body = [re.sub(r"\binput\b", "x", layout.print_definition(d)) for d in definitions]  # nn.Linear's own name
        body.append(loader.print_frame(self.spec, naming, free=has_prefix(self.spec), blanks=fills_blanks(self.spec)))
        text = "\n\n\n".join(body)
        for name in ("WIDTH", "HEAD_DIM"):
            text = re.sub(rf"\b{self.numbers.get(name)}\*\*", f"{name}**", text)
        words = set(re.findall(r"\w+", text))
        numbers = print_numbers({n: v for n, v in self.numbers.items() if n in words})
        return f"{loader.print_head(self.spec, text)}\n\n{numbers}\n\n\n{text}\n"

    def spell_parameter(self, name: str) -> str:
        """A parameter of the core by its name in the program."""
        name = re.sub(r"(\.moe\.(?:gate|up|down))\.weight$", r"\1", name)
        return re.sub(r"^(encoder|decoder)\.", r"\1_", name) if self.both else name


def has_prefix(s: parts.Spec) -> bool:
    """Whether the model sees a part of the text freely."""
    return any(b.attn.mask.kind == "prefix" for b in s.stack.blocks)


def fills_blanks(s: parts.Spec) -> bool:
    """Whether positions count within a blank that is filled."""
    table = s.stack.positions
    rotary = [b.attn.rotary for b in s.stack.blocks if b.attn.rotary]
    return bool(table and table.blanks == "counted") or any(r.axes == 2 for r in rotary)


def join_assignments(body: list[ast.stmt]) -> list[ast.stmt]:
    """Parts that are made without arguments share a line, and so do equal norms."""
    joined = list[ast.stmt]()
    for kind, statements in groupby(body, name_kind):
        row: Any = list(statements)
        joined += map(join_row, layout.fill_rows(row, fits)) if kind else row
    return joined


def name_kind(node: Any) -> str:
    """What kind of part a statement makes, empty where it makes none that may share its line."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return ""
    name = ast.unparse(node.value.func)
    if name.endswith("Norm"):
        return ast.unparse(node.value)
    return "own" if "." not in name and not node.value.args else ""


def join_row(row: list[Any]) -> Any:
    """Several assignments as one."""
    targets, values = ast.Tuple([n.targets[0] for n in row], ast.Store()), ast.Tuple([n.value for n in row], ast.Load())
    return row[0] if len(row) == 1 else annotate(ast.fix_missing_locations(ast.Assign([targets], values)))


def fits(row: list[Any]) -> bool:
    """Whether several assignments have room on one line."""
    return len(layout.tidy(ast.unparse(join_row(row)))) - 2 <= 112


def print_numbers(numbers: dict[str, Any]) -> str:
    """The constants, several on a line."""
    rows = layout.fill_rows(numbers.items(), lambda row: len(print_row(row)) <= layout.WIDE)
    return "\n".join(map(print_row, rows))


def print_row(row: list[tuple[str, Any]]) -> str:
    """One line of constants."""
    return f"{', '.join(name for name, _ in row)} = {', '.join(layout.tidy(repr(value)) for _, value in row)}"


def drop_defaults(tree: ast.AST) -> None:
    """Calls without the arguments that are their defaults."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("scaled_dot_product_attention"):
            node.keywords = [k for k in node.keywords if ast.unparse(k.value) not in ("False", "None")]
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "nn.Linear":
            node.keywords = [k for k in node.keywords if ast.unparse(k.value) != "True"]
