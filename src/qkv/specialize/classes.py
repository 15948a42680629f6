"""The classes and functions that a model needs, each written once: calls become text or are put in place."""

import ast
import dataclasses
import inspect
import re
from types import FunctionType
from typing import Any

from torch import nn

from qkv import spec as parts
from qkv.core.init import build_on_meta
from qkv.core.model import Stack, Transformer
from qkv.errors import QkvError
from qkv.specialize.cleanup import Substitute
from qkv.specialize.functions import Functions, Written, bind_arguments
from qkv.specialize.source import annotate, belongs_to_core, read_source
from qkv.specialize.trees import is_plain, load_names, make_name, parse_expression
from qkv.specialize.values import Code, Frame, Known, Part, lift, residual

SELF = make_name("self")
ROLES = {"cross": "CrossAttention", "shared": "SharedFfn"}
CASES: Any = (  # phrases of the core's docstrings, and the parts of which they are not true
    (parts.Block, lambda s: not s.cross, " cross-attention where there is a memory,"),
    (parts.Block, lambda s: s.cross, " where there is a memory"),
    (parts.Attention, lambda s: s.groups == s.heads, "; heads may share keys and values (Ainslie et al. 2023)"),
    (parts.Experts, lambda s: not s.shared, ", and to a shared one"),
    (parts.Ffn, lambda s: not s.gated, " (times gate)"),
    (parts.Dense, lambda s: not s.norm, ", and a norm where the spec has one"),
    (parts.Dense, lambda s: s.norm, " where the spec has one"),
    (parts.Spec, lambda s: True, ", in any of the four architectures that the spec describes"),
)


