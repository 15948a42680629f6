"""Does thinking aloud help because the written token is the only way down? Compose 12 permutations, three ways."""


from itertools import permutations

import torch
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, fit, guesses
from qkv.messages import Message

COUNT, SIX, ASK, DOT = 12, 6, 6, 7  # permutations in a row, permutations there are, the question, a filler
ARMS = ("direct", "not_fed_back", "aloud")


def compose() -> Tensor:
    """The table of S3: row a, column b: a after b."""
    all_six = list(permutations(range(3)))
    return torch.tensor([[all_six.index(tuple(a[b[i]] for i in range(3))) for b in all_six] for a in all_six])


def draw_products(seed: int, rows: int, count: int = COUNT) -> tuple[Tensor, Tensor]:
    """Permutations [B, N], and what each beginning of them amounts to [B, N]."""
    ids, table = torch.randint(0, SIX, (rows, count), generator=torch.Generator().manual_seed(seed)), compose()
    found = [ids[:, 0]]
    for i in range(1, count):
        found.append(table[ids[:, i], found[-1]])
    return ids, torch.stack(found, 1)


def example(arm: str, ids: Tensor, so_far: Tensor) -> tuple[Tensor, Tensor]:
    """What an arm reads and what it is asked: the answer alone, all steps over fillers, or all steps over its own."""
    ask = torch.full((len(ids), 1), ASK)
    none = torch.full_like(ids, -100)
    if arm == "direct":
        return torch.cat((ids, ask), 1), torch.cat((none, so_far[:, -1:]), 1)
    between = torch.full_like(ids[:, 1:], DOT) if arm == "not_fed_back" else so_far[:, :-1]
    return torch.cat((ids, ask, between), 1), torch.cat((none, so_far), 1)


@torch.no_grad()
def write_products(model: qkv.Model, ids: Tensor) -> Tensor:
    """The products that a model writes after its question [B, N], each read before the next is written."""
    read = torch.cat((ids, torch.full((len(ids), 1), ASK)), 1)
    for _ in range(ids.shape[1]):
        read = torch.cat((read, guesses(model, read)[:, -1:].argmax(-1)), 1)
    return read[:, ids.shape[1] + 1 :]


@torch.no_grad()
def measure_accuracy(model: qkv.Model, arm: str, seed: int) -> float:
    """The share of final answers that are right; aloud, each step is the model's own."""
    ids, so_far = draw_products(seed, 500)
    said = write_products(model, ids) if arm == "aloud" else guesses(model, example(arm, ids, so_far)[0]).argmax(-1)
    return float((said[:, -1] == so_far[:, -1]).double().mean())


def run(seed: int, *, steps: int = 800, tell: Tell = ignore) -> Numbers:
    found: dict[str, float] = {}
    for arm in ARMS:
        model = Tiny(layers=2, vocabulary=8, context=2 * COUNT + 1).model(seed, torch.float32)
        fit(model, lambda step, arm=arm: example(arm, *draw_products(seed * 10**6 + step, 32)), steps=steps, lr=4e-3,
            tell=lambda said, arm=arm: tell(f"{arm}: {said}"))
        found[arm] = measure_accuracy(model, arm, -1 - seed)
    return found


def judge(runs: Runs) -> Verdict:
    aloud, others = runs.min("aloud"), max(runs.max("direct"), runs.max("not_fed_back"))
    says = Message("aloud {aloud:.2f}; the same steps and length, not fed back {not_fed_back:.2f}; direct "
                   "{direct:.2f} (chance 0.17)", aloud=runs.mean("aloud"), not_fed_back=runs.mean("not_fed_back"),
                   direct=runs.mean("direct"))
    word = "shown" if aloud >= 0.95 and others <= 0.35 else "true only when" if aloud > others + 0.2 else "not shown"
    return runs.verdict(word, "aloud", says)


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("12 permutations composed: final answers right"), ARMS,
                {"accuracy": [runs.mean(arm) for arm in ARMS]}, y_label=Message("accuracy"))


LAB = Lab(
    "trained",
    Message("Thinking aloud helps because the written token is the only way for a result to come down."),
    Message("A book on prompts; Feng et al. 2023 and Li et al. 2024 prove the serial side of it."),
    Message("A model of two layers composes 12 permutations of three things. Three arms: direct; the same length and "
            "labels over fillers; the same over the steps it wrote itself."),
    Message("Chance 1/6 = 0.17; the middle arm rules out that it is only more supervision or more computing; what "
            "more layers make up for is measured by cot-depth."),
    Message("Aloud at least 0.95, the other two at most 0.35."),
    {"direct": Message("direct"), "not_fed_back": Message("not fed back"), "aloud": Message("aloud")},
    run, judge, plot, steps=800, enough=400, seeds=3,
)
