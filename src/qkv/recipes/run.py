"""What a run is, as frozen data: model, vocabulary, training, how it is judged, and a function that reads its data.

A recipe is a file here with `run() -> Run`; own.py makes one of your own data. Next: assemble.py.
"""

import dataclasses
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from qkv.baselines import recurrence
from qkv.convert.checkpoint import spec_of
from qkv.data import download, shards, sources, tables
from qkv.data.check import leaked
from qkv.data.shards import Mixture
from qkv.errors import QkvError, nearest
from qkv.paths import cache_dir, data_dir
from qkv.spec import Block, Dense, Experts, Labels, Mask, Spec
from qkv.text.chat import checked
from qkv.text.recut import Ranks, merges_of
from qkv.text.train import Kind
from qkv.training.settings import Settings, assignments, changed
from qkv.training.watch import Watching

Pair = tuple[str, str]
Talk = tuple[dict[str, Any], ...]  # messages, each {"role": …, "content": …}
DROPLESS = ("llama", "prefix")  # they know dropout of attention weights alone
SHARING = ("llama", "prefix")  # the families that may have groups and experts
LACKS = {
    "lstm": ("activation", "attention_dropout"), "lstm-attention": ("activation", "attention_dropout"),
    "glm_blank": ("activation",),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """The size of a model: `marian` translates (encoder and decoder), `gpt2` and `llama` continue text, `bert` guesses
    hidden words and labels texts, and `prefix` is a llama that sees what it is given freely and continues it.
    `lstm` and `lstm-attention` translate as one did before (baselines.py); they have no heads and no ffn.
    `t5`, `bart` and `glm_blank` put back what their texts lack, and `openai_gpt` is the GPT that was fine-tuned first.
    """

    family: Literal[
        "marian", "gpt2", "llama", "bert", "prefix", "lstm", "lstm-attention", "t5", "bart", "glm_blank", "openai_gpt"
    ] = "marian"
    width: int = 256
    layers: int = 4
    heads: int = 4
    groups: int = 0  # key/value heads of llama and prefix; 0: as many as heads
    ffn: int = 1024
    experts: int = 0  # of llama (which is Mixtral then) and prefix (with one more that reads every token); 0: dense
    chosen: int = 2
    steered: bool = False  # a bias of each expert, moved by training.steer, decides with its score (Wang et al. 2024)
    activation: str = ""  # in the family's own words; empty: its usual one
    dropout: float | None = None  # None: 0.1, where the family has any (see DROPLESS)
    attention_dropout: float = 0.0
    context: int = 256
    tied: bool = True

    @property
    def drop(self) -> float:
        """The dropout of states and embeddings, and before labels."""
        return 0.1 if self.dropout is None else self.dropout

    def spec(self, vocabulary: int, *, labels: int = 0) -> Spec:
        """The spec of such a model over a vocabulary and so many labels of texts.

        Hugging Face can load what comes of all but `prefix`, `glm_blank` and the LSTMs, where they have no labels.

        Raises:
            QkvError: sizes that the family cannot have, or a dropout where it has none.
        """
        if self.dropout and self.family in DROPLESS:
            fit = ", ".join(f for f in typing.get_args(typing.get_type_hints(Shape)["family"]) if f not in DROPLESS)
            raise QkvError(f"model.dropout={self.dropout}: {self.family} has no dropout of states and would learn "
                           f"without; say model.dropout=0, or take a family that has it: {fit}")  # fmt: skip
        self.refuse_idle()
        if self.family in ("lstm", "lstm-attention"):
            attention = "additive" if self.family == "lstm-attention" else "none"
            return recurrence(vocabulary, width=self.width, layers=self.layers, attention=attention,
                              dropout=self.drop, context=self.context, tied=self.tied)  # fmt: skip
        kind = "llama" if self.family == "prefix" else self.family
        made = {"marian": self.marian, "gpt2": self.gpt2, "llama": self.llama, "bert": self.bert, "t5": self.t5,
                "bart": self.bart, "glm_blank": self.glm_blank, "openai_gpt": self.openai_gpt}[kind]()  # fmt: skip
        common = {"model_type": kind, "vocab_size": vocabulary}
        common |= {} if kind == "glm_blank" else {"tie_word_embeddings": self.tied}
        spec = spec_of(common | made, "model")
        spec = prefixed(spec, self) if self.family == "prefix" else spec
        spec = steered(spec) if self.steered else spec
        return replace(spec, labels=labelling(spec, labels, self.drop)) if labels else spec

    def refuse_idle(self) -> None:
        """Refuse what this family would not heed."""
        lacks = (*LACKS.get(self.family, ()), *(() if self.family in SHARING else ("groups", "experts")))
        idle = next((key for key in lacks if getattr(self, key) != getattr(Shape, key)), None)
        if idle:
            known = typing.get_args(typing.get_type_hints(Shape)["family"])
            fit = SHARING if idle in ("groups", "experts") else [f for f in known if idle not in LACKS.get(f, ())]
            raise QkvError(f"model.{idle}={getattr(self, idle)}: {self.family} does not heed it; take it away, or take "
                           f"a family that does: {', '.join(fit)}")  # fmt: skip
        if self.steered and not self.experts:
            raise QkvError("model.steered=true: there are no experts to steer; say how many: model.experts=8")

    def bert(self) -> dict[str, Any]:
        drops = {"hidden_dropout_prob": self.drop, "attention_probs_dropout_prob": self.attention_dropout}
        return {**drops, "hidden_size": self.width, "num_hidden_layers": self.layers, "intermediate_size": self.ffn,
                "num_attention_heads": self.heads, "hidden_act": self.activation or "gelu",
                "max_position_embeddings": self.context, "type_vocab_size": 2}  # fmt: skip

    def t5(self) -> dict[str, Any]:
        return {"d_model": self.width, "num_layers": self.layers, "num_heads": self.heads, "d_ff": self.ffn,
                "d_kv": self.width // self.heads, "feed_forward_proj": self.activation or "relu",
                "dropout_rate": self.drop}  # fmt: skip

    def bart(self) -> dict[str, Any]:
        return {**self.marian(), "activation_function": self.activation or "gelu", "scale_embedding": False}

    def openai_gpt(self) -> dict[str, Any]:
        made = self.gpt2()
        if self.ffn != 4 * self.width:
            raise QkvError(f"model.ffn: found {self.ffn}, expected four times the width: {4 * self.width}")
        return {key: made[key] for key in made if key not in ("n_inner", "activation_function")} | {
            "model_type": "openai-gpt", "afn": self.activation or "gelu"}  # fmt: skip

    def glm_blank(self) -> dict[str, Any]:
        if self.ffn != 4 * self.width:
            raise QkvError(f"model.ffn: found {self.ffn}, expected four times the width: {4 * self.width}")
        return {"model_type": "glm", "block_position_encoding": True, "hidden_size": self.width,
                "num_layers": self.layers, "num_attention_heads": self.heads, "max_sequence_length": self.context,
                "output_dropout_prob": self.drop, "embedding_dropout_prob": self.drop,
                "attention_dropout_prob": self.attention_dropout}  # fmt: skip

    def marian(self) -> dict[str, Any]:
        both = {"layers": self.layers, "attention_heads": self.heads, "ffn_dim": self.ffn}
        sides = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in both.items()}
        drops = {"dropout": self.drop, "attention_dropout": self.attention_dropout}
        return {**sides, **drops, "d_model": self.width, "activation_function": self.activation or "relu",
                "max_position_embeddings": self.context, "scale_embedding": True}  # fmt: skip

    def gpt2(self) -> dict[str, Any]:
        drops = {"attn_pdrop": self.attention_dropout, "resid_pdrop": self.drop, "embd_pdrop": self.drop}
        return {**drops, "n_embd": self.width, "n_layer": self.layers, "n_head": self.heads, "n_inner": self.ffn,
                "n_positions": self.context, "activation_function": self.activation or "gelu_new"}  # fmt: skip

    def llama(self) -> dict[str, Any]:
        sparse = {"model_type": "mixtral", "num_local_experts": self.experts, "num_experts_per_tok": self.chosen}
        return {"hidden_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
                "num_key_value_heads": self.groups or self.heads, "intermediate_size": self.ffn,
                "hidden_act": self.activation or "silu", "max_position_embeddings": self.context,
                "attention_dropout": self.attention_dropout,
                **(sparse if self.experts and self.family == "llama" else {})}  # fmt: skip


