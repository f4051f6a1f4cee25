"""MXNet with the NumPy, the Python and the C library that there are."""

from __future__ import annotations

import logging
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
FRESH = """
import logging
logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
import clgraft.mxnet_ops, mxnet as mx, numpy as np
print(mx.nd.ones((2, 2), dtype=bool).asnumpy().sum())
"""


def python(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


def test_mxnet_is_importable_after_clgraft_in_a_fresh_process():
    done = python(FRESH)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "4"
    said = [line for line in done.stderr.splitlines() if line.startswith("clgraft [mxnet] ")]
    assert bool(re.search("names put back in NumPy .*: .*PZERO", "\n".join(said))) == (int(np.__version__[0]) >= 2)
    assert not [line for line in done.stderr.splitlines() if "Warning" in line]


def test_names_are_what_they_were():
    from clgraft.mxnet_ops.engine import numpy_compat as compat

    for name, kind in compat.ALIASES.items():
        assert getattr(np, name) is kind or np.dtype(getattr(np, name)) == np.dtype(kind), name
    for name, value in compat.CONSTANTS.items():
        assert repr(float(getattr(np, name))) == repr(float(value)), name
    x = np.array([[3.0, 1.0], [2.0, 4.0]])
    assert np.alltrue(x) and not np.sometrue(0 * x) and np.product(x) == 24 and np.round_(1.26, 1) == 1.3
    assert np.trapz([1.0, 2.0]) == 1.5 and np.row_stack([[1], [2]]).shape == (2, 1)
    assert np.in1d(x, [1, 2]).tolist() == [False, True, True, False]
    assert np.in1d([[1, 5]], [1], invert=True).tolist() == [False, True]
    assert np.msort(x).tolist() == [[2.0, 1.0], [3.0, 4.0]] and np.compat.basestring is str
    assert compat.msort(x).tolist() == [[2.0, 1.0], [3.0, 4.0]]
    assert compat.in1d(x, [1, 2]).tolist() == [False, True, True, False]


def test_functions_of_finance_say_where_they_are(monkeypatch):
    from clgraft.mxnet_ops.engine import numpy_compat as compat

    assert all(callable(getattr(np, name)) for name in compat.FINANCE)
    for name in set(compat.FINANCE).intersection(vars(np)):  # not those that raise errors in NumPy 1.20 to 1.26
        monkeypatch.delattr(np, name)
    monkeypatch.setitem(sys.modules, "numpy_financial", None)
    newer = int(np.__version__.split(".")[0]) >= 2
    assert compat._restore_finance() == list(compat.FINANCE) * newer
    with pytest.raises(RuntimeError, match=r"numpy.financial"):
        np.pv(0.05, 10, 100)


def test_mxnets_own_names_work():
    """Those that MXNet takes from NumPy for `mx.np` when it is imported."""
    import clgraft.mxnet_ops  # isort: skip  (before MXNet)  # noqa: F401
    import mxnet as mx

    x = mx.np.array([3.0, 1.0, 2.0])
    assert mx.np.msort(x).asnumpy().tolist() == [1, 2, 3]
    assert mx.np.in1d(x, mx.np.array([1.0])).asnumpy().tolist() == [False, True, False]
    assert float(mx.np.trapz(x)) == 3.5 and bool(mx.np.alltrue(x))
    assert np.isposinf(mx.np.PINF) and np.isnan(mx.np.NAN)
    padded = mx.np.pad(mx.np.ones((2, 2)), ((np.int64(1), 0), (0, 1)))
    assert padded.shape == (3, 3)
    assert np.sum(x).asnumpy() == 6 and (np.add(x, 1).asnumpy() == [4, 2, 3]).all()  # NumPy's dispatch
    assert mx.nd.moveaxis(mx.nd.ones((2, 3)), 0, 1).shape == (3, 2)
    mask = mx.np.array([True, False, True], dtype=np.bool_)
    assert mask.dtype == np.bool_ and x[mask].asnumpy().tolist() == [3, 2]


def test_numbers_of_numpy_are_attributes():
    """In tuples and lists, of operators, symbols and variables, whatever NumPy's own text is."""
    import clgraft.mxnet_ops  # isort: skip  (before MXNet)  # noqa: F401
    import mxnet as mx

    two, half = np.int64(2), np.float32(0.5)
    x = mx.nd.arange(4)
    assert mx.nd.reshape(x, shape=(two, np.int32(2))).shape == (2, 2)
    assert mx.nd.clip(x, half, two).asnumpy().tolist() == [0.5, 1, 2, 2]
    symbol = mx.sym.Convolution(mx.sym.var("x", shape=(1, two, 4, 4)), kernel=(two, two), num_filter=two, name="c")
    assert symbol.attr("kernel") == "(2, 2)" and symbol.infer_shape()[1] == [(1, 2, 3, 3)]
    assert '"__shape__": "(1, 2, 4, 4)"' in symbol.tojson()
    sizes = [half, np.float64(0.25)]
    prior = mx.nd.contrib.MultiBoxPrior(mx.nd.zeros((1, 1, 2, 2)), sizes=sizes, ratios=(np.float32(1),))
    assert prior.shape == (1, 8, 4)


def test_texts_of_attributes():
    from clgraft.mxnet_ops.engine.repairs import Text, written

    values = [(1,), (), [1, 2], ((1, 2), [3]), "a", None, True, 1.5, ("a", None, 1e-5), {"a": 1}, (1.0, (2,))]
    assert [written(value) for value in values] == [str(value) for value in values]
    numbers = (np.int64(1), [np.float32(0.1), np.bool_(True)], (np.float64(1e-5),))
    assert written(numbers) == "(1, [0.1, True], (1e-05,))"
    assert Text(np.float32(0.1)) == "0.1" and Text() == "" and isinstance("a", Text) and not isinstance(1, Text)


def test_repairs_are_switched_off(monkeypatch):
    from clgraft.mxnet_ops.engine import repairs

    for text, off in (("", []), ("-stack", ["stack"]), ("-all, names", ["numbers", "distutils", "stack"])):
        monkeypatch.setenv("CLGRAFT_MXNET_REPAIRS", text)
        assert repairs.switched_off() == off and repairs.wanted("names")
    # an import that fails says so
    done = python(FRESH, CLGRAFT_MXNET_REPAIRS="-all")
    if int(np.__version__.split(".")[0]) >= 2:
        assert done.returncode and "[mxnet] got AttributeError" in done.stderr
        assert "CLGRAFT_MXNET_REPAIRS switches off what it may need: names" in done.stderr


def test_distutils_is_stood_in_for():
    program = (
        "import sys, importlib.util, importlib.machinery\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'distutils' else find(name, *more)\n"
        + FRESH
        + "print('distutils' in sys.modules, mx.np.empty_like(mx.np.ones(3)).shape)\n"
    )
    done = python(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[1] == "False (3,)" and "distutils, which this Python lacks" in done.stderr


def test_versions_are_compared_as_distutils_does():
    from clgraft.mxnet_ops.engine.repairs import Version

    assert Version("1.17") < Version("1.17.1") < Version("2.0") <= Version("2.0") and Version("2.10") > Version("2.9")
    assert Version("2.4.6") >= Version("1.6.0") and Version("1.0") == Version("1.0") != Version("1.1")


def with_flag(path: Path, flags: int) -> bytes:
    """Return the content of a library, with other flags of its stack."""
    data = bytearray(path.read_bytes())
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for i in range(count):
        if struct.unpack_from("<I", data, start + i * size)[0] == 0x6474E551:
            struct.pack_into("<I", data, start + i * size + 4, flags)
    return bytes(data)


def test_a_library_with_an_executable_stack_is_loaded_from_a_copy(tmp_path, monkeypatch, caplog):
    """A small library in the place of MXNet's, because only the flag counts."""
    from clgraft.mxnet_ops.engine import executable_stack
    from clgraft.mxnet_ops.engine.calls import _calls

    small = Path(_calls.__file__)
    package = tmp_path / "mxnet"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "libmxnet.so").write_bytes(with_flag(small, 7))
    (package / "libother.so.0").write_bytes(with_flag(small, 6))
    (package / "libtext.so").write_text("INPUT(libm.so)")
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(executable_stack.VARIABLE.name, "")
    copy = executable_stack.repaired(package)
    assert copy and copy.read_bytes() == bytes(with_flag(small, 6)) and copy.parent.parent == tmp_path / "cache"
    assert (copy.parent / "libother.so.0").is_symlink() and (copy.parent / "libtext.so").is_symlink()
    before = copy.stat().st_mtime_ns
    assert executable_stack.repaired(package) == copy and copy.stat().st_mtime_ns == before
    # as at an import, where the C library refuses it
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(executable_stack, "glibc", lambda: (2, 41))
    monkeypatch.setattr(executable_stack.importlib.util, "find_spec", lambda name: _Spec(package / "__init__.py"))
    with caplog.at_level(logging.INFO, logger="clgraft"):
        assert executable_stack.repair() == copy == Path(os.environ[executable_stack.VARIABLE.name])
    assert "asks for an executable stack, which glibc refuses" in caplog.text
    assert executable_stack.repair() is None, "the user's choice stays"
    monkeypatch.delenv(executable_stack.VARIABLE.name)
    monkeypatch.setattr(executable_stack, "glibc", lambda: (2, 36))
    assert executable_stack.repair() is None
    (package / "libmxnet.so").write_bytes(with_flag(small, 6))
    assert executable_stack.repaired(package) is None


class _Spec:
    def __init__(self, origin: Path) -> None:
        self.origin = str(origin)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("raise AttributeError('`np.bool8` was removed\\nin NumPy 2')", "AttributeError: `np.bool8` was removed"),
        ("import requestz", "ModuleNotFoundError: No module named 'requestz'"),
    ],
)
def test_an_error_of_mxnets_import_is_one_message(failure, said, tmp_path):
    """A package of MXNet's name that fails as MXNet may."""
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text(failure)
    (tmp_path / "net-symbol.json").write_text('{"nodes": [], "heads": []}')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "clgraft.plugins.command_line", "swap", "net-symbol.json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    remedy = ": pip install requestz" if "requestz" in said else ""
    assert done.stderr == (
        f"clgraft: [mxnet] MXNet is needed to swap a symbol and cannot be imported: [mxnet] got {said}, expected MXNet"
        f" to be imported with NumPy {np.__version__}{remedy}\n"
    )


@pytest.mark.parametrize(("numpy", "remedy"), [("1.23.5", "clgraft[mxnet]"), ("2.4.6", "--no-deps mxnet==1.9.1")])
def test_a_missing_mxnet_has_a_remedy(numpy, remedy, monkeypatch):
    from clgraft.mxnet_ops.engine import numpy_compat

    monkeypatch.setattr(np, "__version__", numpy)
    if sys.version_info >= (3, 13):
        remedy = "--no-deps mxnet==1.9.1"
    with pytest.raises(ModuleNotFoundError, match=re.escape(remedy)) as caught, numpy_compat.import_explained():
        raise ModuleNotFoundError("No module named 'mxnet'", name="mxnet")
    assert caught.value.name == "mxnet"
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert "pip install --no-deps mxnet==1.9.1\npip install requests" in text
