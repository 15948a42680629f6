"""Changing a built core from outside, by module name. Start with lora.py."""