def labelling(spec: Spec, count: int, dropout: float) -> Labels:
    """What labels texts: an encoder by its first state (Devlin et al. 2018), a decoder by its last (GPT-1)."""
    if spec.decoder:
        return Labels(count, "last", bias=False, dropout=dropout)
    return Labels(count, dense=Dense("tanh"), dropout=dropout)


def prefixed(spec: Spec, shape: Shape) -> Spec:
    """The spec of a decoder that sees a prefix freely, with experts where the shape has some."""

    def block(b: Block) -> Block:
        b = replace(b, attn=replace(b.attn, mask=Mask("prefix")))
        if not shape.experts:
            return b
        assert b.ffn is not None
        return replace(b, ffn=None, moe=Experts(shape.experts, shape.chosen, b.ffn, shared=b.ffn))

    return replace(spec, decoder=replace(spec.stack, blocks=tuple(map(block, spec.stack.blocks))))


def steered(spec: Spec) -> Spec:
    """The spec with a bias of each expert that decides, with its score, which are chosen."""

    def block(b: Block) -> Block:
        return replace(b, moe=replace(b.moe, balance="bias")) if b.moe else b

    return replace(spec, decoder=replace(spec.stack, blocks=tuple(map(block, spec.stack.blocks))))


@dataclass(frozen=True)
class Vocabulary:
    """How text is cut: the kind of `qkv.text.train.train`, and how many tokens at most.

    In training each merge of a word is left out with the probability `dropout`, anew in each epoch (text/recut.py).
    """

    kind: Kind = "bpe"
    size: int = 8000
    dropout: float = 0.0  # the paper's: 0.1, for Chinese and Japanese 0.6
    merges: str = ""  # of kind split: the file whose merges cut the text, here or under QKV_DATA

    def __post_init__(self) -> None:
        if not 0 <= self.dropout <= 1:
            raise QkvError(f"tokenizer.dropout: found {self.dropout}, expected a share from 0 to 1")

    def ranks(self) -> Ranks | None:
        """The merges of the file; None where none is named, as a vocabulary of kind bpe has its own."""
        path = Path(self.merges)
        return merges_of(path if path.is_file() else shared(*path.parts)) if self.merges else None


