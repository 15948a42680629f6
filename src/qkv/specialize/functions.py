"""Statements, functions and methods that a model needs, each written once: a call becomes text or is put in place."""

import ast
import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from qkv.specialize.cleanup import clean
from qkv.specialize.evaluate import Evaluator, bind_open, short_lived
from qkv.specialize.source import annotate
from qkv.specialize.trees import is_atomic, load_names, make_name
from qkv.specialize.values import Code, Frame, Function, Known, Part, Record, is_decided, lift, map_leaves, residual

PAIRS = {"angles": "tuple[Tensor, Tensor]"}
RETURNED: Any = object()  # every way through the statements has returned already


@dataclass
class Written:
    """One function of the text: its definition, and its open parameters, of which some are used."""

    node: ast.FunctionDef
    leaves: list[tuple[str, str, ast.expr]]  # name, annotation, what the first caller passes
    used: set[str] = field(default_factory=set)
    door: ast.arguments | None = None  # the parameters of a way into the model, as they stand

    def build_definition(self) -> ast.FunctionDef:
        """The definition with the parameters that are used."""
        kept = [ast.arg(n, ast.parse(a, mode="eval").body) for n, a, _ in self.leaves if n in self.used]
        own = [a for a in self.node.args.args[:1] if a.arg == "self"]
        self.node.args = self.door or ast.arguments([], own + kept, None, [], [], None, [])
        return self.node

    def call(self, target: ast.expr, values: dict[str, Any]) -> Code:
        """A call with what the definition uses of the values."""
        given = flatten(self.node, values)[1]
        if len(given) != len(self.leaves):  # another stack's step has other parts, of which this uses none
            by_name = {name: node for name, _, node in given}
            return Code(ast.Call(target, [by_name[name] for name, *_ in self.leaves if name in self.used], []))
        leaves = zip(self.leaves, given, strict=True)
        return Code(ast.Call(target, [node for (name, *_), (*_, node) in leaves if name in self.used], []))


