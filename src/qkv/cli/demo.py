"""`qkv demo`: the main job in three acts. Train the 2017 Transformer and translate; prove where 它 looks; the same core
as a language model. Then a page to look inside. On a screen a live page shows the training while it goes on."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click
from rich.cells import cell_len

from qkv.cli.common import Common, option, verb
from qkv.errors import QkvError
from qkv.files import write_text_file
from qkv.messages import Message, join
from qkv.plots.text import HEIGHTS

PROMPT = "One, Two,"


@dataclass
class Story:
    """What the demo tells, and what it collects for --json and the page."""

    common: Common
    began: float = field(default_factory=time.monotonic)
    result: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)  # where the seconds went; they add up to all of them
    stage: Any = None  # the live page's server, where there is one
    own: str | None = None  # the sentence that was asked for before training; empty where none was given
    watched: tuple[tuple[str, str], ...] = ()  # what is translated anew while it learns, and what is right
    shown: dict[str, str] = field(default_factory=dict)  # the last translation of each that was told

    def tell(self, template: str = "", /, **fields: Any) -> None:
        if not (self.common.json or self.common.quiet):
            click.echo(self.common.say(template, **fields))

    def act(self, template: str, /, **fields: Any) -> None:
        """A heading."""
        text = f"── {self.common.say(template, **fields)} "
        rest = min(72, shutil.get_terminal_size().columns) - cell_len(text)
        self.tell("\n" + click.style(text + "─" * max(0, rest), bold=True))

    def lap(self, part: str) -> None:
        """Count the seconds since the last lap as this part's."""
        self.parts[part] = self.parts.get(part, 0.0) + time.monotonic() - self.began - sum(self.parts.values())

    def hear(self, event: dict[str, Any], show: Any) -> None:
        """Take note of what training tells, and pass it on."""
        if self.stage:  # the live page hears it first
            self.stage.desk.events.send(event)
        kind = event["kind"]
        self.lap({"note": "start", "evaluation": "evaluations", "watch": "records"}.get(kind, "training"))
        watched = [(*pair, out) for pair, out in zip(self.watched, event.get("outputs", ()), strict=False)]
        readable = any(is_readable(right, out) for _, right, out in (*watched, *event.get("samples", ())))
        if readable and "first_readable_seconds" not in self.result:
            self.result["first_readable_seconds"] = round(sum(self.parts.values()), 1)
        if show is None:
            return
        show(event)
        for text, _, out in watched:  # the first one that is translated otherwise than before
            if self.shown.get(text) != out:
                self.shown[text] = out
                show({"kind": "note", "step": event["step"], "text": f"step {event['step']}  {text} → {out[:120]}"})
                break

    def scene(self, panel: str, **question: Any) -> None:
        """The page's address of what the terminal tells next: a panel, and the question put to a model."""
        if self.stage:
            where = urlencode({"panel": panel, "ask": json.dumps(question, ensure_ascii=False)})
            address = f"http://127.0.0.1:{self.stage.port}/#{where}"
            self.tell("  on the page: {address}", address=address)


def is_readable(right: str, said: str) -> bool:
    """Whether three quarters of two sentences are the same words in the same order."""
    return SequenceMatcher(None, right.split(), said.split(), autojunk=False).ratio() >= 0.75


@verb("Three acts: train the Transformer of 2017 and translate; prove where 它 looks; run the same core as a language "
      "model. Then write a page that opens offline.", examples=(
        "qkv demo",
        "qkv demo --text 我看完了那本书。 --seed 1",
        "qkv demo --model demo   # the bundled model, no training",
    ))
@option("--text", help="your own sentence to translate at the end of act one")
@option("--model", help="use this model instead of training one (such as demo)")
@option("--out", type=click.Path(path_type=Path), help="output directory (default: runs/demo)")
@option("--page", type=click.Path(path_type=Path), default=Path("qkv-demo.html"), help="file to write the page to")
@option("--seed", type=int, default=0, help="random seed of weights, data order and dropout")
@option("--epochs", type=click.IntRange(1), help="number of epochs")
@option("--browser/--no-browser", default=None, help="watch the training live in a browser (default: on a terminal "
        "with a display)")