@dataclass(frozen=True)
class Check:
    """How a run is judged: sentences translated at each evaluation (greedily), and the beam of the test at the end."""

    sentences: int = 200
    beam: int = 4
    length_penalty: float = 0.6
    tokenize: Literal["auto", "13a", "none", "zh", "char", "intl"] = "auto"  # sacrebleu's; auto: by the references
    lowercase: bool = False
    joint: str = ""  # what joins the parts of a word in the references, such as "@@ "
    samples: int = 3  # sentences shown at each evaluation
    prompts: tuple[str, ...] = ()  # texts that a language model continues
    longest: int = 60  # tokens of such a continuation
    ngrams: int = 0  # an n-gram model of this order is counted and judged beside the run, to say what attention adds


@dataclass(frozen=True)
class Splits:
    """The data of a run: pairs of (source, target), the text of a language model, or conversations."""

    train: Sequence[Any] | str | Mixture  # pairs, or conversations: a Talk each
    valid: Sequence[Any] | str | Mixture
    test: Sequence[Any] | str = ()
    notes: tuple[str, ...] = ()  # what was left out, to be told before the run

    @property
    def kind(self) -> str:
        """What these data are: plain text, conversations, or pairs."""
        if isinstance(self.train, str):
            return "plain text"
        if isinstance(self.train, Mixture):
            return "token shards"
        return "conversations" if self.train and isinstance(self.train[0][0], dict) else "pairs"


