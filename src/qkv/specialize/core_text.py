"""The core's own text with the forks of one model decided: it loads the core's weights and takes the core's step."""

import ast
import re
from typing import Any, Literal

from qkv import spec as parts
from qkv.core.cache import Cache
from qkv.core.dropout import no_dropout
from qkv.core.kernels import attend
from qkv.core.model import Transformer
from qkv.core.norm import Norm
from qkv.core.step import Step, pass_through
from qkv.errors import QkvError
from qkv.specialize import layout
from qkv.specialize.classes import SELF, Classes
from qkv.specialize.functions import bind_arguments
from qkv.specialize.values import Code, Frame, Function, Known, Part, Record, residual, spell

Mode = Literal["train", "prefill", "decode"] | None
SHARES = "k.shape[1] < q.shape[1]"  # do several heads read one key? The spec of an attention knows
WHEN = {None: "", "train": ", for training", "prefill": ", for the prefill", "decode": ", for decoding"}
IMPORTED = ("build_step", "read_source", "with_attention_bias")  # what the text leaves to the core
IMPORTS = (
    ("torch", ("Tensor", "nn")), ("qkv.core.cache", ("Cache",)), ("qkv.core.dropout", ("Drop", "no_dropout")),
    ("qkv.core.masks", ("AttentionBias",)), ("qkv.core.model", ("Output", "build_step", "read_source")),
    ("qkv.core.step", ("Inputs", "Mode", "Step")), ("qkv.spec", ("Mask", "Rotary", "Scaling")),
)


def print_core(s: parts.Spec, *, mode: Mode = None, taps: bool = False) -> str:
    """A Python module with `class Model` that computes exactly what `Transformer(spec)` does, every fork decided.

    `mode` decides what differs between training and decoding too: "train" has no cache, the others neither dropout nor
    gradients. The text loads the core's state dict; taps are printed only when asked for.
    """
    if not s.has_blocks:
        raise QkvError("show prints Transformers; an LSTM has no forks to decide: read baselines/lstm.py")
    return CoreText(s, mode, taps).module()


