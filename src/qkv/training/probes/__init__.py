"""Watching a model learn: what is asked (watching.py), recorded (recorder.py) and read back (watched.py)."""
