"""Changing a built core from outside, by module name. Start with pack.py."""