class Functions(Evaluator):
    """Statements to the text that remains of them, and calls of the core's functions."""

    titles: dict[tuple[Any, ...], str]  # of classes
    methods: dict[str, dict[str, Written]]  # of each class
    done: dict[str, Any]  # definitions by name
    assign_attribute: Any  # (target, value, frame): an attribute of a module that is being made
    splices = True  # whether a method of several statements is put in place of its call

    # ---- statements ----------------------------------------------------------------------------------------------

    def run(self, body: list[ast.stmt], f: Frame) -> Any:
        """What the statements return, None where they end without a return, RETURNED where the text returns itself."""
        for node in body:
            found = getattr(self, f"run_{type(node).__name__.lower()}")(node, f)
            if found is not None:
                return found
        return None

    def write(self, node: ast.stmt, like: Any, f: Frame, *, beside: str | None = None) -> None:
        """Write a statement with the comments of the one that it stands for."""
        annotate(node, like.beside if beside is None else beside, like.above)
        node.fresh = f.inner  # type: ignore[attr-defined]
        f.body.append(node)

    def run_return(self, node: Any, f: Frame) -> Any:
        value = self.value(node.value, f)
        if f.branch:
            self.write(ast.Return(residual(value)), node, f)
            return RETURNED
        f.beside = node.beside
        return value

    def run_expr(self, node: ast.Expr, f: Frame) -> None:
        call: Any = node.value
        if isinstance(call, ast.Yield):
            f.yields.append(self.value(call.value, f))  # type: ignore[arg-type]
        elif isinstance(call, ast.Call) and ast.unparse(call.func) == "self.add_module":
            attribute = ast.Attribute(make_name("self"), self.value(call.args[0], f).value, ast.Store())
            self.run_assign(annotate(ast.Assign([attribute], call.args[1])), f)
        elif isinstance(call, ast.Call) and not (f.inner and ast.unparse(call) == "super().__init__()"):
            value = self.value(call, f)
            if isinstance(value, Code):
                self.write(ast.Expr(value.node), node, f)

    def run_augassign(self, node: Any, f: Frame) -> None:
        value = ast.BinOp(node.target, node.op, node.value)
        self.run_assign(annotate(ast.Assign([node.target], value), node.beside, node.above), f)

    def run_assign(self, node: Any, f: Frame) -> None:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = [(t, self.value(v, f.aim(t))) for t, v in zip(target.elts, value.elts, strict=True)]
        else:
            pairs = [(target, self.value(value, f.aim(target)))]
            if isinstance(target, ast.Tuple) and isinstance(pairs[0][1], Known):
                pairs = list(zip(target.elts, map(lift, pairs[0][1].value), strict=True))
        shapes = node.beside.removeprefix("# ").split(", ")
        several = 1 < len(shapes) == len(pairs)
        written: list[Any] = []
        for i, (to, value) in enumerate(pairs):
            to, shape = copy.copy(to), shapes[several * i]
            new = self.assign(to, value, f)
            written += [] if new is None else [(place(to, f), new, shape)]
        for other in node.targets[1:]:
            self.assign(other, self.value(target, f), f)
        if written:
            left, right, kept = (list(column) for column in zip(*written, strict=True))
            new = ast.Assign([ast.Tuple(left, ast.Store())], ast.Tuple(right, ast.Load()))
            new = new if len(left) > 1 else ast.Assign(left, right[0])
            self.write(new, node, f, beside="# " + ", ".join(kept) if several else None)

    def assign(self, target: Any, value: Any, f: Frame) -> ast.expr | None:
        """Bind a target; what is to be written to it, None where the value is decided."""
        if isinstance(target, ast.Attribute):
            return self.assign_attribute(target, value, f)
        name = isinstance(target, ast.Name)
        if name and isinstance(value, Known | Record) and isinstance(value.node, ast.BinOp | ast.Call):
            bind_open(target, f)
            f.names[target.id] = dataclasses.replace(value, node=f.names[target.id].node)
            return value.node
        if name and is_decided(value):
            f.names[target.id] = value
            return None
        node = residual(value)
        if name and isinstance(node, ast.Name) and (node.id == place(target, f).id or (f.inner and not f.branch)):
            f.names[target.id] = value
            return None
        bind_open(target, f)
        return node

    def run_if(self, node: ast.If, f: Frame) -> Any:
        truth = self.truth(test := self.value(node.test, f))
        if truth is not None:
            return self.run(node.body if truth else node.orelse, f)
        ways = [self.run_branch(body, f) for body in (node.body, node.orelse)]
        self.write(ast.If(residual(test), ways[0][0].body or [annotate(ast.Pass())], ways[1][0].body), node, f)
        for way, ended in ways:
            if not ended:
                f.names.update({k: v for k, v in way.names.items() if f.names.get(k) is not v})
        return RETURNED if ways[0][1] and ways[1][1] else None

    def run_branch(self, body: list[ast.stmt], f: Frame, **names: Any) -> tuple[Frame, bool]:
        """The statements of one way, and whether it returns."""
        way = dataclasses.replace(f, names=f.names | names, body=[], branch=True)
        return way, self.run(body, way) is RETURNED

    def run_with(self, node: ast.With, f: Frame) -> Any:
        way, ended = self.run_branch(node.body, f)
        items = [ast.withitem(residual(self.value(i.context_expr, f)), None) for i in node.items]
        self.write(ast.With(items, way.body), node, f)
        return RETURNED if ended else None

    def run_for(self, node: Any, f: Frame) -> Any:
        rounds, target = self.value(node.iter, f), node.target
        if isinstance(rounds, Known):
            for one in rounds.value:
                self.bind(target, lift(one), f)
                if (found := self.run(node.body, f)) is not None:
                    return found
            return None
        before = dict(f.names)
        bind_open(target, f)
        if isinstance(rounds, Part):
            layers = list({self.key(m): m for m in rounds.module}.values())
            f.names[target.id] = Part(layers, make_name(target.id))
        way, _ = self.run_branch(node.body, f)
        f.names = before | {k: v for k, v in way.names.items() if k in before}
        self.write(ast.For(place(target, f), residual(rounds), way.body, []), node, f)
        return None

    # ---- calls ---------------------------------------------------------------------------------------------------

    def key(self, module: Any) -> tuple[Any, ...]:
        """What modules of one class of the text have in common."""
        return type(module), getattr(module, "spec", None)

    def invoke(self, function: Function, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        values, definition, owner = bind_arguments(function, args, given), function.definition, function.owner
        if isinstance(definition, ast.Lambda):
            return self.value(definition.body, Frame(function.source, function.names | values, f.taken, f.body))
        inlined = self.put_in_place(function, values, f)
        if inlined is not None:
            return inlined
        if isinstance(owner, Part):
            written = self.write_method(owner.module, function, values)
            return written.call(ast.Attribute(owner.node, definition.name, ast.Load()), values)
        return self.write_function(function, values)

    def put_in_place(self, function: Function, values: dict[str, Any], f: Frame) -> Any:
        """What a call is worth where its function's text stands in place of it, None where it has to be a call."""
        definition = function.definition
        stored = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        over = {n for n, v in values.items() if isinstance(v, Code) and isinstance(v.node, ast.Name) and v.node.id == n}
        clash = (stored & f.taken) - over
        splices = self.splices and isinstance(function.owner, Part | Record)
        holes = {n: v for n, v in values.items() if isinstance(v, Code) and not is_atomic(v.node)}
        inner = Frame(function.source, values | {n: Code(make_name(f"_{n}")) for n in holes}, set(f.taken), inner=True)
        inner.body = [short_lived(f"_{n}", v.node) for n, v in holes.items()]
        inner.renamed = {n: self.find_free_name(n, inner) for n in sorted(clash)}
        result = self.run(definition.body, inner)
        if result is RETURNED or any(isinstance(n, ast.Return) for s in inner.body for n in ast.walk(s)):
            return None
        result = Known(inner.yields) if inner.yields else result or Known(None)
        last: Any = annotate(ast.Return(ast.Tuple(leaves_of(result), ast.Load())))
        is_open = not is_decided(result) and not inner.yields
        *body, _ = clean([*inner.body, last]) if is_open else [*inner.body, last]
        left = {n for n in holes if f"_{n}" in load_names([*body, last])}
        if is_open and body and (clash or left & f.taken or not splices):
            return None
        names = {f"_{n}": self.find_free_name(n, f) for n in left}
        for one in (n for s in [*body, last] for n in ast.walk(s) if isinstance(n, ast.Name)):
            one.id = names.get(one.id, one.id)
        f.body += body
        f.taken |= inner.taken
        leaves = iter(last.value.elts)
        return map_leaves(result, lambda _, c: dataclasses.replace(c, node=next(leaves)))

    def write_method(self, module: Any, function: Function, values: dict[str, Any]) -> Written:
        """A method of a class of the text, written once."""
        title, name = self.titles[self.key(module)], function.definition.name
        methods = self.methods.setdefault(title, {})
        if name not in methods:
            methods[name] = self.define(function, values | {"self": Part([module], make_name("self"))})
            if name != "__init__":
                self.done.setdefault(title, module)
        return methods[name]

    def write_function(self, function: Function, values: dict[str, Any]) -> Code:
        """The call of a function of the text, which is written once for what is decided of its arguments."""
        written, name, number = self.define(function, values), function.definition.name, 2
        text = ast.unparse(ast.fix_missing_locations(written.node))
        while name in self.done and self.done[name][0] != text:
            name, number = f"{function.definition.name}{number}", number + 1
        written.node.name = name
        return self.done.setdefault(name, (text, written))[1].call(make_name(name), values)

    def define(self, function: Function, values: dict[str, Any]) -> Written:
        """A definition with what is decided of its arguments folded in."""
        definition = function.definition
        names, leaves = flatten(definition, values)
        f = Frame(function.source, names, {n for n, *_ in leaves})
        result = self.run(definition.body, f)
        if result is not RETURNED and result is not None:
            f.body.append(annotate(ast.Return(residual(result)), f.beside))
        node = annotate(ast.FunctionDef(definition.name, definition.args, clean(f.body), [], definition.returns))
        node.doc = (ast.get_docstring(definition) or "").split("\n\n")[0]
        return Written(node, leaves, set(load_names(node.body)) & {n for n, *_ in leaves})


def place(target: Any, f: Frame) -> Any:
    """A target as it stands in the text."""
    new = copy.deepcopy(target)
    for one in ast.walk(new):
        if isinstance(one, ast.Name):
            one.id = f.renamed.get(one.id, one.id)
    return new


def bind_arguments(function: Function, args: list[Any], given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a function with their values."""
    names = [a.arg for a in (*function.definition.args.args, *function.definition.args.kwonlyargs)]
    args = args if function.owner is None else [function.owner, *args]
    values = function.defaults | dict(zip(names, args, strict=False)) | given
    return {n: values[n] for n in names}


def flatten(definition: Any, values: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str, ast.expr]]]:
    """The values as a definition knows them, and its open parameters: name, annotation, what the caller passes."""
    arguments = (*definition.args.args, *definition.args.kwonlyargs)
    notes = {a.arg: ast.unparse(a.annotation) if a.annotation else "Tensor" for a in arguments}
    names, leaves = dict[str, Any](), list[tuple[str, str, ast.expr]]()
    for name, value in values.items():

        def leaf(where: str, code: Any) -> Any:
            own, new = code is value, name  # noqa: B023
            if not own:
                new = code.node.id.rstrip("0123456789") if isinstance(code.node, ast.Name) else where or name  # noqa: B023
                if any(n == new and ast.unparse(c) != ast.unparse(code.node) for n, _, c in leaves):
                    new = code.node.id
            if own or new not in (n for n, *_ in leaves):
                note = notes[name].replace("Tensor | None", "Tensor") if own else PAIRS.get(where, "Tensor")  # noqa: B023
                leaves.append((new, note, code.node))
            return dataclasses.replace(code, node=make_name(new))

        names[name] = map_leaves(value, leaf, name)
    return names, leaves


def leaves_of(value: Any) -> list[ast.expr]:
    """The open expressions of a value."""
    found: list[ast.expr] = []
    map_leaves(value, lambda _, c: found.append(c.node) or c)
    return found
