"""One file a family: what its Hugging Face config means as a Spec, and what its tensors are called. Data, no core.

A file holds `spec(config)`, `config(spec)`, TYPES, SIZES, NAMES, IGNORE and TOKENS; nothing registers it.
"""
