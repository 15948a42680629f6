"""What a run is, and one from data to a model directory. Start with run.py, then assemble.py and session.py."""