@dataclass(frozen=True)
class Data:
    """Your own files, as a TOML file names them: two parallel ones, one of pairs (tsv, jsonl), plain text,
    conversations (JSON lines with `messages`, a list of {"role": …, "content": …}), folders of token shards, or a data
    set that the `datasets` library opens: pairs by two keys, texts by one.
    """

    source: str = ""
    target: str = ""
    tsv: str = ""
    jsonl: str = ""
    text: str = ""
    messages: str = ""
    shards: tuple[str, ...] = ()  # folders that `qkv data pack` wrote
    weights: tuple[float, ...] = ()  # how likely a window comes from each; without them by their size
    dataset: str = ""  # NAME or NAME:CONFIG of the hub, a folder that save_to_disk wrote, or files of rows
    columns: tuple[int, int] = (0, 1)
    keys: tuple[str, ...] = ("source", "target")
    valid_source: str = ""
    valid_target: str = ""
    test_source: str = ""
    test_target: str = ""
    valid_file: str = ""  # of the same form as tsv, jsonl, text or messages
    test_file: str = ""
    valid: int = 500  # pairs held out where no file is named; of a text it is always the last tenth
    test: int = 0
    apart: Literal["source", "target"] = "source"  # no held-out text of this side occurs in training
    on_bad_row: Literal["error", "skip", "quarantine"] = "error"  # quarantine: put aside, into the file named next
    quarantine: str = "quarantine.jsonl"
    overlap: Literal["error", "drop", "keep"] = "error"  # held-out pairs in the training files; drop: not trained on

    def splits(self, folder: Path) -> Splits:
        """The files' content, split.

        Raises:
            QkvError: none or more than one kind of data is named, or a file is broken (with its line).
        """
        kinds = ("source", "tsv", "jsonl", "text", "messages", "shards", "dataset")
        named = [k for k in kinds if getattr(self, k)]
        if len(named) != 1 or bool(self.source) != bool(self.target):
            found = ", ".join(named) or "none"
            raise QkvError(f"data: found {found}, expected one of: source and target, {', '.join(kinds[1:])}")
        if len(self.keys) != 2 and not (self.dataset and len(self.keys) == 1):
            raise QkvError(f"data.keys: found {len(self.keys)} keys, expected two; one for the texts of a dataset")
        if self.shards:
            return self.mixed(folder)
        with sources.Sieve(self.on_bad_row, folder / self.quarantine) as sieve:
            if self.dataset:
                return self.tabled(folder, sieve)
            if self.text:
                whole = plain_text(folder / self.text, sieve)
                valid = plain_text(folder / self.valid_file, sieve) if self.valid_file else ""
                both = Splits(whole, valid) if valid else text_splits(whole, share=0.1)
                said = leaked(folder / self.text, folder / self.valid_file) if valid else ()
                return replace(both, notes=(*sieve.notes, *said))
            if self.messages:
                return self.talks(folder, sieve)
            pairs = [pair for _, pair in self.rows(folder, sieve)]
            test, valid = self.named(folder, "test", sieve), self.named(folder, "valid", sieve)
        pairs, said = self.unseen(folder, pairs, [*(test or ()), *(valid or ())])
        notes = (*sieve.notes, *said)
        if test is None:
            pairs, test = held_out(pairs, self.test, self.apart)
        if valid is None:
            pairs, valid = held_out(pairs, self.valid, self.apart)
        return Splits(pairs, valid, test, notes)

    @property
    def textual(self) -> bool:
        """Whether a language model learns these data, and not pairs."""
        return bool(self.text or self.shards or (self.dataset and len(self.keys) == 1))

    def mixed(self, folder: Path) -> Splits:
        """The shards; without `valid_file`, another folder, the end of each is held out: a tenth, or 200,000 tokens."""
        whole = Mixture(tuple(map(shards.read, (folder / name for name in self.shards))), self.weights)
        if self.valid_file:
            return Splits(whole, Mixture((shards.read(folder / self.valid_file),)))
        return Splits(*whole.split(share=0.1, most=200_000))

    def tabled(self, folder: Path, sieve: sources.Sieve) -> Splits:
        """The splits of a dataset: train, and validation and test where it has them."""
        local = folder / self.dataset
        found = tables.opened(str(local) if local.exists() else self.dataset)
        if "train" not in found:
            raise QkvError(f"data.dataset {self.dataset!r}: no split 'train' (found: {', '.join(found)})")
        rows = {name: list(tables.texts(found[name], self.keys, name=f"{self.dataset}/{name}", sieve=sieve))
                for name in ("train", "validation", "test") if name in found}  # fmt: skip
        notes = tuple(sieve.notes)
        if self.textual:
            whole, valid = ("\n\n".join(t for (t,) in rows.get(name, [])) for name in ("train", "validation"))
            return replace(Splits(whole, valid) if valid else text_splits(whole, share=0.1), notes=notes)
        pairs: list[Any] = rows["train"]
        test: Any = rows.get("test", ())
        if valid := rows.get("validation"):
            return Splits(pairs, valid, test, notes)
        return Splits(*held_out(pairs, self.valid, self.apart), test, notes)

    def talks(self, folder: Path, sieve: sources.Sieve) -> Splits:
        """The conversations, split: some are held out by their hash where no file is named, with all their copies."""
        rows: list[Any] = [talk for _, talk in self.rows(folder, sieve)]
        test, valid = (self.named(folder, which, sieve) for which in ("test", "valid"))
        rows, said = self.unseen(folder, rows, [*(test or ()), *(valid or ())])
        if valid is None:
            whole: Any = [(repr(talk), talk) for talk in rows]
            rows, valid = ([talk for _, talk in part] for part in held_out(whole, self.valid, "source"))
        return Splits(rows, valid, test or (), (*sieve.notes, *said))

    def rows(self, folder: Path, sieve: sources.Sieve) -> Iterator[tuple[int, Any]]:
        """The pairs or conversations to train on, each with its line."""
        if self.messages:
            return talk_rows(folder / self.messages, sieve=sieve)
        if self.source:
            return sources.pair_rows(folder / self.source, folder / self.target, sieve=sieve)
        if self.tsv:
            return sources.tsv_rows(folder / self.tsv, self.columns, sieve=sieve)
        return sources.jsonl_rows(folder / self.jsonl, (self.keys[0], self.keys[1]), sieve=sieve)

    def unseen(self, folder: Path, rows: list[Any], held: Sequence[Any]) -> tuple[list[Any], tuple[str, ...]]:
        """The training rows that are not held out too, or all of them where `overlap` says so; and what is said."""
        known = {repr(row) for row in held}
        count = sum(repr(row) in known for row in rows) if known else 0
        if not count:
            return rows, ()
        said = self.seen_twice(folder, known, count)
        return rows if self.overlap == "keep" else [row for row in rows if repr(row) not in known], (said,)

    def seen_twice(self, folder: Path, known: set[str], count: int) -> str:
        """What is said about held-out rows in training: a note, or an error with both lines."""
        name, sieve = self.source or self.tsv or self.jsonl or self.messages, sources.Sieve("skip")
        line, row = next((n, row) for n, row in self.rows(folder, sieve) if repr(row) in known)
        held = next(
            f"{folder / (apart.source or apart.tsv or apart.jsonl or apart.messages)}:{n}"
            for which in ("valid", "test")
            if (apart := self.apart_from(which))
            for n, other in apart.rows(folder, sieve)
            if other == row
        )
        what = "conversation" if self.messages else "pair"
        said = f"{folder / name}:{line}: this {what} is held out too ({held}); {count} training rows are"
        if self.overlap == "error":
            raise QkvError(f"{said}: the evaluation would flatter the model. overlap = \"drop\" leaves them out of "
                           "training, overlap = \"keep\" trains on them all the same")  # fmt: skip
        return f"{said}; {'left out of training' if self.overlap == 'drop' else 'trained on all the same'}"

    def named(self, folder: Path, which: str, sieve: sources.Sieve) -> list[Any] | None:
        """The rows of a split that has files of its own."""
        apart = self.apart_from(which)
        return [row for _, row in apart.rows(folder, sieve)] if apart else None

    def apart_from(self, which: str) -> "Data | None":
        """The same kind of data in the files of a split of its own; None where no file is named."""
        one, two, file = (getattr(self, f"{which}_{part}") for part in ("source", "target", "file"))
        if file and self.source:
            raise QkvError(f"data: {which}_file goes with tsv or jsonl; name {which}_source and {which}_target")
        if bool(one) != bool(two):
            raise QkvError(f"data: {which}_source and {which}_target belong together; found only one of them")
        if file:
            kind = "messages" if self.messages else "tsv" if self.tsv else "jsonl"
            return replace(self, **{kind: file})  # type: ignore[arg-type]
        return replace(self, source=one, target=two, tsv="", jsonl="") if one else None


