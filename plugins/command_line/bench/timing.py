"""Interleaved timing: machines drift, ratios of neighbours in time do not."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SETTLE = 0.04  # seconds; OpenBLAS's threads wait actively for 2^26 cycles
TURN = 4  # timed calls in a row at most


@dataclass(frozen=True)
class Timing:
    """Times of one contender in seconds."""

    median: float
    best: float
    spread: float  # (third quartile - first quartile) / median

    @staticmethod
    def of(times: list[float]) -> Timing:
        """Summarise at least two times."""
        low, middle, high = statistics.quantiles(times, n=4)
        return Timing(middle, min(times), (high - low) / middle)


def compare(
    contenders: Mapping[str, Callable[[], object]], seconds: float = 1.0, least: int = 7, settle: float = SETTLE
) -> dict[str, Timing]:
    """Time calls in turn, back to back: A A A, B B B, A A A, ...

    Each turn begins with untimed calls, until the other contenders' threads have gone to sleep (thread pools keep a
    core busy for a while after their last work) and the contender's own threads and caches are warm.

    Parameters
    ----------
    contenders : mapping of str to callable
        Each call must return only when its work is done.
    seconds : float
        About how long to measure, all together.
    least : int
        The least number of timed calls of each.
    settle : float
        Seconds of untimed calls at each turn, one at least.

    Returns
    -------
    dict of str to Timing
    """
    for call in contenders.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    while min(map(len, times.values())) < least or time.perf_counter() < end:
        for name, call in contenders.items():
            warm = time.perf_counter() + settle
            call()
            while time.perf_counter() < warm:
                call()
            stop = time.perf_counter() + settle
            while True:
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
                if start > stop or len(times[name]) % TURN == 0:
                    break
    return {name: Timing.of(values) for name, values in times.items()}


def geometric_mean(values: list[float]) -> float:
    """Return the mean of ratios."""
    return statistics.geometric_mean(values)


def fastest(times: Mapping[str, Timing], ways: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """Return which of a peer's ways was the fastest, and what a `Measurement` says of them where there are several."""
    medians = {way: times[way].median for way in ways}
    found = min(medians, key=medians.__getitem__)
    return found, {"layout": found, "ways": medians} if len(medians) > 1 else {}
