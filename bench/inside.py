"""All attention maps of GPT-2 (124M shape) at hand, in less memory and time than the peers take (goals: 5 and 3 times).

Each competitor runs in a process of its own: the model is made, warmed up on 16 tokens, and then the text is read once;
what counts is the time of that reading until every map can be looked at, and how far the memory rose meanwhile. qkv
keeps q and k and rebuilds a map when it is looked at (`one_map_ms`, `one_row_ms`); the peers keep every weight. Nobody
asked for logits: `stop=True` ends our pass at the last k, and transformers and TransformerLens make one row of them
(`logits_to_keep=1`; TransformerLens's `stop_at_layer` would leave out the last layer's map). Rows with all logits stand
beside. `held_megabytes` is the same rise where every block of 1 MB or more has pages of its own, for all: the holes
that the C library's heap happens to have (a fifth of `megabytes`, and other ones in each run) are not in it.

The peers need a virtual environment of their own: `pip install -c constraints.txt transformer_lens ipython` and `pip
install --no-deps bertviz` beside the project. A process gets --gigabytes at most; BertViz at 1,024 tokens wants more.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import in_turn, limits, middle, options, summary, write

LENGTHS = (512, 1024)
LEAN, FULL = ("qkv", "transformers eager", "transformer_lens"), " with logits"
WHO = (*LEAN, *(who + FULL for who in LEAN), "qkv bf16", "bertviz")
SHAPES = {"small": (3, 96, 3), "full": (12, 768, 12)}  # layers, width, heads
APART = {"MALLOC_MMAP_THRESHOLD_": "1000000"}


def main() -> None:
    """All of them in turn, at both lengths; then the memory of a 0.5B shape in bf16."""
    if len(sys.argv) > 2 and sys.argv[1] == "--child":
        print(json.dumps(child(*sys.argv[2:])))
        return
    given = options(__doc__ or "", gigabytes=(12.0, "memory that one process may take"))
    lengths = (32,) if given.smoke else LENGTHS
    with tempfile.TemporaryDirectory() as folder:
        made = asked(folder, "weights", 0, given)
        if "error" in made:
            raise SystemExit(f"transformers is needed to make the weights: {made['error']}")
        found = {length: compared(folder, length, given) for length in lengths}
        big = asked(folder, "half a billion", 64 if given.smoke else 1024, given)
    peak = limits(given.smoke)["fp32_flops"]
    least = {length: round(products(length, given) / peak, 4) for length in lengths}
    write("inside", __doc__ or "", given, by_length=found, half_a_billion_bf16=big,
          goals={"memory": "peer / ours >= 5", "time": "peer / ours >= 3", "0.5B": "<= 60 MB, a row <= 50 ms"},
          limit={"fp32_flops": peak, "seconds_of_the_products_up_to_the_last_k": least})  # fmt: skip


def products(tokens: int, given: Any) -> float:
    """The operations of the matrix products without which the last layer's q and k cannot be."""
    layers, width, _ = SHAPES["small" if given.smoke else "full"]
    whole = 12 * width**2 + tokens * width  # multiplications a token: the weights', and half of q kᵀ and p v
    return 2 * tokens * ((layers - 1) * whole + 2 * width**2)


def compared(folder: str, length: int, given: Any) -> dict[str, Any]:
    """Medians of each, and the peers over ours: as each is used best, and all with every logit."""
    failed: dict[str, Any] = {}

    def turn(who: str, **env: str) -> dict[str, Any]:
        found = failed.get(who) or asked(folder, who, length, given, **env)
        return failed.setdefault(who, found) if "error" in found else found

    rows = in_turn({who: lambda who=who: turn(who) for who in WHO}, given.rounds, warm=False)
    table: dict[str, Any] = {}
    for who, turns in rows.items():
        results, apart = [r for _, r in turns], turn(who, **APART)
        if who in failed:
            table[who] = {"not measured": failed[who]["error"]}
            continue
        table[who] = {key: summary([r[key] for r in results], 4) for key in results[0]}
        table[who]["held_megabytes"] = {"median": apart["megabytes"]}
    keys, there = ("seconds", "cpu_seconds", "megabytes", "held_megabytes"), [w for w in WHO if w not in failed]

    def over(who: str, ours: str) -> dict[str, float]:
        return {key: round(table[who][key]["median"] / max(table[ours][key]["median"], 1e-9), 2) for key in keys}

    alike = {who: over(who, "qkv" + FULL) for who in there if who.endswith(FULL)}
    return {"measured": table, "over_ours": {who: over(who, "qkv") for who in there}, "over_ours_with_logits": alike}


