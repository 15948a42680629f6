"""The one core. Start with model.py (the forward pass in reading order), then attention.py."""
