"""Specialised trees as TypeScript: the second printer, for the runtime beside it (runtime.ts), which runs in a browser.

It knows the Python that the core is written in: classes with fields, assignments, calls, operators, slices, loops over
layers, lambdas. What else it meets is an error that says where. An expression is a tensor or a plain number, and that
decides between a method and JavaScript's own operator.
"""

import ast
import hashlib
import json
import re
from functools import cache
from importlib import resources
from typing import Any

from qkv import spec as parts
from qkv.errors import QkvError
from qkv.specialize import layout
from qkv.specialize.traced import TracedProgram

METHODS: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floor_divide", ast.Pow: "pow",
    ast.MatMult: "matmul", ast.BitAnd: "and", ast.BitOr: "or", ast.Gt: "gt", ast.GtE: "ge", ast.Lt: "lt",
    ast.LtE: "le", ast.Eq: "eq", ast.NotEq: "ne",
}
SIGNS: dict[type, tuple[str, int]] = {  # JavaScript's own, and how tightly they bind
    ast.Add: ("+", 1), ast.Sub: ("-", 1), ast.Mult: ("*", 2), ast.Div: ("/", 2), ast.Pow: ("**", 3), ast.Gt: (">", 0),
    ast.GtE: (">=", 0), ast.Lt: ("<", 0), ast.LtE: ("<=", 0), ast.Eq: ("===", 0), ast.NotEq: ("!==", 0),
}
TYPES = {"int": "number", "float": "number", "bool": "boolean", "Tensor": "Tensor",
         "tuple[Tensor, Tensor]": "[Tensor, Tensor]", "tuple[Tensor, ...]": "Tensor[]"}
GIVEN = {"cache": "Cache", "tap": "Tap", "angles": "[Tensor, Tensor]"}  # parameters whose type their name says
PLAIN = {"shape", "dtype"}  # attributes of a tensor that are no tensors
LISTS = {"unbind", "tolist", "nonzero", "append", "get_or_compute", "topk", "range"}  # calls that give several things
RUNTIME = "runtime.ts"


def print_typescript(s: parts.Spec, *, runtime: str | None = None) -> str:
    """A model as one TypeScript file that stands alone; or importing its runtime from the module named `runtime`.

    Raises:
        QkvError: the model needs a construct that the printer, or an operation that the runtime does not know.
    """
    program = TracedProgram(s)
    definitions = program.build_definitions()
    printer = Printer(definitions)
    body = "\n\n".join(map(printer.print_definition, definitions))
    numbers = {n: v for n, v in program.numbers.items() if re.search(rf"\b{n}\b", body)}
    rows = layout.fill_rows([f"{n} = {v!r}" for n, v in numbers.items()], lambda row: len(", ".join(row)) <= 112)
    lines = [f"const {', '.join(row)};" for row in rows]
    used = sorted({n for n in runtime_names() if re.search(rf"(?<![.\w]){n}\b" + r"\(" * n.islower(), body)})
    head = print_head(s)
    if runtime is None:
        text = re.sub(r"^export (?=class|function|const|type|interface)", "", read_runtime(), flags=re.M)
    else:
        names = layout.fill_rows(used, lambda row: len(", ".join(row)) <= 110)
        text = "import {\n" + "".join(f"  {', '.join(row)},\n" for row in names) + f"}} from {json.dumps(runtime)};\n"
    return f"{head}\n{text}\n" + "\n".join(lines) + f'\nexport const SPEC = "{spec_hash(s)}";\n\n{body}\n'


def print_head(s: parts.Spec) -> str:
    """What the file is."""
    towers = [f"{n} of {len(t.blocks)} layers" for n, t in (("encoder", s.encoder), ("decoder", s.decoder)) if t]
    return (f"/** A Transformer ({' and '.join(towers)}, width {s.stack.width}): the core of qkv specialised by one "
            "spec, as TypeScript.\n *\n * Read from the end: Transformer. `tap` is called with every value that has a "
            "name; `cache` keeps keys and values.\n * Its weights: qkv convert MODEL FOLDER --to web. */")


def spec_hash(s: parts.Spec) -> str:
    """What tells whether weights are of this model."""
    return hashlib.sha256(json.dumps(parts.as_json(s), sort_keys=True).encode()).hexdigest()[:16]