def command(
    common: Common, text: str | None, model: str | None, out: Path | None, page: Path, seed: int, epochs: int | None,
    browser: bool | None,
) -> None:
    if text is not None and not text.strip():
        raise QkvError("--text is empty: there is nothing to translate")
    if not page.parent.is_dir():
        raise QkvError("--page {page}: the directory {parent} does not exist", page=page, parent=page.parent)
    if page.is_dir():
        raise QkvError("--page {page}: a directory; name a file in it, such as {page2}", page=page,
                       page2=page / "qkv-demo.html")
    from qkv.training import run_dir

    usual, named = Path("runs/demo"), out
    out = None if model else make_directory(out or find_free_directory(usual))
    if not (model or named or out == usual or (usual / run_dir.RESULT).exists()):
        common.note("{usual} has a run that has not ended; to go on with it: qkv train {usual} --resume", usual=usual)
    story = Story(common, own=text)
    with open_page(story, out or Path("runs"), has_display(common) if browser is None else browser):
        play(story, model, out, page, {"training.seed": seed, "training.epochs": epochs})


def make_directory(out: Path) -> Path:
    """The directory of a run that begins here; what stands against it is told before anything else happens."""
    from qkv.training.run_dir import is_run

    if is_run(out):
        raise QkvError("--out {out}: a run lies there; give another directory, or show it with `qkv demo --model "
                       "{out}`, or go on with `qkv train demo --resume auto --out {out}`", out=out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QkvError("--out {out}: cannot be made ({strerror})", out=out, strerror=error.strerror) from None
    return out


def play(story: Story, model: str | None, out: Path | None, page: Path, changes: Mapping[str, int | None]) -> None:
    """The three acts and the page."""
    from qkv import hub  # noqa: F401  # pyright: ignore[reportUnusedImport]  the first seconds, told apart
    from qkv.data.corpus import load_corpus

    story.lap("imports")
    common, text = story.common, story.own
    translator: Any = None if out else common.load_model(str(model))
    if translator and not translator.encoder_decoder:
        raise QkvError("--model {name}: it has no encoder and decoder, so it cannot translate; the bundled `demo` can",
                       name=model)
    data = load_corpus()
    story.lap("corpus")
    story.act("Act one: translate")
    said: Sequence[str] = ()
    if out:
        translator, said = train_translator(story, out, changes, data)
    evaluate_translations(story, translator, data, said)
    story.lap("test")
    translate_texts(story, translator, [p.zh for p in data.showcase], text)
    story.lap("translations")
    story.act("Act two: the proof")
    pair = prove(story, translator, data)
    story.lap("proof")
    story.act("Act three: the same core as a language model")
    speaker = run_language_model(story)
    story.lap("language_model")
    models = {str(out or model): translator, "demo-lm": speaker}
    write_page(story, page, models, pair, text)
    story.lap("page")
    parts = {part: round(seconds, 2) for part, seconds in story.parts.items()}
    total = round(sum(story.parts.values()), 1)
    story.result |= {"seconds": parts, "total_seconds": total, "page": str(page.resolve())}
    if common.json:
        common.emit(story.result)
    suggest_next(story, page, model)


def has_display(common: Common) -> bool:
    """Whether somebody sits at a terminal with a display that a browser could open on."""
    if not common.is_interactive():
        return False
    if sys.platform.startswith("linux"):
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return not os.environ.get("SSH_CONNECTION")


@contextmanager
def open_page(story: Story, watched: Path, wanted: bool) -> Iterator[None]:
    """The live page beside the acts, kept open after them while somebody sits there; nothing where it is not wanted.

    A page that cannot be served is no reason to stop: the terminal shows everything.
    """
    if not wanted:
        yield
        return
    from qkv.explore import server
    from qkv.training import recipes

    names = ["demo", "demo-lm", "demo-moe", "demo-bert"]
    examples = {"demo": recipes.configure("demo").watch.texts, "demo-lm": (PROMPT,)}
    try:
        desk = server.Desk(names, story.common.load_model, story.common.lang, examples, watched=watched)
        story.stage = server.Page(desk, token=os.environ.get("QKV_TOKEN") or None)
    except QkvError as error:
        story.tell("no page ({error}); going on in the terminal.", error=error)
        yield
        return
    url = f"{story.stage.start()}#panel=training"
    try:
        welcome(story, url, opened=server.open_browser(url))
        yield
        keep_page_open(story, url)
    finally:
        story.stage.stop()


def welcome(story: Story, url: str, *, opened: bool) -> None:
    """Say where the page is, and ask for a sentence that the model is to be watched with while it learns."""
    story.tell("the live page: {url}", url=url)
    if not opened:
        story.tell("no browser opened: open the address above yourself.")
    if story.own is None and sys.stdin.isatty():
        story.own = click.prompt(
            story.common.say("your own sentence in Chinese, translated anew every few seconds (Enter skips)"),
            default="", show_default=False)


def keep_page_open(story: Story, url: str) -> None:
    """Keep the page open until Ctrl-C."""
    if not sys.stdin.isatty():
        return
    story.tell()
    story.tell("the page stays open: drag the slider to replay the training, {url}  (Ctrl-C ends)", url=url)
    try:
        while story.stage.thread.is_alive():
            story.stage.thread.join(0.5)
    except KeyboardInterrupt:
        story.tell()


def watch_own_sentence(story: Story, run: Any) -> Any:
    """The run, watched with your own sentence first where the vocabulary has all of its words."""
    own = (story.own or "").strip()
    if not own:
        return run
    if unknown := story.common.load_model("demo").tokenizer.find_unknown(own):
        story.tell("  not in the vocabulary: {unknown}; other sentences are watched while it learns.",
                   unknown=join(", ", unknown))
        return run
    return replace(run, watch=replace(run.watch, texts=(own, *(t for t in run.watch.texts if t != own))))


def train_translator(story: Story, target: Path, changes: Mapping[str, int | None], data: Any) -> tuple[Any, list[str]]:
    """Train the recipe with a live line; the model, and its translations of the test sentences."""
    from qkv.cli.train import show_events
    from qkv.training import recipes
    from qkv.training.control import Interrupted
    from qkv.training.run_dir import ANSWERS

    run = recipes.configure("demo", [f"{key}={value}" for key, value in changes.items() if value is not None])
    run = watch_own_sentence(story, run)
    right = {p.zh: p.en for p in data.showcase}
    story.watched = tuple((text, right.get(text, "")) for text in run.watch.texts)
    story.tell("Training a Transformer of 2017 from nothing: {pairs} Chinese-English pairs, {times} times. Ctrl-C "
               "stops, and saves.", pairs=f"{len(data.train):,}", times=run.training.epochs)
    try:
        with show_events(story.common) as show:
            done = recipes.train(run, out=target, device=story.common.device, report=lambda e: story.hear(e, show))
    except Interrupted as stopped:
        story.tell("saved; go on with: qkv train {out} --resume", out=target)
        sys.exit(stopped.code)
    story.result |= {"train_seconds": round(done.outcome.seconds, 1), "directory": str(target)}
    if story.stage:
        story.stage.desk.names.insert(0, str(target))
    story.tell("trained for {seconds:.0f} s ({precision}); the model lies in {target}", target=target,
               seconds=done.outcome.seconds, precision=done.outcome.precision)
    return done.model, (target / ANSWERS).read_text(encoding="utf-8").splitlines()


def find_free_directory(path: Path) -> Path:
    """The first of path, path-2, path-3 … that does not exist or holds nothing, as a run that never began leaves it."""
    names = (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 10_000)))
    return next(p for p in names if not p.exists() or (p.is_dir() and not any(p.iterdir())))


