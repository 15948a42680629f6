"""Does 它 find its noun by looking at it? The verb is swapped, every edge is cut in turn, and the trained demo answers."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

from collections.abc import Mapping

import qkv
from qkv.data.corpus import load_corpus
from qkv.labs.antecedent import IT, Edge, Half, Proof, check_nouns, last_noun, measure, moving, two
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.messages import Message

__all__ = ["IT", "LAB", "Edge", "Half", "Proof", "last_noun", "measure", "moving", "check_nouns", "two"]

PAIRS = 60  # of the 400 held-out ones; each seed takes others


def run(seed: int, *, steps: int = PAIRS, tell: Tell = ignore) -> Numbers:
    data = load_corpus()
    first = seed * steps % len(data.swaps)
    swaps = (*data.swaps, *data.swaps)[first : first + steps]
    proof = measure(qkv.load("demo", device="cpu", dtype="fp32"), swaps)
    shares: Mapping[str, float] = {f"points_{query}": share for query, share in proof.edge_moves.items()}
    cuts: Mapping[str, float] = {f"cut_{way}": share for way, share in proof.severed.items()}
    return {
        "flips": proof.flip_rate, "right": proof.noun_accuracy, **shares, **cuts, "cut_effect": proof.cut_effect,
        "head_before": proof.before, "head_after": proof.after,
    }


def judge(runs: Runs) -> Verdict:
    it, verb, written = (runs.mean(f"points_{q}") for q in ("it", "verb", "written"))
    says = Message("with the verb the noun flips in {flips:.0%}. The edge that matters most points at the noun meant: "
                   "from 它 {it:.0%}, from the verb {verb:.0%}, from the word being written {written:.0%}; with the "
                   "last two cut {cut_both:.0%} of nouns are right (control {cut_control:.0%})",
                   flips=runs.mean("flips"), it=it, verb=verb, written=written, cut_both=runs.mean("cut_both"),
                   cut_control=runs.mean("cut_control"))
    causal = runs.min("flips") > 0.9 and runs.min("cut_control") - runs.max("cut_both") > 0.2
    if not causal:
        return runs.verdict("not shown", "cut_effect", says)
    return runs.verdict("shown" if it > 0.9 else "true only when", "cut_effect", says)


CUTS = {"nothing": Message("nothing cut"), "verb": Message("the verb's edge"), "both": Message("both"),
        "written": Message("the written word's"), "control": Message("both, to the other noun")}


def plot(runs: Runs) -> Plot:
    bars = [f"cut_{way}" for way in CUTS]
    return Plot("bars", Message("nouns still right with edges to the noun meant cut"), bars,
                {"right": [runs.mean(bar) for bar in bars]}, y_label=Message("share right"))


LAB = Lab(
    "trained",
    Message("“The book and the tea are on the table, I finished drinking it”: 它 finds its noun by attention."),
    Message("Nearly every text that explains self-attention by “it”, most with a picture of weights."),
    Message("demo on minimal pairs that training never saw: does the noun flip with the verb; each edge cut in turn, "
            "watching the English noun; how many nouns stay right with whole kinds of edges cut."),
    Message("Two nouns, so chance is 50 %; control: the same edges to the other noun."),
    Message("Flips in 90 % or more; cut edges bring it near chance, the control does not. From which word the edge "
            "runs is open."),
    {"flips": Message("noun flips with the verb"), "points_it": Message("edge points at the noun: from 它"),
     "points_verb": Message("the same, from the verb"), "points_written": Message(
         "the same, from the word written"),
     **{f"cut_{way}": Message("nouns right: {text}", text=text) for way, text in CUTS.items()},
     "head_before": Message("before silencing the head needed most"), "head_after": Message("after")},
    run, judge, plot, steps=PAIRS, enough=20, seeds=3,
)
