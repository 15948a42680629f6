"""The live page as one file: real answers recorded beforehand, which the same script finds where it would ask a server.

The views opened most are recorded first, until the file is full; a view that is missing says so.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qkv.errors import QkvError
from qkv.explore import answers, probe_answers
from qkv.explore.body import JSON, Answer, Query, list_tokens, read_ids
from qkv.explore.embeddings import whole_words
from qkv.explore.guesses import mark_usable
from qkv.explore.heads import heads_of, list_parts
from qkv.explore.question import Question, Run, ask, question_as_json
from qkv.lens import resolve
from qkv.model import Model
from qkv.training.probes.records import ProbeLog

STATIC = Path(__file__).parent / "static"
LIMIT = 5_000_000  # bytes of the file
DEFAULTS = {"top": "5", "by": "sublayer", "pool": "1", "temperature": "1", "top_k": "0", "top_p": "1", "min_p": "0"}
SHOWN = "20"  # words that the page lists after a position
MISSES = 32  # answers in a row that did not fit, after which nothing more is tried
STEPS = 12  # steps of a watched run that are recorded
ANALOGIES = (("I", "me", "he"), ("中国", "北京", "日本"))  # those that the panel Word shift offers
MUST = ("meta", "lens", "row", "thumbs", "attn")  # that the page shows at once
Request = tuple[str, dict[str, str]]


def record(
    asked: Sequence[tuple[str, Question]], models: Mapping[str, Model], *, lang: str = "en",
    watched: ProbeLog | None = None, more: Mapping[str, Mapping[str, Any]] | None = None, limit: int = LIMIT,
) -> str:
    """One HTML file of at most `limit` bytes that shows these questions to these models, the first one first.

    `more` is what was measured elsewhere, by model: `facts`, a list of [Chinese, English, value], shown by its name,
    and `timed`, [[tokens, milliseconds to write them with the cache, without it], …].

    Raises:
        QkvError: no question; the page's script is not there; or not even the first view of each fits.
    """
    if not asked:
        raise QkvError("record: no text to look into; give at least one")
    home, book = asked[0][0], dict[str, Answer]()
    names = list(dict.fromkeys(name for name, _ in asked))
    asking = {name: {} if name == home else {"model": name} for name in names}
    runs = [(name, ask(models[name], question, name)) for name, question in asked]
    questions = [{**question_as_json(run.question), **asking[name]} for name, run in runs]
    for name in names:
        texts = [q.text for n, q in asked if n == name]
        found = answers.describe_model(models[name], name, names, lang, texts)
        book[path_of("about", asking[name])] = Answer({**found.keys, **(more or {}).get(name, {}),
                                                       "recorded": questions})
        book |= {path_of(path, asking[name]): one for path, one in record_training(watched).items()}
    for question, (_, run) in zip(questions, runs, strict=True):
        book[run_path(question)] = Answer({"run": run.id})
    packed = {path: encode_answer(found) for path, found in book.items()}
    shell = {name: read_page_file(STATIC / name) for name in ("index.html", "app.js", "app.css")}
    room = limit - len(write_document({}, shell).encode()) - sum(map(recorded_size, packed.items()))
    for n, (name, run) in enumerate(runs):
        room -= record_answers(packed, run, asking[name], room // (len(runs) - n))
    return write_document(packed, shell)


def preload(run: Run, about: Answer, question: Mapping[str, Any]) -> str:
    """The answers with which the live page opens on a run, as data that its document can carry."""
    packed = {"/api/about": encode_answer(about), run_path(question): encode_answer(Answer({"run": run.id}))}
    for must, what, values in list_requests(run):
        if must and what != "lens":  # heads come first
            packed[request_path(run, what, values, {})] = encode_answer(answers.answer(run, what, values))
        if what == "attn":
            break
    return write_element("ready", packed)


def record_answers(packed: dict[str, dict[str, str]], run: Run, model: Mapping[str, str], share: int) -> int:
    """Record a run as far as its share of bytes goes; how many it took.

    Raises:
        QkvError: not even what the page opens with fits.
    """
    spent, missed = 0, 0
    for must, what, values in list_requests(run):
        path = request_path(run, what, values, model)
        if path in packed:
            continue
        try:
            table = answers.TABLES.get(what)
            found = table(run.model, Query(values)) if table else answers.answer(run, what, values)
        except QkvError:
            continue  # the live page would say why
        one = encode_answer(found)
        size = recorded_size((path, one))
        if spent + size <= share:
            packed[path] = one
            spent, missed = spent + size, 0
            continue
        if must:
            raise QkvError("record: {text!r} does not fit into {share:,} bytes; record fewer texts",
                           text=run.question.text, share=share)
        missed += 1
        if missed == MISSES:
            break
    return spent


def list_requests(run: Run) -> Iterator[tuple[bool, str, dict[str, str]]]:
    """What the page asks about a run, what it opens with first: (whether it must fit, answer, query)."""
    there, parts = {"meta", "row", "thumbs", *answers.list_panels(run)}, list_parts(run)
    first = choose_opening(run, parts)
    mask = ("mask", {k: first[k] for k in ("part", "layer")})  # of the head that is shown
    opening = ((what in MUST, what, values) for what, values in list_opening_requests(parts, first))
    more = ((False, what, values) for what, values in list_more_requests(run, parts, first))
    yield from (asked for asked in ((True, *mask), *opening, *more) if asked[1] in there)


def list_opening_requests(parts: list[dict[str, Any]], first: dict[str, str]) -> Iterator[Request]:
    """What the page asks before anything is chosen on it."""
    for what in ("meta", "lens", "wavefront", "cache", "alignment", "diff", "routes", "cost", "beams"):
        yield what, {}
    yield "row", {k: first[k] for k in ("part", "layer", "head", "query")}
    for p in parts:
        yield "thumbs", {"part": p["part"]}
        yield "mask", {"part": p["part"], "layer": "0"}
    yield "attn", {k: first[k] for k in ("part", "layer", "head")}


def list_more_requests(run: Run, parts: list[dict[str, Any]], first: dict[str, str]) -> Iterator[Request]:
    """What is recorded where there is room."""
    pos, ends = ([str(i) for i in range(len(read_ids(run.t, path)))] for path in ("", "encoder."))
    layers = [str(i) for i in range(len(run.model.spec.stack.blocks))]
    yield from (("proof", {"side": side}) for side in (("encoder", "cross") if run.model.encoder_decoder else ("",)))
    yield from (("walk", {**first, **key}) for key in ({}, {"key": "0"}))
    yield from (("attn", spot) for p in parts for spot in list_heads(p))
    yield from (("choices", {"pos": p, "top": SHOWN}) for p in pos)
    yield from (("parts", {"pos": p}) for p in pos)
    yield "lens", {"own": "0"}
    for p in parts:
        yield "thumbs", {"part": p["part"], "sink": "0"}
        yield from (("mask", {"part": p["part"], "layer": str(i)}) for i in range(1, p["layers"]))
        yield from (("row", {**spot, "query": first["query"]}) for spot in list_heads(p))
    yield from (("routes", {"layer": i}) for i in layers)
    yield from (("shift", {"pos": at}) for at in ends)
    yield from (("analogy", dict(zip("abc", three, strict=True))) for three in ANALOGIES)
    words = whole_words(list_tokens(run.t, read_ids(run.t, "encoder.")))
    yield from (("neighbours", {"word": word, "n": "10"}) for word in dict.fromkeys(words) if word)
    for p in parts:
        yield from (("row", {**spot, "query": str(i)}) for i in range(p["queries"]) for spot in list_heads(p))
    part = next(p for p in parts if p["part"] == first["part"])
    yield from (("walk", {**first, "query": str(i), "key": "0"}) for i in range(part["queries"]))
    yield from (("walk", {**first, "key": str(i)}) for i in range(part["keys"]))
    yield from (("walk", {**first, **spot}) for spot in list_heads(part))
    yield from (("parts", {"pos": p, "by": by, "layer": i}) for i in layers for by in ("head", "neuron") for p in pos)


def list_heads(part: Mapping[str, Any]) -> list[dict[str, str]]:
    """Every layer and head of a part."""
    return [{"part": part["part"], "layer": str(i), "head": str(h)}
            for i in range(part["layers"]) for h in range(part["heads"])]


def choose_opening(run: Run, parts: list[dict[str, Any]]) -> dict[str, str]:
    """Where the page opens, as `first` in web/src/app.ts: the last layer, a query, and the key it attends to most.

    The query is the one that writes a decoder's first word, an encoder's mask, or else the one in the middle.
    """
    part = next(p for name in ("cross", "decoder", "encoder") for p in parts if p["part"] == name)
    begin = 0 if part["part"] == "encoder" else resolve.find_run(run.t).calls[0].ids.shape[1] - 1
    query = begin if part["part"] == "decoder" else (begin + part["queries"] - 1) // 2
    if part["part"] == "encoder" and len(set(used := mark_usable(run.model, run.t))) == 2:
        query = used.index(True)
    best = int(heads_of(run, part["path_of_layer"][-1])[0].weights(slice(query, query + 1))[0].argmax())
    return {"part": part["part"], "layer": str(part["layers"] - 1), "head": "0", "query": str(query), "key": str(best)}


def record_training(w: ProbeLog | None) -> dict[str, Answer]:
    """A watched run: its curve, and some of its steps."""
    if w is None:
        return {"watch": Answer({"runs": []})}
    name, every = probe_answers.run_key(w.directory), -(-len(w.steps) // STEPS)
    kept = sorted({*w.steps[::every], *w.steps[-1:]})
    whole = probe_answers.answer_run(w)
    rows = [i for i, n in enumerate(w.steps) if n in kept]
    keys = {**whole.keys, "steps": [w.index["steps"][i] for i in rows], "recorded": kept}
    found = {"watch": Answer({"runs": [probe_answers.summarize_run(w)]}),
             f"watch/{name}/steps": Answer(keys, {n: x[rows] for n, x in whole.arrays.items()})}
    return found | {f"watch/{name}/step/{n}": probe_answers.answer_step(w, str(n)) for n in kept}


def path_of(path: str, query: Mapping[str, str]) -> str:
    """A path as the page's script writes it: keys sorted, defaults and empty ones left out."""
    kept = sorted((k, v) for k, v in query.items() if v != "" and DEFAULTS.get(k) != v)
    pairs = "&".join(f"{k}={quote(v, safe=chr(33) + chr(39) + '()*~-_.')}" for k, v in kept)
    return f"/api/{path}" + f"?{pairs}" * bool(pairs)


