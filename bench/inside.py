"""All attention maps of GPT-2 (124M shape) at hand, in less memory and time than the peers take (goals: 5 and 3 times).

Each competitor runs in a process of its own: the model is made, warmed up on 16 tokens, and then the text is read once;
what counts is the time of that reading until every map can be looked at, and how far the memory rose meanwhile. qkv
keeps q and k and rebuilds a map when it is looked at (`one_map_ms`, `one_row_ms`); the peers keep every weight.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import in_turn, middle, options, summary, write

LENGTHS = (512, 1024)
WHO = ("qkv", "transformers eager", "transformer_lens", "bertviz")


def main() -> None:
    """All of them in turn, at both lengths; then the memory of a 0.5B shape in bf16."""
    if len(sys.argv) > 2 and sys.argv[1] == "--child":
        print(json.dumps(child(*sys.argv[2:])))
        return
    given = options(__doc__ or "")
    lengths = (32,) if given.smoke else LENGTHS
    with tempfile.TemporaryDirectory() as folder:
        made = asked(folder, "weights", 0, given)
        if "error" in made:
            raise SystemExit(f"transformers is needed to make the weights: {made['error']}")
        found = {length: compared(folder, length, given) for length in lengths}
        big = asked(folder, "half a billion", 64 if given.smoke else 1024, given)
    write("inside", __doc__ or "", given, by_length=found, half_a_billion_bf16=big,
          goals={"memory": "peer / ours >= 5", "time": "peer / ours >= 3", "0.5B": "<= 60 MB, a row <= 50 ms"},
          limit="one forward pass with no map kept: `forward_ms` of qkv")  # fmt: skip


def compared(folder: str, length: int, given: Any) -> dict[str, Any]:
    """Medians of each, and the peers over ours."""
    runs = {who: lambda who=who: asked(folder, who, length, given) for who in WHO}
    rows = {who: [r for _, r in turns] for who, turns in in_turn(runs, given.rounds, warm=False).items()}
    table: dict[str, Any] = {}
    for who, results in rows.items():
        if bad := [r["error"] for r in results if "error" in r]:
            table[who] = {"not measured": bad[0]}
            continue
        table[who] = {key: summary([r[key] for r in results], 4) for key in results[0]}
    ours = {key: table["qkv"][key]["median"] for key in ("seconds", "megabytes")}
    ratios = {
        who: {key: round(row[key]["median"] / max(ours[key], 1e-9), 2) for key in ours}
        for who, row in table.items() if "not measured" not in row
    }  # fmt: skip
    return {"measured": table, "over_ours": ratios}


def asked(folder: str, who: str, length: int, given: Any) -> dict[str, Any]:
    """What one competitor measures in a process of its own."""
    small = "small" if given.smoke else "full"
    command = [sys.executable, __file__, "--child", who, folder, str(length), str(given.threads), small]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["stopped"])[-1][:200]}
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
    read, look = {"qkv": ours, "transformers eager": eager, "transformer_lens": lens, "bertviz": bertviz}[who](folder)
    ids = torch.randint(0, 1000, (1, int(length)))
    with torch.inference_mode():
        read(ids[:, :16])
        return {**taken(lambda: read(ids)), **look()}


def taken(do: Callable[[], object]) -> dict[str, float]:
    """Seconds, and how far the highest memory of the process rose above where it stood, in MB."""
    import time

    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, start = memory("VmRSS"), time.perf_counter()
    kept = do()
    spent = time.perf_counter() - start
    high = memory("VmHWM")
    del kept
    return {"seconds": round(spent, 4), "megabytes": round(high - before, 1)}


def memory(what: str) -> float:
    """A line of the kernel's account of this process, in MB."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(what))
    return int(line.split()[1]) / 1000


def made(folder: str, small: str) -> dict[str, Any]:
    """Random weights of the shape that everybody loads."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=3, n_embd=96, n_head=3) if small == "small" else GPT2Config()
    GPT2LMHeadModel(config).save_pretrained(folder)
    return {}


def ours(folder: str) -> tuple[Any, Any]:
    """q and k kept while the fast kernels run; a map and a row rebuilt when asked."""
    import torch

    import qkv

    model, last = qkv.load(folder, device="cpu", dtype="fp32"), dict[str, Any]()

    def read(ids: Any) -> Any:
        with model.trace(save=["*.attn.pattern"]) as t:
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


def eager(folder: str) -> tuple[Any, Any]:
    """transformers' own way: eager attention that gives its weights out."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
    return lambda ids: model(ids, output_attentions=True).attentions, dict


def lens(folder: str) -> tuple[Any, Any]:
    """TransformerLens: the patterns alone, as its documentation advises for memory."""
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(folder, device="cpu")
    return lambda ids: model.run_with_cache(ids, names_filter=lambda n: n.endswith("hook_pattern")), dict


def bertviz(folder: str) -> tuple[Any, Any]:
    """BertViz: the weights as the page that shows them."""
    from bertviz import model_view

    read, look = eager(folder)
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
            model.core.hidden(ids, _begin(model, ids))
        held = sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
                    for r in t.runs for c in r.calls for x in c.taps.values()}.values())  # fmt: skip
        rows = in_turn({"row": lambda: t.row("layers.1.attn", 2, tokens - 1)}, 5)["row"]
    planned = t.plan(tokens).bytes
    return {"megabytes": held / 1e6, "planned_megabytes": planned / 1e6, "over_plan": round(held / planned, 4),
            "one_row_ms": 1000 * middle([s for s, _ in rows]), "all_maps_would_be_megabytes":
            len(spec.decoder.blocks) * spec.decoder.blocks[0].attn.heads * tokens**2 * 2 / 1e6}  # fmt: skip


def _begin(model: Any, ids: Any) -> Any:
    from qkv.core.step import begin

    return begin(model.core.decoder, ids)


if __name__ == "__main__":
    main()