def evaluate_translations(story: Story, model: Any, data: Any, said: Sequence[str]) -> None:
    """Held-out BLEU and exact match, with the failures; the longer sentences apart. `said` of the test, where known."""
    from qkv.tasks.evaluate import score_translations

    parts = (("", Message("sentences that training never saw"), data.test, said),
             ("longer_", Message("longer ones than any in training"), data.longer, ()))
    for name, text, pairs, known in parts:
        outputs = known or [r.text for r in model.translate([p.zh for p in pairs], beam=4)]
        wrong = [(p.zh, p.en, out) for p, out in zip(pairs, outputs, strict=True) if p.en != out]
        exact, score = 1 - len(wrong) / len(pairs), score_translations([p.en for p in pairs], outputs, tokenize="13a")
        story.result |= {f"{name}exact_match": round(exact, 4), f"{name}bleu": score.bleu}
        story.tell("{pairs} {text}: exact match {exact:.1%}, BLEU {bleu:.1f}", pairs=len(pairs), text=text, exact=exact,
                   bleu=score.bleu)
        if not name:
            story.result |= {"signature": score.signature, "failures": wrong[:20]}
            story.tell(f"  sacreBLEU {score.signature}")
            for source, right, out in wrong[:6]:
                story.tell(f"  ✗ {source}  →  {out}   ≠ {right}")
            if exact < 0.95:
                story.tell("  This is below the aim of 95 %.")


