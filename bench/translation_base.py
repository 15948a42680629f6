"""Transformer-base translates, beam 4, batch 32, at least as fast as CTranslate2 in int8, end symbols included.

The weights are random but for one dimension, which counts: it carries a slow sinusoid of the position, the last
cross-attention subtracts the sources' mean of it, and the end symbol reads the difference. So translations end when
they are about as long as their sources, at a different step for each sentence and in every program alike, and finished
sentences leave the batch as they do in use. What is said is noise. A second run forbids the end: every sentence gets
the same number of tokens, whoever writes them.
"""

import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from crew import share
from harness import Absent, compete, limits, middle, need, options, quiet, summary, timed, write

EOS, BEAMS, LONGEST, FORCED = 0, 4, 128, 32
WAYS = {"with_end": False, "forced_length": True}


def main() -> None:
    """All in turn; target tokens a second with ends and at a forced length."""
    given = options(__doc__ or "", sentences=(128, "source sentences"), batch=(32, "sentences in a batch"),
                    seed=(0, "of weights and sentences"))  # fmt: skip
    makers = {"qkv bf16": partial(ours, kind="bf16"), "qkv int8": partial(ours, kind="int8"),
              "qkv fp32": partial(ours, kind="fp32"),
              **{f"qkv {kind} (a batch on each core)": partial(ours_shared, kind=kind) for kind in ("bf16", "int8")},
              "CTranslate2 int8": partial(ctranslate, kind="int8"),
              "CTranslate2 int8, a batch on each core": partial(ctranslate, kind="int8", workers=given.threads),
              "CTranslate2 fp32": partial(ctranslate, kind="float32"), "transformers bf16": theirs}  # fmt: skip
    found, skipped = compete(given, makers, prepare=write_model)
    from qkv.checkpoints import model_dir

    content = {ends: told({name: [r[ends] for r in rounds] for name, rounds in found.items()}) for ends in WAYS}
    most, spec = limits(given.smoke), model_dir.spec_from_config(shape(given.smoke), "bench")
    flops, sources = work(spec), [row for batch in draw_batches(given) for row in batch]
    best = {k: round(most[f"{k}_flops"] / flops, 1) for k in ("fp32", "bf16")}
    write("translation_base", __doc__ or "", given, about=" ".join((__doc__ or "").split("\n\n")[1].split()), **content,
          ratio={name: ratios(part) for name, part in content.items()}, skipped=skipped, limit=most,
          limit_target_tokens_per_second={**best, "how": f"{flops / 1e6:.0f} MFLOP a target token at {BEAMS} beams"},
          sources={"sentences": len(sources), "tokens": sum(map(len, sources)), "batch": given.batch})  # fmt: skip


def write_model(given: Any, folder: Path) -> None:
    """The model as a directory of Hugging Face, and the sources."""
    model = counting(shape(given.smoke), given.seed)
    model.save(folder / "hf", family="marian")
    (folder / "batches.json").write_text(json.dumps(draw_batches(given)), encoding="utf-8")


def read_batches(folder: Path) -> list[list[list[int]]]:
    """The sources in a competitor's process, which loads no library but its own."""
    return json.loads((folder / "batches.json").read_text(encoding="utf-8"))


def draw_batches(given: Any) -> list[list[list[int]]]:
    """The sources, the same for everybody."""
    sources = sentences(8 if given.smoke else given.sentences, shape(given.smoke)["vocab_size"] - 1, given.seed)
    size = 4 if given.smoke else given.batch
    return [sources[i : i + size] for i in range(0, len(sources), size)]


def both_ways(run: Callable[[bool], list[list[int]]]) -> Callable[[], dict[str, Any]]:
    """One turn: translations with ends, then at a forced length, with their seconds."""
    return lambda: {ends: dict(zip(("seconds", "said"), timed(lambda f=forced: run(f)), strict=True))
                    for ends, forced in WAYS.items()}  # fmt: skip


def shape(smoke: bool) -> dict[str, Any]:
    """The config of the 2017 paper's base model, or a tiny one."""
    from qkv.checkpoints import model_dir

    config = model_dir.preset_config("marian:base")
    assert config is not None
    tiny = {
        "d_model": 128,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "vocab_size": 300,
    }
    return config | (tiny if smoke else {})


