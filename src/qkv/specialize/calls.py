"""Partial evaluation of the core's calls: what is decided is computed, objects of the core keep their fields."""

import ast
import dataclasses
import inspect
from contextvars import ContextVar
from types import FunctionType
from typing import Any

from torch import nn

from qkv.specialize.evaluate import PURE, Evaluator, short_lived
from qkv.specialize.source import belongs_to_core, read_source
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
    map_leaves,
    residual,
)


class Caller(Evaluator):
    """Expressions with the calls in them."""

    def read_call(self, node: ast.Call, f: Frame) -> Any:
        function = self.value(node.func, f)
        args: list[Any] = []
        for one in node.args:
            if isinstance(one, ast.Starred):
                args += self.list_values(self.value(one.value, f)) or []
            else:
                args.append(self.value(one, f))
        return self.apply(function, args, {str(k.arg): self.value(k.value, f) for k in node.keywords}, f)

    def apply(self, function: Any, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        """What a call is worth."""
        if isinstance(function, Function):
            return self.invoke(function, args, given, f)
        if isinstance(function, Part):
            return self.call_part(function, args, f)
        if isinstance(function, Known):
            called = function.value
            every = [*args, *given.values()]
            if called is dataclasses.replace and isinstance(args[0], Record):
                return Record(
                    args[0].kind, args[0].fields | {k: self.settle(v, k, f) for k, v in given.items()}, args[0].node
                )
            if inspect.isclass(called) and belongs_to_core(called):
                return self.construct(called, args, given, f)
            if isinstance(called, FunctionType) and belongs_to_core(called):
                source = read_source(called.__module__)
                defaults = {k: self.lift(p.default) for k, p in inspect.signature(called).parameters.items()
                            if p.default is not inspect.Parameter.empty}
                return self.invoke(Function(source.find_function(called), source, defaults=defaults), args, given, f)
            held = getattr(called, "__self__", None)
            pure = called in PURE if callable(called) and getattr(called, "__hash__", None) else False
            pure = pure or getattr(called, "__module__", "") in ("math", "dataclasses", "qkv.spec")
            if pure or held is dict or isinstance(held, dict | str | ContextVar):
                if all(isinstance(v, Known) for v in every):
                    found = self.lift(called(*(v.value for v in args), **{k: v.value for k, v in given.items()}))
                    if getattr(called, "__module__", "") == "math" and any(v.node for v in every):
                        found.node = ast.Call(residual(function), [residual(v) for v in args], [])
                    return found
        return self.write_call(function, args, given, f)

    def write_call(self, function: Any, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        """A call that stays."""
        for i, v in enumerate(args):
            if isinstance(v, Function) and isinstance(v.definition, ast.Lambda):
                body = residual(self.value(v.definition.body, dataclasses.replace(f, names=v.names)))
                args = [*args[:i], Code(ast.Lambda(v.definition.args, body)), *args[i + 1 :]]
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
        number = 2
        new = name
        while new in f.taken:
            new, number = f"{name}{number}", number + 1
        f.taken.add(new)
        return new

    def invoke(self, function: Function, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        """A function of the core is called."""
        raise NotImplementedError

    def call_part(self, part: Part, args: list[Any], f: Frame) -> Any:
        """A module is called."""
        raise NotImplementedError

    def build(self, kind: type, args: list[Any], f: Frame) -> Any:
        """A module of the core is made."""
        raise NotImplementedError
