"""Interleaved timing: machines drift, ratios of neighbours in time do not."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


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


def compare(contenders: Mapping[str, Callable[[], object]], seconds: float = 1.0, least: int = 7) -> dict[str, Timing]:
    """Time calls in turn, A B A B ..., after one warm-up each.

    Parameters
    ----------
    contenders : mapping of str to callable
        Each call must return only when its work is done.
    seconds : float
        About how long to measure, all together.
    least : int
        The least number of rounds.

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
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: Timing.of(values) for name, values in times.items()}


def geometric_mean(values: list[float]) -> float:
    """The mean of ratios."""
    return statistics.geometric_mean(values)
