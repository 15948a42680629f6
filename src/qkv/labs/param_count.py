"""Where do the parameters of a Transformer lie? Count the built models, and set the published numbers beside them."""


from qkv.cost import count
from qkv.hub import spec_of
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny
from qkv.messages import Message

GPT2 = {"124m": (117, 124.4), "355m": (345, 354.8), "774m": (762, 774.0), "1.5b": (1542, 1557.6)}  # printed, true (M)
STATED = 12_582_912  # 4 x 512 x 512 x 12


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    twelve = count(Tiny(layers=12, width=512, heads=8, norm="none", positions="none", head="tied").spec)
    paper = spec_of("marian").encoder
    assert paper is not None
    by_heads = [count(Tiny(width=64, heads=h).spec).parameters for h in (1, 2, 4, 8)]
    found: dict[str, float | list[float]] = {
        "attention": float(twelve.by_part["attention"]), "ffn": float(twelve.by_part["ffn"]),
        "share": twelve.by_part["attention"] / (twelve.by_part["attention"] + twelve.by_part["ffn"]),
        "with_biases": float(twelve.by_part["attention"] + 12 * 4 * 512),
        "heads_spread": float(max(by_heads) - min(by_heads)), "paper_layers": float(len(paper.blocks)),
    }
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
    says = Message("4 x 512 x 512 x 12 = {attention:,.0f}, which is attention alone: {share:.0%} of the layers; "
                   "GPT-2's four sizes are {gap:.1%} from the released ones, the paper printed {printed_gap:.0%} less",
                   attention=runs.mean("attention"), share=runs.mean("share"), gap=runs.max("gap"),
                   printed_gap=runs.max("printed_gap"))
    right = runs.mean("attention") == STATED and runs.max("gap") < 0.01 and runs.max("heads_spread") == 0
    return runs.verdict("true only when" if right and runs.mean("share") < 0.5 else "refuted", "share", says)


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("GPT-2's parameters (millions)"), list(GPT2),
                {"built": [runs.mean(f"gpt2_{n}") for n in GPT2], "printed": [float(p) for p, _ in GPT2.values()]},
                y_label=Message("millions"))


LAB = Lab(
    "exact",
    Message("Twelve layers with four matrices of 512 x 512 each: the model has about 12.6 million "
            "parameters."),
    Message("Courses that count parameters; some give GPT-2 small 150 million."),
    Message("Built models, counted tensor by tensor: attention, feed-forward; 1, 2, 4, 8 heads; GPT-2's four sizes "
            "against the released weights."),
    Message("Released: 124, 355, 774, 1558 million; printed in the paper: 117, 345, 762, 1542."),
    Message("12,582,912, but the feed-forward has twice as many; heads change nothing; GPT-2 within 1 %."),
    {"attention": Message("attention, 12 layers"), "with_biases": Message("with biases"),
     "ffn": Message("feed-forward, 12 layers"), "share": Message("attention's share"),
     "heads_spread": Message("1, 2, 4, 8 heads: difference"),
     "gap": Message("GPT-2, from the released weights"), "printed_gap": Message(
         "the paper's numbers, below them by"),
     "gpt3_layer": Message("a layer of GPT-3 (billions)"), "paper_layers": Message(
         "layers of the paper's encoder")},
    run, judge, plot,
)
