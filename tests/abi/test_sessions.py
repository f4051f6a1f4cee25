"""`clg_session_*`: models of every kind from C and C++, with the bits of `clgraft.load` in Python."""

from __future__ import annotations

import importlib.util
import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest

import clgraft
from clgraft.caffe_layers.nets.weights import write_caffemodel
from clgraft.core.abi import ffi, lib
from clgraft.plugins.models import c_sessions
from tests.plugins.models.test_caffe_nets import SMALL, WEIGHTS

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "plugins" / "models" / "files"
RNG = np.random.default_rng(4)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, tuple[Path, str]]:
    """A model of each kind that can be loaded here, with its weights."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "deploy.prototxt").write_text(SMALL)
    write_caffemodel(folder / "net.caffemodel", WEIGHTS)
    for name in ("small-symbol.json", "small-0000.params"):
        shutil.copy(FILES / name, folder / name)
    found = {
        "caffe": (folder / "deploy.prototxt", str(folder / "net.caffemodel")),
        "mxnet": (folder / "small-symbol.json", ""),
    }
    if importlib.util.find_spec("onnx") is not None:
        import onnx

        from tests.plugins.onnx.models import small_net

        onnx.save(small_net(), str(folder / "net.onnx"))
        found["onnx"] = (folder / "net.onnx", "")
    return found


def test_cpp_threads_get_the_bits_of_python(run_program, models, tmp_path) -> None:
    words, expected = [], {}
    for kind, (model, weights) in models.items():
        session = clgraft.load(model, weights or None)
        (port,) = session.inputs
        x = RNG.standard_normal((3, 3, 16, 16) if kind == "onnx" else (3, 3, 8, 8)).astype(np.float32)
        x.tofile(tmp_path / f"{kind}.in")
        words += [str(model), weights, str(tmp_path / f"{kind}.in"), str(tmp_path / f"{kind}.out")]
        runs = [session.run({port.name: x[:count]}) for count in (2, 3)]
        expected[kind] = b"".join(array.tobytes() for outputs in runs for array in outputs.values())
    done = run_program("sessions.cpp", *words, compiler="g++")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("4 threads agree") == len(models)
    for kind, output in expected.items():
        assert len(output) == 5 * 5 * 4 and (tmp_path / f"{kind}.out").read_bytes() == output, kind


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_the_example_labels_an_image(run_program, models, tmp_path, compiler) -> None:
    pixels = RNG.integers(0, 256, (8, 8, 3), np.uint8)
    (tmp_path / "image.ppm").write_bytes(b"P6\n8 8\n255\n" + pixels.tobytes())
    (tmp_path / "labels.txt").write_text("".join(f"class {i}\n" for i in range(5)))
    x = pixels.astype(np.float32)[..., ::-1].transpose(2, 0, 1) - np.float32([104, 117, 123]).reshape(3, 1, 1)
    model, weights = models["caffe"]
    (scores,) = clgraft.load(model, weights).run({"data": x[None]})["prob"]
    source = ROOT / "examples" / "c" / "label.c"
    assert len(source.read_text().splitlines()) <= 60
    words = (str(source), str(model), weights, str(tmp_path / "image.ppm"))
    done = run_program(*words, str(tmp_path / "labels.txt"), compiler=compiler)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "".join(f"{scores[i]:.6f} class {i}\n" for i in np.argsort(-scores, kind="stable"))
    done = run_program(*words, str(tmp_path / "none.txt"), compiler=compiler)
    assert done.returncode == 1 and done.stderr == f"{tmp_path}/none.txt: cannot be read\n"
    for content, reason in (
        (b"P6\n8 8\n255\n" + bytes(8 * 8 * 3 - 1), "is cut off, or huge"),
        (b"P5\n8 8\n255\n" + bytes(8 * 8), "expected a PPM (P6) of bytes"),
    ):
        (tmp_path / "image.ppm").write_bytes(content)
        done = run_program(*words, str(tmp_path / "labels.txt"), compiler=compiler)
        assert done.returncode == 1 and done.stderr == f"{tmp_path}/image.ppm: {reason}\n"


class Called:
    """A session as C sees it, called through the extension."""

    def __init__(self, path: object, weights: str = "", **options: str) -> None:
        self._kept = {name: ffi.new("char[]", word.encode()) for name, word in options.items()}
        size = ffi.sizeof("clg_session_options")
        given = ffi.new("clg_session_options *", {"size": size, **self._kept})
        place = ffi.new("clg_session *")
        self.status = lib.clg_session_create(str(path).encode(), weights.encode(), given, place)
        self.handle = place[0]

    def port(self, index: int = 0, output: bool = False):
        port = ffi.new("clg_port *", {"size": ffi.sizeof("clg_port")})
        assert (lib.clg_session_output if output else lib.clg_session_input)(self.handle, index, port) == lib.CLG_OK
        return port

    def run(self, x: np.ndarray, y: np.ndarray, call=lib.clg_session_run, **changes):
        """Return the status and the output's tensor; `changes` are those of the input's."""
        codes = c_sessions.CODES
        size = {"size": ffi.sizeof("clg_tensor")}
        self._data = ffi.from_buffer(x.reshape(-1).view(np.uint8)), ffi.from_buffer(y)
        given = {"dtype": codes[x.dtype.name], "ndim": x.ndim, "shape": list(x.shape), "bytes": x.nbytes}
        inputs = ffi.new("clg_tensor[]", [{**size, **given, "data": self._data[0], **changes}])
        outputs = ffi.new("clg_tensor[]", [{**size, "data": self._data[1], "bytes": y.nbytes}])
        return call(self.handle, inputs, 1, outputs, 1), outputs[0]


def message() -> str:
    return ffi.string(lib.clg_last_error()).decode()


@pytest.fixture
def net(models):
    found = Called(*models["caffe"])
    assert found.status == lib.CLG_OK, message()
    yield found
    lib.clg_session_destroy(found.handle)


def test_ports_say_what_the_model_says(net) -> None:
    port, count = net.port(), ffi.new("uint32_t[2]")
    assert ffi.string(port.name) == b"data" and (port.dtype, port.ndim, port.any) == (lib.CLG_FLOAT32, 4, 0)
    assert (list(port.shape)[:4], list(port.usual)[:4]) == ([0] * 4, [2, 3, 8, 8])
    assert net.port(output=True).any == 1
    assert lib.clg_session_counts(net.handle, count, count + 1) == lib.CLG_OK and list(count) == [1, 1]
    for index, size, word in ((1, port.size, "input index 1, expected below 1"), (0, 3, "got port size 3")):
        port.size = size
        assert lib.clg_session_input(net.handle, index, port) == lib.CLG_INVALID_ARGUMENT and word in message()


def test_what_does_not_fit_is_refused(net) -> None:
    x, y = np.zeros((1, 3, 8, 8), np.float32), np.full(5, 7, np.float32)
    for changes, status, word in (
        ({"size": 4}, lib.CLG_INVALID_ARGUMENT, "got size 4 for number 0 of the inputs"),
        ({"dtype": 99}, lib.CLG_WRONG_DTYPE, "got dtype 99 for input data"),
        ({"ndim": 9}, lib.CLG_INVALID_ARGUMENT, "got ndim 9 for input data, expected at most 8"),
        ({"ndim": 3}, lib.CLG_INVALID_ARGUMENT, "got float32 of shape (1, 3, 8) for input 'data'"),
        ({"shape": [2**40, 2**40, 8, 8]}, lib.CLG_INVALID_ARGUMENT, "more than 2^64 bytes"),
        ({"shape": [1, 4, 8, 8], "bytes": 1024}, lib.CLG_INVALID_ARGUMENT, "conv"),
        ({"shape": [2, 3, 8, 8]}, lib.CLG_BUFFER_TOO_SMALL, "got 768 bytes for input data, expected 1536"),
        ({"data": ffi.NULL}, lib.CLG_INVALID_ARGUMENT, "got data NULL for input data"),
    ):
        assert net.run(x, y, **changes)[0] == status and word in message(), (changes, message())
    assert (y == 7).all()
    status, tensor = net.run(x, y[:4])
    assert status == lib.CLG_BUFFER_TOO_SMALL and (tensor.bytes, tensor.shape[1]) == (20, 5) and (y == 7).all()
    assert lib.clg_session_run(net.handle, ffi.NULL, 0, ffi.NULL, 1) == lib.CLG_INVALID_ARGUMENT
    assert message() == "[session] got 0 inputs at NULL, expected 1"
    assert net.run(x, y)[0] == lib.CLG_OK and np.isclose(y.sum(), 1)


def test_whole_numbers_are_converted_as_in_python(net, models) -> None:
    x, y = RNG.integers(0, 256, (1, 3, 8, 8), np.uint8), np.empty(5, np.float32)
    assert net.run(x, y)[0] == lib.CLG_OK
    assert y.tobytes() == clgraft.load(*models["caffe"]).run({"data": x})["prob"].tobytes()
    unaligned = np.empty(4 * x.size + 1, np.uint8)[1:]
    unaligned[:] = x.astype(np.float32).reshape(-1).view(np.uint8)
    again = np.empty(5, np.float32)
    assert net.run(x.astype(np.float32), again, data=ffi.from_buffer(unaligned))[0] == lib.CLG_OK
    assert again.tobytes() == y.tobytes()


def test_models_and_options_are_refused_by_name(models, tmp_path) -> None:
    (tmp_path / "broken.prototxt").write_text("layer {")
    model, weights = models["caffe"]
    for path, given, options, status, word in (
        (tmp_path / "none.prototxt", "", {}, lib.CLG_INVALID_MODEL, "none.prototxt"),
        (tmp_path / "broken.prototxt", "", {}, lib.CLG_INVALID_MODEL, "line 1, column 8"),
        (tmp_path / "net.h5", "", {}, lib.CLG_INVALID_MODEL, "expected a model: an ONNX model's .onnx"),
        (model, "", {}, lib.CLG_INVALID_MODEL, "got 0 blobs in the weights"),
        (model, weights, {"precision": "float8"}, lib.CLG_INVALID_MODEL, "got precision 'float8'"),
        (model, weights, {"device": "no such device"}, lib.CLG_INVALID_ARGUMENT, "no such device"),
    ):
        found = Called(path, given, **options)
        assert (found.status, found.handle) == (status, ffi.NULL) and word in message(), (path, message())
    assert Called(model, weights, precision="float32").status == lib.CLG_OK
    place = ffi.new("clg_session *")
    for words, word in (
        ((ffi.NULL, ffi.NULL, ffi.NULL, place), "got path NULL"),
        ((b"net.onnx", ffi.NULL, ffi.NULL, ffi.NULL), "got session NULL"),
        ((b"net.onnx", ffi.NULL, ffi.new("clg_session_options *"), place), "sizeof(clg_session_options)"),
    ):
        assert lib.clg_session_create(*words) == lib.CLG_INVALID_ARGUMENT and word in message()


def test_sessions_go_when_they_are_destroyed_and_are_not_for_children(models) -> None:
    before = len(c_sessions._sessions)
    found = Called(*models["caffe"])
    assert len(c_sessions._sessions) == before + 1

    def child(queue) -> None:
        queue.put((lib.clg_session_counts(found.handle, ffi.NULL, ffi.NULL), message()))

    queue = multiprocessing.get_context("fork").SimpleQueue()
    process = multiprocessing.get_context("fork").Process(target=child, args=(queue,))
    process.start()
    assert queue.get() == (
        lib.CLG_FORKED,
        "[session] got a session from before fork(), expected one made in this process",
    )
    process.join()
    assert lib.clg_session_destroy(found.handle) == lib.CLG_OK and len(c_sessions._sessions) == before
    for handle in (found.handle, ffi.NULL):
        assert lib.clg_session_destroy(handle) == lib.CLG_INVALID_HANDLE and "expected a live clg_session" in message()
        assert lib.clg_session_counts(handle, ffi.NULL, ffi.NULL) == lib.CLG_INVALID_HANDLE
