"""Tells MXNet's OpenMP threads to sleep soon after their work, so that clgraft's kernels find the cores free.

GCC's OpenMP library, which MXNet uses, lets the threads of a finished loop wait actively for 300 000 rounds: 14 ms on
Intel's processors, whose pause takes 140 cycles. A kernel that starts in that time shares every core with them. Without
any waiting, though, MXNet's own operators would have to wake their threads one by one.

The library reads the variable when it is loaded, so this module has to be imported before MXNet.
"""

from __future__ import annotations

import os

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
ROUNDS = 20000  # 0.3 to 1 ms, longer than the pauses between MXNet's own operators: 1000 make these 1.4 times slower


def let_threads_sleep() -> None:
    """Set the number of rounds, unless the user has chosen how OpenMP's threads wait."""
    if not any(name in os.environ for name in VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = str(ROUNDS)


let_threads_sleep()
