"""Looking inside: trace.py records, edit.py changes, readout.py reads, patch.py proves. Start with trace.py."""
