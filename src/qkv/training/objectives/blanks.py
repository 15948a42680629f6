"""Blank filling (GLM): blanks in a text that is seen freely are filled one after another."""

from qkv.data import collate, corrupt
from qkv.errors import QkvError
from qkv.messages import join
from qkv.model import Model
from qkv.tasks.special_tokens import BLANK_ENDS
from qkv.training.objectives.base import END_TOKENS, TEXTS, HoldOut, Objective, continue_sources, mask_id, tokenizer_for
from qkv.training.objectives.corruption import Corruption
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits


def plan_blanks(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """Blanks in a text that is seen freely, filled one after another in a random order (Du et al. 2022, 2.1)."""
    tokenizer = tokenizer_for(model)
    mask, (start, end) = mask_id(run, tokenizer), (tokenizer.id(token) for token in BLANK_ENDS)
    if start is None or end is None:
        names = join(" or ", BLANK_ENDS)
        raise QkvError("{name}: the vocabulary lacks {names}, which begin and end what fills a blank", name=run.name,
                       names=names)
    pad = tokenizer.pad_id or 0

    def corrupt_row(ids: list[int], draw: corrupt.Draw) -> corrupt.Blanks:
        return corrupt.blank_spans(ids, mask, (start, end), draw)

    def collate_rows(rows: list[corrupt.Blanks]) -> collate.Batch:
        return collate.collate_blanks(rows, pad=pad)

    return Corruption(int(run.model.context / 1.31) - 1, corrupt_row, collate_rows).plan(run, splits, model)


BLANKS = Objective("blanks", TEXTS, (*END_TOKENS, "[MASK]", *BLANK_ENDS), "none", plan_blanks, continue_sources,
                   ("prefix decoder",))
