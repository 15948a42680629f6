"""From files to batches: read `sources.py`, `bucket.py` or `pack.py`, `collate.py`; `order.py` holds the chance."""
