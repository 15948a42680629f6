"""Conversations: as the model's chat template writes them, packed; only the assistant's messages are learnt."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from qkv.chat import template as chats
from qkv.data.collate import IGNORED
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.model import Model
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.objectives import base
from qkv.training.objectives.base import END_TOKENS, Decoding, HoldOut, Objective, measure_perplexity, tokenizer_for
from qkv.training.objectives.documents import Row, plan_packed
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits, Talk

# Each message ends with the end symbol, so that an answer ends where its writer stopped.
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
)


def plan_chat(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """Conversations as the model's chat template writes them, packed; only the assistant's messages are learnt."""
    tokenizer, context = tokenizer_for(model), run.model.context

    def encode_talks(talks: Any) -> Sequence[Row]:
        numbers, how = count(1), f"chat {tokenizer.config.get('chat_template')} {tokenizer.roles}"

        def encode_some(some: Sequence[Talk]) -> list[Row]:
            found = [encode_talk(tokenizer, talk, n) for talk, n in zip(some, numbers, strict=False)]
            return [(ids, [max(label, -1) + 1 for label in labels]) for ids, labels in found]

        return base.encode_sides(tokenizer, talks, encode_some, sides=2, how=how)

    rows = encode_talks(splits.train)
    cut = int((base.measure_sides(rows)[:, 0] > context).sum())
    notes = (Message("{cut} of {rows} conversations are longer than the context of {context}: their ends are left out",
                     cut=cut, rows=len(rows), context=context),)
    return plan_packed(run, model, rows, encode_talks, notes=notes if cut else (), often=splits.often)


def encode_talk(tokenizer: Tokenizer, talk: Talk, number: int) -> Row:
    """A conversation's ids, and as labels what its assistant says up to the symbol that ends each answer.

    What an answer is, is read off the template: it is what a finished turn has more than its generation prompt.

    Raises:
        QkvError: the template writes earlier turns otherwise once later ones follow, so that no answer can be found.
    """
    template = chats.find_template(tokenizer)
    assert template is not None  # assemble() gave it one
    ids = template.ids(tokenizer, talk, add_generation_prompt=False)
    labels, special = [IGNORED] * len(ids), {tokenizer.id(t) for t in tokenizer.roles.values()}
    for n, message in enumerate(talk):
        if message["role"] != "assistant":
            continue
        before = template.ids(tokenizer, talk[:n]) if n else []
        after = template.ids(tokenizer, talk[: n + 1], add_generation_prompt=False)
        if after[: len(before)] != before or ids[: len(after)] != after:
            raise QkvError("conversation {number}, message {text}: the chat template writes this turn differently when "
                           "more follows, so the answer cannot be separated from the rest", number=number, text=n + 1)
        own = range(len(before), len(after))
        control = [i for i in own if after[i] in special or tokenizer.decode([after[i]]) == ""]
        end = control[-1] + 1 if control else len(after)  # a line's end behind the last symbol is not the answer's
        labels[len(before) : end] = ids[len(before) : end]
    return ids[:-1], labels[1:]


def split_last_answers(talks: Sequence[Talk]) -> list[tuple[list[dict[str, Any]], str]]:
    """(a conversation up to its last answer, that answer) of each conversation."""
    last = [max(i for i, m in enumerate(talk) if m["role"] == "assistant") for talk in talks]
    return [(list(talk[:n]), str(talk[n]["content"])) for talk, n in zip(talks, last, strict=True) if n]


def answer_talks(model: Model, sources: Sequence[Any], how: Decoding) -> list[str]:
    """What a model answers to each conversation."""
    prompts = [model.conversation(talk) for talk in sources]
    return [r.text for r in model.generate(prompts, beam=how.beam, max_new_tokens=how.longest or 256)]


CHAT = Objective("chat", "conversations or pairs", END_TOKENS, "none", plan_chat, answer_talks, ("causal decoder",),
                 measure=measure_perplexity)
