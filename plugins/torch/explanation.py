"""What became of the operators of a model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Explanation:
    """What became of the operators of a model.

    Attributes
    ----------
    lowered : list of str
        Operators that run on the device.
    kept : dict of str to str
        Operators that stay PyTorch's, with the reason.
    regions : int
        How many regions there are.
    """

    lowered: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    regions: int = 0

    def __str__(self) -> str:
        lines = [f"{len(self.lowered)} operators in {self.regions} regions run on the device"]
        lines += [f"PyTorch's: {name}: {reason}" for name, reason in self.kept.items()]
        return "\n".join(lines)
