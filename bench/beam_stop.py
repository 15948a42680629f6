"""When a beam search stops: BLEU, exact matches and steps by each rule of `Search.stop`, and greedily.

It trains nothing: give a translator and its test as text, tab, target, such as the sounds of words (`bench/own_words.py
--keep FOLDER` leaves both there), where a confident model is cut short by "first".
    python bench/beam_stop.py --model RUN --test TEST.tsv
"""

from pathlib import Path
from typing import Any

from harness import options, write

RULES = ("first", "settled", "heuristic", "bound")
BEAMS = 4


def main() -> None:
    """Each rule on the same sentences."""
    given = options(__doc__ or "", model=("", "a translator"), test=("", "its test, as text, tab, target"))
    import sacrebleu
    import torch

    import qkv
    from qkv.generation import beam as search

    torch.set_num_threads(given.threads)
    model = qkv.load(given.model)
    lines = Path(given.test).read_text(encoding="utf-8").splitlines()
    sources, wanted = zip(*(line.split("\t")[:2] for line in lines), strict=True)
    counted, advance, found = [0], search.BeamSearch.advance, dict[str, Any]()

    def count(self: search.BeamSearch, logits: torch.Tensor) -> torch.Tensor:
        counted[0] += len(self.beams.sources)
        return advance(self, logits)

    search.BeamSearch.advance = count
    for name in ("greedy", *RULES):
        counted[0] = 0
        how = search.Search(1 if name == "greedy" else BEAMS, stop=name if name in RULES else "first")
        said = [result.text for result in translate_by(model, list(sources), how)]
        found[name] = {"bleu": round(sacrebleu.corpus_bleu(said, [list(wanted)]).score, 2),
                       "exact": round(sum(map(str.__eq__, said, wanted)) / len(wanted), 4), "steps": counted[0]}
        print(name, found[name], flush=True)
    given.model, given.test = Path(given.model).name, Path(given.test).name
    write("beam_stop", __doc__ or "", given, sentences=len(lines), rules=found)


def translate_by(model: Any, texts: list[str], how: Any) -> list[Any]:
    """Translations by a search, which `Model.translate` gives no name."""
    from qkv.generation.beam import beam
    from qkv.generation.decoder import batch_by_length
    from qkv.generation.sequence import DecodeOptions
    from qkv.tasks.generate import result_of
    from qkv.tasks.types import start_ids

    ids, results = [model.ids(text) for text in texts], dict[int, Any]()
    options = DecodeOptions(None, model.special.eos, start_ids(model), forbid=model.special.forbid, continues="start")
    for rows in batch_by_length(ids, 2048):
        found = beam(model.core, [ids[r] for r in rows], search=how, options=options)
        results |= {r: result_of(model, hypotheses) for r, hypotheses in zip(rows, found, strict=True)}
    return [results[r] for r in range(len(ids))]


if __name__ == "__main__":
    main()
