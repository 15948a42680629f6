"""The feed-forward part: each token alone, wider and back again; or some of several experts."""

# %% 前馈：先变宽，再变回来 | Wider, and back again
import qkv

model = qkv.load("demo")
block = model.spec.encoder.blocks[0]
width, wide = model.spec.encoder.width, block.ffn.width
with model.trace(save=["encoder.layers.0.ffn.act", "encoder.layers.0.ffn.out"]) as t:
    model.translate("我爱喝茶。", beam=1)
act, out = t["encoder.layers.0.ffn.act"], t["encoder.layers.0.ffn.out"]
off = (act == 0).float().mean().item()  # what ReLU switched off
act.shape, out.shape

# %% 专家：每个词元选几个 | Experts: each token takes some
moe = qkv.load("demo-moe")
text = "我爱喝茶。"
with moe.trace(save=["routes"]) as u:
    moe.generate(text, max_new_tokens=4)
routes = u.routes()
tokens, experts = list(routes.read), len(routes[0].load)
chosen = len(routes[0].index[0])
weights = {}
for layer, route in enumerate(routes):
    rows = [[0.0] * experts for _ in tokens]
    for token, (index, weight) in enumerate(zip(route.index.tolist(), route.weight.tolist(), strict=True)):
        for expert, share in zip(index, weight, strict=True):
            rows[token][expert] = share
    weights[layer + 1] = rows
routes

# %% 多少参数，用到多少 | How many parameters, and how many are used

held = sum(p.numel() for p in moe.core.parameters())
layers = [str(layer) for layer in weights]
grids = [(tokens, [str(e) for e in range(experts)], rows) for rows in weights.values()]
held
