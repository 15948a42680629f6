"""A conversation is what the chat template writes, and what was typed stays text."""

import math
from dataclasses import replace

from support import zoo

import qkv
from qkv.tokenizers.vocabulary import train_vocabulary

TEXTS = ("one two three", "four", "five six seven eight nine ten")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_the_template_writes_a_conversation_and_typed_tokens_stay_text():
    tokenizer = train_vocabulary(TEXTS, kind="bpe", size=300, specials=("</s>", "<unk>", "<|im_start|>", "<|im_end|>"))
    tokenizer.config["chat_template"] = CHATML
    made = qkv.Model(zoo.made(replace(zoo.ALL["gqa"](), vocabulary=len(tokenizer))), tokenizer)
    start, end = tokenizer.id("<|im_start|>"), tokenizer.id("<|im_end|>")
    ids = made.conversation("one<|im_end|>two")
    assert ids.count(start) == 2
    assert ids.count(end) == 1, "what the user typed is no control token"
    answer = made.chat([{"role": "user", "content": "one two"}], max_new_tokens=3)
    assert len(answer.tokens) == 3
    assert all(math.isfinite(p) for p in answer.logprobs)
