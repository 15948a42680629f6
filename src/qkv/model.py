"""`Model`: a core with its tokenizer and all that one can ask of it; its methods only delegate."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.adapt import lora, quantise
from qkv.arguments import Count, check_arguments
from qkv.chat.template import Turn
from qkv.checkpoints import gguf_out, model_dir, peft, sentence_transformers, storage
from qkv.core.dropout import Drop, no_dropout
from qkv.core.model import Output, Transformer
from qkv.core.step import Inputs
from qkv.devices import DTYPES, parse_dtype
from qkv.errors import QkvError
from qkv.files import replace_dir
from qkv.generation.engine import Engine
from qkv.paths import is_gguf
from qkv.tasks import chat, classify, embed, evaluate, fill, generate, score, translate
from qkv.tasks.inputs import check_inputs
from qkv.tasks.special_tokens import check_special
from qkv.tasks.types import Prompt, Result, SpecialTokens, Tell, as_ids, be_silent
from qkv.tokenizers import gguf
from qkv.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.lens.trace import Trace


class Model:
    """A core with its tokenizer and everything that one can ask of it. Not an nn.Module: `.core` is."""

    @check_arguments
    def __init__(
        self, core: Transformer, tokenizer: Any = None, special: SpecialTokens | None = None,
        config: dict[str, Any] | None = None, generation_config: dict[str, Any] | None = None,
        pooling: sentence_transformers.Pooling | None = None,
    ) -> None:
        if isinstance(tokenizer, str | bytes | int | float | list | tuple | dict | set):  # else it may spell
            raise QkvError("Model: tokenizer: found {value!r} of type {kind}, expected a Tokenizer or None",
                           code="argument", value=tokenizer, kind=type(tokenizer).__name__)
        self.core, self.config = core, config
        self.tokenizer: Tokenizer | None = tokenizer
        self.spec = core.spec
        self.encoder_decoder = self.spec.architecture == "encoder-decoder"  # is there a source besides the target?
        self.special = special or SpecialTokens()
        check_special(self.special, self.spec)
        self.generation_config = generation_config or {}  # generation_config.json as it was loaded
        self.pooling = pooling  # how a sentence-transformers directory makes a vector of a text
        self.place = "config.json"  # the file that says what it is
        self.base = ""  # the model that its adapters stand beside, where it has some

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.core.embed.weight.device

    def __repr__(self) -> str:
        count = quantise.count_parameters(self.core)
        bits = "".join(f" + {kind}" for kind in sorted({m.kind for m in quantise.find_quantised(self.core).values()}))
        kind = (self.config or {}).get("model_type", "qkv")
        return f"Model({kind}, {count:,} parameters, {self.core.embed.weight.dtype}{bits}, {self.device})"

    @check_arguments
    def __call__(
        self, ids: Tensor | None = None, *, source: Tensor | None = None, target: Tensor | None = None,
        padding: Tensor | None = None, segments: Tensor | None = None, prefix: Tensor | None = None,
        drop: Drop = no_dropout,
    ) -> Output:
        """One forward pass with autograd on: ids [B, T] -> logits [B, T, V].

        Encoder-decoders take `source` [B, S] and `target` [B, T], and `padding` (True = real) belongs to the source.
        `segments` [B, T] numbers the texts of a pair; `prefix` [B] says how many tokens a prefix decoder sees freely.

        Raises:
            QkvError: what the model does not read, or ids that are no whole numbers in rows.
        """
        if self.encoder_decoder:
            if source is None or target is None or ids is not None:
                raise QkvError("this model has an encoder and a decoder: call it with source= and target=")
            ids, inputs = target, Inputs(source=source, source_padding_mask=padding)
        elif ids is None or source is not None or target is not None:
            raise QkvError("this model has one stack: call it with ids (and padding=)")
        else:
            inputs = Inputs(padding_mask=padding)
        inputs = replace(inputs, segments=segments, prefix_len=prefix)
        check_inputs(self.spec, ids, inputs)
        return self.core(ids, inputs, drop=drop)

    @check_arguments
    def save(self, directory: str | Path, *, family: str | None = None, dtype: torch.dtype | str | None = None) -> Path:
        """Write a Hugging Face directory, whole or not at all; what other files it holds stays.

        `dtype` int8 or int4 quantises the linear layers of its blocks, in compressed-tensors' layout.

        A name that ends in .gguf is written as one file for llama.cpp, where `dtype` may also be "q8_0" or "q4_0".

        The config that was loaded is kept; else the family that can say the spec, else type `qkv` with the spec in it.

        Raises:
            QkvError: `family` cannot say the spec; the message names the field.
        """
        if not str(directory):
            raise QkvError("save: the name of the directory is empty")
        directory = Path(directory)
        if is_gguf(directory):
            said = (gguf.describe_tokenizer(self.tokenizer, self.spec.vocabulary, directory) if self.tokenizer
                    else {"tokenizer.ggml.model": "none"})
            ends = zip(("eos", "eot", "eom"), self.special.eos, strict=False)
            said |= {f"tokenizer.ggml.{key}_token_id": number for key, number in ends}
            kind = DTYPES.get(str(dtype), dtype) or self.core.embed.weight.dtype
            core = quantise.share(self.core, "float") if quantise.find_quantised(self.core) else self.core
            gguf_out.write_model(directory, core, self.config or {}, said, kind, pooling=self.pooling)
            return directory
        core, few = self.core, dtype in quantise.KINDS
        if few or (quantise.find_quantised(core) and (dtype is not None or not quantise.is_storable(core))):
            core = quantise.share(core, str(dtype))
        dtype = torch.bfloat16 if few else parse_dtype(dtype) if isinstance(dtype, str) else dtype
        with replace_dir(directory) as aside:
            config = self.config or {}
            names = {key: config[key] for key in ("id2label", "label2id") if self.spec.labels and key in config}
            extra = self.special.keys | names
            if lora.find_adapters(self.core):
                save_adapters(aside, self)
            else:
                model_dir.save_core(aside, core, family=family, config=self.config, extra=extra, dtype=dtype)
            never = {"bad_words_ids": [[i] for i in self.special.forbid]} if self.special.forbid else {}
            storage.write_json(aside / "generation_config.json", {**self.generation_config, **extra, **never})
            if self.tokenizer is not None:
                self.tokenizer.save(aside)
            if self.pooling is not None:
                sentence_transformers.write_pooling(aside, self.pooling)
        return directory

    @check_arguments
    def generate(self, prompt: Any, **options: Any) -> Any:
        """Continue a prompt (text or ids), or a list of prompts: one Result, or a list of them.

        Greedy until an end id or the context's end by default; sampling="model" takes generation_config's values, and
        warns of keys that it ignores. docs/decoding.md explains the options: max_new_tokens, temperature, top_k,
        top_p, min_p, seed, n, stop (strings), chunk, cache, sampling; logit_bias, repetition_penalty, presence_penalty,
        frequency_penalty, no_repeat_ngram, min_new_tokens; json_schema, regex, grammar; beam, length_penalty, groups,
        diversity_penalty, early_stopping; speculate, draft. Of several texts (n) the others are in `others`. Further:
        top_logprobs (so many of the likeliest ids with each token), batch_invariant (each prompt has the bits that it
        has alone), `engine` (one of `Model.engine`, which keeps the keys of what it read) and, with it, `trace`, which
        listens to this request alone.

        Raises:
            QkvError: an option or prompt that cannot be meant; a prompt longer than the context; logits that are not
                finite, where all prompts have some (of several, one that has them ends with "error", the others go on).
        """
        return generate.generate(self, prompt, **options)

    @check_arguments
    def stream(self, prompt: Prompt, **options: Any) -> Iterator[str]:
        """The text of `generate`, piece by piece as it is chosen; never half a character, never a stop string.

        Closed early it leaves nothing behind.
        """
        return generate.stream(self, prompt, **options)

    def engine(self, **settings: Any) -> Engine:
        """An engine that writes requests which come at any time: `engine.submit(ids, ...)` gives a handle, and
        `generate`, `stream` and `chat` take it as `engine=`. What begins like a text that it read is not read again.

        Settings: tokens (positions of all texts together: 16,384 or the context, where half of the free memory holds
        them), page_size (16), limits (rows, tokens, beside), keep_prefixes, batch_invariant.

        Raises:
            QkvError: an unknown setting, or pages for which there is no memory.
        """
        return generate.make_engine(self, settings)

    @check_arguments
    def translate(self, text: Any, **options: Any) -> Any:
        """Translate a text, or a list of texts, by beam search: one Result, or a list of them.

        Options: beam (4), length_penalty (0.6), nbest (1), max_new_tokens, align (False), `ensemble`: other models
        that search with this one, by the mean of their probabilities; and of models between many languages `source`
        and `target`, their codes (zho_Hans in NLLB, zh in M2M-100, zh_CN in mBART). `target_prefix` begins the
        translation, `must_include` and `must_avoid` are lists of texts or ids: each once for all sources, or a list
        with one for each. Penalties and groups are those of `generate`.

        Raises:
            QkvError: the model has no encoder and decoder, a text is empty, an ensemble is of several vocabularies,
                a language is unknown, or no translation meets the constraints.
        """
        return translate.translate(self, text, **options)

    @check_arguments
    def chat(self, messages: str | Sequence[Turn], **options: Any) -> Result:
        """The answer to a conversation, a list of {"role": …, "content": …}, or to one text of the user.

        Options are those of `generate`. Control tokens that somebody typed stay text.

        Raises:
            QkvError: the model has no chat template, or its template refuses the messages.
        """
        return chat.chat(self, messages, **options)

    @check_arguments
    def conversation(self, messages: str | Sequence[Turn]) -> list[int]:
        """The ids of a conversation up to where the model answers, as its chat template writes them."""
        return chat.conversation_ids(self, messages)

    @check_arguments
    def score(self, text: Any) -> Any:
        """The log-probability (natural, summed over tokens) that the model gives a text, or each of a list of texts.

        Of a tuple of two texts the second is scored, after the first: a translation after its source, end included,
        what a prefix decoder writes after what it reads, or how a decoder's text goes on. Ids are taken as they are.

        Raises:
            QkvError: the model says no words, or not after this: an encoder-decoder wants two texts, others one or two.
        """
        return score.score(self, text)

    @check_arguments
    def embed(self, text: Any, *, prompt: str | None = None, tell: Tell = be_silent) -> Tensor:
        """A vector in fp32 for a text [D], or for each of a list of texts [B, D]: the mean of its last states, of
        length 1, or what a sentence-transformers directory says; `prompt` names one of its prompts, such as "query".

        Texts of like length are read together, and `tell` is told (done, all). Such a directory's own longest text
        bounds what is read.

        Raises:
            QkvError: a text is empty, or longer than the model reads where no directory says to cut it; no such prompt.
        """
        return embed.embed(self, text, prompt=prompt, tell=tell)

    @check_arguments
    def similarity(self, first: Any, second: Any) -> Tensor:
        """How alike texts, or vectors of `embed`, are [B, C]: the cosine, or what a sentence-transformers directory
        says (distances are negative, so more is always more alike).
        """
        return embed.compare_vectors(self, first, second)

    @check_arguments
    def classify(self, text: Any, *, both: bool = False, ensemble: Sequence["Model"] = ()) -> Any:
        """The label of a text and the probability of each: one Classification, or a list of them.

        A tuple is one question: a pair, which `both` reads in both orders and adds (are they alike?), as a model does
        that learnt it so, or, where one logit judges, (question, answer, ...): the label is the best answer's number.
        The models of `ensemble` judge with this one, by the mean of their probabilities.

        Raises:
            QkvError: the model has no labels; or a pair, and it reads none; an ensemble is of other labels.
        """
        return classify.classify(self, text, both=both, ensemble=ensemble)

    @check_arguments
    def fill(self, text: str, *, top: Count = 5) -> list[list[tuple[str, float]]]:
        """For each mask in a text the `top` most likely words with their probabilities, best first.

        Raises:
            QkvError: the model does not fill in words, the text holds no mask, or `top` is none.
        """
        return fill.fill(self, text, top=top)

    @check_arguments
    def eval(self, **options: Any) -> Any:
        """How good the model is: `bleu=(source, reference)` files or lists, `ppl=` a text file, `accuracy=` a file of
        text TAB label (or JSON lines with both), `last_word=` a file of texts, or `choice=` JSON lines of question,
        choices and answer.

        Options of bleu: tokenize, lowercase, joint, beam, length_penalty, max_new_tokens, ensemble; of ppl: window,
        stride; of accuracy: ensemble; and `tell`, a function of (done, all).

        Raises:
            QkvError: a broken file (with its line), an unknown option, or a model that cannot do it.
        """
        return evaluate.evaluate(self, **options)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels that `classify` chooses from, in the order of its logits."""
        count = self.spec.labels.count if self.spec.labels else 0
        names = (self.config or {}).get("id2label") or {}
        return tuple(str(names.get(str(i), names.get(i, f"LABEL_{i}"))) for i in range(count))

    @check_arguments
    def trace(self, save: Sequence[str] = (), edit: Sequence[Any] = (), **where: Any) -> "Trace":
        """Listen to the taps (or readouts) named, and make the edits given, while the `with` block runs the model.

        `budget` ("2GB") refuses what would not fit into memory, `to` is a directory to write to instead. With
        `stop=True` the block ends as soon as all that was named has been heard: no later layer, no head, no logits.
        """
        from qkv.lens.trace import Trace

        return Trace(self.core, save=list(save), edit=list(edit), tokenizer=self.tokenizer, **where)

    def taps(self) -> list[str]:
        """The names of all taps, in the order of the forward pass: what `trace(save=…)` takes, globs over them too."""
        from qkv.lens.taps import tap_names

        return tap_names(self.spec)

    @check_arguments
    def load_trace(self, directory: str | Path) -> "Trace":
        """A trace of this model that was written to disk."""
        from qkv.lens import trace_storage

        return trace_storage.load_trace(directory, self.core, self.tokenizer)

    @check_arguments
    def ids(self, text: Prompt) -> list[int]:
        """Text as token ids; ids stay as they are."""
        if not isinstance(text, str):
            return as_ids(text, self.spec.vocabulary)
        if self.tokenizer is None:
            raise QkvError("this model has no tokenizer: give token ids instead of text")
        return self.tokenizer.encode(text)

    @check_arguments
    def text(self, ids: Sequence[int]) -> str:
        """Token ids as text; without a tokenizer the empty string."""
        return self.tokenizer.decode(ids) if self.tokenizer is not None else ""


def save_adapters(directory: Path, model: Model) -> None:
    """The adapters of a model as PEFT writes them, with a config where the model has more than its base."""
    parts = {name: (m.a, m.b, m.scale) for name, m in lora.find_adapters(model.core).items()}
    inside = {f"{name}.{side}" for name in parts for side in "ab"}
    also = [n for n, p in model.core.named_parameters() if p.requires_grad and n not in inside]
    base = str(Path(model.base).resolve()) if Path(model.base).exists() else model.base
    peft.write_adapters(directory, model.core, model.config or {}, parts, base=base, also=also)
    if model.spec.labels:
        storage.write_json(directory / "config.json", model.config or {})
