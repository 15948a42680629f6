"""Text to ids and back: start with `tokenizer.py`; `train.py` makes a new vocabulary."""
