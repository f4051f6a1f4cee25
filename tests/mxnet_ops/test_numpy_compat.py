"""MXNet with the NumPy that each Python has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize(
    ("numpy", "said"),
    [
        (
            "2.1.3",
            f", which is too new for it: pip install '{'numpy<1.24' if sys.version_info < (3, 12) else 'numpy<2'}'",
        ),
        ("1.23.5", ""),
    ],
)
def test_an_error_of_mxnets_import_is_one_message(numpy, said, tmp_path):
    """A package of MXNet's name that fails as MXNet does with NumPy 2."""
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text(
        f"import numpy\nnumpy.__version__ = {numpy!r}\nraise AttributeError('`np.bool8` was removed\\nin NumPy 2')\n"
    )
    (tmp_path / "net-symbol.json").write_text('{"nodes": [], "heads": []}')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "clgraft.plugins.command_line", "swap", "net-symbol.json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr == (
        "clgraft: [mxnet] MXNet is needed to swap a symbol and cannot be imported: [mxnet] got AttributeError:"
        f" `np.bool8` was removed, expected MXNet to be imported with NumPy {numpy}{said}\n"
    )


def test_the_remedy_is_what_the_extra_asks_for():
    from clgraft.mxnet_ops.engine.numpy_compat import REQUIREMENT

    extra = re.search(r"^mxnet = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    marker = "python_version < '3.12'" if sys.version_info < (3, 12) else "python_version == '3.12'"
    assert extra and f'"{REQUIREMENT}; {marker}"' in extra[1]