def plain_text(path: Path, sieve: sources.Sieve) -> str:
    """The text of a file; of JSON lines the `text` of each, with a blank line between, which parts documents."""
    if path.suffix.lower() not in sources.JSON:
        return sources.document(path, sieve=sieve)
    return "\n\n".join(text for _, text in sources.text_rows(path, sieve=sieve))


def talk_rows(path: Path, *, sieve: sources.Sieve | None = None) -> Iterator[tuple[int, Talk]]:
    """The conversation of each line, a JSON object with `messages`, and the line.

    Raises:
        QkvError: a line that is none, a message without role or text, or no answer of an assistant; with its line.
    """

    def parse(text: str, place: str) -> Talk:
        item = sources.json_object(text, place)
        if "messages" not in item:
            found = ", ".join(item) or "none"
            raise QkvError(f"{place}: no key 'messages'{nearest('messages', item)} (found: {found})")
        try:
            talk = tuple(checked(item["messages"]))  # type: ignore[arg-type]
        except QkvError as e:
            raise QkvError(f"{place}: {e}") from None
        for n, m in enumerate(talk, 1):
            if not str(m.get("content") or "").strip() and not m.get("tool_calls"):
                raise QkvError(f"{place}: message {n} of {len(talk)}, of {m['role']!r}, is empty; mend the row, or "
                               "leave such rows out: on_bad_row")  # fmt: skip
        if not any(m["role"] == "assistant" for m in talk):
            raise QkvError(f"{place}: no message has the role 'assistant', so there is no answer to learn from")
        return talk

    return sources.rows(path, parse, sieve=sieve)


