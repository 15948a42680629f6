"""What a run is, and one from data to a model directory. Start with run.py, then fit.py, assemble.py and session.py."""
