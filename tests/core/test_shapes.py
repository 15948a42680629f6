"""The shape comments of the core are true, and a false one would be found."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support import zoo
from support.shapes import FalseComment, checked, claims

from qkv.core import attention, cache, ffn, kernels, masks, model, positions, step
from qkv.core.cache import Static
from qkv.core.step import Inputs, active_tracer

CORE = (attention, cache, ffn, kernels, masks, model, positions, step)


class Opens:
    needs_eager_attention = True

    def tap(self, module: torch.nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
        return x


def everything(name: str) -> None:
    """A model of the zoo in every way that its forward can run: in the open and not, cached, padded, packed."""
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(5, 9)
    with torch.no_grad():
        zoo.run(core, ids)
        if core.spec.labels:
            core.classify(ids)
        token = active_tracer.set(Opens())
        zoo.run(core, ids)
        active_tracer.reset(token)
        if hasattr(core, "decoder"):
            kept = Static(6, capacity=4)
            for part in (ids[:, :7], ids[:, 7:]):
                zoo.run(core, part, cache=kept, mode="decode")
            if not hasattr(core, "encoder"):
                real = torch.ones(5, 9, dtype=torch.bool)
                real[0, :4] = False
                core(ids, Inputs(padding_mask=real), cache=Static(6))
                documents = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2]).expand(5, 9)
                core(ids, Inputs(document_ids=documents))
                own = torch.tensor([-1, -1, -1, -1, 1, 1, 3, 3, 3]).expand(5, 9)
                core(ids, Inputs(prefix_len=torch.full((5,), 4), blank_pos=own))


@pytest.mark.parametrize("name", zoo.ALL)
def test_shape_comments_hold(name: str) -> None:
    with checked(*CORE) as checker:
        everything(name)
    assert len(checker.checked) > 20


def test_every_shape_comment_was_held_to_a_run() -> None:
    with checked(*CORE) as checker:
        for name in zoo.ALL:
            everything(name)
    for module in (model, attention, ffn, positions, cache):
        file = str(module.__file__)
        said = {(file, line) for line in claims(Path(file).read_text(encoding="utf-8"))}
        ran = {line for f, line in checker.checked if f == file}
        unseen = sorted(line for _, line in said if line not in ran)
        assert unseen == [], f"{file}: comments that no model of the zoo reaches, lines {unseen}"


def altered(tmp_path: Path, old: str, new: str) -> ModuleType:
    """core/model.py with one piece of text replaced, as a module of its own."""
    source = Path(str(model.__file__)).read_text(encoding="utf-8")
    assert source.count(old) >= 1
    path = tmp_path / "altered.py"
    path.write_text(source.replace(old, new, 1), encoding="utf-8")
    found = importlib.util.spec_from_file_location("altered", path)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    sys.modules["altered"] = module
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"resid_in", x)  # B T D', '"resid_in", x)  # T D'),
        ('"embed", x), s.dropout)  # B T D', '"embed", x), s.dropout)  # T D'),
        ("x = layer(x, step)  # B T D", "x = layer(x, step)  # B T T"),
        ("self.final_norm(x))  # B T D", "self.final_norm(x))  # T B D"),
    ],
)
def test_a_false_comment_is_found(tmp_path: Path, old: str, new: str) -> None:
    module = altered(tmp_path, old, new)
    core = module.Transformer(zoo.learned())
    ids = zoo.words(5, 9)
    with pytest.raises(FalseComment, match=r"altered\.py:\d+: the comment says .* found \[5, 9, "), checked(module):
        core(ids)


def test_a_true_copy_passes(tmp_path: Path) -> None:
    module = altered(tmp_path, "ids", "ids")
    core = module.Transformer(zoo.learned())
    ids = zoo.words(5, 9)
    with checked(module) as checker:
        core(ids)
    assert len(checker.checked) > 15
