"""Partial evaluation of the core's expressions: what is decided is computed, the rest is written."""

import ast
import builtins
import copy
import dataclasses
import inspect
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from qkv.specialize.source import Rewrites, annotate, belongs_to_core, read_source
from qkv.specialize.trees import is_atomic, is_plain, make_name, parse_expression
from qkv.specialize.values import Code, Frame, Function, Known, Part, Record, Value, lift, map_leaves, residual, unwrap

SAFE = "tuple dict enumerate len bool range zip isinstance getattr max min sum float"
PURE = {getattr(builtins, n) for n in SAFE.split()}
A, B = make_name("a"), make_name("b")
NEUTRAL = {(ast.Mult, 1.0), (ast.Add, 0)}


class Evaluator:
    """Expressions to values; the classes after this one say what becomes of calls and modules."""

    rewrites: Rewrites = ()  # what holds in the text to be written, though the core's own text asks
    constants: dict[tuple[Any, str], str]  # how the text calls a number of the spec
    may_be_none = True  # whether an open value may turn out to be None
    part_attribute: Any  # (part, name): an attribute of a module
    invoke: Any  # (function, args, given, frame): a function of the core is called
    call_part: Any  # (part, args, frame): a module is called
    build: Any  # (kind, args, frame): a module of the core is made

    def value(self, node: ast.AST, f: Frame) -> Any:
        """What an expression is worth."""
        read = getattr(self, f"read_{type(node).__name__.lower()}", None)
        return read(node, f) if read else Code(self.rebuild(node, f))

    def rebuild(self, node: Any, f: Frame) -> Any:
        """A node whose parts are replaced by what they are worth."""

        def renew(child: Any) -> Any:
            if isinstance(child, list):
                return list(map(renew, child))
            if isinstance(child, ast.expr):
                return residual(self.value(child, f))
            return self.rebuild(child, f) if isinstance(child, ast.AST) else child

        new = copy.copy(node)
        vars(new).update({name: renew(child) for name, child in ast.iter_fields(node)})
        return new

    def read_function(self, function: Any, owner: Any = None) -> Function:
        """A function or a method of the core as it stands in its file."""
        source = read_source(function.__module__, self.rewrites)
        every = inspect.signature(function).parameters.items()
        defaults = {k: Known(p.default) for k, p in every if p.default is not inspect.Parameter.empty}
        return Function(source.find(function), source, owner=owner, defaults=defaults)

    def read_constant(self, node: ast.Constant, f: Frame) -> Any:
        return Known(node.value)

    def read_name(self, node: ast.Name, f: Frame) -> Any:
        if node.id in f.names:
            return f.names[node.id]
        return lift(f.source.names[node.id] if node.id in f.source.names else getattr(builtins, node.id), node)

    def read_attribute(self, node: ast.Attribute, f: Frame) -> Any:
        return self.attribute(self.value(node.value, f), node.attr)

    def attribute(self, value: Any, name: str) -> Any:
        """One attribute of a value."""
        if isinstance(value, Part):
            return self.part_attribute(value, name)
        if isinstance(value, Record):
            if name in value.fields:
                return value.fields[name]
            found = inspect.getattr_static(value.kind, name, None)
            if isinstance(found, FunctionType):
                return self.read_function(found, value)
            if is_plain(found) and found is not None and value.node is None:
                return Known(found)
        if not isinstance(value, Known):
            return Code(ast.Attribute(residual(value), name, ast.Load()))
        known = lift(getattr(value.value, name), value.node and ast.Attribute(value.node, name, ast.Load()))
        if isinstance(value.value, ModuleType):
            known.node = ast.Attribute(residual(value), name, ast.Load())  # torch.inf
        if dataclasses.is_dataclass(value.value) and (value.value, name) in self.constants:
            known.node = parse_expression(self.constants[value.value, name])
        return known

    def read_subscript(self, node: ast.Subscript, f: Frame) -> Any:
        value, index = self.value(node.value, f), self.value(node.slice, f)
        if isinstance(value, Record) and value.node is None:
            value = Known(tuple(value.fields.values()))
        if isinstance(value, Known) and isinstance(node.slice, ast.Slice):
            ends = (node.slice.lower, node.slice.upper, node.slice.step)
            return Known(value.value[slice(*(self.value(e, f).value if e else None for e in ends))])
        if isinstance(index, Known) and isinstance(value, Known):
            return lift(value.value[index.value])
        at = residual(index)
        every = at.elts if isinstance(at, ast.Tuple) else [at]
        while every and isinstance(last := every[-1], ast.Slice) and last.lower is last.upper is last.step is None:
            every = every[:-1]  # x[:, :] is x
        if not every:
            return value
        if isinstance(at, ast.Tuple):
            at = ast.Tuple(every, ast.Load()) if len(every) > 1 else every[0]
        return Code(ast.Subscript(residual(value), at, ast.Load()))

    def read_slice(self, node: ast.Slice, f: Frame) -> Any:
        ends = [self.value(p, f) if p else Known(None) for p in (node.lower, node.upper, node.step)]
        none = [isinstance(v, Known) and (v.value is None or (i == 0 and v.value == 0)) for i, v in enumerate(ends)]
        return Code(ast.Slice(*(None if gone else residual(v) for v, gone in zip(ends, none, strict=True))))  # type: ignore[arg-type]

    def read_tuple(self, node: ast.Tuple | ast.List, f: Frame) -> Any:
        return Known((tuple if isinstance(node, ast.Tuple) else list)(unwrap(self.value(one, f)) for one in node.elts))

    read_list = read_tuple

    def read_lambda(self, node: ast.Lambda, f: Frame) -> Any:
        return Function(node, f.source, f.names)

    def read_ifexp(self, node: ast.IfExp, f: Frame) -> Any:
        truth = self.truth(self.value(node.test, f))
        return Code(self.rebuild(node, f)) if truth is None else self.value(node.body if truth else node.orelse, f)

    def truth(self, value: Any) -> bool | None:
        """Whether a value counts as true; None where that is open."""
        if isinstance(value, Known):
            return bool(value.value)
        return None if value.node else True

    def read_boolop(self, node: ast.BoolOp, f: Frame) -> Any:
        either, left = isinstance(node.op, ast.Or), list[Any]()
        for one in node.values:
            value = self.value(one, f)
            truth = self.truth(value)
            if truth is either:
                return Known(either) if left else value
            if truth is None or (one is node.values[-1] and not left):
                left.append(value)
        return left[0] if len(left) == 1 else Code(ast.BoolOp(node.op, [residual(v) for v in left]))

    def read_unaryop(self, node: ast.UnaryOp, f: Frame) -> Any:
        value = self.value(node.operand, f)
        new = ast.UnaryOp(node.op, residual(value))
        if not isinstance(value, Known):
            return Code(new)
        return Known(compute(ast.UnaryOp(node.op, A), value), value.node and new)

    def read_binop(self, node: ast.BinOp, f: Frame) -> Any:
        left, right = self.value(node.left, f), self.value(node.right, f)
        if isinstance(node.op, ast.Sub) and isinstance(right, Known) and right.value == 0:
            return left
        for one, other in ((left, right), (right, left)):
            if isinstance(other, Known) and is_plain(other.value) and (type(node.op), other.value) in NEUTRAL:
                return one
        if not (isinstance(left, Known) and isinstance(right, Known)):
            return Code(ast.BinOp(residual(left), node.op, residual(right)))
        named = left.node or right.node or isinstance(node.op, ast.LShift)
        return Known(compute(ast.BinOp(A, node.op, B), left, right),
                     ast.BinOp(residual(left), node.op, residual(right)) if named else None)

    def read_compare(self, node: ast.Compare, f: Frame) -> Any:
        left, right, op = self.value(node.left, f), self.value(node.comparators[0], f), node.ops[0]
        if isinstance(left, Known) and isinstance(right, Known):
            return Known(compute(ast.Compare(A, [op], [B]), left, right))
        if isinstance(op, ast.Is | ast.IsNot) and not (isinstance(left, Code) and self.may_be_none):
            return Known(isinstance(op, ast.IsNot))
        return Code(ast.Compare(residual(left), [op], [residual(right)]))

    def read_joinedstr(self, node: ast.JoinedStr, f: Frame) -> Any:
        found = [self.value(v.value if isinstance(v, ast.FormattedValue) else v, f) for v in node.values]
        known = all(isinstance(v, Known) for v in found)
        return Known("".join(str(v.value) for v in found)) if known else Code(self.rebuild(node, f))

    def read_listcomp(self, node: Any, f: Frame) -> Any:
        inner, loop = dataclasses.replace(f, names=dict(f.names)), node.generators[0]
        rounds = self.value(loop.iter, f)
        if isinstance(rounds, Known):
            found = self.go_through(node, 0, inner)
            return Known(dict(found) if isinstance(node, ast.DictComp) else found)
        bind_open(loop.target, inner)
        every = [ast.comprehension(loop.target, residual(rounds), [], 0)]
        return Code(type(node)(residual(self.value(node.elt, inner)), every))

    def go_through(self, node: Any, depth: int, f: Frame) -> list[Any]:
        """The elements of a comprehension whose loops are decided."""
        if depth == len(node.generators):
            if isinstance(node, ast.DictComp):
                return [(self.value(node.key, f).value, self.value(node.value, f))]
            return [unwrap(self.value(node.elt, f))]
        found, loop = list[Any](), node.generators[depth]
        for one in self.value(loop.iter, f).value:
            self.bind(loop.target, lift(one), f)
            if all(self.truth(self.value(test, f)) for test in loop.ifs):
                found += self.go_through(node, depth + 1, f)
        return found

    read_generatorexp = read_dictcomp = read_listcomp

    def read_call(self, node: ast.Call, f: Frame) -> Any:
        function = self.value(node.func, f)
        args = [self.value(one, f) for one in node.args]
        given = {str(k.arg): self.value(k.value, f) for k in node.keywords}
        if isinstance(function, Function):
            return self.invoke(function, args, given, f)
        if isinstance(function, Part):
            return self.call_part(function, args, f)
        if isinstance(function, Known):
            called, first = function.value, args[0] if args else None
            if called is dataclasses.replace and isinstance(first, Record):
                changed = {k: self.settle(v, k, f) for k, v in given.items()}
                return Record(first.kind, first.fields | changed, first.node)
            if belongs_to_core(called) and isinstance(called, type):
                return self.construct(called, args, given, f)
            if belongs_to_core(called) and isinstance(called, FunctionType):
                return self.invoke(self.read_function(called), args, given, f)
            home, held = getattr(called, "__module__", ""), getattr(called, "__self__", None)
            pure = called in PURE or home in ("math", "dataclasses", "qkv.spec") or held is dict
            if (pure or isinstance(held, dict | str | ContextVar)) and all(
                    isinstance(v, Known) for v in (*args, *given.values())):
                found = lift(called(*(v.value for v in args), **{k: v.value for k, v in given.items()}))
                if home == "math" and any(v.node for v in args):
                    found.node = ast.Call(residual(function), [residual(v) for v in args], [])
                return found
        return self.write_call(function, args, given, f)

    def write_call(self, function: Any, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        """A call that stays."""
        for i, v in enumerate(args):
            if isinstance(v, Function):  # a lambda
                body = self.value(v.definition.body, dataclasses.replace(f, names=v.names))
                args[i] = Code(ast.Lambda(v.definition.args, residual(body)))
        keywords = [ast.keyword(k, residual(v)) for k, v in given.items()]
        return Code(ast.Call(residual(function), [residual(v) for v in args], keywords))

    def construct(self, kind: type, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        """An object of the core is made."""
        if issubclass(kind, nn.Module):
            return self.build(kind, args, f)
        made = kind.__init__ is not object.__init__ or hasattr(kind, "_fields")
        fields = inspect.signature(kind).parameters if made else {}
        found = {k: p.default for k, p in fields.items()} | dict(zip(fields, args, strict=False)) | given
        return Record(kind, {k: self.settle(lift(v), k, f) for k, v in found.items()})

    def settle(self, value: Any, name: str, f: Frame) -> Any:
        """A value whose open leaves are computed once: each gets a name."""

        def let(where: str, leaf: Any) -> Value:
            if is_atomic(leaf.node):
                return leaf
            new = self.find_free_name(where or name, f)
            f.body.append(short_lived(new, leaf.node))
            return Code(make_name(new))

        return map_leaves(value, let, name)

    def find_free_name(self, name: str, f: Frame) -> str:
        """A name that the text has not taken yet."""
        new = next(n for n in (name, *(f"{name}{i}" for i in range(2, 99))) if n not in f.taken)
        f.taken.add(new)
        return new

    def bind(self, target: ast.expr, value: Any, f: Frame) -> None:
        """Remember what the names of a target are worth."""
        if isinstance(target, ast.Name):
            f.names[target.id] = value
        elif isinstance(target, ast.Tuple):
            for one, part in zip(target.elts, value.value, strict=True):
                self.bind(one, lift(part), f)


def bind_open(target: ast.expr, f: Frame) -> None:
    """The names of a target stand for what they will be when the text runs."""
    for one in ast.walk(target):
        if isinstance(one, ast.Name):
            new = f.renamed.get(one.id, one.id)
            f.names[one.id] = Code(make_name(new))
            f.taken.add(new)


def short_lived(name: str, node: ast.expr) -> Any:
    """An assignment that may be put into the one place where its name is read."""
    new = annotate(ast.Assign([ast.Name(name, ast.Store())], node))
    new.fresh = True
    return new


def compute(operation: ast.expr, a: Known, b: Known | None = None) -> Any:
    """What Python makes of an operation on the decided values a and b."""
    code = compile(ast.fix_missing_locations(ast.Expression(copy.deepcopy(operation))), "", "eval")
    return eval(code, {"a": a.value, "b": b and b.value})  # noqa: S307  an operator