def counting(config: dict[str, Any], seed: int) -> Any:
    """A random model of a config whose translations are about as long as their sources."""
    import torch

    from qkv import hub
    from qkv.checkpoints import model_dir
    from qkv.tasks.types import SpecialTokens

    pad = config["vocab_size"] - 1
    special = SpecialTokens(eos=(EOS,), pad=pad, start=pad, forbid=(pad,))
    model = hub.build(model_dir.spec_from_config(config, "bench"), seed=seed, special=special)
    core = model.core.eval()
    at = int(core.spec.stack.width * 0.2257)  # sin(t / 62): it rises up to position 97
    with torch.no_grad():
        core.embed.weight[pad] = 0  # Marian begins with nothing
        core.embed.weight[:, at] = 0
        for stack in (core.encoder, core.decoder):
            for layer in stack.layers:
                for part in (layer.attn.out, layer.ffn.down, *([layer.cross.out] if layer.spec.cross else [])):
                    part.weight[at] = 0
        unweakened(core, at)
        for stack in (core.encoder, core.decoder):
            stack.layers[-1].ffn_sum.weight[at] *= 4  # loud enough for 8 bits
        cross = core.decoder.layers[-1].cross
        size = cross.spec.head_dim
        cross.q.weight[:size] = 0  # its first head looks everywhere alike
        cross.v.weight[0] = 0
        cross.v.weight[0, at] = 1
        share = -0.25
        for _ in range(4):
            cross.out.weight[at, 0] = share
            per_target, per_source, _, _ = fitted(core, at)
            share *= per_target / -per_source
        cross.out.weight[at, 0] = share
        per_target, _, start, likeliest = fitted(core, at)
        core.embed.weight[EOS] = 0
        core.embed.weight[EOS, at] = 3 / per_target  # three nats a token
        core.head.bias[EOS] = likeliest - start * 3 / per_target
    return model


def unweakened(core: Any, at: int) -> None:
    """Let each norm multiply the counting dimension by what it divides it by."""
    from qkv.core.norm import Norm

    def undo(norm: Any, given: Any) -> None:
        norm.weight[at] = given[0].std(-1).mean()

    hooks = [m.register_forward_pre_hook(undo) for m in core.modules() if isinstance(m, Norm)]
    fitted(core, at)
    for hook in hooks:
        hook.remove()


def fitted(core: Any, at: int) -> tuple[float, float, float, float]:
    """How the counting dimension grows per target and per source token, where it starts, and the usual best logit."""
    import torch

    from qkv.core.step import Inputs

    draw = torch.Generator().manual_seed(1)
    rows, seen, best = [], [], []
    for length in (10, 20, 30, 40, 50):
        source = torch.randint(1, core.spec.vocabulary - 1, (4, length), generator=draw)
        # a random model says the same again and again
        words = torch.randint(1, core.spec.vocabulary - 1, (4, 1), generator=draw).expand(-1, length + 11)
        with torch.no_grad():
            hidden = core.hidden(words, Inputs(source=source))[:, -20:]
            best.append(core.head(hidden).amax(-1).mean())
        for t in range(20):
            rows += [[length - 9.0 + t, float(length), 1.0]] * 4
            seen += hidden[:, t, at].tolist()
    target, source_, start = torch.linalg.lstsq(torch.tensor(rows), torch.tensor(seen)[:, None]).solution[:, 0].tolist()
    return target, source_, start, float(torch.stack(best).mean())