def asked(folder: str, who: str, length: int, given: Any, **env: str) -> dict[str, Any]:
    """What one competitor measures in a process of its own."""
    small = "small" if given.smoke else "full"
    command = [sys.executable, __file__, "--child", who, folder, str(length), str(given.threads), small]
    most = int(given.gigabytes * 1e9)
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | env,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most)))  # fmt: skip
    if done.returncode:
        lines = [x for x in done.stderr.strip().splitlines() if "%|" not in x]  # no progress bars
        return {"error": (lines or [f"ended with code {done.returncode}"])[-1][:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def child(who: str, folder: str, length: str, threads: str, small: str) -> dict[str, Any]:
    """Make the model, warm it up, read the text once, and say what that took."""
    import torch

    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    if who == "weights":
        return made(folder, small)
    if who == "half a billion":
        return half_a_billion(int(length), small)
    makes = {"qkv": ours, "transformers eager": eager, "transformer_lens": lens, "bertviz": bertviz}
    name, whole = who.removesuffix(FULL).removesuffix(" bf16"), who.endswith(FULL)
    read, look = ours(folder, whole, "bf16") if who.endswith(" bf16") else makes[name](folder, whole)
    ids = torch.randint(0, 1000, (1, int(length)))
    with torch.inference_mode():
        read(ids[:, :16])
        return {**taken(lambda: read(ids)), **look()}


def taken(do: Callable[[], object]) -> dict[str, float]:
    """Seconds, and how far the highest memory of the process rose above where it stood, in MB."""
    import ctypes
    import time

    ctypes.CDLL(None).malloc_trim(0)  # what loading freed is not there to be taken for nothing
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, worked, start = memory("VmRSS"), time.process_time(), time.perf_counter()
    kept = do()
    spent, worked = time.perf_counter() - start, time.process_time() - worked
    high = memory("VmHWM")
    del kept
    return {"seconds": round(spent, 4), "cpu_seconds": round(worked, 4), "megabytes": round(high - before, 1),
            "process_megabytes": high}  # fmt: skip


def memory(what: str) -> float:
    """A line of the kernel's account of this process, in MB."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(what))
    return int(line.split()[1]) / 1000


def made(folder: str, small: str) -> dict[str, Any]:
    """Random weights of the shape that everybody loads."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads = SHAPES[small]
    GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads)).save_pretrained(folder)
    return {}


def ours(folder: str, whole: bool, dtype: str = "fp32") -> tuple[Any, Any]:
    """q and k kept while the fast kernels run; a map and a row rebuilt when asked."""
    import torch

    import qkv

    model, last = qkv.load(folder, device="cpu", dtype=dtype), dict[str, Any]()

    def read(ids: Any) -> Any:
        with model.trace(save=["*.attn.pattern"], stop=not whole) as t:
            model(ids)
        last["t"], last["ids"] = t, ids
        return t

    def look() -> dict[str, float]:
        t, ids = last["t"], last["ids"]
        path, query = "layers.1.attn", ids.shape[1] - 1
        row, whole = lambda: t.row(path, 2, query), lambda: t[f"{path}.pattern"]
        ways = {"map": whole, "row": row, "forward": lambda: model(ids)}
        times = in_turn(ways, 5)
        assert torch.allclose(t.row(path, 2, query), t[f"{path}.pattern"][0, 2, query], atol=1e-6)
        return {f"one_{k}_ms" if k != "forward" else "forward_ms": 1000 * middle([s for s, _ in v])
                for k, v in times.items()}  # fmt: skip

    return read, look


def eager(folder: str, whole: bool) -> tuple[Any, Any]:
    """transformers' own way: eager attention that gives its weights out."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
    how: dict[str, Any] = {} if whole else {"logits_to_keep": 1, "use_cache": False}
    return lambda ids: model(ids, output_attentions=True, **how), dict


def lens(folder: str, whole: bool) -> tuple[Any, Any]:
    """TransformerLens: the patterns alone, as its documentation advises for memory."""
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(folder, device="cpu")
    how: dict[str, Any] = {} if whole else {"logits_to_keep": 1}
    return lambda ids: model.run_with_cache(ids, names_filter=lambda n: n.endswith("hook_pattern"), **how), dict


def bertviz(folder: str, whole: bool) -> tuple[Any, Any]:
    """BertViz: the weights as the page that shows them."""
    from bertviz import model_view

    run, look = eager(folder, whole)

    def read(ids: Any) -> Any:
        return run(ids).attentions

    return lambda ids: model_view(read(ids), [str(i) for i in ids[0].tolist()], html_action="return").data, look


def half_a_billion(tokens: int, small: str) -> dict[str, Any]:
    """What stays in memory of 24 layers of 14 heads on 2, in bf16; how long a row takes; how near the plan was."""
    import torch

    import qkv
    from qkv.hub import spec_of

    spec = spec_of("qwen2:0.5b")
    if small == "small":
        from dataclasses import replace

        spec = replace(spec, vocabulary=512, decoder=replace(spec.decoder, blocks=spec.decoder.blocks[:2]))
    model = qkv.build(spec)
    model.core.bfloat16().eval()
    ids = torch.randint(0, 500, (1, tokens))
    with torch.inference_mode():
        with model.trace(save=["*.attn.pattern"]) as t:
            model.core.hidden(ids)
        held = sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
                    for r in t.runs for c in r.calls for x in c.taps.values()}.values())  # fmt: skip
        rows = in_turn({"row": lambda: t.row("layers.1.attn", 2, tokens - 1)}, 5)["row"]
    planned = t.plan(tokens).bytes
    return {"megabytes": held / 1e6, "planned_megabytes": planned / 1e6, "over_plan": round(held / planned, 4),
            "one_row_ms": 1000 * middle([s for s, _ in rows]), "all_maps_would_be_megabytes":
            len(spec.decoder.blocks) * spec.decoder.blocks[0].attn.heads * tokens**2 * 2 / 1e6}  # fmt: skip


if __name__ == "__main__":
    main()
