"""Writing text with a core. Start with engine.py (one token after another), then beam.py; decoder.py runs the core."""
