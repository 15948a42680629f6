"""Where chat templates run: no attribute that leads out, bounded in time, steps and size; what people wrote is known.

Text from the messages is a `UserText`: in comparisons it is itself, in the output it stands between two marks.
Operations that would lose the class give a `UserText` again; text of both kinds is a str with marks inside.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, MappingView
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from qkv.errors import QkvError

SOURCE, OUTPUT, MADE = 2**18, 2**23, 2**26  # characters: of a template, of one text, of all texts on the way
STEPS, SECONDS, ITEMS = 100_000, 2.0, 2**18  # turns of loops, calls and filters; time; items of lists in lists
CONTAINERS = (list, tuple, dict, Namespace, MappingView)
OPEN, CLOSE = "\ufdd2", "\ufdd3"  # no text holds these: the messages were cleaned of them
MARKS = re.compile(f"[{OPEN}{CLOSE}]")
WIDE = re.compile(r"[%:{][^%{}]*\d{4}|\{[^}]*\{|\*")  # a format's width that is too large, or computed
FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby", "indent", "int", "items",
    "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round", "select",
    "selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper", "wordcount",
)
METHODS: dict[type, tuple[str, ...]] = {
    str: (
        "capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isdecimal",
        "isdigit", "islower", "isnumeric", "isspace", "isupper", "join", "lower", "lstrip", "partition",
        "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split",
        "splitlines", "startswith", "strip", "title", "upper",
    ),
    dict: ("copy", "get", "items", "keys", "values"), list: ("copy", "count", "index"), tuple: ("count", "index"),
}
ROLES = ("system", "developer", "user", "assistant", "model", "tool", "function", "observation", "ipython")
SHALLOW = {"length", "count", "first", "last", "list", "reverse", "items"}  # filters that look at no item's inside
KEEP = {"strip", "lstrip", "rstrip", "format", "trim", "string", "default", "d", "lower", "upper"}  # leave marks alone


class UserText(str):
    """Text that people wrote, in no part the template's."""

    __slots__ = ()

    def __new__(cls, value: str) -> "UserText":
        """The text, freed of marks."""
        return str.__new__(cls, MARKS.sub("", value))

    def __str__(self) -> str:
        return mark(self)

    def __repr__(self) -> str:
        return mark(str.__repr__(self))

    def __format__(self, spec: str) -> str:
        return mark(format("".join((self,)), spec))

    def __getitem__(self, at: Any) -> "UserText":
        return UserText(str.__getitem__(self, at))

    def __iter__(self) -> Iterator["UserText"]:
        return (UserText(c) for c in str.__iter__(self))


def mark(text: str) -> str:
    """The text between marks that stand inside the white space around it, so that trimming does not meet them."""
    bare = "".join((text,))  # an ordinary str, whose slices are ordinary
    core = bare.strip()
    start = bare.find(core)
    return f"{bare[:start]}{OPEN}{core}{CLOSE}{bare[start + len(core) :]}" if core else bare


def split_marked(marked: str) -> list[tuple[str, bool]]:
    """The text without marks in parts, each with whether the template wrote it.

    Raises:
        QkvError: a mark lacks its partner: the template cut text in two.
    """
    found, depth = list[tuple[str, bool]](), 0
    for piece in re.split(f"([{OPEN}{CLOSE}])", marked):
        depth += (piece == OPEN) - (piece == CLOSE)
        if depth < 0:
            break
        if piece and not MARKS.fullmatch(piece):
            found.append((piece, depth == 0))
    if depth:
        raise QkvError("the chat template cuts text in which its own words and those of the messages are mixed; which "
                       "is whose can no longer be decided")
    return found


def render_source(source: str, typed: dict[str, Any], own: dict[str, Any], *, marked: bool) -> str:
    """What a template gives for what people wrote (`typed`, JSON's types) and what is the checkpoint's `own`.

    Raises:
        QkvError: it is too long, does not parse, fails, refuses, or exceeds its bounds.
    """
    if len(source) > SOURCE:
        raise QkvError("the chat template has {source} characters, expected at most {source2}", source=len(source),
                       source2=SOURCE)
    try:
        environment = BoundedEnvironment(marked=marked)
        code = environment.compile(Rewrite().visit(environment.parse(source)))
        made = jinja2.Template.from_code(environment, code, environment.make_globals(None))
        given = {**own, **(mark_user_text(typed) if marked else typed)}
        return str(made.render(given))
    except QkvError:
        raise
    except jinja2.TemplateSyntaxError as e:
        raise QkvError("the chat template does not parse, line {lineno}: {message}", lineno=e.lineno,
                       message=e.message) from None
    except RecursionError:
        raise QkvError("the chat template calls itself endlessly") from None
    except Exception as e:  # a template may fail in any way that Python code may
        raise QkvError("the chat template failed: {kind}: {e}", kind=type(e).__name__, e=e) from None


