"""Is W_O an average over heads? Split it by heads, add up each head's own report; then put an average in its place."""


import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import load_fp64
from qkv.messages import Message

TEXTS = ("书和茶都在桌上，我喝完了它。", "我爱学习。", "苹果发布了新手机。")


@torch.no_grad()
def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    model = load_fp64("demo")
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
    says = Message("the sum over heads is {gap:.1g} from the model; an average in its place is wrong by {average:.0%} "
                   "or more", gap=runs.max("gap"), average=runs.min("average"))
    shown = runs.max("gap") < 1e-9 and runs.min("average") > 0.05
    return runs.verdict("shown" if shown else "refuted", "average", says)


def plot(runs: Runs) -> Plot:
    shares = runs.curve("shares")
    names = [f"L{i // 4} h{i % 4}" for i in range(len(shares))]
    return Plot("bars", Message("how long a vector each head writes into the residual stream"), names,
                {"norm": shares}, y_label=Message("length"))


LAB = Lab(
    "exact",
    Message("Concatenating and W_O do not average the heads: they add up what each head reports."),
    Message("Some texts say that the heads are averaged, some that they are not."),
    Message("demo's encoder: W_O cut by heads, Σ head_i · W_O[i] against the model; the relative error with the mean "
            "of the W_O[i]."),
    Message("Equality is about 1e-15 (fp64); an average must be wrong by a lot."),
    Message("The sum: equal. An average: far off. Heads speak with different force."),
    {"gap": Message("sum over heads, against the model"),
     "average": Message("an average instead: relative error"),
     "loudest": Message("loudest head over quietest")},
    run, judge, plot,
)
