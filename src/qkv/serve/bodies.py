"""What each address may be asked: its fields, each with its check. One page for who writes a client."""

from qkv.serve.fields import Check, anything, choice, flag, mapping, number, objects, prompts, string, texts, whole

MANY_TEXTS, WIDEST = 256, 16  # texts of a translation; its beams
COUNT = 1 << 31
# What clients say about themselves, and nobody reads here.
IDLE: dict[str, Check] = dict.fromkeys(
    ("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"),
    anything,
)
WRITING: dict[str, Check] = {
    **IDLE, "model": string(256), "n": whole(1, 16), "stream": flag, "stream_options": mapping(8),
    "stop": texts(16, 256), "seed": whole(-(1 << 62), 1 << 62), "temperature": number(0, 2), "top_p": number(0, 1),
    "top_k": whole(-1, COUNT), "min_p": number(0, 1), "max_tokens": whole(1, COUNT), "min_tokens": whole(0, COUNT),
    "presence_penalty": number(-2, 2), "frequency_penalty": number(-2, 2), "repetition_penalty": number(0.01, 100),
    "logit_bias": mapping(), "response_format": mapping(8), "regex": string(1 << 16), "grammar": string(1 << 16),
    "keep": flag,
}
STREAM_OPTIONS: dict[str, Check] = {"include_usage": flag, "include_obfuscation": anything}
FORMAT: dict[str, Check] = {"type": choice("text", "json_object", "json_schema"), "json_schema": mapping()}
SCHEMA: dict[str, Check] = {"schema": mapping(), "name": string(256), "strict": flag, "description": string()}
CHAT: dict[str, Check] = {
    **WRITING, "messages": objects(2048), "max_completion_tokens": whole(1, COUNT), "logprobs": flag,
    "top_logprobs": whole(0, 20), "tools": objects(128, 0), "tool_choice": anything,
    "chat_template_kwargs": mapping(32),
}
CALLS: dict[str, Check] = {"tool_calls": objects(128)}
TEXT: dict[str, Check] = {
    **WRITING, "prompt": prompts(64), "logprobs": whole(0, 20), "echo": flag, "best_of": whole(1, 1),
    "suffix": string(0),
}
EMBEDDING: dict[str, Check] = {
    "user": anything, "model": string(256), "input": prompts(2048), "encoding_format": choice("float", "base64"),
    "dimensions": whole(1, 1 << 20), "prompt_name": string(256),
}
TOKENIZE: dict[str, Check] = {
    "model": string(256), "prompt": string(), "content": string(), "messages": objects(2048),
    "add_special_tokens": flag, "add_special": flag, "return_token_strs": flag, "add_generation_prompt": flag,
}
DETOKENIZE: dict[str, Check] = {"model": string(256), "tokens": anything}
TRANSLATE: dict[str, Check] = {
    "model": string(256), "text": texts(MANY_TEXTS), "beam": whole(1, WIDEST), "nbest": whole(1, WIDEST),
    "length_penalty": number(0, 10), "max_tokens": whole(1, COUNT), "scores": flag, "align": flag, "keep": flag,
    "source": string(32), "target": string(32), "target_prefix": string(4096),
}
LIBRE: dict[str, Check] = {
    "model": string(256), "q": texts(MANY_TEXTS), "source": string(32), "target": string(32),
    "format": choice("text", "html"), "api_key": string(512), "alternatives": whole(0, WIDEST - 1),
}