class Classes(Functions):
    """Collects what is written, callees first."""

    merged = True  # a stack is no class of its own
    native: Any = ()  # modules of which PyTorch has the like
    open_attributes: tuple[str, ...] = ()

    def __init__(self, s: parts.Spec) -> None:
        if not s.has_blocks:
            raise QkvError("show prints Transformers; an LSTM has no forks to decide: read baselines/lstm.py")
        self.spec = s
        with build_on_meta():
            self.core = Transformer(s)
        self.done: dict[str, Any] = {}  # definitions by name
        self.methods: dict[str, dict[str, Written]] = {}  # of each class
        self.attributes: dict[tuple[Any, str], Any] = {}
        self.ours = [(p, m) for p, m in self.core.named_modules() if belongs_to_core(type(m))]
        self.titles = self.name_classes()

    # ---- names ---------------------------------------------------------------------------------------------------

    def name_classes(self) -> dict[tuple[Any, ...], str]:
        """A name for each distinct part: by its role, then by its stack, then by number."""
        roles: dict[str, dict[tuple[Any, ...], set[str]]] = {}
        for path, module in self.ours:
            role = path.capitalize() if isinstance(module, Stack) else self.name_role(path, module)
            roles.setdefault(role, {}).setdefault(self.key(module), set()).add(path.split(".")[0].capitalize())
        titles: dict[tuple[Any, ...], str] = {}
        for role, variants in roles.items():
            for key, stacks in variants.items():
                shared = len(variants) == 1 or len(stacks) > 1 or not (self.spec.encoder and self.spec.decoder)
                title = role if shared else f"{min(stacks)}{role}"
                taken = sum(re.sub(r"\d+$", "", t) == title for t in titles.values())
                titles.setdefault(key, f"{title}{taken + 1}" if taken else title)
        return titles

    def name_role(self, path: str, module: Any) -> str:
        """What a part is called if no other part has its role."""
        return ROLES.get(path.rpartition(".")[2], type(module).__name__)

    # ---- modules -------------------------------------------------------------------------------------------------

    def part_attribute(self, part: Part, name: str) -> Any:
        module, key = part.module, (self.key(part.module), name)
        if key in self.attributes:
            return self.attributes[key]
        found, node = getattr(module, name), ast.Attribute(part.node, part.prefix + name, ast.Load())
        if isinstance(found, nn.Module):
            if isinstance(found, Stack) and self.merged:
                return Part([found], part.node, f"{name}_" if self.spec.encoder and self.spec.decoder else "")
            inside = belongs_to_core(type(found)) or isinstance(found, nn.Identity | nn.ModuleList)
            return Part([getattr(m, name) for m in part.modules], node) if inside else Code(node)
        method = inspect.getattr_static(type(module), name, None)
        if isinstance(method, FunctionType) and belongs_to_core(method):
            return self.read_function(method, part)
        if name not in self.open_attributes and (is_plain(found) or callable(found)) and not inspect.ismethod(found):
            return lift(found)
        return Code(node)

    def call_part(self, part: Part, args: list[Any], f: Frame) -> Any:
        if isinstance(part.module, nn.Identity):
            return args[0]
        if not belongs_to_core(type(part.module)) or isinstance(part.module, self.native):
            return Code(ast.Call(part.node, [residual(args[0])], []))
        if isinstance(part.module, Stack) and self.merged:
            return self.invoke(self.part_attribute(part, "forward"), args, {}, f)
        methods = [self.part_attribute(Part([m], part.node), "forward") for m in part.modules]
        values = bind_arguments(methods[0], args, {})
        written = [self.write_method(m, method, values) for m, method in zip(part.modules, methods, strict=True)]
        used = set[str]().union(*(w.used for w in written))
        for one in written:
            one.used = used
        return written[0].call(part.node, values)

    def build(self, kind: type, args: list[Any], f: Frame) -> Any:
        module = getattr(f.names["self"].module, f.target.attr)
        return self.make(module[f.names["i"].value] if isinstance(module, nn.ModuleList) else module, kind, args, f)

    def make(self, module: Any, kind: type, args: list[Any], f: Frame) -> Any:
        """The call that makes a module; its class is written first if it was not yet."""
        function = self.read_function(kind.__init__, Part([module], SELF))
        parameters = [a.arg for a in function.definition.args.args[1:]]
        given = self.open_arguments(module, dict(zip(parameters, args, strict=True)))
        used = self.write_method(module, function, bind_arguments(function, [], given)).used
        made = [residual(v) for name, v in zip(given, args, strict=True) if name in used]
        return Code(ast.Call(make_name(self.titles[self.key(module)]), made, []))

    def open_arguments(self, module: Any, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a class that is made, open where its modules differ."""
        return given

    def read_call(self, node: ast.Call, f: Frame) -> Any:
        if ast.unparse(node.func) == "nn.ModuleList":
            return self.make_layers(node.args[0], f)
        return super().read_call(node, f)

    def make_layers(self, node: Any, f: Frame) -> Any:
        """nn.ModuleList(Block(…) for …): a range where all blocks are alike, a list where they differ."""
        made, loop = list[ast.expr](), node.generators[0]
        for number, one in enumerate(self.value(loop.iter, f).value):
            inner = dataclasses.replace(f, names=dict(f.names))
            self.bind(loop.target, lift(one), inner)
            inner.names["i"] = Known(number, make_name("i"))
            made.append(residual(self.value(node.elt, inner)))
        if len({ast.unparse(m) for m in made}) == 1:
            count = self.constants.get((f.names["self"].module.spec, "blocks"), len(made))
            name = "i" if "i" in load_names(made[0]) else "_"
            every = parse_expression(f"({ast.unparse(made[0])} for {name} in range({count}))")
        else:
            every = self.group([Substitute({"i": ast.Constant(n)}).visit(m) for n, m in enumerate(made)])
        return Code(ast.Call(parse_expression("nn.ModuleList"), [every], []))

    def group(self, made: list[ast.expr]) -> ast.expr:
        """A list of calls that differ."""
        return ast.List(made, ast.Load())

    def assign_attribute(self, target: ast.Attribute, value: Any, f: Frame) -> ast.expr | None:
        owner = self.value(target.value, f)
        module = getattr(owner, "module", None)
        if value is None or isinstance(getattr(module, target.attr, None), nn.Identity):
            return None
        if isinstance(owner, Part) and not isinstance(value, Code) and target.attr not in self.open_attributes:
            if isinstance(value, Known) and value.node is not None:
                self.attributes[self.key(module), target.attr] = value
            return None
        if isinstance(owner, Part):
            target.attr = owner.prefix + target.attr
        return residual(value)

    def write_init(self) -> None:
        """The definition that makes the whole model."""
        init = self.read_function(Transformer.__init__, Part([self.core], SELF))
        self.write_method(self.core, init, bind_arguments(init, [Known(self.spec)], {}))

    def finish(self) -> list[Any]:
        """All definitions that something calls, the model's own last."""
        last = self.titles[self.key(self.core)]
        self.done[last] = self.done.pop(last)
        return prune([self.finish_class(name, made) if isinstance(made, nn.Module) else made[1].build_definition()
                      for name, made in self.done.items()])

    def finish_class(self, name: str, module: Any) -> ast.ClassDef:
        """The definition of a class with the methods that the model uses."""
        kind = type(module)
        node = read_source(kind.__module__, self.rewrites).find(kind)
        order = [n.name for n in node.body if isinstance(n, ast.FunctionDef)]
        methods = self.methods[name]
        new = ast.ClassDef(name, node.bases, [], [methods[n].build_definition() for n in order if n in methods], [])
        annotate(new)
        new.kind = kind.__name__  # type: ignore[attr-defined]
        new.doc = describe_part(getattr(module, "spec", None), (ast.get_docstring(node) or "").split("\n\n")[0])  # type: ignore[attr-defined]
        return new


def describe_part(s: Any, doc: str) -> str:
    """A docstring of the core without the cases that this part is not."""
    for kind, goes, phrase in CASES:
        doc = doc.replace(phrase, "") if isinstance(s, kind) and goes(s) else doc
    doc = doc.replace("(times gate)", "times gate").replace("may share", "share")
    return doc.replace("Self-attention, feed-forward;", "Self-attention and feed-forward;")


def prune(definitions: list[Any]) -> list[Any]:
    """The definitions without functions that nothing calls."""
    used = {n for d in definitions for n in load_names(d) if n != d.name}
    kept = [d for d in definitions if isinstance(d, ast.ClassDef) or d.name in used]
    return kept if kept == definitions else prune(kept)