@dataclass(frozen=True)
class Run:
    """A whole training run: what `qkv.train` takes.

    `objective` is a name of recipes/assemble.py's OBJECTIVES (empty: the family's usual one); with `base`, a directory
    or any other MODEL, its weights and vocabulary are where the run begins, and `model` is not asked.
    """

    name: str
    splits: Callable[[], Splits]
    model: Shape = field(default_factory=Shape)
    tokenizer: Vocabulary = field(default_factory=Vocabulary)
    training: Settings = field(default_factory=Settings)
    check: Check = field(default_factory=Check)
    words: Callable[[], Sequence[str]] | None = None  # of a tokenizer of kind lexicon
    watch: Watching = field(default_factory=Watching)
    objective: str = ""
    base: str = ""
    data: Data | None = None  # of a run over your own files (own.py): what `splits` reads


PLAIN = ("objective", "base")
PARTS = ("model", "tokenizer", "training", "check", "watch")
KINDS = {"data": Data, "model": Shape, "tokenizer": Vocabulary, "training": Settings, "check": Check, "watch": Watching}


def held_out(pairs: Sequence[Pair], count: int, apart: str) -> tuple[list[Pair], list[Pair]]:
    """(rest, held out): about `count` pairs chosen by the hash of their `apart` side, with all that share its text."""
    side = 1 if apart == "target" else 0
    texts = sorted({p[side] for p in pairs}, key=lambda t: (zlib.crc32(t.encode("utf-8")), t))
    copies: dict[str, int] = {}
    for pair in pairs:
        copies[pair[side]] = copies.get(pair[side], 0) + 1
    chosen, taken = set[str](), 0
    for text in texts:
        if taken >= min(count, len(pairs) // 5):  # small data keep four fifths for training
            break
        chosen.add(text)
        taken += copies[text]
    return [p for p in pairs if p[side] not in chosen], [p for p in pairs if p[side] in chosen]


def text_splits(text: str, *, share: float) -> Splits:
    """The last `share` of a text is for validation."""
    cut = int(len(text) * (1 - share))
    return Splits(text[:cut], text[cut:])


def shared(*parts: str) -> Path:
    """A file of the folder of real data, or of what `qkv data get` fetched; QkvError says where it should lie."""
    path, fetched = data_dir().joinpath(*parts), (cache_dir() / "data").joinpath(*parts)
    if not path.is_file() and not fetched.is_file():
        sets = [name for name, known in download.sets().items() if any(f.path == "/".join(parts) for f in known.files)]
        how = f"qkv data get {sets[0]} fetches it; or set" if sets else "Set"
        raise QkvError(f"{path}: no such file. {how} QKV_DATA to the folder that holds {parts[0]}/")
    return path if path.is_file() else fetched


def asked(words: Iterable[str], parts: Iterable[str]) -> dict[str, Any]:
    """`a.b=c` words as a nested mapping; of an unknown key the nearest is told, in whichever part it lies."""
    values, parts = assignments(words), tuple(parts)
    for key, value in values.items():
        if key in PLAIN:
            continue
        if key not in parts:
            known = [f"{part}.{f.name}" for part in parts for f in dataclasses.fields(KINDS[part])] + [*PLAIN]
            close = next((k for k in known if k.partition(".")[2] == key), None)
            hint = f"; did you mean {close!r}?" if close else nearest(key, [*known, *parts])
            hint = "; a recipe reads its own data, a TOML file names yours" if key == "data" else hint
            raise QkvError(f"{key}: unknown key{hint} (parts: {', '.join(parts)})")
        if not isinstance(value, dict):
            raise QkvError(f"{key}={value}: names a part, expected a key in it such as {key}.…=…")
    return values


def configured(run: Run, words: Iterable[str]) -> Run:
    """The run with `a.b=c` put in; QkvError for a key that there is not."""
    return changed(run, asked(words, PARTS))
