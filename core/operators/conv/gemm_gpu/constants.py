"""Numbers that planners and kernels share: the table ``kernels/conv/gemm_gpu/constants.cl``, which kernels include."""

from __future__ import annotations

import re
from pathlib import Path

FILE = Path(__file__).resolve().parents[4] / "kernels" / "conv" / "gemm_gpu" / "constants.cl"
TABLE = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)\b", FILE.read_text(), re.M)}

GATHER, PIXELS, BY_ROWS, BY_COLUMNS = (TABLE[name] for name in ("GATHER", "PIXELS", "BY_ROWS", "BY_COLUMNS"))  # LOADER
TO_PIXELS, TO_FILTER = TABLE["TO_PIXELS"], TABLE["TO_FILTER"]  # TARGET
FMA_PAD, UNITS_PAD, MOST_STAGES = TABLE["FMA_PAD"], TABLE["UNITS_PAD"], TABLE["MOST_STAGES"]
TAPS_OF_ITEM, ROWS_OF_ITEM, PHASE_TAPS = TABLE["TAPS_OF_ITEM"], TABLE["ROWS_OF_ITEM"], TABLE["PHASE_TAPS"]
OUTSIDE, HALVES_DEPTH = TABLE["OUTSIDE"], TABLE["HALVES_DEPTH"]


def operand_number(name: str) -> int:
    """Return the kernels' OPERANDS for a type of operands: ``float32`` or ``tf32``."""
    return TABLE[name.upper()]
