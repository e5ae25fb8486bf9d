"""A program of the corpus, and its form, that each optimisation changes; and those it has none for.

Where a pass no longer changes its own, `make figures ARGS=passes` finds another one; a pass that
changes none is to be deleted, or to become a case of a general one.
"""

WITNESSES = {
    "fold_casts": ("spectrogram", "one axis"),
    "cse": ("asian_option", "none"),
    "loop_motion": ("kernel triangular_product", "one axis"),
    "split_at_edges": ("newton_system", "one axis"),
    "blocked_substitution": ("kernel triangular_solve", "one axis"),
    "keep_row_dims": ("kernel triangular_product", "one axis"),
    "owner_computes": ("models_of_stations", "one axis"),
    "reshape_chains": ("stockham", "one axis"),
    "share_loops": ("kernel mandelbrot", "one axis"),
    "gather_before_loop": ("kernel trace_of_tanh", "one axis"),
    "sink_allreduce": ("figure np.sum((a - b)**2)", "as written"),
    "transpose_before_exchange": ("figure prk transpose", "as written"),
    "fold_batch_sums": ("example bert", "as written"),
    "replicate_loops": ("crossing_averages", "one axis"),
    "sink_reads": ("thomas", "one axis"),
    "accumulate_in_place": ("kernel products", "one axis"),
    "fuse": ("black_scholes", "one axis"),
    "copy_elision": ("thomas", "one axis"),
    "fuse_into_exchange": ("kernel recursive_filter", "one axis"),
    "double_buffering": ("page_rank", "none"),
    "loops_into_phases": ("crossing_averages", "one axis"),
    "skewed_fusion": ("edges", "one axis"),
    "self_exchange_elision": ("crank_nicolson", "none"),
}
# Optimisations that change no program of the corpus today.
NOWHERE: set[str] = set()
