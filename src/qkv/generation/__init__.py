"""Writing text with a core. Start with engine.py, then request.py and sequence.py; decoder.py and passes.py run it."""
