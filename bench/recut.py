"""Cutting Multi30k's words anew in each epoch (BPE dropout) takes a small part of what the epoch's training takes.

The recipe multi30k_longer with dropout 0 and 0.1: CPU seconds of an epoch's cuts, and of its steps (a few stand for
all), how much longer texts become, and how many more pieces the vocabulary holds.
"""

import time
from functools import partial

from harness import in_turn, middle, options, summary, write
from variants import configure

STEPS = 12  # of each run in a round


def main() -> None:
    """Both runs in turn; CPU time, as other work on the machine does not count in it."""
    given = options(__doc__ or "")
    import torch

    from qkv.training import assemble
    from qkv.training.loop import Loop

    torch.set_num_threads(given.threads)
    ready, found, epochs = {}, {}, {"usual": iter(range(1, 99)), "dropout": iter(range(1, 99))}
    for name, share in (("usual", 0.0), ("dropout", 0.1)):
        words = [f"tokenizer.bpe_dropout={share}", "training.precision=fp32"]
        a = assemble.assemble(configure("multi30k_longer", words, smoke=given.smoke), device="cpu")
        run = Loop(a.model.core, a.plan, a.run.training, None, None, lambda _: None)
        run.open(False)
        ready[name] = (a, run)

    def cuts(name: str) -> float:
        start = time.process_time()
        ready[name][0].plan.order(next(epochs[name]))
        return time.process_time() - start

    def steps(name: str) -> float:
        run, start = ready[name][1], time.process_time()
        for number in range(STEPS):
            run.at.done = number * len(run.order) // STEPS
            run.step()
        return (time.process_time() - start) / STEPS * len(run.order)

    tasks = {f"{f.__name__} {name}": partial(f, name) for f in (cuts, steps) for name in ready}
    rounds = in_turn(tasks, given.rounds)
    spent = {name: [seconds for _, seconds in each] for name, each in rounds.items()}
    for name, (a, run) in ready.items():
        batches = [a.plan.make(key) for key in a.plan.order(0)]
        found[name] = {
            "vocabulary": len(a.model.tokenizer or ()), "pairs": sum(len(b.target) for b in batches),
            "target_tokens": sum(b.tokens for b in batches), "steps_an_epoch": len(run.order),
            "cpu_seconds_of_cuts": summary(spent[f"cuts {name}"], 2),
            "cpu_seconds_of_steps": summary(spent[f"steps {name}"], 1),
        }  # fmt: skip
    dropped = found["dropout"]
    ratio = middle([c / s for c, s in zip(spent["cuts dropout"], spent["steps dropout"], strict=True)])
    speed = dropped["pairs"] / dropped["cpu_seconds_of_cuts"]["median"]
    write("recut", __doc__ or "", given, **found, cuts_by_steps=round(ratio, 3), pairs_a_second=round(speed))


if __name__ == "__main__":
    main()