def translate_texts(story: Story, model: Any, texts: Sequence[str], own: str | None) -> None:
    """The texts' own sentences, and yours."""
    story.tell()
    for text, result in zip(texts, model.translate(list(texts)), strict=True):
        story.tell(f"  {text}  →  {result.text}")
    if own is None and sys.stdin.isatty() and not story.common.json:
        own = click.prompt(story.common.say("your own sentence in Chinese (Enter skips)"), default="",
                           show_default=False)
    if own and own.strip():
        result = model.translate(own)
        story.result["own"] = {"text": own, "translation": result.text, "unknown": list(result.unknown)}
        if result.unknown:
            story.tell("  not in its vocabulary: {unknown}. This small model knows only its own words, so it does not "
                       "guess.", unknown=join(", ", result.unknown))
        else:
            story.tell(f"  {own}  →  {result.text}")


def prove(story: Story, model: Any, data: Any) -> Any:
    """它: the flip of the noun, the edges that it needs, the head without which it fails. The pair that was shown."""
    from qkv.labs import two_it

    found = two_it.measure(model, data.swaps, [p for p in data.test if two_it.IT not in p.zh][:200])
    sample = next((e for e in found.edges if e.moved["written"]), found.edges[0])
    show_edges(story, sample)
    tell_shares(story, found)
    if found.flip_rate < 0.9:
        story.tell("  The flip rate is below the aim of 90 %.")
    story.result |= {
        "flip_rate": round(found.flip_rate, 4), "edge_moves": found.edge_moves, "strongest": found.strongest,
        "severed": found.severed, "cut_effect": round(found.cut_effect, 4), "cut_head": list(found.head),
        "head_before": round(found.before, 4), "head_after": round(found.after, 4),
        "others_before": found.others_before, "others_after": found.others_after,
    }
    return sample.pair


def show_edges(story: Story, sample: Any) -> None:
    """One pair of sentences, and what each edge is worth to the noun in both."""
    pair, marks = sample.pair, " " + HEIGHTS
    story.scene("proof", text=pair.zh_a, model=story.result.get("directory", "demo"))
    story.tell("Change one verb, and 它 stands for another thing (bars: what log P(noun) loses when one edge is cut):")
    asks = (("written", Message("the noun being written")), ("verb", Message("the verb")), ("it", Message("它")))
    for i, (source, target) in enumerate(((pair.zh_a, pair.en_a), (pair.zh_b, pair.en_b))):
        story.tell(f"  {source}  →  {target}")
        top = max(1e-9, *(max(sample.drops[query][i]) for query, _ in asks))
        for query, name in asks:
            heights = (max(0, min(8, round(8 * drop / top))) for drop in sample.drops[query][i])
            line = " ".join(f"{p}{marks[h]}".rstrip() for p, h in zip(sample.pieces[i], heights, strict=True))
            story.tell("    {name} → {line}", name=name, line=line)


ROLES = {"noun": Message("noun"), "verb": Message("verb"), "other noun": Message("other noun"),
         "elsewhere": Message("elsewhere")}


def tell_shares(story: Story, found: Any) -> None:
    """What the measured pairs say, in numbers."""
    story.tell("{n} held-out pairs: with the verb, the English noun flips in {flip_rate:.1%}.", n=found.pairs,
               flip_rate=found.flip_rate)
    story.tell("The edge that matters most points at the noun meant in both sentences ({edges} pairs): from the word "
               "being written {written:.1%}, from the verb {verb:.1%}, from 它 {it:.1%}.",
               **found.edge_moves | {"edges": len(found.edges)})
    shares = [Message("{names} {share:.0%}", names=ROLES.get(role, role), share=share)
              for role, share in found.strongest.items()]
    story.tell("What the word being written needs most: {shares}.", shares=join(", ", shares))
    story.tell("Nouns still right when edges to the noun meant are cut (all layers and heads): none {nothing}, the "
               "verb's {verb}, the written word's {written}, both {both}; control: both edges to the other noun "
               "{control}.", **{way: f"{share:.1%}" for way, share in found.severed.items()})
    path, head = found.head
    story.tell("Without head {head} of {path} (chosen on one half, judged on the other): right nouns {before:.1%} -> "
               "{after:.1%}; other sentences exactly right {others_before:.1%} -> {others_after:.1%}.",
               **vars(found) | {"head": head, "path": path})


def run_language_model(story: Story) -> Any:
    """The bundled language model: its next word, its guesses by layer, and what the cache saves."""
    model = story.common.load_model("demo-lm")
    result = model.generate(PROMPT, max_new_tokens=24)
    story.scene("guess-map", text=PROMPT, model="demo-lm")
    story.tell(f"  {PROMPT}{click.style(result.text, bold=True)}")
    print_guesses(story, model)
    rows = time_cache(model)
    tokens, fast, slow = rows[-1]
    story.tell("  cache ({tokens} tokens): with {fast:.0f} ms, without {slow:.0f} ms, {times} times as fast, same "
               "text.", tokens=tokens, fast=fast, slow=slow, times=f"{slow / fast:.1f}")
    story.result |= {"continuation": result.text, "cache_milliseconds": rows}
    return model


