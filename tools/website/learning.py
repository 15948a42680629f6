"""A watched run as what the site plays: `python -m tools.website.learning RUN` writes site/learning.json.

RUN is a directory that `qkv train demo` left, whose recipe watches: loss, translations, the alignment of one sentence.
"""

import json
import sys
from pathlib import Path
from typing import Any

from qkv.training.probes.records import ProbeLog

from .pages import SITE

SHOWN = 1  # which of the watched texts has its alignment shown
FILE = SITE / "learning.json"


def read_run(directory: Path) -> dict[str, Any]:
    """The recorded steps: what was said of each text, the loss, and where the words of one looked, in percent."""
    log, steps = ProbeLog(directory), list[dict[str, Any]]()
    for number in log.steps:
        record = log.read(number)
        texts = record.json["texts"]
        one, weights = texts[SHOWN], record[f"texts.{SHOWN}.alignment"]
        written = one["target"][1:]  # what is read last looks, then a word is written
        steps.append({
            "step": number, "loss": round(record.json["loss"], 4), "said": [text["output"] for text in texts],
            "written": written, "looks": (100 * weights[: len(written)]).round().int().tolist(),
        })
    found = log.read(log.steps[-1]).json["texts"]
    return {"texts": [text["text"] for text in found], "read": found[SHOWN]["source"], "steps": steps}


if __name__ == "__main__":
    text = json.dumps(read_run(Path(sys.argv[1])), ensure_ascii=False, separators=(",", ":"))
    FILE.write_text(text + "\n", encoding="utf-8")
    print(f"{FILE}: {len(text):,} characters")
