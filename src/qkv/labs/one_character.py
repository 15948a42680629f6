"""What becomes of 小's row in training? Its path, those of rare characters, and whether neighbours come to mean alike."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import random
from collections import Counter

import torch
from torch import Tensor

import qkv
from qkv.data.corpus import load_corpus
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, encode_texts, fit
from qkv.messages import Message

ONE, EVERY, FEW = "小", 50, 30
KINDS = ("两三四五六七八几", "我你他她", "本张辆件朵块杯瓶碗架棵支", "看吃喝买卖修洗写读喂借租", "猫狗鸟羊马牛兔鸡鸭猴")  # numbers, pronouns, measures, verbs, animals


class Path:
    """What a model's table of embeddings was after each step, seen through the batches that it asks for."""

    def __init__(self, model: qkv.Model, texts: list[str], letters: list[str], seed: int) -> None:
        self.table, self.texts, self.letters = model.core.embed.weight, texts, letters
        self.luck, self.kept, self.before = random.Random(seed), list[Tensor](), self.copy_table()
        self.met, self.ever = torch.zeros(len(letters), dtype=torch.bool), torch.zeros(len(letters), dtype=torch.bool)
        self.absent, self.moved = 0, 0

    def copy_table(self) -> Tensor:
        """The table now, copied."""
        return self.table.detach().clone()

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The next texts; on the way, count the rows that the step before moved though it did not meet them."""
        now = self.copy_table()
        if step:
            changed, away = (now != self.before).any(-1), self.ever & ~self.met
            self.absent, self.moved = self.absent + int(away.sum()), self.moved + int((changed & away).sum())
        if step % EVERY == 0:
            self.kept.append(now)
        ids, after = encode_texts([" ".join(self.luck.choice(self.texts)) for _ in range(24)], self.letters)
        self.before, self.met = now, torch.bincount(ids.flatten(), minlength=len(self.letters)) > 0
        self.ever = self.ever | self.met
        return ids, after


def measure_likeness(table: Tensor, letters: list[str]) -> float:
    """The share of characters of the five kinds whose nearest other among them is of their own kind."""
    kind = [n for n, group in enumerate(KINDS) for c in group if c in letters]
    rows = torch.nn.functional.normalize(table[[letters.index(c) for group in KINDS for c in group if c in letters]], dim=-1)
    near = (rows @ rows.T).fill_diagonal_(-torch.inf).argmax(-1).tolist()
    return sum(kind[n] == kind[i] for i, n in enumerate(near)) / len(kind)


def run(seed: int, *, steps: int = 400, tell: Tell = ignore) -> Numbers:
    texts = [pair.zh for pair in load_corpus().small]
    counts = Counter(c for text in texts for c in text)
    letters = ["␀", *sorted(counts)]  # one that never comes, and stands for padding
    model = Tiny(layers=1, width=32, vocabulary=len(letters)).model(seed, torch.float32)
    path = Path(model, texts, letters, seed)
    fit(model, path.batch, steps=steps, lr=3e-3, tell=tell)
    tables = torch.stack([*path.kept, path.copy_table()])  # S V D
    gone = (tables - tables[0]).norm(dim=-1)  # S V
    common = [letters.index(c) for c, _ in counts.most_common()]
    rare, often = common[-FEW:], common[:FEW]
    ranks = gone[-1, common].argsort().argsort().double()  # by distance; `common` is by count already
    order = torch.arange(len(common) - 1, -1, -1, dtype=torch.float64)
    last = tables[-1][letters.index(ONE)]
    near = torch.cosine_similarity(tables[-1], last[None], dim=-1).topk(6).indices.tolist()[1:]
    tell(f"{ONE}: {' '.join(letters[i] for i in near)}")
    ways = {"one": gone[:, letters.index(ONE)].tolist(), "often": gone[:, often].mean(1).tolist(), "rare": gone[:, rare].mean(1).tolist()}
    return {
        **{way: far[-1] for way, far in ways.items()}, "rank": float(torch.corrcoef(torch.stack((ranks, order)))[0, 1]),
        "alike_first": measure_likeness(tables[0], letters), "alike_last": measure_likeness(tables[-1], letters),
        "idle": path.moved / max(1, path.absent), **{f"path_{way}": far for way, far in ways.items()},
    }


def judge(runs: Runs) -> Verdict:
    says = Message("nearest character of the same kind: {alike_first:.2f} before, {alike_last:.2f} after; 小 moved "
                   "{one:.2f}, the {few} rarest {rare:.2f}; of the characters that a step did not meet, {idle:.0%} of "
                   "rows moved all the same", alike_first=runs.mean("alike_first"), alike_last=runs.mean("alike_last"),
                   one=runs.mean("one"), few=FEW, rare=runs.mean("rare"), idle=runs.mean("idle"))
    if runs.min("alike_last") < runs.max("alike_first") + 0.2:
        return runs.verdict("not shown", "alike_last", says)
    met_only = runs.max("idle") < 0.01
    return runs.verdict("shown" if met_only and runs.min("rare") > 0.5 * runs.max("often") else "true only when", "alike_last", says)


def plot(runs: Runs) -> Plot:
    paths = {way: runs.curve(f"path_{way}") for way in ("one", "often", "rare")}
    return Plot("lines", Message("how far a row of the table is from its start"),
                [float(EVERY * i) for i in range(len(paths["one"]))], paths, Message("step"), Message(
                    "distance"))


LAB = Lab(
    "trained",
    Message("The row of “小” begins as random numbers, is updated each time it is met, and comes to mean "
            "something."),
    Message("An essay on embeddings; Bengio et al. 2003."),
    Message("A causal model of one layer reads 2000 sentences of the bundled corpus; whether the nearest of five "
            "kinds (numbers, pronouns, measures, verbs, animals) is of its own kind; how far each row goes; whether "
            "rows move that were not met."),
    Message("Chance about 0.2; baseline: before training. The optimiser is AdamW."),
    Message("The same kind from 0.2 to over 0.6; common rows go much further than rare ones; AdamW has momentum and "
            "decay, so rows move without being met."),
    {"alike_first": Message("nearest is of its kind: before"), "alike_last": Message("the same, after"),
     "one": Message("moved: “小”"), "often": Message("moved: the {few} most common", few=FEW), "rare": Message(
         "moved: the {few} rarest", few=FEW),
     "rank": Message("rank correlation of count and distance"), "idle": Message(
         "moved without being met")},
    run, judge, plot, steps=400, enough=200, seeds=3,
)
