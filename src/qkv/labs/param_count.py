"""Where do the parameters of a Transformer lie? Count the built models, and set the published numbers beside them."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

from qkv.cost import count
from qkv.hub import spec_of
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny

GPT2 = {"124m": (117, 124.4), "355m": (345, 354.8), "774m": (762, 774.0), "1.5b": (1542, 1557.6)}  # printed, true (M)
STATED = 12_582_912  # 4 x 512 x 512 x 12


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    twelve = count(Tiny(layers=12, width=512, heads=8, norm="none", positions="none", head="tied").spec)
    paper = spec_of("marian").encoder
    assert paper is not None
    by_heads = [count(Tiny(width=64, heads=h).spec).parameters for h in (1, 2, 4, 8)]
    found: dict[str, float | list[float]] = {
        "attention": float(twelve.by_part["attention"]), "ffn": float(twelve.by_part["ffn"]),
        "share": twelve.by_part["attention"] / (twelve.by_part["attention"] + twelve.by_part["ffn"]),
        "with_biases": float(twelve.by_part["attention"] + 12 * 4 * 512),
        "heads_spread": float(max(by_heads) - min(by_heads)), "paper_layers": float(len(paper.blocks)),
    }  # fmt: skip
    built = {size: count(spec_of(f"gpt2:{size}")).parameters / 1e6 for size in GPT2}
    gpt3 = count(spec_of("gpt3:175b"))
    found |= {f"gpt2_{n}": millions for n, millions in built.items()}
    layer = gpt3.by_part["attention"] + gpt3.by_part["ffn"]
    return found | {
        "gap": max(abs(built[n] / true - 1) for n, (_, true) in GPT2.items()),
        "printed_gap": max(true / printed - 1 for printed, true in GPT2.values()),
        "gpt3_layer": layer / 96 / 1e9,
    }


def judge(runs: Runs) -> Verdict:
    says = (f"4×512×512×12 = {runs.mean('attention'):,.0f}，但只是注意力：占各层的 {runs.mean('share'):.0%}；"
            f"GPT-2 四种大小与公开权重差 {runs.high('gap'):.1%}，论文印的数小 {runs.high('printed_gap'):.0%}",
            f"4 x 512 x 512 x 12 = {runs.mean('attention'):,.0f}, which is attention alone: {runs.mean('share'):.0%} of the "
            f"layers; GPT-2's four sizes are {runs.high('gap'):.1%} from the released ones, the paper printed "
            f"{runs.high('printed_gap'):.0%} less")  # fmt: skip
    right = runs.mean("attention") == STATED and runs.high("gap") < 0.01 and runs.high("heads_spread") == 0
    return runs.verdict("true only when" if right and runs.mean("share") < 0.5 else "refuted", "share", says)


def plot(runs: Runs) -> Plot:
    return Plot("bars", ("GPT-2 的参数（百万）", "GPT-2's parameters (millions)"), list(GPT2),
                {"built": [runs.mean(f"gpt2_{n}") for n in GPT2], "printed": [float(p) for p, _ in GPT2.values()]},
                y_label=("百万", "millions"))  # fmt: skip


LAB = Lab(
    "exact",
    ("12 层、每层四个 512×512 的矩阵：模型约有 1260 万参数。",
     "Twelve layers with four matrices of 512 x 512 each: the model has about 12.6 million parameters."),
    ("算参数量的课程；也有把 GPT-2 small 写成 1.5 亿的。", "Courses that count parameters; some give GPT-2 small 150 million."),
    ("建好的模型逐张量数：注意力、前馈；头数 1、2、4、8；GPT-2 四种大小与公开权重。",
     "Built models, counted tensor by tensor: attention, feed-forward; 1, 2, 4, 8 heads; GPT-2's four sizes against the "
     "released weights."),
    ("公开权重：124、355、774、1558 百万；论文印 117、345、762、1542。",
     "Released: 124, 355, 774, 1558 million; printed in the paper: 117, 345, 762, 1542."),
    ("12,582,912，但前馈是它的两倍；头数不改变参数；GPT-2 差不到 1%。",
     "12,582,912, but the feed-forward has twice as many; heads change nothing; GPT-2 within 1 %."),
    {"attention": ("12 层的注意力参数", "attention, 12 layers"), "with_biases": ("加上偏置", "with biases"),
     "ffn": ("12 层的前馈参数", "feed-forward, 12 layers"), "share": ("注意力的份额", "attention's share"),
     "heads_spread": ("1、2、4、8 头之差", "1, 2, 4, 8 heads: difference"),
     "gap": ("GPT-2 与公开权重之差", "GPT-2, from the released weights"), "printed_gap": ("论文印的数小多少", "the paper's numbers, below them by"),
     "gpt3_layer": ("GPT-3 一层（十亿）", "a layer of GPT-3 (billions)"), "paper_layers": ("原论文编码器层数", "layers of the paper's encoder")},
    run, judge, plot,
)  # fmt: skip
