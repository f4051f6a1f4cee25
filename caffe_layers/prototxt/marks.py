"""Comments in `param_str` by which the swap tells a layer, or the way back, what the layer's own fields cannot say."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, dataclass
from typing import Any

from clgraft.core.errors import ProblemError

# the net computes all gradients: a loss layer must answer for those of its labels too
FORCED = "# clgraft force_backward"
# Caffe's OpenCL branch divides a Euclidean loss by the elements of all examples
ELEMENTS = "# clgraft mean of elements"
REGION = "# clgraft region "
PHASES = ("TRAIN", "TEST")  # by Caffe's numbers


@dataclass(frozen=True)
class Mark:
    """A layer's place in a region.

    Attributes
    ----------
    region : str
        Name of the region's first layer.
    place, count : int
        The layer's place among the region's layers, and their number.
    runs : int
        The place of the layer whose forward pass runs the region: of the first loss, or else of the last layer.
    bottoms, tops : tuple of str
        Names of its blobs.
    shows : tuple of bool
        Which tops are read outside of the region; the others are hidden.
    changes : tuple of bool
        Which tops are overwritten outside of the region.
    back : tuple of bool
        Which bottoms have gradients, as far as the net's text tells.
    precision : str
        ``float16`` or ``bfloat16``, the type of the region's products; empty, and not written, if none was chosen.
    """

    region: str
    place: int
    count: int
    runs: int
    bottoms: tuple
    tops: tuple
    shows: tuple
    changes: tuple
    back: tuple
    precision: str = ""


def write_marks(marks: dict) -> list:
    """Return the lines that hold marks by phase; a mark that two phases share is written once."""
    lines: list = []
    for mark in dict.fromkeys(marks.values()):
        phases = " ".join(phase for phase in PHASES if marks.get(phase) == mark)
        fields = {name: value for name, value in asdict(mark).items() if name != "precision" or value}
        lines.append(f"{REGION}{phases} {json.dumps(fields)}")
    return lines


def without_marks(text: str) -> str:
    """Return a `param_str` without the lines that hold marks, for layers that read it as something else."""
    return "\n".join(line for line in text.split("\n") if not line.startswith(REGION))


def read_mark(text: str, phase: str) -> Mark | None:
    """Return the mark of a phase in a `param_str`; None if the layer is in no region then.

    Raises
    ------
    ProblemError
        If another version of clgraft wrote the mark, with other fields.
    """
    for line in text.splitlines():
        if line.startswith(REGION):
            phases, _, fields = line[len(REGION) :].partition("{")
            if phase in phases.split():
                given = json.loads("{" + fields)
                parts: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
                names = [each.name for each in dataclasses.fields(Mark) if each.name != "precision"]
                if sorted(set(parts) - {"precision"}) != sorted(names):
                    raise ProblemError(
                        f"[region] got a mark with {', '.join(parts)}, expected {', '.join(names)}: swap the net again"
                    )
                return Mark(**parts)
    return None
