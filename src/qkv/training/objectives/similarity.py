"""Similarity of two texts: both orders are read, as which of them is first says nothing about how alike they are."""

from qkv.tasks.task_format import SEPARATOR
from qkv.training.objectives.labels import Layout, objective_of_labels


def swap_texts(text: str) -> list[str]:
    """Two texts in both orders (Radford et al. 2018, section 3.3)."""
    return [text, SEPARATOR.join(reversed(text.split(SEPARATOR)))]


SIMILARITY = objective_of_labels("similarity", Layout(swap_texts, "orders"))
