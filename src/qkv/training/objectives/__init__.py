"""What a model can learn, a file each; base.py says what an objective is."""

from qkv.training.objectives.base import Objective
from qkv.training.objectives.blanks import BLANKS
from qkv.training.objectives.chat import CHAT
from qkv.training.objectives.denoise import DENOISE
from qkv.training.objectives.documents import DOCUMENTS
from qkv.training.objectives.labels import CHOICE, LABELS, SIMILARITY
from qkv.training.objectives.masked import MASKED
from qkv.training.objectives.pairs import PAIRS
from qkv.training.objectives.prefixes import PREFIXES
from qkv.training.objectives.spans import SPANS
from qkv.training.objectives.text import TEXT

EACH = (PAIRS, TEXT, DOCUMENTS, MASKED, DENOISE, BLANKS, PREFIXES, SPANS, LABELS, SIMILARITY, CHOICE, CHAT)
OBJECTIVES: dict[str, Objective] = {objective.name: objective for objective in EACH}
