"""Trees in brackets: each node's phrase and label, by hand; whatever is no tree is told by file and line."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import treebank
from qkv.data.sources import Sieve
from qkv.errors import QkvError

THREE = """\
(3 (2 a) (4 (3 fine) (2 film)))

(1 (2 -LRB-) (1 (1 dull) (2 -rrb-)))
(2 \\/)
"""


def put(folder: Path, text: str) -> Path:
    path = folder / "t.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_phrase_with_its_label_the_sentence_last(tmp_path: Path) -> None:
    assert list(treebank.phrases(put(tmp_path, THREE))) == [
        (1, [("a", 2), ("fine", 3), ("film", 2), ("fine film", 4), ("a fine film", 3)]),
        (3, [("(", 2), ("dull", 1), (")", 2), ("dull )", 1), ("( dull )", 1)]),
        (4, [("/", 2)]),
    ]
    assert treebank.unescaped("-LSB- 9\\/11 \\* -rcb- -LRBX") == "[ 9/11 * } -LRBX"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("(3 (2 a) (4 film)", "the line ends with 1 bracket(s) open"),
        ("(3 (2 a) (", "the line ends with 2 bracket(s) open"),
        ("(3 (2 a)))", "character 10: found ')' behind the end of the tree"),
        ("(2 a) (2 b)", "character 7: found '(' behind the end of the tree, expected one tree a line"),
        (") (2 a)", "character 1: found ')', expected a tree such as (3 (2 a) (4 film))"),
        ("a fine film", "character 1: found 'a', expected a tree"),
        ("(3 (5 a) (2 b))", "character 5: found '5' behind a bracket, expected a label from 0 to 4"),
        ("(3 (-1 a) (2 b))", "found '-1' behind a bracket"),
        ("(3 (² a) (2 b))", "found '²' behind a bracket"),
        ("((2 a))", "character 2: found '(' behind a bracket"),
        ("(3 (2) (2 b))", "character 6: a node ends without a word"),
    ],
)
def test_what_is_no_tree_is_told_by_file_and_line(tmp_path: Path, line: str, told: str) -> None:
    path = put(tmp_path, f"(2 good)\n{line}\n(2 good)\n")
    with pytest.raises(QkvError, match=rf"t\.txt:2: .*{re.escape(told)}"):
        list(treebank.phrases(path))
    with Sieve("skip") as sieve:
        assert [line for line, _ in treebank.phrases(path, sieve=sieve)] == [1, 3]
    assert sieve.dropped == {str(path): 1}


WORDS = st.tuples(st.integers(0, 4), st.text("ab.'$é中", min_size=1, max_size=4))
TREES = st.recursive(WORDS, lambda inner: st.tuples(st.integers(0, 4), st.lists(inner, min_size=1, max_size=3)))


def written(node: tuple[int, object]) -> str:
    label, held = node
    return f"({label} {held if isinstance(held, str) else ' '.join(map(written, held))})"  # type: ignore[call-overload]


def said(node: tuple[int, object]) -> list[treebank.Phrase]:
    """The phrases, by recursion instead of a stack."""
    label, held = node
    if isinstance(held, str):
        return [(held, label)]
    inner = [said(child) for child in held]  # type: ignore[attr-defined]
    return [*(phrase for one in inner for phrase in one), (" ".join(one[-1][0] for one in inner), label)]


@given(TREES)
def test_any_tree_is_read_as_it_was_written(node: tuple[int, object]) -> None:
    assert treebank.tree(written(node), 5, "here") == said(node)


def test_a_deep_tree_is_no_matter() -> None:
    deep = "(2 " * 5000 + "x" + ")" * 5000
    assert treebank.tree(deep, 5, "here") == [("x", 2)] * 5000