def run_path(question: Mapping[str, Any]) -> str:
    """The path by which the page's script finds the run of a question that it would post."""
    return "/api/run?" + json.dumps(question, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def request_path(run: Run, what: str, query: Mapping[str, str], model: Mapping[str, str]) -> str:
    """The path of an answer about a run, or about its model alone; `model` names one that is not the page's first."""
    if what in answers.TABLES:
        return path_of(what, {**query, **model})
    return path_of(f"r/{run.id}/{what}", query)


def encode_answer(found: Answer) -> dict[str, str]:
    """A body as JSON can hold it."""
    body = found.body()
    return {"type": found.type, "body": body.decode() if found.type == JSON else base64.b64encode(body).decode()}


def recorded_size(one: tuple[str, dict[str, str]]) -> int:
    """How many bytes a recorded answer takes in the file."""
    return len(inline_json(dict([one])).encode())


def write_element(name: str, packed: Mapping[str, Any]) -> str:
    """Answers as an element of a document."""
    return f'<script type="application/json" id="{name}">{inline_json(packed)}</script>'


def inline_json(packed: Mapping[str, Any]) -> str:
    """JSON that can stand in a script element."""
    return json.dumps(packed, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def write_document(packed: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """The document: the page's own script and style inline, allowed by their hash, and the answers as data."""
    script = texts["app.js"].replace("</script", "<\\/script").replace("<!--", "<\\!--")
    style = texts["app.css"].replace("</style", "<\\/style")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()  # allows this very script, no other
    policy = (f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
              "base-uri 'none'; form-action 'none'")
    meta = f'<meta http-equiv="content-security-policy" content="{policy}">'
    html, data = texts["index.html"], write_element("recorded", packed)
    for old, new in (
        ('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}'),
        ('<link rel="stylesheet" href="app.css">', f"<style>{style}</style>"),
        ('<script src="app.js"></script>', f"{data}\n<script>{script}</script>"),
    ):
        if html.count(old) != 1:
            raise QkvError("{static}: expected {old} once; build the page again", static=STATIC / "index.html", old=old)
        html = html.replace(old, new)
    return html


def read_page_file(path: Path) -> str:
    """A file of the page; a QkvError where it was not built."""
    if not path.is_file():
        raise QkvError("{path}: the page is not built; run npm run build in web/", path=path)
    return path.read_text(encoding="utf-8")
