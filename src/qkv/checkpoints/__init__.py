"""Between our core and Hugging Face directories: names (name_table.py), configs (config.py), files (storage.py)."""
