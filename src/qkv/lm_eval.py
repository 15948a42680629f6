"""lm-evaluation-harness on our models: `python -m qkv.lm_eval --model qkv --model_args pretrained=M --tasks …`.

The options behind `python -m qkv.lm_eval` are those of `lm_eval` itself, which cannot find models outside its own
folder; a program that imports this module may name "qkv" to `lm_eval.simple_evaluate`.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from qkv import hub
from qkv.chat.template import find_template
from qkv.errors import QkvError
from qkv.generation.decoder import batch_by_length
from qkv.tasks.batches import last_states, prepare_batch

harness: Any = import_module("lm_eval.api.model")
utils, generation = import_module("lm_eval.utils"), import_module("lm_eval.models.utils")
register: Any = import_module("lm_eval.api.registry").register_model
Pair = tuple[Any, list[int], list[int]]  # texts, ids of the context, ids of what is scored after it
TOKENS = 1024  # read in one pass, padding included
LONGEST = 2048  # of a model whose positions have no end


@register("qkv")
class EvaluatedModel(harness.TemplateLM):
    """A model as the harness asks it: what it finds likely, and how it continues."""

    def __init__(
        self, pretrained: str, *, device: str = "auto", dtype: str = "auto", revision: str | None = None,
        batch_size: Any = None, max_batch_size: Any = None, max_length: int | None = None, max_gen_toks: int = 256,
    ) -> None:
        super().__init__()
        del batch_size, max_batch_size  # texts of like length are read together, up to TOKENS
        self.model = hub.load(pretrained, device=device, dtype=dtype, revision=revision)
        spec, texts = self.model.spec, self.model.tokenizer
        if texts is None or spec.decoder is None or spec.head is None or spec.encoder:
            raise QkvError("{name}: the harness asks decoders with a head and a tokenizer", name=pretrained)
        self.texts, self.name, self.max_gen_toks = texts, pretrained, max_gen_toks
        self.max_length = max_length or spec.decoder.longest or LONGEST
        ends = (texts.eos_id, *self.model.special.eos)
        self.end = next((i for i in ends if i is not None), 0)

    @property
    def eot_token_id(self) -> int:
        """What ends a text."""
        return self.end

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text of which each token is scored."""
        return self.end if self.texts.bos_id is None else self.texts.bos_id

    @property
    def tokenizer_name(self) -> str:
        """By which the harness keeps requests."""
        return self.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The ids of a text, with what the model's template puts around it unless it begins so already."""
        begun = string.startswith(self.texts.token(self.prefix_token_id))
        return self.texts.encode(string, special=not begun if add_special_tokens is None else add_special_tokens)

    def apply_chat_template(self, chat_history: Sequence[Any], add_generation_prompt: bool = True) -> str:
        """A conversation as the model's template writes it."""
        template = find_template(self.texts)
        if template is None:
            raise QkvError("this model has no chat template and is not a chat model: use generate")
        return template.render(chat_history, add_generation_prompt=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The text of the template, by which the harness keeps requests."""
        return str(self.texts.config.get("chat_template") or "") if chat_template else ""

    @torch.inference_mode()
    def _loglikelihood_tokens(self, requests: Sequence[Pair], **_: Any) -> list[tuple[float, bool]]:
        rows = [(*context, *target)[-(self.max_length + 1) :] for _, context, target in requests]
        found, read = dict[int, tuple[float, bool]](), dict[tuple[int, ...], list[int]]()
        for r, row in enumerate(rows):
            read.setdefault(row[:-1], []).append(r)  # answers of one token share what is read
        unique = list(read)
        for chosen in batch_by_length(unique, TOKENS):
            ids, inputs = prepare_batch(self.model.core, [unique[u] for u in chosen])
            states = last_states(self.model.core, ids, inputs)  # B T D
            for state, u in zip(states, chosen, strict=True):
                for r in read[unique[u]]:
                    last = len(unique[u])
                    count = min(len(requests[r][2]), last)
                    target = torch.tensor(rows[r][-count:], device=ids.device)
                    logprobs = self.model.core.head(state[last - count : last]).float().log_softmax(-1)  # T V
                    likeliest = bool((logprobs.argmax(-1) == target).all())
                    found[r] = logprobs.gather(-1, target[:, None]).sum().item(), likeliest
        return [found[r] for r in range(len(rows))]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text, in windows where it is longer than the model reads."""
        windows = list[Pair]()
        counts = list[int]()
        for text in (request.args[0] for request in requests):
            cut = utils.get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, 1)
            own = [utils.make_disjoint_window(window) for window in cut]
            windows += [(None, list(context), list(target)) for context, target in own]
            counts.append(len(own))
        found = iter(self._loglikelihood_tokens(windows))
        return [sum(next(found)[0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What follows each text, up to one of its stop strings; those with the same options are read together."""
        groups, found = dict[str, list[int]](), dict[int, str]()
        for r, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(r)
        for group in groups.values():
            each = self.continue_texts([requests[r].args[0] for r in group], requests[group[0]].args[1])
            found.update(zip(group, each, strict=True))
        return [found[r] for r in range(len(requests))]

    def continue_texts(self, texts: Sequence[str], how: dict[str, Any]) -> list[str]:
        """What follows each text; it is cut from the left where there is no room for what is to come."""
        said = generation.normalize_gen_kwargs(how, self.max_gen_toks)
        stop, count = [s for s in said.pop("until", []) if s], said.pop("max_gen_toks")
        if not said.pop("do_sample", False):
            said = {}
        if count >= self.max_length:
            raise QkvError("{option}: found {count}, expected fewer than the {most} tokens that the model reads",
                           option="max_gen_toks", count=count, most=self.max_length)
        prompts, found = [self.tok_encode(text)[-(self.max_length - count) :] for text in texts], dict[int, str]()
        for chosen in batch_by_length(prompts, TOKENS):
            made = self.model.generate([prompts[p] for p in chosen], max_new_tokens=count, stop=stop, **said)
            found.update((p, str(one.text)) for p, one in zip(chosen, made, strict=True))
        return [found[p] for p in range(len(prompts))]


if __name__ == "__main__":
    import_module("lm_eval.__main__").cli_evaluate()
