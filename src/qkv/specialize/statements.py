"""Partial evaluation of the core's statements: what remains of them is written to the frame."""

import ast
import copy
import dataclasses
from typing import Any

from qkv.specialize.calls import Caller
from qkv.specialize.evaluate import RETURNED, bind_open, place
from qkv.specialize.source import annotate
from qkv.specialize.values import Code, Frame, Function, Items, Known, Part, Record, residual


class Runner(Caller):
    """Runs the statements of one function of the core."""

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

    run_importfrom = run_pass  # type: ignore[assignment]

    def run_return(self, node: ast.Return, f: Frame) -> Any:
        value = self.value(node.value, f) if node.value else Known(None)
        if not f.branch:
            f.returns = [node]
            return value
        new = ast.Return(residual(value))
        self.write(new, node, f)
        return RETURNED

    def run_expr(self, node: ast.Expr, f: Frame) -> None:
        text = ast.unparse(node)
        if isinstance(node.value, ast.Yield):
            f.yields.append(self.value(node.value.value, f))  # type: ignore
            return
        if isinstance(node.value, ast.Constant) or (f.inner and text == "super().__init__()"):
            return
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "self.add_module":
            name, made = node.value.args
            attribute = ast.Attribute(ast.Name("self", ast.Load()), self.value(name, f).value, ast.Store())
            self.run_assign(annotate(ast.Assign([attribute], made)), f)
            return
        value = self.value(node.value, f)
        if isinstance(value, Code):
            self.write(ast.Expr(value.node), node, f)

    def run_annassign(self, node: ast.AnnAssign, f: Frame) -> None:
        if node.value is not None:
            self.run_assign(annotate(ast.Assign([node.target], node.value), node.beside, node.above), f)  # type: ignore[attr-defined]

    def run_augassign(self, node: ast.AugAssign, f: Frame) -> None:
        left = copy.copy(node.target)
        left.ctx = ast.Load()
        value = ast.BinOp(left, node.op, node.value)
        self.run_assign(annotate(ast.Assign([node.target], value), node.beside, node.above), f)  # type: ignore[attr-defined]

    def run_assign(self, node: Any, f: Frame) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = [(t, self.target_value(t, v, f)) for t, v in zip(target.elts, node.value.elts, strict=True)]
        else:
            value = self.target_value(target, node.value, f)
            found = self.list_values(value) if isinstance(target, ast.Tuple) else None
            pairs = [(target, value)] if found is None else list(zip(target.elts, found, strict=True))  # type: ignore[union-attr]
        comments = node.beside.split(", ")
        left: list[ast.expr] = []
        right: list[ast.expr] = []
        shapes: list[str] = []
        for i, (to, value) in enumerate((copy.copy(t), v) for t, v in pairs):
            written = self.assign(to, value, f)
            if written is not None:
                left.append(place(to, f))
                right.append(written)
                shapes.append(comments[i] if len(comments) == len(pairs) else node.beside)
        for other in node.targets[1:]:
            self.assign(other, self.value(target, f), f)
        if left:
            beside = node.beside
            if len(left) < len(pairs) and len(comments) == len(pairs):
                beside = "# " + ", ".join(s.removeprefix("# ") for s in shapes)
            one = len(left) == 1
            new = ast.Assign(
                [left[0] if one else ast.Tuple(left, ast.Store())], right[0] if one else ast.Tuple(right, ast.Load())
            )
            self.write(new, node, f, beside=beside)

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
        ways = [self.run_branch(body, f) for body in (node.body, node.orelse)]
        (yes, ended), (no, over) = ways
        new = ast.If(residual(test), yes.body or [annotate(ast.Pass())], no.body)
        self.write(annotate(new), node, f)
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
        self.write(annotate(ast.With(items, way.body)), node, f)
        return RETURNED if ended else None

    def run_for(self, node: ast.For, f: Frame) -> Any:
        rounds = self.value(node.iter, f)
        every = self.list_values(rounds)
        if isinstance(rounds, Function):  # of the generator, whose yields are decided
            every = self.value(node.iter, f)
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
        self.write(annotate(ast.For(place(node.target, f), residual(rounds), way.body, [])), node, f)
        f.names.update({k: v for k, v in way.names.items() if k in f.names})
        return None


def is_decided(value: Any) -> bool:
    """Whether nothing of a value is left to be written."""
    if isinstance(value, Items):
        return value.kind is dict or not all(isinstance(v, Code) for v in value.values)
    return isinstance(value, Known | Record | Function)
