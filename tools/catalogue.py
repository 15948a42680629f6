"""The catalogue of translations: `python tools/catalogue.py extract|compile|check`, `merge A B`, `add FILE`.

extract   takes the templates out of src/, keeps their translations, drops what the code lacks
compile   qkv.po -> qkv.mo, which the package reads
check     exits 1 where a template has no translation or other fields, or the compiled file is older
merge     one catalogue out of two, the first one's words before the other's
add       translations of a JSON file: {"template": "translation"}
"""

import ast
import io
import json
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from gettext import GNUTranslations
from pathlib import Path
from string import Formatter

from babel.messages import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

PACKAGE = Path(__file__).parents[1] / "src" / "qkv"
PO = PACKAGE / "locale" / "zh" / "LC_MESSAGES" / "qkv.po"
# functions whose first argument (or `help`) is a template, beside every class of errors
TAKERS = {"Message", "join", "say", "note", "tell", "act", "verb", "option", "Option"}
CORPUS = PACKAGE / "data" / "corpus"  # sentences, no messages
HEAD = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=utf-8\\nLanguage: zh\\n"\n\n'


def templates(package: Path = PACKAGE) -> set[str]:
    """Every template in the code."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py"))
             if CORPUS not in path.parents}  # fmt: skip
    takers = TAKERS | errors(list(trees.values()))
    calls = (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call))
    found = {text for node in calls if called(node) in takers for text in texts(node)}
    recipes = (ast.get_docstring(tree) for path, tree in trees.items() if path.match("recipes/[!_]*"))
    found |= {text.split("\n")[0] for text in recipes if text}
    for path in package.rglob("*.toml"):
        found |= set(described(tomllib.loads(path.read_text(encoding="utf-8"))))
    return found


def described(value: object) -> Iterator[str]:
    """What is said in TOML: `about` and `licence` of data sets and recipes, `idea` and `right` of misunderstandings."""
    for inner in value if isinstance(value, list) else ():
        yield from described(inner)
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key in ("about", "licence", "idea", "right") and isinstance(inner, str):
            yield inner
        else:
            yield from described(inner)


def errors(trees: list[ast.Module]) -> set[str]:
    """The names of QkvError and of the classes made of it."""
    found = {"QkvError"}
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for _ in range(3):
        found |= {c.name for c in classes if any(isinstance(b, ast.Name) and b.id in found for b in c.bases)}
    return found


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def texts(node: ast.Call) -> Iterator[str]:
    """The templates of one call: its first argument, its help; each branch of a choice."""
    first = [] if called(node) in ("option", "Option") else node.args[:1]
    for value in (*first, *(k.value for k in node.keywords if k.arg == "help")):
        yield from choices(value)


def choices(value: ast.expr) -> Iterator[str]:
    """The constant texts of an expression: of a choice, both."""
    if isinstance(value, ast.IfExp):
        yield from choices(value.body)
        yield from choices(value.orelse)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.strip():
        yield value.value


def fields(template: str) -> set[str]:
    """The names of a template's fields."""
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def read(path: Path = PO) -> dict[str, str]:
    """Each template with its translation."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        return {str(m.id): str(m.string) for m in read_po(file) if m.id}


def made(known: dict[str, str]) -> Catalog:
    """The catalogue as Babel writes it, the same each time."""
    catalog = Catalog(locale="zh", charset="utf-8", creation_date=datetime(2026, 1, 1, tzinfo=UTC))
    for template, text in known.items():
        catalog.add(template, text)
    return catalog


def write(known: dict[str, str], path: Path = PO) -> None:
    """The catalogue as text, by the alphabet of its templates, a line for each and no places: branches merge well."""
    out = io.BytesIO()
    write_po(out, made(known), width=0, no_location=True, omit_header=True, sort_output=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(HEAD.encode() + out.getvalue())


def compiled(known: dict[str, str]) -> bytes:
    """The catalogue as gettext reads it."""
    out = io.BytesIO()
    write_mo(out, made({k: v for k, v in known.items() if v}))
    return out.getvalue()


def is_current(known: dict[str, str], path: Path = PO) -> bool:
    """Whether the compiled catalogue says what the text says."""
    with path.with_suffix(".mo").open("rb") as file:
        there = GNUTranslations(file)
    return all(there.gettext(k) == v for k, v in known.items() if v)


def faults(known: dict[str, str], wanted: set[str]) -> list[str]:
    """What is wrong with the catalogue; a plural's ending has no counterpart in Chinese."""
    found = [f"no translation: {t!r}" for t in sorted(wanted) if not known.get(t)]
    found += [f"not in the code: {t!r}" for t in sorted(known) if t not in wanted]
    for template in sorted(wanted & known.keys()):
        try:
            one, two = fields(template), fields(known[template])
        except ValueError:  # braces that are no field's: a text that has none
            continue
        if known[template] and {f for f in one ^ two if not f.startswith("plural")}:
            found.append(f"other fields: {template!r}: {sorted(one)} and {sorted(two)}")
    return found


def main(args: list[str]) -> int:
    known = read()
    if args[:1] == ["extract"]:
        write({template: known.get(template, "") for template in templates()})
    elif args[:1] == ["merge"] and len(args) == 3:
        write(read(Path(args[2])) | {k: v for k, v in read(Path(args[1])).items() if v})
    elif args[:1] == ["add"] and len(args) == 2:
        write(json.loads(Path(args[1]).read_text(encoding="utf-8")) | {k: v for k, v in known.items() if v})
    elif args[:1] == ["compile"]:
        PO.with_suffix(".mo").write_bytes(compiled(known))
    elif args[:1] == ["check"]:
        found = faults(known, templates())
        if not is_current(known):
            found.append(f"{PO.with_suffix('.mo')} is older than {PO.name}: run tools/catalogue.py compile")
        print("\n".join(found))
        return bool(found)
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
