"""Between our core and Hugging Face directories: names (table.py), configs (config.py), files (store.py)."""
