"""`/v1/translate`, and LibreTranslate's `/translate` and `/languages`, by which browser extensions translate pages."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from qkv.generation.beam import Search
from qkv.generation.sequence import DecodeOptions
from qkv.messages import Message
from qkv.serve import bodies
from qkv.serve.fields import RequestError, read_fields, require
from qkv.serve.models import Loaded, refuse_use
from qkv.serve.service import Caller, Service, Written
from qkv.serve.worker import Request, Writing, read_events
from qkv.serve.writing import Clock, bound_time, limit_tokens
from qkv.tasks.generate import decode_options, result_of
from qkv.tasks.generate_options import GenerateOptions
from qkv.tasks.languages import find_language, mark_source, mark_target
from qkv.tasks.text_constraints import make_guides
from qkv.tasks.translate import align_tokens, check_sources, mark_unknown
from qkv.tasks.types import Result, start_ids
from qkv.tokenizers.vocabulary import is_closed

AT_ONCE = 8  # texts of one request that are in the engine together, so that others come in between
BEAM, PENALTY = 4, 0.6  # as `Model.translate` has them
NAMES = {"zh": "Chinese", "en": "English", "de": "German", "fr": "French", "es": "Spanish", "ja": "Japanese",
         "ru": "Russian", "it": "Italian", "pt": "Portuguese", "ko": "Korean", "ar": "Arabic"}


async def translate_texts(service: Service, caller: Caller, body: Mapping[str, Any]) -> dict[str, Any]:
    """Each text translated, with its next best, scores and alignment where they are asked for."""
    found = read_fields(body, bodies.TRANSLATE)
    lines, align = require(found, "text"), found.get("align", False)
    name = found.get("model") or choose_model(service)
    async with service.admit(caller, name) as one:
        rows = await translate_lines(service, caller, one, lines, found)
        caller.notes.update(model=one.name, wrote=sum(len(result.tokens) for result in rows))
        answers = [describe_result(one, line, result, found) for line, result in zip(lines, rows, strict=True)]
    usage = {"prompt_tokens": sum(len(one.model.ids(line)) for line in lines),
             "completion_tokens": sum(len(result.tokens) for result in rows)}
    return {"object": "list", "model": one.name, "translations": answers, "usage": usage, "id": caller.id,
            **({"aligned": "rows are tokens of the translation, columns tokens of the source"} if align else {})}


def describe_result(one: Loaded, line: str, result: Result, found: Mapping[str, Any]) -> dict[str, Any]:
    """A translation as JSON."""
    answer: dict[str, Any] = {"text": result.text, "finish_reason": result.finish_reason}
    if found.get("scores"):
        answer |= {"score": result.score, "logprobs": result.logprobs}
    if found.get("nbest", 1) > 1:
        answer["others"] = [{"text": r.text, **({"score": r.score} if found.get("scores") else {})}
                            for r in result.others]
    if found.get("keep") and one.model.tokenizer is not None:  # a page that shows each word
        stream = one.model.tokenizer.stream()
        answer["pieces"] = [stream.push(token) for token in result.tokens]
        answer["pieces"][-1:] = [answer["pieces"][-1] + stream.end()] if result.tokens else []
    if result.unknown:
        answer["unknown"] = list(result.unknown)
    if result.alignment is not None and one.model.tokenizer is not None:
        pieces = one.model.tokenizer.pieces
        answer["alignment"] = {"source": pieces(one.model.ids(line), side="source"), "target": pieces(result.tokens),
                               "weights": result.alignment.tolist()}
    return answer


async def translate_lines(
    service: Service, caller: Caller, one: Loaded, lines: Sequence[str], found: Mapping[str, Any]
) -> list[Result]:
    """The translations of texts, some of them in the engine together.

    Raises:
        RequestError: the model does not translate, or a text is too long.
        QkvError: a text is empty, or a search that cannot be.
    """
    if not one.model.encoder_decoder or one.engine is None:
        raise refuse_use(one, Message("it does not translate"))
    beam = found.get("beam", BEAM)
    search = Search(beam, found.get("nbest", 1), found.get("length_penalty", PENALTY))
    check_sources(one.model, lines)
    rows = await service.think(lambda: [one.model.ids(line) for line in lines])
    if "source" in found:
        language = find_language(one.model, "source", found["source"])
        rows = [mark_source(one.model, ids, language) for ids in rows]
    start = start_ids(one.model, mark_target(one.model, found.get("target")))
    guides = make_guides(one.model, 1, {"target_prefix": found.get("target_prefix")})
    limits = [limit_tokens(one, ids, found.get("max_tokens"), service.bounds) for ids in rows]
    gate, keep = asyncio.Semaphore(AT_ONCE), found.get("keep", False)

    async def translate_one(n: int) -> Result:
        async with gate:
            options = decode_options(one.model, GenerateOptions(max_new_tokens=limits[n]))
            options = replace(options, start=start, guides=guides, text_stream=None)
            result = await write_translation(service, one, rows[n], options, search)
            made = await one.worker.call(finish_translation, one, lines[n], (rows[n], start), result,
                                         found.get("align", False))
            if keep:
                service.keep(f"{caller.id}-{n}", Written(caller.key, one.name, tuple(rows[n]), tuple(made.tokens),
                                                         tuple(made.logprobs)))
            return made

    tasks = [asyncio.create_task(translate_one(n)) for n in range(len(lines))]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def write_translation(
    service: Service, one: Loaded, ids: list[int], options: DecodeOptions, search: Search
) -> Result:
    """The best translations of a text, by beams in the engine."""
    clock, writings = Clock(service.metrics), list[Writing]()
    try:
        with bound_time(service, writings) as ended:
            await one.worker.submit([Request(ids, options, search=search, whole=True)], writings)
            async with aclosing(read_events(writings)) as events:
                async for _ in events:
                    pass  # beams say nothing until they are done
        if ended:
            raise ended[0]
        result = result_of(one.model, writings[0].handle.hypotheses)
        clock.count_tokens(len(result.tokens))
        return result
    finally:
        for writing in writings:
            writing.cancel()
        clock.stop(len(ids), [writing.handle.sequence.finish_reason or "cancelled" for writing in writings])


def finish_translation(
    one: Loaded, line: str, read: tuple[list[int], tuple[int, ...]], result: Result, align: bool
) -> Result:
    """A translation of what was `read`, source and start, with what the vocabulary lacks marked, as `Model.translate`
    gives it.
    """
    tokenizer, (ids, start) = one.model.tokenizer, read
    if tokenizer is not None and (missing := tuple(tokenizer.find_unknown(line))):
        result = replace(result, unknown=missing)
        if is_closed(tokenizer):
            result = mark_unknown(one.model, ids, start, result)
    return replace(result, alignment=align_tokens(one.model, ids, start, result.tokens)) if align else result


def choose_model(service: Service, source: str = "auto", target: str = "") -> str | None:
    """The first model that says these languages; None, which means the first of all, where none says any."""
    known = service.languages
    for name, (begin, end) in known.items():
        if source in ("auto", "", begin) and target in ("", end):
            return name
    if not known:
        return None
    pairs = ", ".join(f"{begin} to {end}" for begin, end in known.values())
    raise RequestError("target: no model here translates {source} to {target} (there are: {pairs})", param="target",
                       source=source, target=target, pairs=pairs)


async def translate_as_libre(service: Service, caller: Caller, body: Mapping[str, Any]) -> dict[str, Any]:
    """The same as LibreTranslate's clients ask for it: a text or a list, and back the same."""
    found = read_fields(body, bodies.LIBRE)
    lines, single = require(found, "q"), isinstance(body.get("q"), str)
    if found.get("format") == "html" and any("<" in line for line in lines):
        raise RequestError("format: html is not supported here; send text", code="unsupported_parameter",
                           param="format")
    source, target = found.get("source", "auto"), found.get("target", "")
    more = found.get("alternatives", 0)
    name = found.get("model") or choose_model(service, source, target)
    whole_lines = [line for line in lines if line.strip()]
    async with service.admit(caller, name) as one:
        options = {"nbest": more + 1, "beam": max(BEAM, more + 1)}
        results = iter(await translate_lines(service, caller, one, whole_lines, options) if whole_lines else [])
    said = [next(results) if line.strip() else None for line in lines]
    rows = [line if result is None else result.text for line, result in zip(lines, said, strict=True)]
    answer: dict[str, Any] = {"translatedText": rows[0] if single else rows}
    if source == "auto" and one.name in service.languages:
        guess = {"language": service.languages[one.name][0], "confidence": 0}
        answer["detectedLanguage"] = guess if single else [guess] * len(rows)
    if more:
        others = [[r.text for r in result.others] if result else [] for result in said]
        answer["alternatives"] = others[0] if single else others
    return answer


def list_languages(service: Service) -> list[dict[str, Any]]:
    """What LibreTranslate's clients ask first: the languages, and into which each is translated."""
    into: dict[str, set[str]] = {}
    for source, target in service.languages.values():
        into.setdefault(source, set()).add(target)
        into.setdefault(target, set())
    return [{"code": code, "name": NAMES.get(code, code), "targets": sorted(targets)} for code, targets in into.items()]
