"""Looking inside: trace.py records, edit.py changes, readouts.py lists the readouts. Start with trace.py.

The readouts, one file each: logit_lens, attention_maps (edges, alignment), attribution (parts), step_by_step (walk),
embeddings (neighbours, analogy), residual_drift (shift), sampling_filters (choices), mask_reasons (mask), routing,
wavefront, cache_report, compare (diff), gradient. Causal: edge_ablation, activation_patching. consistency holds the
readouts to the model; resolve finds runs, positions and tokens; selectors and trace_storage serve trace.py.
"""