def sentences(count: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Random sources, longest first, whose lengths are spread as those of news: log-normal, about 24, 4 to 60."""
    draw = random.Random(seed)
    lengths = sorted((min(60, max(4, round(draw.lognormvariate(3.05, 0.5)))) for _ in range(count)), reverse=True)
    return [[draw.randrange(1, vocabulary) for _ in range(n)] for n in lengths]


def ours(given: Any, folder: Path, kind: str) -> Callable[[], dict[str, Any]]:
    """Our beam search, batch by batch."""
    translate, batches = start_search(given, folder, kind), read_batches(folder)
    return both_ways(lambda forced: [row for batch in batches for row in translate(batch, forced)])


def ours_shared(given: Any, folder: Path, kind: str) -> Callable[[], dict[str, Any]]:
    """The same, by a process on each core."""
    run, batches = share(start_search, given, folder, kind=kind), read_batches(folder)
    return both_ways(lambda forced: [row for part in run(batches, forced) for row in part])


def start_search(given: Any, folder: Path, kind: str) -> Callable[[list[list[int]], bool], list[list[int]]]:
    """What translates a batch."""
    import torch

    import qkv
    from qkv.generation.beam import Search, beam
    from qkv.generation.sequence import DecodeOptions

    torch.set_num_threads(given.threads)
    model = qkv.load(folder / "hf", device="cpu", dtype=kind)
    pad, search = model.special.pad, Search(BEAMS, length_penalty=1.0, penalty="power", stop="first")

    def translate(batch: list[list[int]], forced: bool) -> list[list[int]]:
        forbid = (pad, EOS) if forced else (pad,)
        options = DecodeOptions(FORCED if forced else LONGEST, eos=(EOS,), start=(pad,), forbid=forbid)
        found = beam(model.core, batch, search=search, options=options)
        return [[t for t in best[0].tokens if t != EOS] for best in found]

    return translate


def ctranslate_model(given: Any, folder: Path, kind: str, eos: int = EOS, start: int | None = None,
                     workers: int = 1) -> Any:  # fmt: skip
    """CTranslate2's translator, through its own converter; `start` is a token that begins texts with its embedding."""
    library, transformers = need("ctranslate2"), need("transformers")
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):
        """Words are just their numbers."""

        def load_tokenizer(self, *args: Any, **kwargs: Any) -> Any:
            size = transformers.AutoConfig.from_pretrained(folder / "hf").vocab_size
            names = {f"w{i}": i for i in range(size)} | {"<pad>": size - 1}
            del names[f"w{size - 1}"]
            return SimpleNamespace(get_vocab=lambda: names, eos_token=f"w{eos}", unk_token="w2", bos_token=None,
                                   convert_ids_to_tokens=lambda i: f"w{i}")  # fmt: skip

        def _load(self) -> Any:
            spec = super()._load()
            if start is not None:
                spec.decoder.start_from_zero_embedding = False
                spec.config.decoder_start_token = f"w{start}"
            return spec

    quiet(transformers)
    path = Converter(str(folder / "hf")).convert(str(folder / f"{kind}-{os.getpid()}"), quantization=kind)
    return library.Translator(path, compute_type=kind, intra_threads=given.threads // workers, inter_threads=workers)


def ctranslate(given: Any, folder: Path, kind: str, workers: int = 1) -> Callable[[], dict[str, Any]]:
    """CTranslate2 on the same weights; so many batches at once share the threads."""
    translator = ctranslate_model(given, folder, kind, workers=workers)
    batches = [[[f"w{i}" for i in row] for row in batch] for batch in read_batches(folder)]

    def run(forced: bool) -> list[list[int]]:
        bound = {"min_decoding_length": FORCED, "max_decoding_length": FORCED} if forced else {
            "max_decoding_length": LONGEST}  # fmt: skip
        found: list[list[int]] = []
        for words in batches if workers == 1 else [[row for batch in batches for row in batch]]:
            results = translator.translate_batch(words, beam_size=BEAMS, length_penalty=1.0,
                                                 max_batch_size=given.batch, **bound)
            found += [[int(w[1:]) for w in r.hypotheses[0] if w != f"w{EOS}"] for r in results]
        return found

    return both_ways(run)


def theirs(given: Any, folder: Path) -> Callable[[], dict[str, Any]]:
    """transformers' own beam search in bf16."""
    transformers = need("transformers")
    import torch

    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        raise Absent("a bf16 turn takes minutes without AVX-512")
    torch.set_num_threads(given.threads)
    quiet(transformers)
    model = transformers.MarianMTModel.from_pretrained(folder / "hf", dtype=torch.bfloat16).eval()
    pad, batches = model.config.pad_token_id, read_batches(folder)

    def run(forced: bool) -> list[list[int]]:
        bound = {"min_new_tokens": FORCED, "max_new_tokens": FORCED} if forced else {"max_new_tokens": LONGEST}
        how = {"num_beams": BEAMS, "early_stopping": True, "length_penalty": 1.0, "do_sample": False}
        found: list[list[int]] = []
        for batch in batches:
            ids = torch.tensor([row + [pad] * (len(batch[0]) - len(row)) for row in batch])
            out = model.generate(ids, attention_mask=(ids != pad).long(), bad_words_ids=[[pad]], **how, **bound)
            found += [[t for t in row if t not in (EOS, pad)] for row in out.tolist()]
        return found

    return both_ways(run)


def told(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Seconds, target tokens (the end not counted) and their rate, and how alike the translations are to our fp32's."""
    content: dict[str, Any] = {}
    for name, rounds in found.items():
        said, seconds = rounds[-1]["said"], [r["seconds"] for r in rounds]
        content[name] = {"target_tokens_per_second": round(sum(map(len, said)) / middle(seconds), 1),
                         "target_tokens": sum(map(len, said)), "seconds": summary(seconds, 4),
                         "at_the_limit": sum(len(a) >= LONGEST for a in said)}  # fmt: skip
        if "qkv fp32" in found:
            exact = found["qkv fp32"][-1]["said"]
            apart = [abs(len(a) - len(b)) for a, b in zip(said, exact, strict=True)]
            same = sum(a == b for a, b in zip(said, exact, strict=True))
            content[name] |= {"same_as_qkv_fp32": round(same / len(exact), 3),
                              "mean_difference_in_length": round(sum(apart) / len(exact), 2)}  # fmt: skip
    return content


def ratios(part: dict[str, Any]) -> dict[str, float]:
    """The rates of ours in bf16 and int8 over each other's."""
    rates = {name: p["target_tokens_per_second"] for name, p in part.items()}
    mine = [name for name in rates if name.startswith("qkv") and "fp32" not in name]
    return {f"{one} over {name}": round(rates[one] / rate, 3) for one in mine for name, rate in rates.items()
            if name != one}  # fmt: skip


def work(spec: Any) -> float:
    """FLOPs of the products for one target token, with its share of the encoder (as many source tokens as target)."""
    d, f = spec.decoder.width, spec.decoder.blocks[0].ffn.width
    decoder = len(spec.decoder.blocks) * (6 * d * d + 2 * d * f) + d * spec.vocabulary
    encoder = len(spec.encoder.blocks) * (4 * d * d + 2 * d * f) + len(spec.decoder.blocks) * 2 * d * d
    return 2.0 * (BEAMS * decoder + encoder)


if __name__ == "__main__":
    main()
