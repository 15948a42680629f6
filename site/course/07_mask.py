"""Masks: who may look at whom is what tells an encoder, a decoder and a prefix decoder apart."""

# %% 三种掩码，三个真模型 | Three masks of three real models
import qkv

translator, lm, prefix = qkv.load("demo"), qkv.load("demo-lm"), qkv.load("demo-moe")
text = "大家共同努力。"
with translator.trace(save=["mask"]) as t:
    translator.translate("我爱喝茶。", beam=1)
with lm.trace(save=["mask"]) as u:
    lm.generate("One, Two, buckle", max_new_tokens=1)
with prefix.trace(save=["mask"]) as v:
    prefix.generate(text, max_new_tokens=4)
masks = {
    "encoder": t.mask("encoder.layers.0.attn"),
    "cross": t.mask("decoder.layers.0.cross"),
    "causal": u.mask(),
    "prefix": v.mask(),
}
seen = {name: (mask.cells == 0).float() for name, mask in masks.items()}
masks["prefix"]

# %% 右边对左边毫无影响 | What stands right changes nothing at the left
from qkv.labs import find_lab

zero = find_lab("mask-zero").run(0, steps=0, tell=print)
zero["leak"], zero["itself"], zero["control"]

# %% 摆成表 | As tables
kinds = ["encoder", "causal", "prefix", "cross"]
grids = [(list(masks[k].queries), list(masks[k].keys), seen[k].tolist(),
          [["✓" if x else "" for x in row] for row in seen[k].tolist()]) for k in kinds]
sees_next = "共同" in [key for key, x in zip(masks["prefix"].keys, seen["prefix"][0].tolist(), strict=True) if x]
n = len(masks["causal"].queries)
cells = int(seen["causal"].sum())
