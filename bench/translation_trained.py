"""A trained translator over its whole test: as fast as CTranslate2 with the same weights, at equal BLEU.

It trains nothing: give a run on pairs and its test as text, tab, target. All translate the same tokens with a beam of
4, in batches of like length; ours stops by its default rule.
    python bench/translation_trained.py --model RUN --test TEST.tsv --peers PYTHON
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from crew import share
from harness import compete, limits, middle, options, summary, timed, write
from translation_base import BEAMS, ctranslate_model, read_batches

LONGEST = 128


def main() -> None:
    """All in turn; target tokens a second, and the BLEU of each."""
    given = options(__doc__ or "", model=("", "a translator"), test=("", "its test, as text, tab, target"),
                    batch=(64, "sentences in a batch"))  # fmt: skip
    makers = {f"qkv {kind}": partial(ours, kind=kind) for kind in ("bf16", "int8", "fp32")}
    makers |= {f"qkv {kind} (a batch on each core)": partial(ours_shared, kind=kind) for kind in ("bf16", "int8")}
    makers |= {f"CTranslate2 {kind}": partial(theirs, kind=kind, workers=1) for kind in ("int8", "float32")}
    makers |= {f"CTranslate2 {kind}, a batch on each core": partial(theirs, kind=kind, workers=given.threads)
               for kind in ("int8", "float32")}  # fmt: skip
    found, skipped = compete(given, makers, prepare=write_model)
    import sacrebleu

    import qkv

    model, (sources, wanted) = qkv.load(given.model), read_test(given)
    content: dict[str, Any] = {}
    for name, rounds in found.items():
        said, seconds = rounds[-1]["said"], [r["seconds"] for r in rounds]
        lines = [""] * len(said)
        for row, tokens in zip(sorted_rows(model, sources), said, strict=True):
            lines[row] = model.tokenizer.decode(tokens)
        content[name] = {"target_tokens_per_second": round(sum(map(len, said)) / middle(seconds), 1),
                         "sentences_per_second": round(len(said) / middle(seconds), 1), "seconds": summary(seconds, 4),
                         "target_tokens": sum(map(len, said)),
                         "bleu": round(sacrebleu.corpus_bleu(lines, [wanted]).score, 2)}  # fmt: skip
    spec, rate = model.spec, {name: part["sentences_per_second"] for name, part in content.items()}
    shape = {"width": spec.decoder.width, "layers": len(spec.decoder.blocks), "vocabulary": spec.vocabulary}
    given.model, given.test = Path(given.model).name, Path(given.test).name
    write("translation_trained", __doc__ or "", given, sentences=len(sources), shape=shape, **content, skipped=skipped,
          ratio={f"{one} over {name}": round(rate[one] / rate[name], 3) for one in rate if one.startswith("qkv")
                 for name in rate if name != one}, limit=limits(given.smoke))  # fmt: skip


def read_test(given: Any) -> tuple[list[str], list[str]]:
    """The sources and their translations."""
    lines = Path(given.test).read_text(encoding="utf-8").splitlines()[: 8 if given.smoke else None]
    sources, wanted = zip(*(line.split("\t")[:2] for line in lines), strict=True)
    return list(sources), list(wanted)


def sorted_rows(model: Any, sources: list[str]) -> list[int]:
    """The sources' order, longest first."""
    return sorted(range(len(sources)), key=lambda row: -len(model.ids(sources[row])))


def write_model(given: Any, folder: Path) -> None:
    """The batches, and the model as CTranslate2's converter wants it: with one more token, which it takes away.

    The converter thinks that the last token is the one that begins a text, and that it has no embedding.
    """
    import torch

    import qkv

    model, (sources, _) = qkv.load(given.model, device="cpu"), read_test(given)
    rows = [model.ids(sources[row]) for row in sorted_rows(model, sources)]
    batches = [rows[at : at + given.batch] for at in range(0, len(rows), given.batch)]
    (folder / "batches.json").write_text(json.dumps(batches), encoding="utf-8")
    model.save(folder / "hf")
    from safetensors.torch import load_file, save_file

    weights, config = folder / "hf" / "model.safetensors", folder / "hf" / "config.json"
    read, size = json.loads(config.read_text(encoding="utf-8")), model.spec.vocabulary
    tensors = {name: torch.cat((tensor, torch.zeros_like(tensor[:1]))) if len(tensor) == size else tensor
               for name, tensor in load_file(weights).items()}
    bias = tensors["final_logits_bias"]  # [1, V]
    tensors["final_logits_bias"] = torch.cat((bias, torch.zeros_like(bias[:, :1])), 1)
    tensors["final_logits_bias"][0, list(model.special.forbid)] = -1e4
    save_file(tensors, weights, {"format": "pt"})
    config.write_text(json.dumps(read | {"vocab_size": size + 1, "decoder_vocab_size": size + 1}), encoding="utf-8")
    special = {"eos": model.special.eos[0], "start": model.special.start}
    (folder / "special.json").write_text(json.dumps(special), encoding="utf-8")


def ours(given: Any, folder: Path, kind: str) -> Callable[[], dict[str, Any]]:
    """Our beam search, batch by batch."""
    translate, batches = start_search(given, folder, kind), read_batches(folder)
    return time_all(lambda: [row for batch in batches for row in translate(batch)])


def ours_shared(given: Any, folder: Path, kind: str) -> Callable[[], dict[str, Any]]:
    """The same, by a process on each core."""
    run, batches = share(start_search, given, folder, kind=kind), read_batches(folder)
    return time_all(lambda: [row for part in run(batches) for row in part])


def time_all(run: Callable[[], list[list[int]]]) -> Callable[[], dict[str, Any]]:
    """One turn."""
    return lambda: dict(zip(("seconds", "said"), timed(run), strict=True))


def start_search(given: Any, folder: Path, kind: str) -> Callable[[list[list[int]]], list[list[int]]]:
    """What translates a batch."""
    import torch

    import qkv
    from qkv.generation.beam import Search, beam
    from qkv.generation.sequence import DecodeOptions
    from qkv.tasks.types import start_ids

    torch.set_num_threads(given.threads)
    model = qkv.load(given.model, device="cpu", dtype=kind)
    how = DecodeOptions(LONGEST, model.special.eos, start_ids(model), forbid=model.special.forbid)
    search = Search(BEAMS, length_penalty=1.0, penalty="power")

    def translate(batch: list[list[int]]) -> list[list[int]]:
        found = beam(model.core, batch, search=search, options=how)
        return [best[0].tokens[: -1 if best[0].tokens[-1:] == [*model.special.eos] else None] for best in found]

    return translate


def theirs(given: Any, folder: Path, kind: str, workers: int) -> Callable[[], dict[str, Any]]:
    """CTranslate2 on the same weights: so many batches at once, which share the threads."""
    special = json.loads((folder / "special.json").read_text(encoding="utf-8"))
    translator = ctranslate_model(given, folder, kind, **special, workers=workers)
    batches = [[[f"w{i}" for i in row] for row in batch] for batch in read_batches(folder)]

    def run() -> list[list[int]]:
        found: list[list[int]] = []
        for words in batches if workers == 1 else [[row for batch in batches for row in batch]]:
            results = translator.translate_batch(words, beam_size=BEAMS, length_penalty=1.0,
                                                 max_decoding_length=LONGEST, max_batch_size=given.batch)
            found += [[int(word[1:]) for word in r.hypotheses[0] if word != f"w{special['eos']}"] for r in results]
        return found

    return lambda: dict(zip(("seconds", "said"), timed(run), strict=True))


if __name__ == "__main__":
    main()
