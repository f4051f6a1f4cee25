"""What the user sees of a search: progress, a line for each problem, and its outcome."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from clgraft.core.planning.choice import HEURISTIC
from clgraft.plugins.command_line.terminal import Progress, plural

Event = dict[str, Any]

DISTURBED = 0.5  # the spread above which a measurement is marked


class Report:
    """Takes a search's events as they come.

    Parameters
    ----------
    problems : sequence of str
    output : TextIO
    partly : bool
        Whether only some choices are to be tried: no problem is searched to the end then.

    Attributes
    ----------
    winners : list of dict
        The finished problems, those of earlier runs among them.
    failed : list of dict
        The problems that could not be searched, and why.
    not_kept : bool
        Whether a result could not be written.
    device : dict
        The event that names it.
    """

    def __init__(self, problems: Sequence[str], output: TextIO, partly: bool = False) -> None:
        self.problems, self.output, self.partly = list(problems), output, partly
        self.winners: list[Event] = []
        self.failed: list[Event] = []
        self.not_kept = False
        self.device: Event = {}
        self._candidates: dict[str, dict[str, Event]] = {}
        self._current = ""
        self._progress = Progress(output, len(self.problems))

    def __enter__(self) -> Report:
        self._progress.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        self._progress.__exit__(*reason)

    @property
    def left(self) -> int:
        """Return how many problems were not reached, or not searched to the end."""
        done = sum(event["complete"] or self.partly for event in self.winners)
        return len(self.problems) - len(self.failed) - done

    def take(self, event: Event) -> None:
        """Take an event of `worker.search`."""
        getattr(self, f"_{event['event']}")(event)

    def _device(self, event: Event) -> None:
        if not self.device:
            self._print(f"on {event['name']}: {plural(len(self.problems), 'problem')}")
        self.device = event

    def _problem(self, event: Event) -> None:
        self._current = event["problem"]
        self._candidates.setdefault(self._current, {})

    def _trying(self, event: Event) -> None:
        tried = len(self._candidates.get(self._current, {}))
        self._progress.show(f"{tried} tried, now {event['choice']} of {self._current}", self._done)

    def _candidate(self, event: Event) -> None:
        self.not_kept |= not event["kept"]
        self._candidates.setdefault(self._current, {})[event["choice"]] = event
        if event["outcome"] in ("wrong", "failed", "timeout", "crashed"):
            self._print(f"  {event['outcome']}: {event['choice']}: {event['reason']}")

    def _winner(self, event: Event) -> None:
        self.not_kept |= not event["kept"]
        before, after = event["before"], event["after"]
        times = f"{1e3 * before['median']:9.3f} ms"
        if event["choice"] != str(HEURISTIC):
            times += f" -> {1e3 * after['median']:.3f} ms, {before['median'] / after['median']:.2f}x, {event['choice']}"
        times += "" if event["complete"] or self.partly else ", not searched to the end"
        spread = max(before["spread"], after["spread"])
        times += f", disturbed: spread {100 * spread:.0f} %" if spread > DISTURBED else ""
        note = "known" if event.get("known") else f"{len(self._candidates.get(event['problem'], {}))} tried"
        self._print(f"{self._count()} {event['problem']}: {times} ({note})")
        self.winners.append(event)

    def _failed(self, event: Event) -> None:
        self._print(f"{self._count()} {event['problem']}: not searched: {event['reason']}")
        self.failed.append(event)

    @property
    def _done(self) -> int:
        return len(self.winners) + len(self.failed)

    def _count(self) -> str:
        return f"[{self._done + 1}/{len(self.problems)}]"

    def _print(self, line: str) -> None:
        self._progress.print(line)

    def outcomes(self) -> Counter[str]:
        """Count what became of the candidates of this run."""
        return Counter(event["outcome"] for found in self._candidates.values() for event in found.values())

    def totals(self) -> dict[str, float]:
        """Return sums of mean and median, the mean spread, before and after, and the geometric mean of the speedups."""
        if not self.winners:
            return {}
        figures: dict[str, float] = {}
        for when in ("before", "after"):
            for name in ("mean", "median"):
                figures[f"{when}_{name}"] = sum(event[when][name] for event in self.winners)
            figures[f"{when}_spread"] = statistics.fmean(event[when]["spread"] for event in self.winners)
        ratios = [math.log(event["before"]["median"] / event["after"]["median"]) for event in self.winners]
        figures["speedup"] = math.exp(statistics.fmean(ratios))
        return figures

    def finish(self, place: str) -> None:
        """Print the outcome of the search and where it is kept."""
        outcomes, totals = self.outcomes(), self.totals()
        if outcomes:
            self._print("candidates: " + ", ".join(f"{count} {name}" for name, count in outcomes.most_common()))
        if totals:
            better = sum(event["choice"] != str(HEURISTIC) for event in self.winners)
            self._print(f"{better} of {len(self.winners)} problems are faster; {totals['speedup']:.3f}x in the mean")
            for when in ("before", "after"):
                mean, median, spread = (totals[f"{when}_{name}"] for name in ("mean", "median", "spread"))
                self._print(
                    f"{when:<6} mean {1e3 * mean:.2f} ms, median {1e3 * median:.2f} ms, spread {100 * spread:.1f} %"
                )
        if self.left:
            what = "1 problem is" if self.left == 1 else f"{self.left} problems are"
            self._print(f"{what} left: the same command continues with {'it' if self.left == 1 else 'them'}")
        self._print(f"results: {place}{' (not all could be kept)' if self.not_kept else ''}")

    def as_record(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "device": self.device.get("name"),
            "problems": [
                {**event, "candidates": list(self._candidates.get(event["problem"], {}).values())}
                for event in self.winners
            ],
            "failed": self.failed,
            "left": self.left,
            "outcomes": dict(self.outcomes()),
            "totals": self.totals(),
        }


def row(problem: str, choice: str, before: float, after: float) -> str:
    """Return a row of text, with the heuristic's and the choice's own time in seconds."""
    return f"{problem} -> {choice}  # {before / after:.2f}x, {1e3 * after:.3f} ms"


def export(path: Path, report: Report) -> None:
    """Write winners that beat the heuristic as rows of text (see `clgraft.core.tuning.rows`).

    The pattern names the device's class and its number of compute units, for which work was split.
    """
    lines = [
        f"# Measured by clgraft tune on {report.device.get('name', '')}.",
        "# problem -> choice  # the heuristic's time over its own, milliseconds",
        f"device: {report.device.get('device_class', '')} units{report.device.get('units', '')}",
    ]
    for event in report.winners:
        if event["choice"] != str(HEURISTIC):
            before, after = event["before"]["median"], event["after"]["median"]
            lines.append(row(event["problem"], event["choice"], before, after))
    path.write_text("\n".join(lines) + "\n")
