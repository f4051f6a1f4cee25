"""MXNet with the NumPy that each Python has."""

from __future__ import annotations

import subprocess
import sys


def test_mxnet_is_importable_after_clgraft_in_a_fresh_process():
    program = "import clgraft.mxnet_ops, mxnet as mx; print(mx.nd.ones((2, 2), dtype=bool).asnumpy().sum())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "4"


def test_aliases_are_the_types_they_were():
    import numpy as np

    import clgraft.mxnet_ops.engine.numpy_compat as compat

    for name, kind in compat.ALIASES.items():
        assert getattr(np, name) is kind or np.dtype(getattr(np, name)) == np.dtype(kind), name