@cache
def read_runtime() -> str:
    """The runtime's text."""
    return resources.files("qkv.specialize").joinpath(RUNTIME).read_text(encoding="utf-8")


@cache
def runtime_names() -> frozenset[str]:
    """What the runtime offers by name."""
    return frozenset(re.findall(r"^export (?:class|function\*?|const|type|interface) (\w+)", read_runtime(), re.M))


@cache
def tensor_methods() -> frozenset[str]:
    """What the runtime's classes can do."""
    return frozenset(re.findall(r"^  (?:get )?(\w+)\(", read_runtime(), re.M))


class Printer:
    """Definitions as text; `tensors` says of the names of the function at hand which are tensors."""

    def __init__(self, definitions: list[Any]) -> None:
        self.returns = {f.name: ast.unparse(f.returns) for d in definitions for f in ast.walk(d)
                        if isinstance(f, ast.FunctionDef) and f.returns}
        self.own = {d.name for d in definitions}
        self.numbers: set[str] = set()
        self.plain: set[str] = set()
        self.known: set[str] = set()
        self.parts: set[str] = set()  # attributes of the class at hand that are modules
        self.fixed: set[str] = set()  # names that are assigned once

    # ---- definitions ---------------------------------------------------------------------------------------------

    def print_definition(self, node: Any) -> str:
        """A class or a function."""
        doc = f"/** {node.doc} */\n" if getattr(node, "doc", "") else ""
        if isinstance(node, ast.FunctionDef):
            return f"{doc}export function {self.print_function(node, 0)}\n"
        init = next((m for m in node.body if m.name == "__init__"), None)
        fields = self.list_fields(init)
        self.parts = {name for name, kind in fields.items() if kind not in ("number", "Tensor")}
        base = ast.unparse(node.bases[0]).removeprefix("nn.")
        rows = layout.fill_rows([f"{n}: {k};" for n, k in fields.items()], lambda r: len(" ".join(r)) <= 116)
        lines = ["  " + " ".join(row) for row in rows if row]
        methods = []
        for method in node.body:
            said = f"  /** {method.doc} */\n" if getattr(method, "doc", "") else ""
            again = "override " * (base != "Module" and method.name == "forward")
            methods.append(f"{said}  {again}{self.print_function(method, 2)}")
        inside = "\n\n".join(["\n".join(lines), *methods])
        return f"{doc}export class {node.name} extends {base} {{\n{inside}\n}}\n"

    def list_fields(self, init: Any) -> dict[str, str]:
        """The fields that a constructor assigns, with their types."""
        found: dict[str, str] = {}
        for one in init.body if init else ():
            target = one.targets[0] if isinstance(one, ast.Assign) else None
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                found[target.attr] = self.find_type(one.value)
        return found

    def find_type(self, value: Any) -> str:
        """The type of a field."""
        if not isinstance(value, ast.Call):
            return "number"
        name = ast.unparse(value.func).removeprefix("nn.")
        if name == "ModuleList":
            layers: Any = value.args[0]
            made = layers.elts if isinstance(layers, ast.List) else [layers.elt]
            return f"Array<{' | '.join(dict.fromkeys(map(self.find_type, made)))}>"
        return "Tensor" if name == "Parameter" else name

    def print_function(self, node: ast.FunctionDef, indent: int) -> str:
        """A function from its name on."""
        given = [a for a in (*node.args.args, *node.args.kwonlyargs) if a.arg != "self"]
        kinds = {a.arg: self.print_type(a) for a in given}
        self.numbers = {n for n, k in kinds.items() if k in ("number", "boolean")}
        self.plain = {n for n, k in kinds.items() if k not in ("number", "boolean", "Tensor")}
        self.known = set(kinds)
        stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.fixed = {n for n in stored if stored.count(n) == 1} - self.known
        defaults = dict(zip([a.arg for a in given][::-1], node.args.defaults[::-1], strict=False))
        said = ", ".join(f"{n}: {k}" + (f" = {self.expression(defaults[n])}" if n in defaults else "")
                         for n, k in kinds.items())
        made = node.name == "__init__"
        returns = "" if made else f": {self.translate_type(node.returns)}"
        head = f"{'constructor' if made else node.name}({said}){returns} {{"
        body = [line for one in node.body for line in self.statement(one, indent + 2)]
        start = layout.wrap(head, indent)
        return "\n".join([start[0].lstrip(), *start[1:], *body, " " * indent + "}"])

    def print_type(self, argument: ast.arg) -> str:
        """The type of a parameter."""
        return GIVEN.get(argument.arg) or self.translate_type(argument.annotation)

    def translate_type(self, node: Any) -> str:
        """A Python annotation in TypeScript."""
        text = "Tensor" if node is None else ast.unparse(node).removesuffix(" | None")
        if text not in TYPES:
            self.refuse(node, f"the type {text}")
        return TYPES[text]

    def refuse(self, node: Any, what: str) -> Any:
        """An error that says what the printer met, and in which line of the specialised text."""
        raise QkvError("TypeScript: there is no translation of {what}, in: {text}", what=what,
                       text=ast.unparse(ast.fix_missing_locations(node))[:120])

    def need(self, node: Any, name: str, there: frozenset[str]) -> None:
        """An error where the runtime lacks what the text calls."""
        if name not in there:
            raise QkvError("TypeScript: {runtime} has no {name}, which this needs: {text}", runtime=RUNTIME, name=name,
                           text=ast.unparse(ast.fix_missing_locations(node))[:120])

    # ---- statements ----------------------------------------------------------------------------------------------

    def statement(self, node: Any, indent: int) -> list[str]:
        """The lines of a statement with its comments."""
        print_it: Any = getattr(self, f"print_{type(node).__name__.lower()}", None)
        print_it = print_it or self.refuse(node, type(node).__name__)
        space = " " * indent
        above = [space + line.replace("#", "//", 1) for line in getattr(node, "above", [])]
        beside = getattr(node, "beside", "").replace("#", "//", 1)
        text = print_it(node, indent)
        if isinstance(text, list):
            return above + text
        return above + break_line(f"{text};", indent, beside)

    def print_return(self, node: Any, indent: int) -> str:
        return f"return {self.expression(node.value)}"

    def print_expr(self, node: Any, indent: int) -> str:
        return self.expression(node.value)

    def print_for(self, node: Any, indent: int) -> list[str]:
        target = node.target
        if not isinstance(target, ast.Name):
            self.refuse(node, "a loop over pairs")
        layers = isinstance(node.iter, ast.Attribute)
        (self.plain if layers else self.numbers).add(target.id)
        self.parts |= {target.id} if layers else set()
        body = [line for one in node.body for line in self.statement(one, indent + 2)]
        space = " " * indent
        return [f"{space}for (const {target.id} of {self.expression(node.iter)}) {{", *body, space + "}"]

    def print_if(self, node: Any, indent: int) -> list[str]:
        space, names = " " * indent, [n for s in (*node.body, *node.orelse) for n in ast.walk(s)
                                      if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        declared = sorted({n.id for n in names} - self.known)
        lines = [f"{space}let {', '.join(f'{n}: any' for n in declared)};"] if declared else []
        self.known |= set(declared)
        lines.append(f"{space}if ({self.expression(node.test)}) {{")
        lines += [line for one in node.body for line in self.statement(one, indent + 2)]
        if node.orelse:
            lines += [f"{space}}} else {{", *(line for one in node.orelse for line in self.statement(one, indent + 2))]
        return [*lines, space + "}"]

    def print_assign(self, node: Any, indent: int) -> Any:
        target, value = node.targets[0], node.value
        said = self.expression(value)
        if not isinstance(target, ast.Name | ast.Tuple):
            return f"{self.expression(target)} = {said}"
        self.note_kinds(target, value)
        names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
        new = [n for n in names if n not in self.known]
        self.known |= set(new)
        place = f"[{', '.join(names)}]" if isinstance(target, ast.Tuple) else names[0]
        if len(new) == len(names):
            word = "const" if self.fixed >= set(names) else "let"
            return f"{word} {place} = {said}"
        if new:
            self.refuse(node, "an assignment to old and new names together")
        return f"{place} = {said}"

    def note_kinds(self, target: Any, value: Any) -> None:
        """Remember which of the names are numbers, and which are lists."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, held in zip(target.elts, value.elts, strict=True):
                self.note_kinds(one, held)
            return
        kind = self.kind(value) if isinstance(target, ast.Name) else "tensor"
        for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
            self.numbers.discard(name)
            self.plain.discard(name)
            if kind == "number":
                self.numbers.add(name)
            if kind == "plain" and ast.unparse(value).endswith((".unbind()", "Cache()")):
                self.plain.add(name)

    # ---- expressions ---------------------------------------------------------------------------------------------

    def kind(self, node: Any) -> str:
        """tensor, number, or plain: a list, a cache, a module."""
        if isinstance(node, ast.Constant):
            return "number"
        if isinstance(node, ast.Name):
            if node.id in self.plain:
                return "plain"
            return "number" if node.id in self.numbers or node.id.isupper() else "tensor"
        if isinstance(node, ast.Attribute):
            number = node.attr in ("length", "layer") or ast.unparse(node) == "torch.inf"
            return "number" if number else "plain" if node.attr in PLAIN else "tensor"
        if isinstance(node, ast.Subscript) and self.kind(node.value) == "plain":
            return "number" if ast.unparse(node.value).endswith(".shape") else "tensor"
        if isinstance(node, ast.BinOp | ast.Compare):
            sides = (node.left, node.right if isinstance(node, ast.BinOp) else node.comparators[0])
            return "number" if all(self.kind(s) == "number" for s in sides) else "tensor"
        if isinstance(node, ast.UnaryOp):
            return self.kind(node.operand)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            several = name in LISTS or self.returns.get(name, "").startswith("tuple") or name == "Cache"
            return "number" if ast.unparse(node.func).startswith("math.") else "plain" if several else "tensor"
        return "plain" if isinstance(node, ast.Tuple | ast.List | ast.Lambda) else "tensor"

    def expression(self, node: Any, tight: int = -1) -> str:
        """The text of an expression; `tight`: how tightly what stands round it binds."""
        read = getattr(self, f"spell_{type(node).__name__.lower()}", None)
        return read(node, tight) if read else self.refuse(node, type(node).__name__)

    def spell_constant(self, node: ast.Constant, tight: int) -> str:
        words = {True: "true", False: "false", None: "null", ...: '"..."'}
        if isinstance(node.value, bool) or node.value in (None, ...):
            return words[node.value]
        return json.dumps(node.value)

    def spell_name(self, node: ast.Name, tight: int) -> str:
        return "this" if node.id == "self" else node.id

    def spell_attribute(self, node: ast.Attribute, tight: int) -> str:
        text = ast.unparse(node)
        if text.startswith("torch."):
            return {"torch.inf": "Infinity"}.get(text) or json.dumps(node.attr)
        return f"{self.expression(node.value, 9)}.{node.attr}"

    def spell_tuple(self, node: Any, tight: int) -> str:
        return f"[{', '.join(map(self.expression, node.elts))}]"

    spell_list = spell_tuple

    def spell_lambda(self, node: ast.Lambda, tight: int) -> str:
        return f"({', '.join(a.arg for a in node.args.args)}) => {self.expression(node.body)}"

    def spell_unaryop(self, node: ast.UnaryOp, tight: int) -> str:
        if self.kind(node.operand) == "number":
            if not isinstance(node.op, ast.USub):
                self.refuse(node, type(node.op).__name__)
            return f"-{self.expression(node.operand, 4)}"
        return f"{self.expression(node.operand, 9)}.{'neg' if isinstance(node.op, ast.USub) else 'not'}()"

    def spell_binop(self, node: Any, tight: int) -> str:
        return self.spell_operator(node, node.left, node.op, node.right, tight)

    def spell_compare(self, node: Any, tight: int) -> str:
        return self.spell_operator(node, node.left, node.ops[0], node.comparators[0], tight)

    def spell_operator(self, node: Any, left: Any, op: Any, right: Any, tight: int) -> str:
        """An operator between numbers, a method of a tensor."""
        kind = type(op)
        if self.kind(node) == "number":
            if isinstance(op, ast.FloorDiv):
                return f"Math.floor({self.expression(left, 2)} / {self.expression(right, 3)})"
            sign, binds = SIGNS.get(kind) or self.refuse(node, kind.__name__)
            text = f"{self.expression(left, binds)} {sign} {self.expression(right, binds + (kind is not ast.Pow))}"
            return f"({text})" if binds < tight else text
        if kind not in METHODS:
            self.refuse(node, kind.__name__)
        self.need(node, METHODS[kind], tensor_methods())
        if self.kind(left) == "number" and kind in (ast.Add, ast.Mult):
            left, right = right, left
        first = f"scalar({self.expression(left)})" if self.kind(left) == "number" else self.expression(left, 9)
        return f"{first}.{METHODS[kind]}({self.expression(right)})"

    def spell_subscript(self, node: ast.Subscript, tight: int) -> str:
        value = self.expression(node.value, 9)
        if self.kind(node.value) == "plain":
            at = ast.unparse(node.slice)
            return f"{value}[{self.expression(node.slice)}]" if at[0] != "-" else f"{value}.at({at})"
        every = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return f"{value}.index({', '.join(map(self.expression, every))})"

    def spell_slice(self, node: ast.Slice, tight: int) -> str:
        ends = [self.expression(e) if e else "null" for e in (node.lower, node.upper, node.step)]
        while ends and ends[-1] == "null":
            ends.pop()
        return f"slice({', '.join(ends)})"

    def spell_ifexp(self, node: ast.IfExp, tight: int) -> str:
        text = f"{self.expression(node.test)} ? {self.expression(node.body)} : {self.expression(node.orelse)}"
        return f"({text})" if tight >= 0 else text

    def spell_call(self, node: ast.Call, tight: int) -> str:
        name = ast.unparse(node.func)
        if name == "nn.ModuleList":
            return self.spell_layers(node.args[0])
        args = list(map(self.expression, node.args))
        given = {k.arg: self.expression(k.value) for k in node.keywords if k.arg not in ("device", "as_tuple")}
        options = [f"{{ {', '.join(f'{k}: {v}' for k, v in given.items())} }}"] if given else []
        said = f"({', '.join(args + options)})"
        if name == "super().__init__":
            return f"super{said}"
        if name == "super().forward":
            return f"super.forward{said}"
        if name == "nn.Parameter":
            return args[0]
        head, _, last = name.rpartition(".")
        if head in ("torch", "F", "nn", "math"):
            if head == "math":
                return f"Math.{last}{said}"
            self.need(node, last, runtime_names())
            return ("new " if head == "nn" else "") + last + said
        if isinstance(node.func, ast.Name):
            return self.spell_own(node, said)
        return self.spell_method(node, last, said)

    def spell_own(self, node: Any, said: str) -> str:
        """A call by a bare name: a class that is made, a function, a layer."""
        name = node.func.id
        if name in self.parts:
            return f"{name}.forward{said}"
        return ("new " if name[0].isupper() else "") + name + said

    def spell_method(self, node: Any, last: str, said: str) -> str:
        """A call of an attribute: a module runs forward, a tensor or an object has the method."""
        owner = node.func.value
        own = isinstance(owner, ast.Name) and owner.id == "self"
        if own and last in self.parts:
            return f"this.{last}.forward{said}"
        if not own and isinstance(owner, ast.Attribute) and owner.attr in self.parts and last not in tensor_methods():
            return f"{self.expression(owner)}.{last}.forward{said}"
        if not own:
            self.need(node, last, tensor_methods())
        return f"{self.expression(owner, 9)}.{last}{said}"

    def spell_layers(self, made: Any) -> str:
        """The layers of a stack."""
        if isinstance(made, ast.List):
            return self.expression(made)
        if not isinstance(made, ast.GeneratorExp | ast.ListComp):
            self.refuse(made, type(made).__name__)
        loop: Any = made.generators[0]
        if len(made.generators) > 1:
            self.refuse(made, "a loop within a loop")
        self.numbers.add(loop.target.id)
        target = "" if loop.target.id == "_" else loop.target.id
        return f"{self.expression(loop.iter)}.map(({target}) => {self.expression(made.elt)})"


def break_line(text: str, indent: int, beside: str) -> list[str]:
    """A statement of at most 120 columns a line, its shape comment where there is room."""
    space, comment = " " * indent, f"  {beside}" if beside else ""
    if len(space + text + comment) <= layout.WIDE:
        return [space + text + comment]
    if comment and len(space + text) <= layout.WIDE:
        return [space + beside, space + text]
    return layout.wrap(text, indent, beside)
