"""Task inputs are laid out as figure 1 of Radford et al. 2018 draws them, and pairs as Devlin et al. 2018, figure 2."""

import torch

from qkv.tasks.task_format import format_example, format_pair, join_logits

TOKENS = (101, 102, 103)


def test_each_task_looks_as_the_figure_draws_it():
    assert format_example([[1, 2]], TOKENS).ids == ((101, 1, 2, 103),)
    assert format_example([[1, 2], [3]], TOKENS).ids == ((101, 1, 2, 102, 3, 103),)
    similar = format_example([[1], [2, 3]], TOKENS, both=True)
    assert similar.ids == ((101, 1, 102, 2, 3, 103), (101, 2, 3, 102, 1, 103))
    choices = format_example([[1], [2], [3]], TOKENS)
    assert choices.ids == ((101, 1, 102, 2, 103), (101, 1, 102, 3, 103))
    assert (similar.join, choices.join) == ("added", "compared")


def test_a_pair_has_two_segments():
    assert format_pair([5, 6], [7], cls=1, sep=2) == ([1, 5, 6, 2, 7, 2], [0, 0, 0, 0, 1, 1])


def test_an_answer_judges_the_sum_of_logits_and_compares_choices():
    rows = torch.randn(2, 3)
    assert torch.equal(join_logits(rows, "added"), rows[0] + rows[1])
    assert join_logits(torch.tensor([[4.0], [7.0]]), "compared").tolist() == [4.0, 7.0]
    assert join_logits(torch.tensor([[4.0, 1.0]]), "single").tolist() == [4.0, 1.0]
