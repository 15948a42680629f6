"""The core folded by a spec: the single-model forward pass that one would have written by hand. Start at `show`.

A small partial evaluator over the core's own source: what the spec decides is computed, the rest is copied with its
comments. It may rely on the core's rule that a fork asks the local frozen spec or `step.mode` and nothing else.
"""

import ast
import builtins
import dataclasses
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Literal

import torch
from torch import nn

from qkv import spec as parts
from qkv.core import kernels
from qkv.core.ffn import Ffn
from qkv.core.model import Stack, Transformer
from qkv.core.norm import Norm
from qkv.errors import QkvError

WIDE = 120
CORE = {"TABLE": kernels.TABLE, "spec": parts, "replace": dataclasses.replace}  # what the core's own text may name
PLAIN = ("tuple", "dict", "enumerate", "len", "bool", "range", "zip", "isinstance")
SAFE: dict[str, Any] = {n: getattr(builtins, n) for n in PLAIN} | CORE
ROLES = {"cross": "CrossAttention", "shared": "SharedFfn"}
SHARES = "k.shape[1] < q.shape[1]"  # do several heads read one key? The spec of an attention knows
NEUTRAL: dict[type[ast.operator], float] = {ast.Mult: 1.0, ast.Add: 0}
UNKNOWN: Any = object()
TIGHT = (ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Compare, ast.BoolOp, ast.Starred)
ATOMS = (ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Constant, ast.List)
WHEN = {None: "", "train": ", for training", "prefill": ", for the prefill", "decode": ", for decoding"}
READ_BY_STEP = ("masks", "rotaries")  # build_step() asks a stack for these two
IMPORTED = ("build_step", "read_source")  # what the text leaves to the core


def show(spec: parts.Spec, *, mode: Literal["train", "prefill", "decode"] | None = None, taps: bool = False) -> str:
    """A Python module with `class Model` that computes exactly what `Transformer(spec)` does, every fork decided.

    `mode` decides what differs between training and decoding too: "train" has no cache, the others neither dropout nor
    gradients.
    The text loads the core's state dict; taps are printed only when asked for.
    """
    if not spec.has_blocks:
        raise QkvError("show folds the Transformer's core; an LSTM has no forks to decide: read "
                       "baselines/lstm.py")
    return Folder(spec, mode, taps).module()


