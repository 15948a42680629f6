"""The functions and methods that a model needs, each written once: a call becomes text or is put in place."""

import ast
import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from qkv.specialize.cleanup import Substitute, clean
from qkv.specialize.evaluate import RETURNED, Evaluator, bind_open, place, short_lived
from qkv.specialize.source import annotate
from qkv.specialize.values import (
    Code,
    Frame,
    Function,
    Items,
    Known,
    Part,
    Record,
    describe,
    is_atomic,
    load_names,
    map_leaves,
    residual,
)

PAIRS = {"angles": "tuple[Tensor, Tensor]"}


@dataclass
class Written:
    """One function of the text: its definition, and the values that each of its open parameters was given."""

    node: ast.FunctionDef
    leaves: list[tuple[str, str]]  # name, annotation
    used: set[str] = field(default_factory=set)
    door: ast.arguments | None = None  # the parameters of a way into the model, as they stand

    def build_definition(self) -> ast.FunctionDef:
        """The definition with the parameters that are used."""
        if self.door:
            self.node.args = self.door
            return self.node
        kept = [ast.arg(n, ast.parse(a, mode="eval").body) for n, a in self.leaves if n in self.used]
        own = [ast.arg("self")] if self.node.args.args and self.node.args.args[0].arg == "self" else []
        self.node.args = ast.arguments([], own + kept, None, [], [], None, [])
        return self.node


