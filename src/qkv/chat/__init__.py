"""Chat templates: messages to text and ids (template.py), rendered where nothing can escape (sandbox.py)."""
