"""Watching a model learn: when (recorder.py), what is read of it (readings.py), and reading it back (records.py)."""
