"""The public names, flat. They are looked up when first used, so that `import qkv` costs no torch."""

from importlib import import_module
from typing import TYPE_CHECKING

from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.hub import build, load, show
    from qkv.model import Model
    from qkv.spec import Spec
    from qkv.training.recipes import train

__version__ = "0.1.0"
__all__ = ["load", "build", "Model", "Spec", "train", "show", "QkvError", "__version__"]

# No public function shares its name with a module or package: `import qkv.x` would put the module over the function.
_HOME = {
    "load": "qkv.hub",
    "build": "qkv.hub",
    "Model": "qkv.model",
    "Spec": "qkv.spec",
    "train": "qkv.training.recipes",
    "show": "qkv.hub",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
