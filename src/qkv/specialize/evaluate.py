"""Partial evaluation of the core's expressions and statements: what is decided is computed, the rest is written."""

import ast
import builtins
import copy
import dataclasses
import inspect
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from qkv.specialize.source import annotate, belongs_to_core, name_function, parse_expression
from qkv.specialize.values import (
    Code,
    Frame,
    Function,
    Items,
    Known,
    Part,
    Record,
    Value,
    is_atomic,
    is_plain,
    map_leaves,
    read_function,
    residual,
)

SAFE = "tuple dict enumerate len bool range zip isinstance getattr max min sum float"
PURE = {getattr(builtins, n) for n in SAFE.split()}
REWRITTEN = (ast.Attribute, ast.Call, ast.Compare, ast.BinOp, ast.IfExp, ast.Subscript)
A, B = ast.Name("a", ast.Load()), ast.Name("b", ast.Load())
NEUTRAL = {(ast.Mult, 1.0), (ast.Add, 0)}
RETURNED: Any = object()  # every way through the statements has returned already


class Evaluator:
    """Expressions to values, statements to the text that remains of them."""

    rewrites: dict[str, str]  # what holds in the text to be written, though the core's own text asks
    constants: dict[tuple[Any, str], str]  # how the text calls a number of the spec

    # ---- expressions ---------------------------------------------------------------------------------------------

    def value(self, node: ast.AST, f: Frame) -> Any:
        """What an expression is worth."""
        if self.rewrites and isinstance(node, REWRITTEN):
            instead = self.rewrites.get(ast.unparse(node))
            if instead is not None:
                return self.value(parse_expression(instead), f)
        read = getattr(self, f"read_{type(node).__name__.lower()}", None)
        return read(node, f) if read else Code(self.rebuild(node, f))

    def rebuild(self, node: Any, f: Frame) -> Any:
        """A node whose parts are replaced by what they are worth."""
        new = copy.copy(node)
        for name, child in ast.iter_fields(node):
            if isinstance(child, ast.expr):
                setattr(new, name, residual(self.value(child, f)))
            elif isinstance(child, list):
                setattr(new, name, [residual(self.value(c, f)) if isinstance(c, ast.expr) else self.rebuild(c, f)
                                    if isinstance(c, ast.AST) else c for c in child])
        return new

    def lift(self, value: Any, node: ast.expr | None = None) -> Any:
        """A Python object, of which parts may be values already, as a value; `node` says how the text calls it."""
        if isinstance(value, Value):
            return value
        if isinstance(value, tuple) and any(isinstance(v, Value) for v in value):
            return Items([self.lift(v) for v in value])
        if node is None and callable(value) and not belongs_to_core(value):
            node = name_function(value)
        return Known(value, None if is_plain(value) else node)

    def read_constant(self, node: ast.Constant, f: Frame) -> Any:
        return Known(node.value)

    def read_name(self, node: ast.Name, f: Frame) -> Any:
        if node.id in f.names:
            return f.names[node.id]
        if node.id in f.source.names:
            return self.lift(f.source.names[node.id], node)
        return self.lift(getattr(builtins, node.id), node)

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
                return read_function(found, value)
            if is_plain(found) and found is not None and value.node is None:
                return Known(found)
        if isinstance(value, Known):
            found = getattr(value.value, name)
            known = self.lift(found, ast.Attribute(value.node, name, ast.Load()) if value.node else None)
            if isinstance(value.value, ModuleType):
                known.node = ast.Attribute(residual(value), name, ast.Load())  # torch.inf
            if dataclasses.is_dataclass(value.value) and (value.value, name) in self.constants:
                known.node = parse_expression(self.constants[value.value, name])
            return known
        if isinstance(value, Items):
            return Known(getattr(value.values, name))
        return Code(ast.Attribute(residual(value), name, ast.Load()))

    def part_attribute(self, part: Part, name: str) -> Any:
        """One attribute of a module of the core."""
        raise NotImplementedError

    def read_subscript(self, node: ast.Subscript, f: Frame) -> Any:
        value, index = self.value(node.value, f), self.value(node.slice, f)
        if isinstance(value, Record) and value.node is None:
            value = Items(list(value.fields.values()))
        if isinstance(value, Items) and isinstance(node.slice, ast.Slice):
            ends = (node.slice.lower, node.slice.upper, node.slice.step)
            return Items(value.values[slice(*(self.value(e, f).value if e else None for e in ends))], value.kind)
        if isinstance(index, Known) and isinstance(value, Known | Items):
            return self.lift((value.value if isinstance(value, Known) else value.values)[index.value])
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
        if isinstance(ends[0], Known) and ends[0].value == 0:
            ends[0] = Known(None)
        nodes = [None if isinstance(e, Known) and e.value is None else residual(e) for e in ends]
        return Code(ast.Slice(*nodes))  # type: ignore[arg-type]

    def read_tuple(self, node: ast.Tuple | ast.List, f: Frame) -> Any:
        found = [self.value(one, f) for one in node.elts]
        if isinstance(node, ast.Tuple) and all(isinstance(v, Known) and v.node is None for v in found):
            return Known(tuple(v.value for v in found))
        return Items(found, tuple if isinstance(node, ast.Tuple) else list)

    read_list = read_tuple

    def read_lambda(self, node: ast.Lambda, f: Frame) -> Any:
        return Function(node, f.source, f.names)

    def read_ifexp(self, node: ast.IfExp, f: Frame) -> Any:
        truth = self.truth(self.value(node.test, f))
        if truth is None:
            return Code(self.rebuild(node, f))
        return self.value(node.body if truth else node.orelse, f)

    def truth(self, value: Any) -> bool | None:
        """Whether a value counts as true; None where that is open."""
        if isinstance(value, Known):
            return bool(value.value)
        if isinstance(value, Items):
            return bool(value.values)
        return None if isinstance(value, Code) or getattr(value, "node", None) is not None else True

    def read_boolop(self, node: ast.BoolOp, f: Frame) -> Any:
        either, left = isinstance(node.op, ast.Or), list[Any]()
        for one in node.values:
            value = self.value(one, f)
            truth = self.truth(value)
            if truth is either:
                if not left:
                    return value
                if isinstance(value, Known):
                    return Known(either)
            if truth is None or one is node.values[-1]:
                left.append(value)
        left = [v for v in left[:-1] if self.truth(v) is None] + left[-1:]
        if len(left) > 1 and self.truth(left[-1]) is not None:
            left.pop()
        return left[0] if len(left) == 1 else Code(ast.BoolOp(node.op, [residual(v) for v in left]))

    def read_unaryop(self, node: ast.UnaryOp, f: Frame) -> Any:
        value = self.value(node.operand, f)
        if isinstance(value, Known):
            return Known(compute(ast.UnaryOp(node.op, A), value), value.node and ast.UnaryOp(node.op, residual(value)))
        return Code(ast.UnaryOp(node.op, residual(value)))

    def read_binop(self, node: ast.BinOp, f: Frame) -> Any:
        left, right = self.value(node.left, f), self.value(node.right, f)
        if isinstance(left, Items) and isinstance(right, Items) and left.kind is right.kind is dict:
            return Items(left.values | right.values, dict)
        if isinstance(node.op, ast.Sub) and isinstance(right, Known) and right.value == 0:
            return left
        for one, other in ((left, right), (right, left)):
            if isinstance(other, Known) and is_plain(other.value) and (type(node.op), other.value) in NEUTRAL:
                return one
        if isinstance(left, Known) and isinstance(right, Known):
            named = left.node or right.node or isinstance(node.op, ast.LShift)
            return Known(compute(ast.BinOp(A, node.op, B), left, right),
                         ast.BinOp(residual(left), node.op, residual(right)) if named else None)
        return Code(ast.BinOp(residual(left), node.op, residual(right)))

    def read_compare(self, node: ast.Compare, f: Frame) -> Any:
        left, right, op = self.value(node.left, f), self.value(node.comparators[0], f), node.ops[0]
        if isinstance(left, Known) and isinstance(right, Known):
            return Known(compute(ast.Compare(A, [op], [B]), left, right))
        if isinstance(op, ast.Is | ast.IsNot) and not (isinstance(left, Code) and self.may_be_none(left)):
            return Known(isinstance(op, ast.IsNot))
        return Code(ast.Compare(residual(left), [op], [residual(right)]))

    def may_be_none(self, value: Code) -> bool:
        """Whether an open value may turn out to be None."""
        return True

    def read_joinedstr(self, node: ast.JoinedStr, f: Frame) -> Any:
        found = [self.value(v.value if isinstance(v, ast.FormattedValue) else v, f) for v in node.values]
        if all(isinstance(v, Known) for v in found):
            return Known("".join(str(v.value) for v in found))
        return Code(self.rebuild(node, f))

    def read_listcomp(self, node: Any, f: Frame) -> Any:
        rounds = self.list_values(self.value(node.generators[0].iter, f))
        inner = dataclasses.replace(f, names=dict(f.names))
        if rounds is None:
            loop = node.generators[0]
            head = residual(self.value(loop.iter, f))
            bind_open(loop.target, inner)
            every = [ast.comprehension(loop.target, head, [], 0)]
            return Code(type(node)(residual(self.value(node.elt, inner)), every))
        found = self.go_through(node, 0, inner)
        if isinstance(node, ast.DictComp):
            return Items(dict(found), dict)
        if all(isinstance(v, Known) and v.node is None for v in found):
            return Known([v.value for v in found])
        return Items(found, list)

    def go_through(self, node: Any, depth: int, f: Frame) -> list[Any]:
        """The elements of a comprehension whose loops are decided."""
        if depth == len(node.generators):
            if isinstance(node, ast.DictComp):
                return [(self.value(node.key, f).value, self.value(node.value, f))]
            return [self.value(node.elt, f)]
        found: list[Any] = []
        loop = node.generators[depth]
        for one in self.list_values(self.value(loop.iter, f)) or []:
            self.bind(loop.target, one, f)
            if all(self.truth(self.value(test, f)) for test in loop.ifs):
                found += self.go_through(node, depth + 1, f)
        return found

    read_generatorexp = read_dictcomp = read_listcomp  # type: ignore[assignment]

    def list_values(self, value: Any) -> list[Any] | None:
        """The values that a loop goes through, None where that is open."""
        if isinstance(value, Items):
            return [Known(k) for k in value.values] if value.kind is dict else list(value.values)
        if isinstance(value, Known) and hasattr(value.value, "__iter__"):
            return [self.lift(v) for v in value.value]
        return None

    # ---- calls ---------------------------------------------------------------------------------------------------

    def read_call(self, node: ast.Call, f: Frame) -> Any:
        function = self.value(node.func, f)
        args = [self.value(one, f) for one in node.args]
        return self.apply(function, args, {str(k.arg): self.value(k.value, f) for k in node.keywords}, f)

    def apply(self, function: Any, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        """What a call is worth."""
        if isinstance(function, Function):
            return self.invoke(function, args, given, f)
        if isinstance(function, Part):
            return self.call_part(function, args, f)
        if isinstance(function, Known):
            called, first = function.value, args[0] if args else None
            if called is dataclasses.replace and isinstance(first, Record):
                changed = {k: self.settle(v, k, f) for k, v in given.items()}
                return Record(first.kind, first.fields | changed, first.node)
            if inspect.isclass(called) and belongs_to_core(called):
                return self.construct(called, args, given, f)
            if isinstance(called, FunctionType) and belongs_to_core(called):
                return self.invoke(read_function(called), args, given, f)
            home, held = getattr(called, "__module__", ""), getattr(called, "__self__", None)
            pure = called in PURE or home in ("math", "dataclasses", "qkv.spec") or held is dict
            if (pure or isinstance(held, dict | str | ContextVar)) and all(
                    isinstance(v, Known) for v in (*args, *given.values())):
                found = self.lift(called(*(v.value for v in args), **{k: v.value for k, v in given.items()}))
                if home == "math" and any(v.node for v in args):
                    found.node = ast.Call(residual(function), [residual(v) for v in args], [])
                return found
        return self.write_call(function, args, given, f)

    def write_call(self, function: Any, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        """A call that stays."""
        for i, v in enumerate(args):
            if isinstance(v, Function):  # a lambda
                inner = dataclasses.replace(f, names=v.names)
                args[i] = Code(ast.Lambda(v.definition.args, residual(self.value(v.definition.body, inner))))  # type: ignore[arg-type]
        keywords = [ast.keyword(k, residual(v)) for k, v in given.items()]
        return Code(ast.Call(residual(function), [residual(v) for v in args], keywords))

    def construct(self, kind: type, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        """An object of the core is made."""
        if issubclass(kind, nn.Module):
            return self.build(kind, args, f)
        if kind.__init__ is object.__init__ and not hasattr(kind, "_fields"):
            return Record(kind, {})
        fields = inspect.signature(kind).parameters
        found = dict(zip(fields, args, strict=False)) | given
        every = {k: found[k] if k in found else self.lift(p.default) for k, p in fields.items()}
        return Record(kind, {k: self.settle(v, k, f) for k, v in every.items()})

    def settle(self, value: Any, name: str, f: Frame) -> Any:
        """A value whose open leaves are computed once: each gets a name."""

        def let(where: str, leaf: Code) -> Value:
            if is_atomic(leaf.node):
                return leaf
            new = self.find_free_name(where or name, f)
            f.body.append(short_lived(ast.Assign([ast.Name(new, ast.Store())], leaf.node)))
            return Code(ast.Name(new, ast.Load()))

        return map_leaves(value, let, name)

    def find_free_name(self, name: str, f: Frame) -> str:
        """A name that the text has not taken yet."""
        new = next(n for n in (name, *(f"{name}{i}" for i in range(2, 99))) if n not in f.taken)
        f.taken.add(new)
        return new

    # ---- names ---------------------------------------------------------------------------------------------------

    def bind(self, target: ast.expr, value: Any, f: Frame) -> None:
        """Remember what the names of a target are worth."""
        if isinstance(target, ast.Name):
            f.names[target.id] = value
        elif isinstance(target, ast.Tuple):
            for one, part in zip(target.elts, self.list_values(value) or [], strict=True):
                self.bind(one, part, f)

    # ---- what the classes after this one do ------------------------------------------------------------------------

    def invoke(self, function: Function, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        """A function of the core is called."""
        raise NotImplementedError

    def call_part(self, part: Part, args: list[Any], f: Frame) -> Any:
        """A module is called."""
        raise NotImplementedError

    def build(self, kind: type, args: list[Any], f: Frame) -> Any:
        """A module of the core is made."""
        raise NotImplementedError


def bind_open(target: ast.expr, f: Frame) -> None:
    """The names of a target stand for what they will be when the text runs."""
    for one in ast.walk(target):
        if isinstance(one, ast.Name):
            new = f.renamed.get(one.id, one.id)
            f.names[one.id] = Code(ast.Name(new, ast.Load()))
            f.taken.add(new)


def place(target: Any, f: Frame) -> Any:
    """A target as it stands in the text."""
    new = copy.deepcopy(target)
    for one in ast.walk(new):
        if isinstance(one, ast.Name):
            one.id = f.renamed.get(one.id, one.id)
    return new


def short_lived(node: Any) -> Any:
    """A statement that may be put into the one place where its name is read."""
    annotate(node)
    node.fresh = True
    return node


def compute(operation: ast.expr, a: Known, b: Known | None = None) -> Any:
    """What Python makes of an operation on the decided values a and b."""
    code = compile(ast.fix_missing_locations(ast.Expression(copy.deepcopy(operation))), "", "eval")
    return eval(code, {"a": a.value, "b": b and b.value})  # noqa: S307  an operator
