"""Looking inside: recording.py records and reads taps, edit.py changes them; Trace (trace.py) adds the readouts.

The readouts, one file each: logit_lens, attention_maps (alignment), attribution (parts), step_by_step (walk),
embeddings (neighbours, analogy), residual_drift (shift), sampling_filters (choices), mask_reasons (mask), routing,
wavefront, cache_report, compare (diff), gradient, consistency (check). Causal: edge_ablation, activation_patching.
resolve finds runs, positions and tokens; taps, selectors and trace_storage serve recording.py. Start with trace.py.
"""