def mark_user_text(value: Any) -> Any:
    """The same data with every text in it a `UserText`, but for the usual roles, of which templates make tokens."""
    if isinstance(value, str):
        return UserText(value)
    if isinstance(value, dict):
        rows = cast("dict[Any, Any]", value).items()
        return {mark_user_text(k): v if k == "role" and v in ROLES else mark_user_text(v) for k, v in rows}
    return [mark_user_text(v) for v in value] if isinstance(value, list | tuple) else value


def is_mixed(value: Any) -> bool:
    """Whether this is a str with marks inside."""
    return isinstance(value, str) and not isinstance(value, UserText) and MARKS.search(value) is not None


def keep_user_text(value: Any) -> Any:
    """What an operation made of a `UserText`, as one."""
    if isinstance(value, str):
        return UserText(value)
    if isinstance(value, list | tuple):
        return type(value)(keep_user_text(v) for v in cast("list[Any]", value))
    return value


class Rewrite(NodeTransformer):
    """Loops are counted; joints and slices become filters, which the environment can watch."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """`for x in y` as `for x in y | count_steps`."""
        self.generic_visit(node)
        node.iter = _filter(node.iter, "count_steps")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """`a == b` as `a | weigh == b | weigh`: what is compared is walked through."""
        self.generic_visit(node)
        node.expr = _filter(node.expr, "weigh")
        for operand in node.ops:
            operand.expr = _filter(operand.expr, "weigh")
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        """`{a: b}` as `{a | weigh: b}`: keys are hashed, and what is inside of a tuple with them."""
        self.generic_visit(node)
        node.key = _filter(node.key, "weigh")
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        """`a is in(b)` as `a | weigh is in(b | weigh)`; whether a name is defined stays a question of the name."""
        self.generic_visit(node)
        if node.args:
            node.node, node.args = _filter(node.node, "weigh"), [_filter(arg, "weigh") for arg in node.args]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """`a ~ b` as `[a, b] | join_pieces`."""
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "join_pieces")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """`a[b:c]` as `a | slice_value(b, c, none)`."""
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return _filter(node.node, "slice_value", [end or nodes.Const(None) for end in ends])

    def visit_NSRef(self, node: nodes.NSRef) -> nodes.Node:  # noqa: N802
        """Names that begin with an underscore lead out of the sandbox."""
        if node.attr.startswith("_"):
            raise QkvError("the chat template, line {lineno}, sets {attr!r}; templates may not set such names",
                           lineno=node.lineno, attr=node.attr)
        return node


def _filter(node: nodes.Node, name: str, args: list[nodes.Expr] | None = None) -> nodes.Filter:
    value = cast("nodes.Expr", node)
    return nodes.Filter(value, f" {name}", args or [], [], None, None, lineno=node.lineno)  # no source says the blank


class Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is only passed through."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """The statements inside."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with a budget for one render; what leaves its methods keeps track of who wrote it."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, *, marked: bool) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[Generation, loopcontrols])
        self.marked = marked
        self.steps, self.room, self.deadline = STEPS, MADE, time.thread_time() + SECONDS
        self.finalize = self.weigh
        self.concat = self.join_pieces  # pyright: ignore[reportAttributeAccessIssue]
        filters = {name: self.watch_filter(name, self.filters[name]) for name in FILTERS}
        filters |= {"join": self.join, "replace": self.replace, "tojson": self.tojson, "safe": lambda value: value}
        watched = (self.count_steps, self.join_pieces, self.slice_value, self.weigh)
        filters |= {f" {one.__name__}": one for one in watched}
        self.filters = filters  # pyright: ignore[reportAttributeAccessIssue]
        self.globals = {"range": self.globals["range"], "dict": lambda *rows, **more: dict(*rows, **more)}
        self.globals |= {"namespace": make_namespace, "raise_exception": raise_exception, "strftime_now": format_now}

    def spend(self, size: int = 0) -> None:
        """One step, which makes something of this size."""
        self.steps -= 1
        self.room -= size
        if self.steps < 0 or time.thread_time() > self.deadline:
            raise QkvError("the chat template was stopped after {steps} steps: does it loop endlessly?",
                           steps=STEPS - self.steps)
        if size > OUTPUT or self.room < 0:
            most = OUTPUT if self.room >= 0 else MADE
            raise QkvError("the chat template was stopped: it makes more than {most} characters", most=most)

    def weigh(self, value: Any) -> Any:
        """The value, whose lists within lists are paid for: a list that holds another twice counts it twice."""
        if isinstance(value, CONTAINERS):
            left, items = [value], 0
            while left:
                one = left.pop()
                if isinstance(one, Namespace):
                    one = one._Namespace__attrs  # pyright: ignore
                inside = [*one, *one.values()] if isinstance(one, dict) else list(cast("Iterable[Any]", one))
                items += len(inside)
                left += [v for v in inside if isinstance(v, CONTAINERS)]
                if items > ITEMS:
                    raise QkvError("the chat template was stopped: it compares or writes lists of more than {most} "
                                   "items", most=ITEMS)
            self.room -= items
            self.spend()
        return value

    def count_steps(self, values: Any) -> Iterator[Any]:
        """The values one by one."""
        for value in UserText(values) if is_mixed(values) else values:
            self.spend()
            yield value

    def join_pieces(self, pieces: Iterable[Any]) -> str:
        """The pieces as one text; all of it people's if the rest is blank."""
        texts, size = list[str](), 0
        for piece in pieces:
            texts.append(str(self.weigh(piece)))
            self.spend(len(texts[-1]))
            size += len(texts[-1])
            if size > OUTPUT:
                self.spend(size)
        text = "".join(texts)
        theirs = is_mixed(text) and not any(own and part.strip() for part, own in _split_balanced(text))
        return UserText(text) if theirs else text

    def slice_value(self, value: Any, *ends: int | None) -> Any:
        """A slice."""
        made = (UserText(value) if is_mixed(value) else value)[slice(*ends)]
        self.spend(len(made))
        return made

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Attributes that lead out of the sandbox, or change what was given."""
        raise QkvError("the chat template asks for .{attribute} of a {kind}, which it may not", attribute=attribute,
                       kind=type(obj).__name__)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """What is at a key or number."""
        return super().getitem(UserText(obj) if is_mixed(obj) else obj, self.weigh(argument))

    def join(self, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        """Values as one text, `d` between them."""
        rows = (self.getitem(row, attribute) if attribute is not None else row for row in value)
        return self.join_pieces(piece for i, row in enumerate(rows) for piece in ((d, row) if i else (row,)))

    def replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        """A text with each `old` as `new`."""
        text = value if isinstance(value, str) else str(value)
        self.spend(len(text) + text.count(old) * len(new))
        theirs = isinstance(text, UserText)
        made = text.replace(old, new if theirs else str(new), -1 if count is None else count)
        return UserText(made) if theirs else made

    def tojson(
        self, value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as transformers writes it for templates: nothing escaped for HTML; all of it counts as people's."""
        if not isinstance(indent, int | None) or (indent or 0) > 16:
            raise QkvError("the chat template indents JSON by {indent!r}, expected at most 16", indent=indent)
        text = json.dumps(self.weigh(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)
        self.spend(len(text))
        return UserText(text) if self.marked else text

    def watch(self, name: str, owner: Any, args: tuple[Any, ...], make: Callable[[Any], Any]) -> Any:
        """What `make` makes of the owner: paid for, and people's if the owner is."""
        if name not in SHALLOW:
            for given in (owner, *args):
                self.weigh(given)
        first = UserText(owner) if is_mixed(owner) and name not in KEEP else owner
        self.spend(estimate_cost(name, first, args))
        made = make(first)
        return keep_user_text(made) if isinstance(first, UserText) else made

    def watch_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that pays for what it makes, and whose text is people's if what it was given is."""
        kind = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

        @jinja2.pass_context
        def wrapper(context: Context, *args: Any, **options: Any) -> Any:
            before = {"context": context, "eval_context": context.eval_ctx, "environment": self}
            passed = (before[kind],) if kind else ()
            make: Callable[[Any], Any] = lambda first: function(*passed, first, *args[1:], **options)  # noqa: E731
            return self.watch(name, args[0] if args else "", (*args[1:], *options.values()), make)

        return wrapper

    def call(self, context: Context, obj: Any, /, *args: Any, **options: Any) -> Any:
        """A call; methods of Python's own types are those in METHODS."""
        above, bound = super().call, getattr(obj, "__wrapped__", obj)
        owner, name = getattr(bound, "__self__", None), getattr(bound, "__name__", "")
        if isinstance(owner, str | int | float | bytes | dict | list | tuple):
            allowed = next((names for kind, names in METHODS.items() if isinstance(owner, kind)), ())
            if name not in allowed:
                raise QkvError("the chat template calls .{name}() of a {kind}, which it may not", name=name,
                               kind=type(owner).__name__)
        for given in (*args, *options.values()):
            self.weigh(given)
        if not isinstance(owner, str):
            if name in ("index", "count"):
                self.weigh(owner)
            self.spend()
            return above(context, obj, *args, **options)
        if name == "join":
            made = self.join(*args, d=owner, **options)
            return UserText(made) if isinstance(owner, UserText) else made
        if name == "replace":
            return self.replace(owner, *args, **options)
        bind: Callable[[Any], Any] = lambda first: obj if first is owner else getattr(first, name)  # noqa: E731
        make: Callable[[Any], Any] = lambda first: above(context, bind(first), *args, **options)  # noqa: E731
        return self.watch(name, owner, (*args, *options.values()), make)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`+ * ** %` of texts, lists and numbers."""
        texts = isinstance(left, str), isinstance(right, str)
        if all(texts) and operator == "+":
            self.spend(len(left) + len(right))
            both = isinstance(left, UserText) and isinstance(right, UserText)
            return UserText("".join((left, right))) if both else "".join((str(left), str(right)))
        if texts[0] and operator == "%":
            self.weigh(right)
            self.spend(estimate_cost("format", left, right if isinstance(right, tuple) else (right,)))
        elif isinstance(left, int | float) and isinstance(right, int | float):
            if operator != "+" and (abs(left) > 2**31 or abs(right) > (64 if operator == "**" else 2**31)):
                raise QkvError("the chat template calculates {left} {operator} {right}, which is too large",
                               left=left, operator=operator, right=right)
        else:
            sizes = [len(v) if isinstance(v, str | list | tuple) else v for v in (left, right)]
            numbers = [max(0, int(n)) for n in sizes if isinstance(n, int | float)]
            self.spend(math.prod(numbers) if operator == "*" else sum(numbers))
        made = super().call_binop(context, operator, left, right)
        theirs = isinstance(left, UserText) or (isinstance(right, UserText) and not texts[0])
        return keep_user_text(made) if theirs else made


def _split_balanced(text: str) -> list[tuple[str, bool]]:
    """`split_marked`, where a mark without partner counts as the template's own text."""
    try:
        return split_marked(text)
    except QkvError:
        return [(text, True)]


def estimate_cost(name: str, owner: Any, args: tuple[Any, ...]) -> int:
    """How many characters a method or filter makes at most."""
    if not isinstance(owner, str):
        return 0
    sizes = [len(a) if isinstance(a, str | list | tuple) else a if isinstance(a, int) else 0 for a in args]
    if name == "format":
        if WIDE.search(owner):
            raise QkvError("the chat template formats text to a width that is too large or computed")
        return len(owner) + (owner.count("{") + owner.count("%")) * max(sizes, default=0)
    if name == "indent":
        return len(owner) + (1 + owner.count("\n")) * max(sizes, default=4)
    return len(owner)


def make_namespace(*args: Any, **names: Any) -> Namespace:
    """What a template may change inside a loop."""
    if wrong := next((n for n in dict(*args, **names) if n.startswith("_")), None):
        raise QkvError("the chat template names {wrong!r}; templates may not use names that begin with an underscore",
                       wrong=wrong)
    return Namespace(*args, **names)


def raise_exception(message: str) -> None:
    """What a template calls when the messages are not in its order."""
    raise QkvError("the chat template refuses these messages: {message}", message=message)


def format_now(form: str) -> str:
    """The present time, written in a form of strftime."""
    if len(form) > 100 or WIDE.search(form):
        raise QkvError("the chat template asks for the time in a format that is too long")
    return datetime.now().strftime(form)