def print_guesses(story: Story, model: Any) -> None:
    """Each layer's guess of the next token at each position; the guesses that are thrown away are dim."""
    from qkv.lens import logit_lens

    with model.trace(save=["lens"]) as trace:
        model.generate(PROMPT, max_new_tokens=1)
    found = logit_lens.guess_by_layer(trace, top=1)
    pieces = model.tokenizer.pieces(model.ids(PROMPT))
    wide = max(4, min(9, (shutil.get_terminal_size().columns - 2) // (1 + len(pieces)) - 1))
    story.tell("  " + " ".join([" " * 9, *(f"{p:>{wide}}"[:wide] for p in pieces)]))
    for row in reversed(range(len(found.names))):
        guesses = model.tokenizer.pieces([int(i) for i in found.ids[row, :, 0]])
        cells = [f"{piece:>{wide}}"[:wide] if used else click.style(f"{f'({piece})':>{wide}}"[:wide], dim=True)
                 for piece, used in zip(guesses, found.used, strict=True)]
        label = f"layer {found.names[row].split('.')[-2]}" if row else "embed"
        story.tell("  " + " ".join([f"{label:>9}"[-9:], *cells]))
    story.tell("  (in brackets: the next word was given, so these guesses are thrown away)")


def time_cache(model: Any) -> list[list[float]]:
    """[tokens, milliseconds with the cache, without]; the same tokens either way, or it says so."""
    rows: list[list[float]] = []
    for tokens in (8, 32, 96):
        took: list[float] = []
        said: list[list[int]] = []
        for cache in (True, False):
            start = time.perf_counter()
            said.append(model.generate(PROMPT, max_new_tokens=tokens, cache=cache).tokens)
            took.append(round((time.perf_counter() - start) * 1000, 1))
        if said[0] != said[1]:
            raise QkvError("cache: {tokens} tokens with and without it differ, which they must not", tokens=tokens)
        rows.append([len(said[0]), *took])
    return rows


def write_page(story: Story, path: Path, models: Mapping[str, Any], pair: Any, own: str | None) -> None:
    """The live page as a file: the pair of the proof, the texts' sentences, the language model, how it was learnt.

    `models` by name, the translator first and the language model after it.
    """
    from qkv.explore import record
    from qkv.explore.question import Question
    from qkv.training.probes.records import ProbeLog

    (home, translator), (speaker, _) = models.items()
    texts = [pair.zh_a, pair.zh_b, "我爱学习。", *([own] if own and not translator.tokenizer.find_unknown(own) else [])]
    asked = [*((home, Question(t)) for t in dict.fromkeys(texts)), (speaker, Question(PROMPT, max_new_tokens=12))]
    more = {home: {"facts": list_facts(story.result)}, speaker: {"timed": story.result["cache_milliseconds"]}}
    run = ProbeLog(story.result["directory"]) if "directory" in story.result else None
    made = record.record(asked, models, lang=story.common.lang, watched=run, more=more)
    write_text_file(path, made)


def list_facts(result: Mapping[str, Any]) -> list[list[str]]:
    """The numbers of the run as the page shows them: Chinese, English, value."""
    rows = ((Message("exact match"), "exact_match", "{:.1%}"), (Message("BLEU"), "bleu", "{:.1f}"),
            (Message("noun flips with the verb"), "flip_rate", "{:.1%}"),
            (Message("right nouns lost with two edges cut"), "cut_effect", "{:.1%}"),
            (Message("seconds of training"), "train_seconds", "{:.0f}"))
    return [[name.to("zh"), str(name), form.format(result[key])] for name, key, form in rows if key in result]


def suggest_next(story: Story, page: Path, model: str | None) -> None:
    """What to try next."""
    directory = model or story.result["directory"]
    story.tell()
    story.tell("{total_seconds:.0f} s in all. Open {page} to look inside; then try:",
               total_seconds=story.result["total_seconds"], page=page)
    for line in (f"qkv look {directory} 我爱学习。", f"qkv translate {directory} 书和茶都在桌上，我喝完了它。",
                 "qkv show marian", "qkv train multi30k --dry-run"):
        story.tell(f"  {line}")
