"""Is W_O an average over heads? Split it by heads, add up each head's own report; then put an average in its place."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import exact

TEXTS = ("书和茶都在桌上，我喝完了它。", "我爱学习。", "苹果发布了新手机。")


@torch.no_grad()
def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    model = exact("demo")
    ids = torch.tensor([model.ids(TEXTS[seed % len(TEXTS)])])
    with model.trace(save=["encoder.layers.*.attn.z", "encoder.layers.*.attn.out"]) as t:
        model(source=ids, target=ids[:, :1])
    gaps, averages, shares = [], [], list[float]()
    for i in range(len(model.core.encoder.layers)):
        name = f"encoder.layers.{i}.attn"
        z, out = t[f"{name}.z"], dict(model.core.get_submodule(f"{name}.out").named_parameters())
        heads = z.shape[1]
        blocks = out["weight"].view(-1, heads, z.shape[-1])  # D H K: each head's own columns
        reports = torch.einsum("bhtk,dhk->bhtd", z, blocks)
        whole = t[f"{name}.out"] - out.get("bias", torch.zeros(()))
        gaps.append(float((reports.sum(1) - whole).abs().max()))
        even = torch.einsum("bhtk,dk->btd", z, blocks.mean(1))  # every head through the same mean matrix
        averages.append(float((even - whole).norm() / whole.norm()))
        shares += reports[0].norm(dim=-1).mean(-1).tolist()
    return {"gap": max(gaps), "average": min(averages), "loudest": max(shares) / min(shares), "shares": shares}


def judge(runs: Runs) -> Verdict:
    says = (f"逐头相加与模型差 {runs.high('gap'):.1g}；换成平均则差 {runs.low('average'):.0%} 以上",
            f"the sum over heads is {runs.high('gap'):.1g} from the model; an average in its place is wrong by "
            f"{runs.low('average'):.0%} or more")  # fmt: skip
    shown = runs.high("gap") < 1e-9 and runs.low("average") > 0.05
    return runs.verdict("shown" if shown else "refuted", "average", says)


def plot(runs: Runs) -> Plot:
    shares = runs.curve("shares")
    names = [f"L{i // 4} h{i % 4}" for i in range(len(shares))]
    return Plot("bars", ("每个头写进残差流的向量有多长", "how long a vector each head writes into the residual stream"), names,
                {"norm": shares}, y_label=("长度", "length"))  # fmt: skip


LAB = Lab(
    "exact",
    ("拼接加 W_O 不是求平均：它是每个头各自的报告之和。",
     "Concatenating and W_O do not average the heads: they add up what each head reports."),
    ("有的文章说“平均”或“融合各头的意见”，也有的说不是。", "Some texts say that the heads are averaged, some that they are not."),
    ("demo 的编码器：W_O 按头切开，Σ head_i · W_O[i] 与模型输出之差；把各头的 W_O 换成平均后的相对误差。",
     "demo's encoder: W_O cut by heads, Σ head_i · W_O[i] against the model; the relative error with the mean of the W_O[i]."),
    ("等式约 1e-15（fp64）；平均的误差明显大于 0 才算不同。", "Equality is about 1e-15 (fp64); an average must be wrong by a lot."),
    ("和：相等。平均：不相等，误差大。各头的声音大小不同。", "The sum: equal. An average: far off. Heads speak with different force."),
    {"gap": ("逐头相加与模型之差", "sum over heads, against the model"),
     "average": ("用平均代替：相对误差", "an average instead: relative error"),
     "loudest": ("最响与最轻的头之比", "loudest head over quietest")},
    run, judge, plot,
)  # fmt: skip
