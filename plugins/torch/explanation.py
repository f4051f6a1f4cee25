"""What became of the operators of a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from clgraft.core.log import warn_once


@dataclass
class Explanation:
    """What became of the operators of a model.

    Attributes
    ----------
    lowered : list of str
        Operators that run on the device, in regions that have been compiled.
    kept : dict of str to str
        Operators and regions that stay PyTorch's, with the reason.
    regions : int
        How many regions run on the device.
    graphs : int
        How many graphs PyTorch has handed over, each with its gradient.
    breaks : dict of str to int
        Why PyTorch has cut the model into several graphs or traced none, and how often.
    """

    lowered: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    regions: int = 0
    graphs: int = 0
    breaks: dict[str, int] = field(default_factory=dict)
    _ran: set[int] = field(default_factory=set, repr=False)

    def keep(self, name: str, reason: str, warn: bool) -> None:
        """Note an operator that stays PyTorch's."""
        self.kept.setdefault(name, reason)
        if warn:
            warn_once(f"[torch] {name} stays PyTorch's: {reason}")

    def ran(self, region: int, operators: list[str]) -> None:
        """Note a region that has been compiled; it counts once, for whatever shapes."""
        if region not in self._ran:
            self._ran.add(region)
            self.regions += 1
            self.lowered += operators

    def failed(self, region: int, operators: list[str], reason: str) -> None:
        """Note a region that PyTorch computes because it could not be compiled."""
        self.kept[f"region {region} of {len(operators)} operators"] = reason
        names = ", ".join(dict.fromkeys(operators))
        warn_once(f"[torch] PyTorch computes a region of {len(operators)} operators ({names}): {reason}")

    def __str__(self) -> str:
        lines = [f"{len(self.lowered)} operators in {self.regions} regions run on the device"]
        if not self.graphs:
            lines.append("PyTorch has traced nothing")
        lines += [f"PyTorch's: {name}: {reason}" for name, reason in self.kept.items()]
        lines += [f"graph break ({count} times): {reason}" for reason, count in self.breaks.items()]
        return "\n".join(lines)