def spell(value: Any) -> str:
    """A decided value as one would type it: 64**-0.5 and not 0.125, Mask("causal") with its defaults left out."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        every = [(i, f.name, getattr(value, f.name)) for i, f in enumerate(fields)]
        given = [(i, name, v) for i, name, v in every if v != fields[i].default]
        words = [spell(v) if i == n else f"{name}={spell(v)}" for n, (i, name, v) in enumerate(given)]
        return f"{type(value).__name__}({', '.join(words)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(spell, value))}{',' * (len(value) == 1)})"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, float) and 0 < value < 1e6 and not value.is_integer() and len(repr(value)) > 5:
        for power in (-0.5, 0.5):
            root = round(value ** (1 / power))
            if root and root**power == value:
                return f"{root}**{power}"
    return repr(value).replace("e-0", "e-")


def plain(value: Any) -> bool:
    """May this value be typed into the text?"""
    if isinstance(value, tuple):
        return all(map(plain, value))
    own = dataclasses.is_dataclass(value) and type(value).__module__ == parts.__name__
    return value is None or isinstance(value, int | float | str) or own


class Known:
    """What is decided of a module or of the step; any other attribute is unknown until the text runs."""

    def __init__(self, thing: Any, hidden: set[str]) -> None:
        self._thing, self._hidden = thing, hidden

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if name in self._hidden or not plain(value):
            raise AttributeError(name)
        return value


class Source:
    """One file of the core: its text in bytes (as ast counts), its tree, its comments by line."""

    def __init__(self, module: ModuleType) -> None:
        text = inspect.getsource(module)
        self.text, self.tree = text.encode(), ast.parse(text)
        inside = (n for n in ast.walk(self.tree) if isinstance(n, ast.ImportFrom) and n.module in sys.modules)
        late = {a.name: getattr(sys.modules[str(n.module)], a.name) for n in inside for a in n.names}
        self.names = {**late, **vars(module)}  # what functions import for themselves is known as well
        self.starts = [0]
        for line in self.text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        self.comments = {t.start[0]: (t.start[1], t.string) for t in tokens if t.type == tokenize.COMMENT}

    def at(self, node: Any) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def cut(self, start: int, end: int) -> str:
        return self.text[start:end].decode()

    def define(self, name: str) -> Any:
        """The class, function or table of that name, None where it is defined elsewhere."""
        called = lambda n: ast.unparse(n.targets[0]) if isinstance(n, ast.Assign) else getattr(n, "name", None)  # noqa: E731
        return next((n for n in self.tree.body if called(n) == name), None)

    def above(self, line: int) -> list[str]:
        """The comment lines that stand right above a line."""
        rows = self.text.decode().splitlines()
        first = line
        while first > 1 and rows[first - 2].lstrip().startswith("#"):
            first -= 1
        return [row.strip() for row in rows[first - 1 : line - 1]]


@dataclass
class Scope:
    """Where a piece of source is read: its file, what its names are known to be, and what some are replaced by."""

    source: Source
    module: nn.Module | None = None
    known: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def names(text: str) -> list[str]:
    return [n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)]


def atomic(text: str) -> bool:
    tree = ast.parse(text, mode="eval").body
    return isinstance(tree, ATOMS) or (isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow))


def same_operator(node: ast.AST, text: str) -> bool:
    """Is the new text held together as the old was? Then the brackets round it are right already."""
    new = ast.parse(text, mode="eval").body
    return isinstance(node, ast.BinOp) and isinstance(new, ast.BinOp) and type(node.op) is type(new.op)


def children(node: ast.AST) -> Iterator[ast.expr | ast.keyword | ast.comprehension]:
    """The parts of an expression in the order of the text."""
    found = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr | ast.keyword | ast.comprehension)]
    flat = [e for c in found for e in (children(c) if isinstance(c, ast.comprehension) else [c])]
    yield from sorted(flat, key=lambda c: (c.lineno, c.col_offset))  # type: ignore[union-attr]


class Folder:
    """One folding: collects the classes and functions that the model needs, each printed once."""

    def __init__(self, s: parts.Spec, mode: str | None, taps: bool) -> None:
        self.spec, self.mode, self.taps = s, mode, taps
        with torch.device("meta"):
            self.core = Transformer(s)
        self.hidden = {"training"} | ({"path"} if taps else set()) | ({"layer"} if mode != "train" else set())
        self.step = Known(type("Step", (), {"mode": mode})(), set() if mode else {"mode"})
        self.sources: dict[str, Source] = {}
        self.ours = [(p, m) for p, m in self.core.named_modules() if type(m).__module__.startswith("qkv.core")]
        self.names = self.titles()
        self.inlines = True
        self.done: dict[str, str] = {}  # the printed pieces, by name, callees first
        self.signatures: dict[Any, list[str]] = {}

    # ---- names -------------------------------------------------------------------------------------------------

    def key(self, module: Any) -> tuple[Any, ...]:
        return type(module), getattr(module, "spec", None)

    def width(self, module: Any) -> Any:
        """The width of the states that a part reads, UNKNOWN where parts alike but for it share a class."""
        alike = (m for _, m in self.ours if self.key(m) == self.key(module))
        found = {next(m.parameters()).shape[-1] for m in alike}
        return found.pop() if len(found) == 1 else UNKNOWN

    def titles(self) -> dict[tuple[Any, ...], str]:
        """A name for each distinct part: by its role, then by its stack, then by number."""
        roles: dict[str, dict[tuple[Any, ...], set[str]]] = {}
        for path, module in self.ours:
            role = ROLES.get(path.rpartition(".")[2], type(module).__name__)
            if isinstance(module, Transformer):
                role = "Model"
            elif isinstance(module, Stack):
                role = path.capitalize()
            elif isinstance(module, Norm):
                role = "RMSNorm" if module.spec.kind == "rms" else "LayerNorm"
            roles.setdefault(role, {}).setdefault(self.key(module), set()).add(path.split(".")[0].capitalize())
        titles: dict[tuple[Any, ...], str] = {}
        for role, variants in roles.items():
            for key, stacks in variants.items():
                shared = len(variants) == 1 or len(stacks) > 1 or not (self.spec.encoder and self.spec.decoder)
                title = role if shared else f"{min(stacks)}{role}"
                taken = sum(re.sub(r"\d+$", "", t) == title for t in titles.values())
                titles.setdefault(key, f"{title}{taken + 1}" if taken else title)
        return titles

    # ---- the module --------------------------------------------------------------------------------------------

    def module(self) -> str:
        self.part(self.core)
        body = "\n\n\n".join(self.done.values())
        long = [t for t in {spell(r): 0 for _, m in self.ours for r in getattr(m, "rotaries", ())} if len(t) > 40]
        for n, text in reversed(list(enumerate(long, 1))):  # a long rotary gets a name, as one would do
            name = f"ROTARY{n}" if len(long) > 1 else "ROTARY"
            body = f"{name} = {text}\n" + "\n" * 2 * (n == len(long)) + body.replace(text, name)
        used = set(names(body))
        usual = {"math": "import math\n", "torch": "import torch", "F": "import torch.nn.functional as F"}
        lines = [line for name, line in usual.items() if name in used]
        wanted: list[tuple[str, tuple[str, ...]]] = [
            ("torch", ("Tensor", "nn")), ("qkv.core.cache", ("Cache",)), ("qkv.core.dropout", ("Drop", "no_dropout")),
            ("qkv.core.masks", ("AttentionBias",)), ("qkv.core.model", ("Output", "build_step", "read_source")),
            ("qkv.core.step", ("Inputs", "Mode", "Step")), ("qkv.spec", ("Mask", "Rotary", "Scaling")),
        ]  # fmt: skip
        for place, known in wanted:
            here = [n for n in known if n in used]
            lines += [f"from {place} import {', '.join(here)}"] if here else []
            lines += [""] if place == "torch" else []
        return f'"""{self.header()}"""\n\n' + "\n".join(lines) + f"\n\n\n{body}\n"

    def header(self) -> str:
        s = self.spec
        towers = [f"{n} of {len(t.blocks)} layers" for n, t in (("encoder", s.encoder), ("decoder", s.decoder)) if t]
        mode = f', mode="{self.mode}"' if self.mode else ""
        cache = ", cache=cache" if self.mode in ("prefill", "decode") else ""
        source = ", Inputs(source=source)" if len(towers) == 2 else ""
        out = "logits" if s.head else "hidden"
        lines = [
            f"One model as its own code: {' and '.join(towers)}, width {s.stack.width}, vocabulary {s.vocabulary}.",
            "",
            f"The core of qkv folded by the model's spec{WHEN[self.mode]}: every fork is decided"
            + ("." if self.taps else ", taps are left out."),
            "Read from the end: Model. It loads the core's weights; what travels beside x is qkv.core.step's:",
            "",
            f"    {out} = model(ids{source}{cache}{mode}).{out}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def source(self, thing: Any) -> Source:
        name = thing.__module__
        return self.sources.setdefault(name, self.sources.get(name) or Source(sys.modules[name]))

    def scope(self, module: Any) -> Scope:
        return Scope(self.source(type(module)), module, {"self": Known(module, self.hidden), "step": self.step})

    # ---- classes, methods, functions -----------------------------------------------------------------------------

    def part(self, module: Any) -> str:
        """The name of a module's class, which is printed first if it was not yet."""
        key = self.key(module)
        title = self.names[key]
        if key in self.signatures:
            return title
        self.signatures[key] = []
        source, kind = self.source(type(module)), type(module)
        node = source.define(kind.__name__)
        methods = {"__init__": self.initial(module)}
        roots = ["forward"]
        if isinstance(module, Transformer):
            both = bool(self.spec.encoder and self.spec.decoder)
            roots = ["forward"] * bool(self.spec.head) + ["hidden"] + ["classify"] * bool(self.spec.labels)
            roots += ["encode"] * both
        wanted, i = list(roots), 0
        while i < len(wanted):  # methods that are called are folded when their caller was
            text = self.method(module, wanted[i])[1]
            methods[wanted[i]] = text
            calls = re.findall(r"self\.(\w+)\(", text)
            wanted += [c for c in dict.fromkeys(calls) if inspect.isfunction(vars(kind).get(c)) and c not in wanted]
            i += 1
        order = [n.name for n in node.body if isinstance(n, ast.FunctionDef) and n.name in methods]
        text = "\n\n".join(methods[n] for n in order)
        doc = self.doc(module, (ast.get_docstring(node) or "").split("\n\n")[0])
        self.done[title] = f'class {title}({ast.unparse(node.bases[0])}):\n    """{doc}"""\n\n{text}'
        return title

    def doc(self, module: Any, doc: str) -> str:
        """A class's docstring without the cases that this model is not."""
        s, where = getattr(module, "spec", None), " where there is a memory"
        if isinstance(module, Norm):
            return doc.replace("LayerNorm or RMSNorm", self.names[self.key(module)])
        if isinstance(module, Transformer):
            return doc.split(",")[0] + "."
        without = {
            f" cross-attention{where},": isinstance(s, parts.Block) and not s.cross,
            where: isinstance(s, parts.Block) and s.cross,
            ", key/value heads shared as in Ainslie et al. 2023": self.shares(s) is False,
            ", and by a shared one": isinstance(s, parts.Experts) and not s.shared,
            " (and gate)": isinstance(s, parts.Ffn) and not s.gated,
        }
        for phrase in (p for p, gone in without.items() if gone):
            doc = doc.replace(phrase, "")
        return doc

    def initial(self, module: Any) -> str:
        scope = self.scope(module)
        node = self.find(type(module), "__init__")
        values = {"s": module.spec, "width": self.width(module), "layer": 0, "path": module.path,
                  "vocabulary": self.spec.vocabulary} if hasattr(module, "spec") else {}  # fmt: skip
        for arg in node.args.args[1:]:
            if arg.arg not in self.hidden and values.get(arg.arg, UNKNOWN) is not UNKNOWN:
                scope.known[arg.arg] = values[arg.arg]
        text, kept = self.function(node, scope, 4)
        self.signatures[self.key(module)] = kept
        return text

    def find(self, kind: type, name: str) -> ast.FunctionDef:
        return next(n for n in self.source(kind).define(kind.__name__).body if getattr(n, "name", None) == name)

    def method(self, module: Any, name: str, texts: dict[str, str] | None = None) -> tuple[list[str], str]:
        """The parameters that a method really uses, and its text."""
        scope = self.scope(module)
        scope.texts = texts or {}
        text, kept = self.function(self.find(type(module), name), scope, 4)
        return kept, text

    def function(self, node: ast.FunctionDef, scope: Scope, indent: int, name: str = "") -> tuple[str, list[str]]:
        """A definition with its body folded; parameters that nothing reads any more are gone."""
        body = self.block(node.body, scope, indent + 4)
        used = set(names("if 1:\n" + "\n".join(" " + line for line in body))) if body else set[str]()
        kept = [a.arg for a in node.args.args if a.arg in used and a.arg != "self"]
        given = {a.arg: re.sub(r': "?Attention.*', ": nn.Module", self.cut(a, scope)) for a in node.args.args}
        head = ["self"] * ("self" in given) + [given[k] for k in kept]
        back = self.cut(node.returns, scope) if node.returns else "None"
        if node.args.kwonlyargs and node.returns:  # a door of the model: as it stands
            start, end = scope.source.at(node)[0], scope.source.at(node.returns)[1]
            return f"{' ' * indent}{scope.source.cut(start, end)}:\n" + "\n".join(body), kept
        return f"{' ' * indent}def {name or node.name}({', '.join(head)}) -> {back}:\n" + "\n".join(body), kept

    def call(self, function: FunctionType, alias: str, node: ast.Call, scope: Scope) -> str:
        """A call of one of the core's functions: known arguments are folded in, a one-liner is put in place."""
        source = self.source(function)
        definition = source.define(function.__name__)
        inner, passed = Scope(source), dict[str, str]()
        for arg, value in zip(definition.args.args, node.args, strict=True):
            known = self.known(value, scope)
            if isinstance(value, ast.Name) and isinstance(scope.known.get(value.id), Known):
                known = scope.known[value.id]
            if isinstance(known, Known) or plain(known):
                inner.known[arg.arg] = known
            passed[arg.arg] = self.text(value, scope)
        text, kept = self.function(definition, inner, 0, "_")
        short = self.inline(text, definition, dataclasses.replace(inner, known=dict(inner.known)), passed)
        if short:
            return short
        name, number = alias, 1
        while name in self.done and self.done[name].replace(f"def {name}(", "def _(") != text:
            name, number = f"{alias}{number + 1}", number + 1  # the same function, folded otherwise
        self.done[name] = text.replace("def _(", f"def {name}(")
        return f"{name}({', '.join(passed[k] for k in kept)})"

    def inline(self, text: str, node: ast.FunctionDef, scope: Scope, passed: dict[str, str]) -> str | None:
        """The expression of a definition that is one `return`, told its arguments; None where it reads worse."""
        body = [n for n in ast.parse(textwrap.dedent(text)).body[0].body if not docstring(n)]  # type: ignore[attr-defined]
        if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            return None
        counts = names(ast.unparse(body[0].value))
        if not self.inlines or any(counts.count(p) > 1 for p in passed):
            return None
        scope.texts = {p: t for p, t in passed.items() if p != "self" and not plain(scope.known.get(p, UNKNOWN))}
        lines = [line for line in self.block(node.body, scope, 0) if not line.startswith('"""')]
        return re.sub(r"^return |  #.*$", "", lines[0]) if len(lines) == 1 else None

    # ---- statements --------------------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt], scope: Scope, indent: int) -> list[str]:
        lines: list[str] = []
        for node in body:
            new = self.statement(node, scope, indent)
            if new:
                lines += [" " * indent + c for c in scope.source.above(node.lineno)] + new
            if new and re.match(r"return\b|raise\b", new[-1][indent:]):
                break  # what follows is never reached
        return lines

    def statement(self, node: ast.stmt, scope: Scope, indent: int) -> list[str]:
        if isinstance(node, ast.If):
            return self.fork(node, scope, indent)
        if isinstance(node, ast.For):
            return self.loop(node, scope, indent)
        if isinstance(node, ast.With):
            head = ", ".join(self.text(item.context_expr, scope) for item in node.items)
            return [f"{' ' * indent}with {head}:", *self.block(node.body, scope, indent + 4)]
        if docstring(node):
            return [" " * indent + self.cut(node, scope)]
        if isinstance(node, ast.ImportFrom):
            return []
        if isinstance(node, ast.AugAssign):  # only of what is known: a count, a size
            name = ast.Name(ast.unparse(node.target), ast.Load())
            value = ast.fix_missing_locations(ast.BinOp(name, node.op, node.value))
            scope.known[name.id] = self.known(value, scope)
            return []
        if isinstance(node, ast.Assign):
            return self.rows(node, scope, indent)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_module":
                value = self.text(call.args[1], scope)
                text = "" if value == "nn.Identity()" else f"self.{self.known(call.args[0], scope)} = {value}"
            elif re.fullmatch(r"self\.\w+\(\)", ast.unparse(call)) and scope.module:  # a method that only arranges
                return self.block(self.find(type(scope.module), ast.unparse(call)[5:-2]).body[1:], scope, indent)
            else:
                text = self.text(call, scope)
        else:
            value = getattr(node, "value", None)
            text = f"return {self.text(value, scope)}" if value else self.cut(node, scope)
        return self.line(text, node, scope, indent).split("\n") if text else []

    def line(self, text: str, node: ast.stmt, scope: Scope, indent: int) -> str:
        """One statement on one line where it fits, with its trailing comment."""
        joined = re.sub(r",? *\n *([)\]])", r"\1", re.sub(r"([(\[])\n *", r"\1", text))
        joined = re.sub(r"\n *", " ", joined)
        whole = " " * indent + (joined if len(joined) + indent <= WIDE else text)
        return commented(whole, self.comment(node, scope))

    def comment(self, node: ast.stmt, scope: Scope) -> str:
        return scope.source.comments.get(node.end_lineno or 0, (0, ""))[1]

    def rows(self, node: ast.Assign, scope: Scope, indent: int) -> list[str]:
        """An assignment on one line; too long, each name gets its own, or what was put in place is called again."""
        before = dict(scope.known), dict(scope.texts)
        left, right = self.assign(node, scope)
        if ", ".join(left) == ", ".join(right):
            return []
        text = self.line(f"{', '.join(left)} = {', '.join(right)}", node, scope, indent)
        if "\n" in text or len(text) <= WIDE:
            return text.split("\n")
        apart = not any(a in names(b) for a, b in zip(left, right[1:], strict=False))
        shapes = self.comment(node, scope).split(", ")
        if len(left) > 1 and apart:
            shapes = [f"# {c.lstrip('# ')}" * bool(c) for c in shapes] * (len(left) if len(shapes) == 1 else 1)
            new = zip(left, right, shapes, strict=True)
            return [commented(f"{' ' * indent}{a} = {b}", c) for a, b, c in new]
        if self.inlines:
            self.inlines, (scope.known, scope.texts) = False, before
            again = self.rows(node, scope, indent)
            self.inlines = True
            return again
        return [text]

    def assign(self, node: ast.Assign, scope: Scope) -> tuple[list[str], list[str]]:
        """Both sides of an assignment without what is decided: known values are remembered instead."""
        (target,), value = node.targets, self.uncached(node.value)
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
        left: list[str] = []
        right: list[str] = []
        for to, what in pairs:
            known = self.known(what, scope)
            if isinstance(to, ast.Attribute) and to.attr in READ_BY_STEP:
                known, new = UNKNOWN, spell(value := getattr(scope.module, to.attr))
                new = new if len(new) < WIDE - 32 else listed(map(spell, value), "()")
            else:
                new = self.text(what, scope)
            if known is not UNKNOWN and not (isinstance(to, ast.Attribute) and to.attr in self.hidden):
                if isinstance(to, ast.Name):
                    scope.known[to.id] = known
                continue
            if new == "nn.Identity()":
                continue
            for name in (n.id for n in ast.walk(to) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)):
                scope.known.pop(name, None)
                scope.texts.pop(name, None)
            left.append(self.cut(to, scope))
            right.append(new)
        return left, right

    def uncached(self, value: ast.expr) -> ast.expr:
        """What a cache is given, where training keeps none."""
        if self.mode != "train" or not isinstance(value, ast.Call):
            return value
        name, args = ast.unparse(value.func), value.args
        if name == "step.cache.append":
            return ast.Tuple(args[1:], ast.Load())
        return args[1].body if name == "step.cache.get_or_compute" and isinstance(args[1], ast.Lambda) else value

    def fork(self, node: ast.If, scope: Scope, indent: int) -> list[str]:
        known, space = self.known(node.test, scope), " " * indent
        test = self.text(node.test, scope) if known is UNKNOWN else str(bool(known))
        if test in ("True", "False"):
            return self.block(node.body if test == "True" else node.orelse, scope, indent)
        lines = [f"{space}if {test}:", *self.block(node.body, scope, indent + 4)]
        other = self.block(node.orelse, scope, indent + 4)
        return lines + ([f"{space}else:", *other] if other else [])

    def loop(self, node: ast.For, scope: Scope, indent: int) -> list[str]:
        """A loop over what is known is unrolled."""
        rounds = self.known(node.iter, scope)
        if rounds is UNKNOWN:
            head = f"{' ' * indent}for {self.cut(node.target, scope)} in {self.text(node.iter, scope)}:"
            return [head, *self.block(node.body, scope, indent + 4)]
        lines: list[str] = []
        for value in rounds:
            bind(node.target, value, scope.known)
            lines += self.block(node.body, scope, indent)
            if lines and lines[-1][indent:].startswith("return"):
                break
        return lines

    # ---- expressions -------------------------------------------------------------------------------------------

    def cut(self, node: ast.AST, scope: Scope) -> str:
        return scope.source.cut(*scope.source.at(node))

    def known(self, node: ast.AST, scope: Scope) -> Any:
        """The value of an expression that the spec decides, UNKNOWN for any other."""
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return UNKNOWN
        walk = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        own = {n.id for n in walk if isinstance(n.ctx, ast.Store)}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.known(node.operand, scope)
            return UNKNOWN if value is UNKNOWN else not value
        if isinstance(node, ast.BoolOp):
            decides = isinstance(node.op, ast.Or)  # one true part decides an `or`, one false part an `and`
            values = [self.known(v, scope) for v in node.values]
            if any(v is not UNKNOWN and bool(v) is decides for v in values):
                return decides
        if isinstance(node, ast.Compare) and ast.unparse(node) == SHARES and "at" in scope.known:
            return self.shares(scope.known["at"].spec)
        if self.mode in ("prefill", "decode"):
            if isinstance(node, ast.Attribute) and node.attr == "requires_grad":
                return False
            if isinstance(node, ast.Compare) and ast.unparse(node) == "step.drop is no_dropout":
                return True
        if any(n.id not in own | scope.known.keys() | SAFE.keys() for n in walk):
            return UNKNOWN
        try:  # the text is the core's own
            value = eval(compile(ast.Expression(node), "core", "eval"), {**SAFE, **scope.known})  # type: ignore[arg-type]  # noqa: S307
        except (AttributeError, KeyError):
            return UNKNOWN
        return UNKNOWN if isinstance(value, Known | nn.Module) else value

    def shares(self, s: Any) -> Any:
        """Whether several heads read one key: groups do by the spec, latents where they are absorbed."""
        if isinstance(s, parts.Attention):
            return s.groups < s.heads
        return self.mode == "decode" and s.heads > 1 if self.mode and isinstance(s, parts.Latent) else UNKNOWN

    def text(self, node: ast.AST, scope: Scope) -> str:
        """The source of an expression with everything known in it replaced."""
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            own = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            known, texts = ({k: v for k, v in d.items() if k not in own} for d in (scope.known, scope.texts))
            scope = dataclasses.replace(scope, known=known, texts=texts)
        if isinstance(node, ast.Name):
            if node.id in scope.texts:
                return scope.texts[node.id]
            return spell(scope.known[node.id]) if plain(scope.known.get(node.id, UNKNOWN)) else node.id
        if isinstance(node, ast.Call):
            new = self.special(node, scope)
            if new is not None:
                return new
        if isinstance(node, ast.Subscript) and (new := self.entry(node, scope)):
            return new
        has_names = any(isinstance(n, ast.Name) for n in ast.walk(node))
        if isinstance(node, ast.expr) and has_names and plain(value := self.known(node, scope)):
            return spell(value)
        if isinstance(node, ast.IfExp) and (test := self.known(node.test, scope)) is not UNKNOWN:
            return self.text(node.body if test else node.orelse, scope)
        if isinstance(node, ast.BoolOp):
            return self.several(node, scope)
        if isinstance(node, ast.BinOp) and self.known(node.right, scope) == NEUTRAL.get(type(node.op)):
            return self.text(node.left, scope)
        if isinstance(node, ast.JoinedStr):
            return 'f"' + "".join(self.formatted(v, scope) for v in node.values) + '"'
        if isinstance(node, ast.Slice):
            ends = [self.text(part, scope) if part else "" for part in (node.lower, node.upper)]
            return ":".join(ends + ([self.text(node.step, scope)] if node.step else []))
        return self.pieces(node, scope)

    def several(self, node: ast.BoolOp, scope: Scope) -> str:
        """An `and` or `or` without the parts that decide nothing."""
        word, idle, decides = (" or ", "False", "True") if isinstance(node.op, ast.Or) else (" and ", "True", "False")
        found = [self.text(v, scope) for v in node.values if self.known(v, scope) is UNKNOWN]
        found = [t for t in found if t != idle] or [idle]
        if len(found) == 1 or decides in found:
            return decides if decides in found else found[0]
        loose = ast.BoolOp | ast.IfExp
        return word.join(f"({t})" if isinstance(ast.parse(t, mode="eval").body, loose) else t for t in found)

    def formatted(self, node: ast.expr, scope: Scope) -> str:
        """One part of an f-string."""
        known = self.known(node.value if isinstance(node, ast.FormattedValue) else node, scope)
        return f"{{{self.text(node.value, scope)}}}" if known is UNKNOWN else str(known)  # type: ignore[attr-defined]

    def pieces(self, node: ast.AST, scope: Scope) -> str:
        start, end = scope.source.at(node)
        out, at = "", start
        for child in children(node):
            a, b = scope.source.at(child)
            if isinstance(child, ast.keyword) and child.arg == "enable_gqa" and self.known(child.value, scope) is False:
                out, at = out.rstrip(), b  # the default
                out = (out + scope.source.cut(at, a).rstrip()).rstrip(", ")
                continue
            new = self.text(child.value, scope) if isinstance(child, ast.keyword) else self.text(child, scope)
            new = f"{child.arg}={new}" if isinstance(child, ast.keyword) else new
            tight = isinstance(node, TIGHT) or child is getattr(node, "func", None) or (
                isinstance(node, ast.Subscript) and child is node.value)  # fmt: skip
            if tight and new != scope.source.cut(a, b) and not atomic(new) and not same_operator(child, new):
                new = f"({new})"
            out, at = out + scope.source.cut(at, a), b
            word = re.search(r"(^|[^\w)\]])\($", out) and re.fullmatch(r"[\w.]+", new)
            if word and scope.source.cut(b, b + 1) == ")":
                out, at = out[:-1], b + 1  # brackets round what is one word now
            out += new
        return out + scope.source.cut(at, end)

    def special(self, node: ast.Call, scope: Scope) -> str | None:
        """Calls that fold: taps, dropout, cache, kernels, absent norms, the core's own parts and functions."""
        if isinstance(node.func, ast.IfExp) and (test := self.known(node.func.test, scope)) is not UNKNOWN:
            func = node.func.body if test else node.func.orelse
            node = ast.copy_location(ast.Call(func, node.args, node.keywords), node)
        name, args = ast.unparse(node.func), node.args
        if name == "step.tap" and not self.taps:
            return self.text(args[2], scope)
        if name == "step.drop" and (self.mode in ("prefill", "decode") or self.known(args[1], scope) == 0.0):
            return self.text(args[0], scope)
        if name == "step.attend":
            return self.call(kernels.attend, "attend", node, scope)  # type: ignore[arg-type]
        if name == "nn.ModuleList" and isinstance(args[0], ast.GeneratorExp):
            return self.layers(args[0], scope)
        if isinstance(node.func, ast.Subscript):
            return self.entry(node.func, scope, self.text(args[0], scope))
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "self" and scope.module:
            return self.own(node.func.attr, node, scope)
        function = scope.source.names.get(name) if "." not in name else self.known(node.func, scope)
        if getattr(function, "__module__", "").startswith("qkv.core"):
            if isinstance(function, FunctionType) and name not in IMPORTED:
                return self.call(function, name if "." not in name else function.__name__, node, scope)
            if isinstance(function, type) and issubclass(function, nn.Module):
                return self.build(function, node, scope)
        return None

    def own(self, name: str, node: ast.Call, scope: Scope) -> str | None:
        """self.name(…): an absent norm, a part of the core, or a method."""
        module = scope.module
        part = getattr(module, name, None)
        if isinstance(part, nn.Identity):
            return self.text(node.args[0], scope)
        ours = inspect.isfunction(vars(type(module)).get(name))
        if not (type(part).__module__.startswith("qkv.core") if isinstance(part, nn.Module) else ours):
            return None
        if node.keywords:
            return None
        target, method = (part, "forward") if isinstance(part, nn.Module) else (module, name)
        definition = self.find(type(target), method)
        passed = {a.arg: self.text(v, scope) for a, v in zip(definition.args.args[1:], node.args, strict=True)}
        kept, text = self.method(target, method)
        if target is module and (short := self.inline(text, definition, self.scope(module), passed)):
            return short
        return f"self.{name}({', '.join(passed[k] for k in kept)})"

    def build(self, kind: Callable[..., nn.Module], node: ast.Call, scope: Scope) -> str:
        """A part of the core is made: by its own class's name, with the arguments that are still open."""
        parameters = list(inspect.signature(kind).parameters)
        s = self.known(node.args[0], scope) if parameters[0] == "s" else None
        module = next(m for _, m in self.ours if self.key(m) == (kind, s))
        title = self.part(module)
        kept = self.signatures[self.key(module)]
        texts = dict(zip(parameters, (self.text(a, scope) for a in node.args), strict=True))
        return f"{title}({', '.join(texts[k] for k in kept)})"

    def layers(self, node: ast.GeneratorExp, scope: Scope) -> str:
        """nn.ModuleList(Block(…) for …): a range where all blocks are alike, a list where they differ."""
        loop = node.generators[0]
        texts: list[str] = []
        alike: set[str] = set()
        for i, (_, value) in enumerate(self.known(loop.iter, scope)):
            inner = dataclasses.replace(scope, known=dict(scope.known), texts=dict(scope.texts))
            bind(loop.target, (i, value), inner.known)
            texts.append(self.text(node.elt, inner))
            inner.known.pop("i")
            alike.add(self.text(node.elt, inner))
        if len(alike) == 1:
            one = alike.pop()
            return f"nn.ModuleList({one} for {'i' if 'i' in names(one) else '_'} in range({len(texts)}))"
        return f"nn.ModuleList({listed(texts, '[]')})"

    def entry(self, node: ast.Subscript, scope: Scope, arg: str | None = None) -> str | None:
        """TABLE[word] or TABLE[word](arg) where the word is known: the entry itself, a lambda told its argument."""
        key, name = self.known(node.slice, scope), ast.unparse(node.value)
        if key is UNKNOWN or not isinstance(scope.source.names.get(name), dict):
            return None
        home = Scope(next(s for s in (scope.source, self.source(Ffn)) if s.define(name)))
        rows = zip(home.source.define(name).value.keys, home.source.define(name).value.values, strict=True)
        value = next(v for k, v in rows if k.value == key)
        if isinstance(value, ast.Lambda) and arg:
            return self.text(value.body, Scope(home.source, texts={value.args.args[0].arg: arg}))
        return self.cut(value, home) + (f"({arg})" if arg else "")


def commented(line: str, comment: str) -> str:
    """A line with its comment where that fits; a comment on shapes always stays."""
    fits = len(line.splitlines()[-1]) + len(comment) + 2 <= WIDE or re.fullmatch(r"#( [A-Z]+)+", comment)
    return f"{line}  {comment}" if comment and fits and "fmt:" not in comment else line


def listed(texts: Iterable[str], brackets: str) -> str:
    """A list or tuple that takes several lines."""
    rows = [""]
    for text in texts:
        if len(rows[-1]) + len(text) > WIDE - 16:
            rows.append("")
        rows[-1] += f"{text}, "
    inside = "\n".join(" " * 12 + row.rstrip() for row in rows)
    return f"{brackets[0]}\n{inside}\n        {brackets[1]}"


def docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def bind(target: ast.expr, value: Any, known: dict[str, Any]) -> None:
    """Remember what a loop's names stand for in this round."""
    if isinstance(target, ast.Name):
        known[target.id] = value
    elif isinstance(target, ast.Tuple):
        for part, one in zip(target.elts, value, strict=True):
            bind(part, one, known)