class Functions(Evaluator):
    """Statements to the text that remains of them, and calls of the core's functions."""

    titles: dict[tuple[Any, ...], str]  # of classes
    methods: dict[str, dict[str, Written]]  # of each class
    done: dict[str, Any]  # definitions by name

    # ---- statements ----------------------------------------------------------------------------------------------

    def run(self, body: list[ast.stmt], f: Frame) -> Any:
        """What the statements return, None where they end without a return, RETURNED where the text returns itself."""
        for node in body:
            run = getattr(self, f"run_{type(node).__name__.lower()}")
            found = run(node, f)
            if found is not None:
                return found
        return None

    def write(self, node: ast.stmt, like: Any, f: Frame, *, beside: str | None = None) -> None:
        """Write a statement with the comments of the one that it stands for."""
        annotate(node, like.beside if beside is None else beside, like.above)
        node.fresh = f.inner  # type: ignore[attr-defined]
        f.body.append(node)

    def run_pass(self, node: ast.Pass, f: Frame) -> None:
        """Nothing."""

    def run_return(self, node: ast.Return, f: Frame) -> Any:
        value = self.value(node.value, f) if node.value else Known(None)
        if not f.branch:
            f.returns = [node]
            return value
        self.write(ast.Return(residual(value)), node, f)
        return RETURNED

    def run_expr(self, node: ast.Expr, f: Frame) -> None:
        text, call = ast.unparse(node), node.value
        if isinstance(call, ast.Yield):
            f.yields.append(self.value(call.value, f))  # type: ignore[arg-type]
            return
        if isinstance(call, ast.Constant) or (f.inner and text == "super().__init__()"):
            return
        if isinstance(call, ast.Call) and text.startswith("self.add_module("):
            name, made = call.args
            attribute = ast.Attribute(ast.Name("self", ast.Load()), self.value(name, f).value, ast.Store())
            self.run_assign(annotate(ast.Assign([attribute], made)), f)
            return
        value = self.value(node.value, f)
        if isinstance(value, Code):
            self.write(ast.Expr(value.node), node, f)

    def run_augassign(self, node: ast.AugAssign, f: Frame) -> None:
        value = ast.BinOp(node.target, node.op, node.value)
        self.run_assign(annotate(ast.Assign([node.target], value), node.beside, node.above), f)  # type: ignore[attr-defined]

    def run_assign(self, node: Any, f: Frame) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = [(t, self.target_value(t, v, f)) for t, v in zip(target.elts, node.value.elts, strict=True)]
        else:
            value = self.target_value(target, node.value, f)
            found = self.list_values(value) if isinstance(target, ast.Tuple) else None
            pairs = [(target, value)] if found is None else list(zip(target.elts, found, strict=True))  # type: ignore[union-attr]
        shapes = node.beside.removeprefix("# ").split(", ")
        several = 1 < len(shapes) == len(pairs)
        copies = [(copy.copy(to), value, shapes[several * i]) for i, (to, value) in enumerate(pairs)]
        written = [(place(to, f), new, shape) for to, value, shape in copies
                   if (new := self.assign(to, value, f)) is not None]
        for other in node.targets[1:]:
            self.assign(other, self.value(target, f), f)
        if written:
            left, right, kept = (list(column) for column in zip(*written, strict=True))
            new = ast.Assign([ast.Tuple(left, ast.Store())], ast.Tuple(right, ast.Load()))
            if len(left) == 1:
                new = ast.Assign(left, right[0])
            self.write(new, node, f, beside="# " + ", ".join(kept) if several else None)

    def target_value(self, target: ast.expr, value: ast.expr, f: Frame) -> Any:
        """What is assigned; a module that is made knows from the target which one it is."""
        self.target = target
        return self.value(value, f)

    def assign(self, target: ast.expr, value: Any, f: Frame) -> ast.expr | None:
        """Bind a target; what is to be written to it, None where the value is decided."""
        if isinstance(target, ast.Attribute):
            return self.assign_attribute(target, value, f)
        if isinstance(value, Record) and value.node is not None and not isinstance(value.node, ast.Name):
            node, value.node = value.node, ast.Name(target.id, ast.Load())  # type: ignore[attr-defined]
            f.names[target.id] = value  # type: ignore[attr-defined]
            return node
        if isinstance(target, ast.Name) and isinstance(value, Known) and isinstance(value.node, ast.BinOp | ast.Call):
            bind_open(target, f)
            node, f.names[target.id] = value.node, Known(value.value, residual(f.names[target.id]))
            return node
        if isinstance(target, ast.Name) and (is_decided(value) or isinstance(value, Part)):
            f.names[target.id] = value
            return None
        node = residual(value)
        if f.inner and not f.branch and isinstance(target, ast.Name) and isinstance(node, ast.Name):
            f.names[target.id] = value
            return None
        same = isinstance(target, ast.Name) and isinstance(node, ast.Name) and node.id == place(target, f).id
        bind_open(target, f)
        return None if same else node

    def assign_attribute(self, target: ast.Attribute, value: Any, f: Frame) -> ast.expr | None:
        """Bind an attribute of a module that is being made."""
        raise NotImplementedError

    def run_if(self, node: ast.If, f: Frame) -> Any:
        truth = self.truth(test := self.value(node.test, f))
        if truth is not None:
            return self.run(node.body if truth else node.orelse, f)
        (yes, ended), (no, over) = (self.run_branch(body, f) for body in (node.body, node.orelse))
        self.write(ast.If(residual(test), yes.body or [annotate(ast.Pass())], no.body), node, f)
        if ended and over:
            return RETURNED
        for way, done in ((yes, ended), (no, over)):
            if not done:
                f.names.update({k: v for k, v in way.names.items() if f.names.get(k) is not v})
        return None

    def run_branch(self, body: list[ast.stmt], f: Frame) -> tuple[Frame, bool]:
        """The statements of one way, and whether it returns."""
        way = dataclasses.replace(f, names=dict(f.names), body=[], branch=True)
        return way, self.run(body, way) is RETURNED

    def run_with(self, node: ast.With, f: Frame) -> Any:
        if ast.unparse(node.items[0].context_expr).split("(")[0] in self.rewrites:
            return self.run(node.body, f)
        way, ended = self.run_branch(node.body, f)
        items = [ast.withitem(residual(self.value(i.context_expr, f)), None) for i in node.items]
        self.write(ast.With(items, way.body), node, f)
        return RETURNED if ended else None

    def run_for(self, node: ast.For, f: Frame) -> Any:
        rounds = self.value(node.iter, f)
        every = self.list_values(rounds)
        if every is not None:
            for one in every:
                self.bind(node.target, one, f)
                found = self.run(node.body, f)
                if found is not None:
                    return found
            return None
        way = dataclasses.replace(f, names=dict(f.names), body=[], branch=True)
        bind_open(node.target, way)
        if isinstance(rounds, Part):
            layers = list({self.key(m): m for m in rounds.module}.values())  # type: ignore[attr-defined]
            way.names[node.target.id] = Part(layers, ast.Name(node.target.id, ast.Load()))  # type: ignore[attr-defined]
        self.run(node.body, way)
        self.write(ast.For(place(node.target, f), residual(rounds), way.body, []), node, f)
        f.names.update({k: v for k, v in way.names.items() if k in f.names})
        return None

    # ---- calls ---------------------------------------------------------------------------------------------------

    def key(self, module: Any) -> tuple[Any, ...]:
        """What modules of one class of the text have in common."""
        return type(module), getattr(module, "spec", None)

    def invoke(self, function: Function, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        values = bind_arguments(function, args, given)
        if isinstance(function.definition, ast.Lambda):
            frame = Frame(function.source, function.names | values, f.taken, f.body)
            return self.value(function.definition.body, frame)
        inlined = self.put_in_place(function, values, f)
        if inlined is not None:
            return inlined
        if isinstance(function.owner, Part):
            module, name = function.owner.module, function.definition.name
            written = self.write_method(module, function, args, given)
            target: ast.expr = ast.Attribute(function.owner.node, name, ast.Load())
        else:
            target, written = self.write_function(function, args, given)
        return Code(ast.Call(target, self.pass_leaves(written, function, args, given), []))

    def put_in_place(self, function: Function, values: dict[str, Any], f: Frame) -> Any:
        """What a call is worth where its function's text stands in place of it, None where it has to be a call."""
        definition: Any = function.definition
        stored = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        over = {n for n, v in values.items() if isinstance(v, Code) and isinstance(v.node, ast.Name) and v.node.id == n}
        clash = (stored & f.taken) - over
        names = {n: Code(ast.Name(f"_{n}", ast.Load())) if isinstance(v, Code) and not is_atomic(v.node) else v
                 for n, v in values.items()}
        places = {f"_{n}": values[n].node for n in names if names[n] is not values[n]}
        taken = set(f.taken)
        renamed = {n: self.find_free_name(n, Frame(f.source, {}, taken)) for n in sorted(clash)}
        inner = Frame(function.source, names, taken, inner=True, renamed=renamed)
        result = self.run(definition.body, inner)
        if inner.yields:
            result = Items(inner.yields)
        if result is RETURNED or any(isinstance(n, ast.Return) for s in inner.body for n in ast.walk(s)):
            return None
        is_open = isinstance(result, Code) or (isinstance(result, Items) and result.kind is tuple and all(
            isinstance(v, Code) for v in result.values) and not inner.yields)
        if is_open:
            last: Any = annotate(ast.Return(residual(result)))
            inner.body = clean([*inner.body, last])[:-1]
            several = isinstance(result, Items) and isinstance(last.value, ast.Tuple)
            result = Items([Code(e) for e in last.value.elts]) if several else Code(last.value)
            if inner.body and (clash or not self.may_splice(function)):
                return None
        counts = list(load_names(inner.body)) + ([n for v in leaves_of(result) for n in load_names(v)])
        for hole, node in places.items():
            if counts.count(hole) > 1:
                if is_open and (hole[1:] in f.taken or not self.may_splice(function)):
                    return None
                name = self.find_free_name(hole[1:], f)
                inner.body.insert(0, short_lived(ast.Assign([ast.Name(name, ast.Store())], node)))
                places[hole] = ast.Name(name, ast.Load())
        put = Substitute(places)
        f.body += [put.visit(s) for s in inner.body]
        f.taken |= taken
        return map_leaves(result, lambda _, c: Code(put.visit(c.node))) if result is not None else Known(None)

    def may_splice(self, function: Function) -> bool:
        """Whether a function of several statements is put in place of its call."""
        return isinstance(function.owner, Part | Record)

    def write_method(
        self, module: Any, function: Function, args: list[Any], given: dict[str, Any] | None = None
    ) -> Written:
        """A method of a class of the text, written once."""
        methods = self.methods.setdefault(self.titles[self.key(module)], {})
        name = function.definition.name  # type: ignore[union-attr]
        if name not in methods:
            own = Function(function.definition, function.source, owner=Part([module], ast.Name("self", ast.Load())),
                           defaults=function.defaults)
            methods[name] = self.define(own, args, given or {})
            self.done.setdefault(self.titles[self.key(module)], module)
        return methods[name]

    def write_function(self, function: Function, args: list[Any], given: dict[str, Any]) -> tuple[ast.expr, Written]:
        """A function of the text, written once for what is decided of its arguments."""
        name = first = function.definition.name  # type: ignore[union-attr]
        values, number = bind_arguments(function, args, given), 2
        key = id(function.definition), *((k, describe(v)) for k, v in values.items())
        while name in self.done and self.done[name][0] != key:
            name, number = f"{first}{number}", number + 1
        if name not in self.done:
            written = self.define(function, args, given)
            written.node.name = name
            self.done[name] = key, written
        return ast.Name(name, ast.Load()), self.done[name][1]

    def define(self, function: Function, args: list[Any], given: dict[str, Any]) -> Written:
        """A definition with what is decided of its arguments folded in."""
        definition: Any = function.definition
        names, leaves = flatten(function, bind_arguments(function, args, given))
        f = Frame(function.source, names, {n for n, *_ in leaves})
        result = self.run(definition.body, f)
        if result is not RETURNED and result is not None:
            f.body.append(annotate(ast.Return(residual(result)), f.returns[-1].beside if f.returns else ""))  # type: ignore[attr-defined]
        body = clean(f.body)
        node = ast.FunctionDef(definition.name, definition.args, body, [], definition.returns)
        annotate(node)
        node.doc = (ast.get_docstring(definition) or "").split("\n\n")[0]  # type: ignore[attr-defined]
        used = set(load_names(body)) & {n for n, *_ in leaves}
        return Written(node, [(n, a) for n, a, _ in leaves], used)

    def pass_leaves(
        self, written: Written, function: Function, args: list[Any], given: dict[str, Any]
    ) -> list[ast.expr]:
        """The arguments of a call: what the definition uses of those that it was given."""
        _, leaves = flatten(function, bind_arguments(function, args, given))
        return [node for (name, _), (_, _, node) in zip(written.leaves, leaves, strict=True) if name in written.used]


def is_decided(value: Any) -> bool:
    """Whether nothing of a value is left to be written."""
    if isinstance(value, Items):
        return value.kind is dict or not all(isinstance(v, Code) for v in value.values)
    return isinstance(value, Known | Record | Function)


def bind_arguments(function: Function, args: list[Any], given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a function with their values."""
    names = [a.arg for a in (*function.definition.args.args, *function.definition.args.kwonlyargs)]
    found = {} if function.owner is None else {"self": function.owner}
    values = function.defaults | found | dict(zip([n for n in names if n not in found], args, strict=False)) | given
    return {n: values[n] for n in names}


def flatten(function: Function, values: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str, ast.expr]]]:
    """The values as a definition knows them, and its open parameters: name, annotation, what the caller passes."""
    arguments = function.definition.args
    notes = {
        a.arg: ast.unparse(a.annotation) if a.annotation else "Tensor" for a in (*arguments.args, *arguments.kwonlyargs)
    }
    names: dict[str, Any] = {}
    leaves: list[tuple[str, str, ast.expr]] = []
    for name, value in values.items():
        if name == "self" or isinstance(value, Known | Part | Function):
            names[name] = value
        elif isinstance(value, Record) and value.node is not None:
            leaves.append((name, notes[name], value.node))
            names[name] = Record(value.kind, value.fields, ast.Name(name, ast.Load()))
        elif isinstance(value, Code):
            leaves.append((name, notes[name].replace("Tensor | None", "Tensor"), value.node))
            names[name] = Code(ast.Name(name, ast.Load()))
        else:

            def leaf(where: str, code: Code) -> Code:
                new = code.node.id.rstrip("0123456789") if isinstance(code.node, ast.Name) else where or name  # noqa: B023
                if any(n == new and ast.unparse(c) != ast.unparse(code.node) for n, _, c in leaves):
                    new = code.node.id  # type: ignore[attr-defined]
                if new not in (n for n, *_ in leaves):
                    leaves.append((new, PAIRS.get(where, "Tensor"), code.node))
                return Code(ast.Name(new, ast.Load()))

            names[name] = map_leaves(value, leaf, name)
    return names, leaves


def leaves_of(value: Any) -> list[ast.expr]:
    """The open expressions of a value."""
    found: list[ast.expr] = []
    if value is not None:
        map_leaves(value, lambda _, c: found.append(c.node) or c)
    return found
