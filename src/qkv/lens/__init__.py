"""Looking inside: trace.py records, edit.py changes, reads.py lists the readouts, patch.py proves. Start with trace.py.

The readouts, one file each: readout (lens, edges, alignment), parts, walk, words (neighbours, analogy, shift), choices,
mask, routes, grid (the wavefront), kept (the cache), compare (diff, graft), gradient; proofs holds them to the model.
"""
