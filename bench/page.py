"""The page opens within a second: 250 kB of assets, 2 MB for every head of a long text, one file of 5 MB.

The first view is timed in headless Chromium, which needs node and web/node_modules.
"""

import gzip
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness import in_turn, options, summary, write

WEB = Path(__file__).parents[1] / "web"
TEXT = "书和茶都在桌上，我看完了它。"


def main() -> None:
    """Assets, first view, the overview of a large model, the one-file page."""
    given = options(__doc__ or "")
    import torch

    import qkv
    from qkv.explore import record, server
    from qkv.explore.question import Question

    torch.set_num_threads(given.threads)
    static = Path(server.__file__).parent / "static"
    assets = {p.name: len(gzip.compress(p.read_bytes(), 9)) for p in static.iterdir() if p.suffix in (".js", ".css")}
    page = server.Page(server.Desk(["demo"], lambda name: qkv.load(name, device="cpu"), examples={"demo": [TEXT]}))
    url = page.start()
    try:
        assert page.desk.begun
        page.desk.begun[1].result()  # what is timed is a page that is served already
        first = seen(url, 2 if given.smoke else max(5, given.rounds))
    finally:
        page.stop()
    names = ["demo"] if given.smoke else ["demo", "demo-lm", "demo-bert", "demo-moe"]
    texts = {"demo": TEXT, "demo-lm": "One, two,", "demo-bert": "我爱[MASK]。", "demo-moe": "我爱喝茶。"}
    models = {n: qkv.load(n, device="cpu") for n in names}
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "page.html"
        asked = [(n, Question(texts[n])) for n in names]
        seconds, html = in_turn({"one": lambda: record.record(asked, models)}, 1, warm=False)["one"][0]
        one.write_text(html, encoding="utf-8")
        opened = seen(one.as_uri(), 2)
    single = {"bytes": len(html.encode()), "seconds": round(seconds, 1), **opened}
    write("page", __doc__ or "", given, assets_gzip=assets, assets_gzip_total=sum(assets.values()), first_view_ms=first,
          overview=overview(given.smoke), one_file=single,
          goals={"first_view_ms": 1000, "assets": 250_000, "overview_bytes": 2_000_000, "one_file_bytes": 5_000_000},
          limit="an empty page in the same browser takes about 50 ms")  # fmt: skip


def seen(address: str, times: int) -> dict[str, Any]:
    """Milliseconds until the shell and until the first panel stand, and those of the processor; requests elsewhere.

    `busy` is the time of the page's own thread, which other programs do not lengthen; `view` is what a clock says.
    """
    if not shutil.which("node") or not (WEB / "node_modules").is_dir():
        return {"not measured": "node or web/node_modules is missing"}
    command = ["node", "tests/first.mjs", address, str(times)]
    done = subprocess.run(command, cwd=WEB, capture_output=True, text=True)
    if done.returncode:
        return {"not measured": (done.stderr.strip().splitlines() or ["node stopped"])[-1][:200]}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    times = {name: summary(found[name], 0) for name in ("shell", "view", "busy")}
    return {**times, "outside_requests": found["outside"], "bytes_sent": round(found["sent"])}


def overview(smoke: bool) -> dict[str, Any]:
    """What is sent so that 24 layers of 14 heads are seen at a glance, for a text of about 1,000 tokens."""
    import qkv
    from qkv.checkpoints import model_dir
    from qkv.explore import answers
    from qkv.explore.question import Question, ask

    layers, words = (2, 40) if smoke else (24, 1000)
    lm = qkv.load("demo-lm", device="cpu")
    config = {"model_type": "gpt2", "vocab_size": len(lm.tokenizer), "n_embd": 112, "n_layer": layers, "n_head": 14,
              "n_positions": 1100}  # fmt: skip
    model = qkv.build(model_dir.spec_from_config(config, "here"), tokenizer=lm.tokenizer)
    model.core.eval()
    run = ask(model, Question(" ".join(["one"] * words), max_new_tokens=1), "long")
    found = answers.answer(run, "thumbs", {"part": "decoder"})
    tokens = answers.answer(run, "meta", {}).keys["parts"][0]["keys"]
    return {"layers": layers, "heads": 14, "tokens": tokens, "bytes": len(found.body())}


if __name__ == "__main__":
    main()
