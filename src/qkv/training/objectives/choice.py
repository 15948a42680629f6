"""Choice: which of several answers to a question is right; the label is its number."""

from qkv.tasks.task_format import SEPARATOR
from qkv.training.objectives.labels import Layout, objective_of_labels


def pair_answers(text: str) -> list[str]:
    """A question with each of its answers (Radford et al. 2018, section 3.3)."""
    question, *answers = text.split(SEPARATOR)
    return [f"{question}{SEPARATOR}{answer}" for answer in answers]


CHOICE = objective_of_labels("choice", Layout(pair_answers, "choices"))
