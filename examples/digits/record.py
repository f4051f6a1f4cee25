"""Results of training runs, and the report and picture that compare two runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

LEARNT = 0.97  # test accuracy that the net reaches


def nudged(weights: np.ndarray, size: float) -> np.ndarray:
    """Return float32 weights, each larger or smaller by `size` times itself, at random."""
    return (weights * (1 + np.random.default_rng(2).choice([-size, size], weights.shape))).astype(np.float32)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference divided by the largest value."""
    return float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))


@dataclass
class Run:
    """The losses and the times per step (seconds) of one training, and its test accuracy."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    accuracy: float = 0.0

    @property
    def step_ms(self) -> float:
        """The median time per step in milliseconds."""
        return statistics.median(self.seconds) * 1e3


@dataclass
class Comparison:
    """Trainings of one net, original, swapped and with regions, from the same weights on the same batches."""

    framework: str
    device: str
    original: Run
    swapped: Run
    regions: Run  # swapped, with connected operators as one graph
    nudged: Run  # the original net again; its weights differ by as much as the first gradients did
    gradient_difference: float  # largest relative difference of a gradient in the first step
    worst_parameter: str
    forward_difference: float  # relative difference of one forward pass on photographs
    original_error: float | None = None  # error of these gradients against float64, if the framework has it
    swapped_error: float | None = None

    def loss_difference(self, other: Run) -> float:
        """Return the largest difference between a loss curve and the original one."""
        return max(abs(a - b) for a, b in zip(self.original.losses, other.losses))

    def report(self) -> str:
        """Return the lines that the demo prints."""
        n, s, r = self.original, self.swapped, self.regions
        return "\n".join(
            [
                f"{self.framework} on {self.device}",
                f"  {'':22}{'original':>12}{'swapped':>12}{'regions':>12}",
                f"  {'first loss':22}{n.losses[0]:12.6f}{s.losses[0]:12.6f}{r.losses[0]:12.6f}",
                f"  {'last loss':22}{n.losses[-1]:12.6f}{s.losses[-1]:12.6f}{r.losses[-1]:12.6f}",
                f"  {'test accuracy':22}{n.accuracy:12.2%}{s.accuracy:12.2%}{r.accuracy:12.2%}",
                f"  {'time per step':22}{n.step_ms:9.2f} ms{s.step_ms:9.2f} ms{r.step_ms:9.2f} ms",
                f"  {'against original':22}{'':12}{n.step_ms / s.step_ms:11.2f}x{n.step_ms / r.step_ms:11.2f}x",
                f"  largest gradient difference, first step: {self.gradient_difference:.1e} of its size"
                f" ({self.worst_parameter})"
                + (
                    ""
                    if self.original_error is None
                    else f"; from float64: original {self.original_error:.1e}, swapped {self.swapped_error:.1e}"
                ),
                f"  largest difference of the loss curves: {self.loss_difference(self.swapped):.1e}"
                f", with regions {self.loss_difference(self.regions):.1e}"
                f" (the original net from weights that far away: {self.loss_difference(self.nudged):.1e})",
                f"  one forward pass on photographs differs by {self.forward_difference:.1e} of the output's size",
            ]
        )

    @property
    def learnt(self) -> bool:
        """Whether the original net has learnt to tell the digits apart."""
        return self.original.accuracy > LEARNT

    def failures(self) -> list[str]:
        """Return in what the swapped nets differ from the original one by more than rounding."""
        found = []
        for name, run in (("swapped", self.swapped), ("regions", self.regions)):
            if self.learnt and not run.accuracy > LEARNT:
                found.append(
                    f"{self.framework}, {name}: got test accuracy {run.accuracy:.2%}, expected above {LEARNT:.0%} as "
                    f"of the original net ({self.original.accuracy:.2%})"
                )
        # compare with float64 if the framework has it: its own sums over large planes lose digits in float32
        error = self.gradient_difference if self.swapped_error is None else self.swapped_error
        if not error < 1e-4:
            found.append(f"{self.framework}: got gradients {error:.1e} off, expected below 1e-4")
        if not self.forward_difference < 1e-4:
            found.append(f"{self.framework}: got outputs {self.forward_difference:.1e} apart, expected below 1e-4")
        # rounding errors grow in training: compare the first losses closely, and the curves with a perturbed run
        for run in (self.swapped, self.regions):
            if not abs(self.original.losses[0] - run.losses[0]) < 1e-5:
                found.append(
                    f"{self.framework}: got first losses {self.original.losses[0]} and {run.losses[0]},"
                    " expected equal to 1e-5"
                )
            apart, allowed = self.loss_difference(run), 10 * self.loss_difference(self.nudged)
            if not apart < allowed:
                found.append(
                    f"{self.framework}: got loss curves {apart:.1e} apart, expected below {allowed:.1e}:"
                    " ten times the growth of a difference as large as that of the first gradients"
                )
        return found


def verdict(comparisons: Sequence[Comparison]) -> tuple[list[str], int]:
    """Return the demo's last lines and its exit status."""
    failures = [text for comparison in comparisons for text in comparison.failures()]
    lines = [f"FAILED {text}" for text in failures]
    lines.append("original and swapped nets do not agree" if failures else "original and swapped nets agree")
    poor = [f"{each.framework} {each.original.accuracy:.2%}" for each in comparisons if not each.learnt]
    if poor:
        lines.append(
            f"the original net has learnt too little: got test accuracy {', '.join(poor)}, expected above "
            f"{LEARNT:.0%}; --epochs trains longer"
        )
    return lines, 1 if failures or poor else 0


def draw(comparisons: list[Comparison], path: Path) -> None:
    """Write one picture: the loss curves of all trainings, and their difference."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(comparisons), figsize=(6 * len(comparisons), 7), squeeze=False, sharex="col")
    for column, c in enumerate(comparisons):
        top, bottom = axes[0][column], axes[1][column]
        top.plot(
            c.original.losses,
            label=f"original, {c.original.step_ms:.1f} ms a step, {c.original.accuracy:.1%}",
            linewidth=3,
            alpha=0.4,
        )
        top.plot(
            c.swapped.losses, label=f"swapped, {c.swapped.step_ms:.1f} ms a step, {c.swapped.accuracy:.1%}", linewidth=1
        )
        top.plot(
            c.regions.losses,
            label=f"regions, {c.regions.step_ms:.1f} ms a step, {c.regions.accuracy:.1%}",
            linewidth=1,
            linestyle=":",
        )
        top.set_title(f"{c.framework} on {c.device}", fontsize=9)
        top.set_ylabel("loss")
        top.set_yscale("log")
        top.legend()
        for run, label, colour in (
            (c.nudged, "original, weights nudged", "0.6"),
            (c.swapped, "swapped", "tab:red"),
            (c.regions, "regions", "tab:blue"),
        ):
            apart = [abs(a - b) + 1e-12 for a, b in zip(c.original.losses, run.losses)]
            bottom.plot(apart, label=label, color=colour, linewidth=1)
        bottom.legend()
        bottom.set_yscale("log")
        bottom.set_ylabel("loss: distance from original")
        bottom.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
