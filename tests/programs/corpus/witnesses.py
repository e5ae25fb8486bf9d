"""A program of the corpus, and its form, that each optimisation changes; and those it has none for.

Where a pass no longer changes its own, `make figures ARGS=passes` finds another one; a pass that
changes none is to be deleted, or to become a case of a general one.
"""

WITNESSES = {
    "cast_constants": ("spectrogram", "one axis"),
    "computed_once": ("asian_option", "none"),
    "at_once": ("kernel triangular_product", "one axis"),
    "pieces": ("newton_system", "one axis"),
    "in_blocks": ("kernel triangular_solve", "one axis"),
    "row_wise": ("kernel triangular_product", "one axis"),
    "shared_loops": ("kernel mandelbrot", "one axis"),
    "fetch_ahead": ("kernel trace_of_tanh", "one axis"),
    "sums_behind": ("figure np.sum((a - b)**2)", "as written"),
    "turn": ("figure prk transpose", "as written"),
    "joined_sums": ("example bert", "as written"),
    "whole_loops": ("crossing_averages", "one axis"),
    "read_behind": ("thomas", "one axis"),
    "accumulate": ("kernel products", "one axis"),
    "fuse": ("black_scholes", "one axis"),
    "destinations": ("thomas", "one axis"),
    "arrivals": ("kernel recursive_filter", "one axis"),
    "rotate": ("page_rank", "none"),
    "enclose": ("crossing_averages", "one axis"),
    "row_by_row": ("edges", "one axis"),
    "alone": ("crank_nicolson", "none"),
}
# Optimisations that change no program of the corpus today.
NOWHERE = {"sums_at_once", "owned_rows", "apart"}
