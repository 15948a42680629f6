"""From files to batches: read `sources.py`, `bucket.py` or `packing.py`, `collate.py`; `order.py` holds the chance."""
