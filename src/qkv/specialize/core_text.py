"""The core's own text with the forks of one model decided: it loads the core's weights and takes the core's step."""

import ast
from typing import Any, Literal

from qkv import spec as parts
from qkv.core.cache import Cache
from qkv.core.dropout import no_dropout
from qkv.core.kernels import attend
from qkv.core.model import Transformer
from qkv.core.norm import Norm
from qkv.core.step import Step, pass_through
from qkv.specialize import layout, loader
from qkv.specialize.classes import SELF, Classes
from qkv.specialize.functions import bind_arguments
from qkv.specialize.trees import make_name, spell
from qkv.specialize.values import Code, Frame, Function, Known, Part, Record, residual

Mode = Literal["train", "prefill", "decode"] | None
SHARES = "k.shape[1] < q.shape[1]"  # do several heads read one key? The spec of an attention knows
WHEN = {None: "", "train": ", for training", "prefill": ", for the prefill", "decode": ", for decoding"}
IMPORTED = ("build_step", "read_source", "with_attention_bias")  # what the text leaves to the core


def print_core(s: parts.Spec, *, mode: Mode = None, taps: bool = False) -> str:
    """A Python module with `class Model` that computes exactly what `Transformer(spec)` does, every fork decided.

    `mode` decides what differs between training and decoding too: "train" has no cache, the others neither dropout nor
    gradients. The text loads the core's state dict; taps are printed only when asked for.
    """
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
        return {k: Code(make_name(k)) if opened.get(k) else v for k, v in given.items()}

    def assign_attribute(self, target: ast.Attribute, value: Any, f: Frame) -> ast.expr | None:
        if target.attr in ("masks", "rotaries"):  # build_step() asks a stack for these
            return residual(value)
        return super().assign_attribute(target, value, f)

    def write_call(self, function: Any, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        if ast.unparse(residual(function)) == "step.drop" and isinstance(args[1], Known) and args[1].value == 0.0:
            return args[0]
        return super().write_call(function, args, {
            k: v for k, v in given.items() if k != "enable_gqa" or not isinstance(v, Known) or v.value}, f)

    def invoke(self, function: Function, args: list[Any], given: dict[str, Any], f: Frame) -> Any:
        name, owner = getattr(function.definition, "name", ""), function.owner
        if name not in IMPORTED:
            return super().invoke(function, args, given, f)
        target = ast.Attribute(owner.node, name, ast.Load()) if owner else make_name(name)
        found = self.write_call(Code(target), args, given, f)
        return found if name == "read_source" else Record(Step, self.fields, found.node)

    # ---- the module ----------------------------------------------------------------------------------------------

    def module(self) -> str:
        """The whole text."""
        s = self.spec
        self.write_init()
        roots = ["forward", "hidden"] + ["classify"] * bool(s.labels) + ["encode"] * bool(s.encoder and s.decoder)
        for name in roots:
            function: Any = self.part_attribute(Part([self.core], SELF), name)
            arguments = function.definition.args
            given = {a.arg: Code(make_name(a.arg)) for a in (*arguments.args[1:], *arguments.kwonlyargs)}
            self.write_method(self.core, function, bind_arguments(function, [], given)).door = arguments
        body = self.name_rotaries("\n\n\n".join(map(layout.print_definition, self.finish())))
        head = loader.print_head(s, body, core=True, mode=self.mode, when=WHEN[self.mode], taps=self.taps)
        return f"{head}\n\n\n{body}\n"

    def name_rotaries(self, body: str) -> str:
        """The text with a name for each long rotary, as one would do."""
        found = {layout.tidy(spell(r)): 0 for _, m in self.ours for r in getattr(m, "rotaries", ())}
        long = [t for t in found if len(t) > 40]
        for n, text in reversed(list(enumerate(long, 1))):
            name = f"ROTARY{n}" if len(long) > 1 else "ROTARY"
            body = f"{name} = {text}\n" + "\n" * 2 * (n == len(long)) + body.replace(text, name)
        return body
