"""Text to ids and back: start with `tokenizer.py`; `vocabulary.py` makes a new vocabulary."""
