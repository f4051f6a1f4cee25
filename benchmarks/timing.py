"""Timing, peers' numbers of threads and problem sets for the programs of this folder."""

import sys
from pathlib import Path

from clgraft.plugins.command_line.bench.peer_process import best, restarted
from clgraft.plugins.command_line.bench.timing import Timing, compare, geometric_mean

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.problem_sets import problem_lines

__all__ = ["Timing", "best", "compare", "geometric_mean", "problem_lines", "restarted"]