class CoreText(Classes):
    """The core as it stands, with a step that is decided in part."""

    merged = splices = False

    def __init__(self, s: parts.Spec, mode: Mode, taps: bool) -> None:
        super().__init__(s)
        self.mode, self.taps = mode, taps
        writes = mode in ("prefill", "decode")
        latent = {"decode": "1 < at.spec.heads", None: SHARES}.get(mode, "False")
        shares = f"(at.spec.groups < at.spec.heads if getattr(at.spec, 'groups', 0) else {latent})"
        self.rewrites = ((SHARES, shares), *[("q.requires_grad", "False")] * writes)
        self.constants = {}
        self.open_attributes = ("training", *["layer"] * (mode != "train"), *["path"] * taps)
        self.fields: dict[str, Any] = {"attend": Known(attend)}
        self.fields |= {"mode": Known(mode)} if mode else {}
        self.fields |= {} if taps else {"tap": Known(pass_through)}
        self.fields |= {"drop": Known(no_dropout)} if writes else {}
        self.fields |= {"cache": Record(Cache, {})} if mode == "train" else {}

    def name_role(self, path: str, module: Any) -> str:
        if isinstance(module, Norm):
            return "RMSNorm" if module.spec.kind == "rms" else "LayerNorm"
        return "Model" if isinstance(module, Transformer) else super().name_role(path, module)

    # ---- what is open --------------------------------------------------------------------------------------------

    def open_arguments(self, module: Any, given: dict[str, Any]) -> dict[str, Any]:
        alike = [m for _, m in self.ours if self.key(m) == self.key(module)]
        widths = {next(m.parameters()).shape[-1] for m in alike}
        opened = {"layer": self.mode != "train", "path": self.taps, "width": len(widths) > 1, "out": True}
        return {k: Code(ast.Name(k, ast.Load())) if opened.get(k) else v for k, v in given.items()}

    def assign_attribute(self, target: ast.Attribute, value: Any, f: Frame) -> ast.expr | None:
        if target.attr in ("masks", "rotaries"):  # build_step() asks a stack for these
            return residual(value)
        return super().assign_attribute(target, value, f)

    def attribute(self, value: Any, name: str) -> Any:
        if isinstance(value, Record) and name in IMPORTED:
            return Code(ast.Attribute(residual(value), name, ast.Load()))
        return super().attribute(value, name)

    def write_call(self, function: Any, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        name = ast.unparse(residual(function))
        if name == "step.drop" and isinstance(args[1], Known) and args[1].value == 0.0:
            return args[0]
        found = super().write_call(function, args, {k: v for k, v in given.items() if k != "enable_gqa" or not (
            isinstance(v, Known) and not v.value)}, f)
        return Record(Step, self.fields, found.node) if name.endswith("with_attention_bias") else found

    def invoke(self, function: Function, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        name = getattr(function.definition, "name", "")
        if name not in IMPORTED:
            return super().invoke(function, args, given, f)
        found = super(Classes, self).write_call(Known(None, ast.Name(name, ast.Load())), args, given, f)
        return Record(Step, self.fields, found.node) if name == "build_step" else found

    # ---- the module ----------------------------------------------------------------------------------------------

    def module(self) -> str:
        """The whole text."""
        s = self.spec
        self.write_init()
        roots = ["forward", "hidden"] + ["classify"] * bool(s.labels) + ["encode"] * bool(s.encoder and s.decoder)
        for name in roots:
            function: Any = self.part_attribute(Part([self.core], SELF), name)
            arguments = function.definition.args
            given = {a.arg: Code(ast.Name(a.arg, ast.Load())) for a in (*arguments.args[1:], *arguments.kwonlyargs)}
            self.write_method(self.core, function, bind_arguments(function, [], given)).door = arguments
        body = self.name_rotaries("\n\n\n".join(map(layout.print_definition, self.finish())))
        used = set(re.findall(r"\w+", body))
        usual = {"math": "import math\n", "torch": "import torch", "F": "import torch.nn.functional as F"}
        lines = [line for name, line in usual.items() if name in used]
        for place, known in IMPORTS:
            here = [n for n in known if n in used]
            lines += [f"from {place} import {', '.join(here)}"] if here else []
            lines += [""] if place == "torch" else []
        return f'"""{self.header()}"""\n\n' + "\n".join(lines) + f"\n\n\n{body}\n"

    def name_rotaries(self, body: str) -> str:
        """The text with a name for each long rotary, as one would do."""
        found = {layout.tidy(spell(r)): 0 for _, m in self.ours for r in getattr(m, "rotaries", ())}
        long = [t for t in found if len(t) > 40]
        for n, text in reversed(list(enumerate(long, 1))):
            name = f"ROTARY{n}" if len(long) > 1 else "ROTARY"
            body = f"{name} = {text}\n" + "\n" * 2 * (n == len(long)) + body.replace(text, name)
        return body

    def header(self) -> str:
        """What stands above the text."""
        s, mode = self.spec, f', mode="{self.mode}"' if self.mode else ""
        towers = [f"{n} of {len(t.blocks)} layers" for n, t in (("encoder", s.encoder), ("decoder", s.decoder)) if t]
        cache = ", cache=cache" if self.mode in ("prefill", "decode") else ""
        source = ", Inputs(source=source)" if len(towers) == 2 else ""
        out = "logits" if s.head else "hidden"
        return (
            f"One model as its own code: {' and '.join(towers)}, width {s.stack.width}, vocabulary {s.vocabulary}.\n\n"
            f"The core of qkv specialised by the model's spec{WHEN[self.mode]}: every fork is decided"
            + ("." if self.taps else ", taps are left out.")
            + "\nRead from the end: Model. It loads the core's weights; what travels beside x is qkv.core.step's:\n\n"
            f"    {out} = model(ids{source}{cache}{mode}).{out}\n"
        )
