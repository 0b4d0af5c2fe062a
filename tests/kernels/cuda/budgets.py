"""What each CUDA kernel may take of a multiprocessor: one line a kernel, held by ``test_offline.py``."""

from typing import NamedTuple


class Budget(NamedTuple):
    """Of a kernel on sm_80 and sm_90, float32 or of words; nothing may be spilled, and no thread needs a stack."""

    module: str
    kernel: str
    arguments: str  # as `offline.compile_to_ptx` reads them
    registers: int  # two blocks of 256 threads on a multiprocessor leave 128, one 255, three of 128 leave 168, two 255
    shared: int  # bytes; a block has at most 48 KiB, float64 included, which takes twice as much


BUDGETS = (
    Budget("arrays", "fill", "x1 x", 16, 0),
    Budget("rows", "copy", "x1 x1", 24, 0),
    Budget("rows", "divide", "x2 x1 x2", 48, 0),
    Budget("rows", "multiply", "x2 x1 x2", 48, 0),
    Budget("rows", "finish_rows", "x2 x2 x1 x1", 48, 0),
    Budget("rows", "dots", "x3 x3 x2 x", 48, 4160),
    Budget("causal_states", "sums", "x3 x3 x2 x4 x3", 128, 8384),
    Budget("causal_states", "scan", "x3 x3 x2 x2 x2 x2 bool", 168, 0),
    Budget("causal_chunks", "forward", "x3 x3 x3 x4 x3 x x3 x2 bool", 128, 20864),
    Budget("causal_chunks", "gradient", "x3 x3 x3 x2 x2 x4 x3 x3 bool bool", 128, 20800),
    Budget("causal_product_plain", "columns_of_a_head", "x3 x3 x3 x3 x3 bool bool", 64, 0),
    Budget("causal_step", "step_of_a_head", "x2 x2 x2 x3 x2 x x2 bool", 64, 0),
    Budget("delta_rows", "fade", "x3 x3 x3 x3 x3 x3 x3 x3 x3 bool bool", 80, 0),
    Budget("delta_rows", "pairs", "x3 x3 x3 x3 x3 x3 bool", 96, 12288),
    Budget("delta_rows", "gate_gradient", "x3 x3 x3 x3 x3 x3 x3 x3 x3 x4 x4 x3 bool", 96, 16384),
    Budget("delta_chunks", "correct", "x3 x3 x3 x3 x3 x4 x3 x3 bool", 255, 20800),
    Budget("delta_chunks", "fade_on", "x4 x3 x3 bool", 64, 0),
    Budget("delta_chunks", "read", "x3 x3 x3 x4 x3 bool bool", 128, 20800),
    Budget("delta_chunks", "gradient", "x3 x3 x4 x3 x3 x3 x3 x bool bool bool", 128, 20800),
    Budget("delta_step", "delta_step_of_a_head", "x2 x2 x2 x2 x2 x3 x2 bool bool", 64, 0),
    Budget("elu_plus_one", "write_phi", "x1 x1", 24, 0),
    Budget("elu_plus_one", "multiply_by_slope", "x1 x1", 24, 0),
    Budget("half_causal_chunks", "sums", "h3 h3 x2 x2 x4 x3 bool", 128, 19200),
    Budget("half_causal_chunks", "forward", "h3 h3 h3 x4 x3 x h3 x2 bool", 208, 27904),
    Budget("half_causal_chunks", "gradient", "h3 h3 h3 x2 x2 x2 x2 x4 x3 h3 bool bool", 208, 28416),
    Budget("half_rows", "dots", "h3 h3 x2 x", 48, 0),
    Budget("half_rows", "show", "h3 b2 h3", 48, 0),
    Budget("half_softmax_tiles", "forward_tile", "h3 h3 h3 b2 bool x h3 x2 x2", 168, 27904),
    Budget("half_softmax_tiles", "gradient_tile", "h3 h3 h3 h3 h3 b2 bool x x2 x2 x2 x h3 bool bool", 240, 29696),
    Budget("half_words", "copy_rows", "s3 s3", 48, 0),
    Budget("lsh_tiles", "write_chunks", "i3 int i3", 40, 0),
    Budget("lsh_tiles", "forward_tile", "x3 x3 x3 i3 i3 i1 int int int bool x x x3 x3 x3", 128, 22848),
    Budget(
        "lsh_tiles", "gradient_tile", "x3 x3 x3 x3 x3 i3 i3 i1 int int int bool x x x2 x2 x x3 bool bool", 128, 22592
    ),
    Budget("pattern_pieces", "join_softmax", "i2 i1 x3 x3 x3 x3 x3", 64, 0),
    Budget("pattern_pieces", "add_pieces", "i2 i1 x3 x3", 64, 0),
    Budget("pattern_tiles", "forward_tile", "x3 x3 x3 b2 i2 i2 i2 i1 x x x3 x3 x3 x3 x3", 112, 23104),
    Budget("pattern_tiles", "gradient_tile", "x3 x3 x3 x3 x3 b2 i2 i2 i2 i1 x x x2 x2 x x3 x3 bool bool", 112, 22592),
    Budget("softmax_tiles", "forward_tile", "x3 x3 x3 b2 bool x x x3 x2 x2", 128, 22080),
    Budget("softmax_tiles", "gradient_tile", "x3 x3 x3 x3 x3 b2 bool x x x2 x2 x x3 bool bool", 128, 21824),
)
