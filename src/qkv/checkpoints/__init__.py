"""Between our core and Hugging Face directories: names (name_table.py), files (storage.py)."""
