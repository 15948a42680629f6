"""A watched run as what the site plays: `python -m tools.website.learning RUN` writes site/learning.json.

RUN is a directory that `qkv train demo` left, whose recipe watches: loss, translations, the alignment of one sentence.
"""

import json
import sys
from pathlib import Path
from typing import Any

from qkv.plots.forms import Form, Grid, Table
from qkv.training.probes.records import ProbeLog

from .pages import SITE, Site

SHOWN = 1  # which of the watched texts has its alignment shown
FILE = SITE / "learning.json"
LONGEST = 90  # characters of a translation that are shown


def read_run(directory: Path) -> dict[str, Any]:
    """The recorded steps: what was said of each text, the loss, and where the words of one looked, in percent."""
    log, steps = ProbeLog(directory), list[dict[str, Any]]()
    for number in log.steps:
        record = log.read(number)
        texts = record.json["texts"]
        one, weights = texts[SHOWN], record[f"texts.{SHOWN}.alignment"]
        heads = record[f"texts.{SHOWN}.attention.cross"]
        loss = record.json["loss"]  # none before the first step
        written = one["target"][1:]  # what is read last looks, then a word is written
        at = max(0, len(written) - 2)  # where the last word is written, before the full stop
        steps.append({
            "step": number, "loss": loss and round(loss, 4), "said": [text["output"] for text in texts],
            "written": written, "looks": (100 * weights[: len(written)]).round().int().tolist(),
            "heads": (heads[:, :, at].float() / 2.55).round().int().tolist(),  # kept as bytes
        })
    found = log.read(log.steps[-1]).json["texts"]
    return {"texts": [text["text"] for text in found], "read": found[SHOWN]["source"], "steps": steps}


def make_grid(title: str, rows: list[str], read: list[str], shares: list[list[int]]) -> Grid:
    """Shares in percent of the words read, a row for each word written or head."""
    return Grid(title, rows, read, [[share / 100 for share in row] for row in shares],
                [[str(share or "") for share in row] for row in shares])


def make_frames(site: Site) -> tuple[list[str], list[list[Form]]]:
    """The recorded steps, and of each its translations, its loss, its alignment and its heads."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    words = [*found["texts"], site.say("损失", "loss")]
    title, forms = site.say("看了原文的哪里（%）", "where it looked (%)"), list[list[Form]]()
    for one in found["steps"]:
        loss = "–" if one["loss"] is None else f"{one['loss']:.3f}"
        said = [text if len(text) <= LONGEST else text[:LONGEST] + "…" for text in one["said"]]
        forms.append([Table("", list(zip(words, [*said, loss], strict=True)))])
        if one["written"]:  # a model that knows nothing yet may end at once
            forms[-1].append(make_grid(title, one["written"], found["read"], one["looks"]))
            names = [f"L{i} h{j}" for i, layer in enumerate(one["heads"], 1) for j in range(1, len(layer) + 1)]
            word = one["written"][max(0, len(one["written"]) - 2)]
            each = site.say(f"写“{word}”时每个头看了哪里（%）", f"where each head looked to write “{word}” (%)")
            forms[-1].append(make_grid(each, names, found["read"], [row for layer in one["heads"] for row in layer]))
    return [str(one["step"]) for one in found["steps"]], forms


if __name__ == "__main__":
    text = json.dumps(read_run(Path(sys.argv[1])), ensure_ascii=False, separators=(",", ":"))
    FILE.write_text(text + "\n", encoding="utf-8")
    print(f"{FILE}: {len(text):,} characters")
