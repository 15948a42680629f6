"""`/v1/embeddings`, and `/tokenize` with `/detokenize`: what is read, and not written."""

import base64
import struct
from collections.abc import Mapping
from typing import Any

from qkv.serve import bodies
from qkv.serve.completions import read_message
from qkv.serve.fields import RequestError, is_ids, read_fields, require
from qkv.serve.service import Caller, Service

TOGETHER = 8  # texts that are read between two steps of those who write


async def embed_inputs(service: Service, caller: Caller, body: Mapping[str, Any]) -> dict[str, Any]:
    """A vector for each input."""
    found = read_fields(body, bodies.EMBEDDING)
    given, most = require(found, "input"), service.bounds.prompt
    async with service.admit(caller, found.get("model")) as one:
        rows = await service.think(lambda: [one.model.ids(line) for line in given])
        if wrong := [len(row) for row in rows if not row or len(row) > (most or len(row))]:
            raise RequestError("input: a text of {tokens} tokens, expected 1 to {most}", code="context_length_exceeded",
                               param="input", tokens=wrong[0], most=most or "the model's context")
        vectors: list[list[float]] = []
        for at in range(0, len(given), TOGETHER):
            found_now = await one.worker.call(one.model.embed, given[at : at + TOGETHER],
                                              prompt=found.get("prompt_name"))
            vectors += found_now.tolist()
    width, wanted = len(vectors[0]), found.get("dimensions")
    if wanted not in (None, width):
        raise RequestError("dimensions: found {wanted}, and this model's vectors have {width}", param="dimensions",
                           wanted=wanted, width=width)
    coded = found.get("encoding_format") == "base64"
    data = [{"object": "embedding", "index": n, "embedding": pack_vector(v) if coded else v}
            for n, v in enumerate(vectors)]
    read = sum(map(len, rows))
    return {"object": "list", "data": data, "model": one.name, "usage": {"prompt_tokens": read, "total_tokens": read}}


def pack_vector(vector: list[float]) -> str:
    """A vector as little-endian fp32 in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


async def tokenize(service: Service, caller: Caller, body: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of a text (`prompt` or `content`) or of a conversation (`messages`)."""
    found = read_fields(body, bodies.TOKENIZE)
    special = found.get("add_special_tokens", found.get("add_special", True))
    async with service.admit(caller, found.get("model")) as one:
        model = one.model
        if model.tokenizer is None:
            raise RequestError("the model {name} has no tokenizer", param="model", name=one.name)
        if "messages" in found:
            if one.template is None:
                raise RequestError("the model {name} has no chat template", code="no_chat_template", param="model",
                                   name=one.name)
            rows = [read_message(n, row) for n, row in enumerate(found["messages"])]
            ids = await service.think(lambda: one.template.ids(  # type: ignore[union-attr]
                model.tokenizer, rows, add_generation_prompt=found.get("add_generation_prompt", True)))  # type: ignore[arg-type]
        else:
            said = found.get("prompt", found.get("content"))
            if said is None:
                raise RequestError("prompt is missing", code="missing_field", param="prompt")
            ids = await service.think(lambda: model.tokenizer.encode(said, special=special))  # type: ignore[union-attr]
        longest = one.room if one.engine else model.spec.stack.longest
    answer: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": longest}
    return answer | ({"token_strs": model.tokenizer.pieces(ids)} if found.get("return_token_strs") else {})


async def detokenize(service: Service, caller: Caller, body: Mapping[str, Any]) -> dict[str, Any]:
    """The text of ids."""
    found = read_fields(body, bodies.DETOKENIZE)
    ids = require(found, "tokens")
    if ids != [] and not is_ids(ids):
        raise RequestError("tokens: expected a list of token ids", param="tokens")
    async with service.admit(caller, found.get("model")) as one:
        said = await service.think(one.model.text, one.model.ids(ids) if ids else [])
    return {"prompt": said, "content": said}
