"""C++ layers in the `caffe` command and in pycaffe: unchanged files, what falls back, and what is said about it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("caffe")

from clgraft.caffe_layers.library import build, process
from clgraft.caffe_layers.swap import swap_back, swap_file, swap_net
from clgraft.core.errors import ArgumentError, BuildError
from tests.caffe_layers.caffe_nets import layer


def library_or_reason() -> str:
    """Return why C++ layers cannot be made here; empty if they can."""
    try:
        process.find()
    except BuildError as error:
        return str(error).splitlines()[0]
    return ""


REASON = library_or_reason()
needs_library = pytest.mark.skipif(bool(REASON), reason=f"needs C++ layers: {REASON}")
needs_command = pytest.mark.skipif(
    bool(REASON) or not shutil.which("caffe"), reason="needs C++ layers and the caffe command"
)
HERE = Path(__file__).resolve().parent
RUN = (
    "import argparse; from clgraft.plugins.caffe import run; parser = argparse.ArgumentParser(); "
    "run.add_command(parser.add_subparsers()); options = parser.parse_args(); options.run(options)"
)
CONVOLUTION = 'convolution_param { num_output: 4 kernel_size: 3 bias_term: false weight_filler { type: "msra" } }'
DENSE = 'inner_product_param { num_output: 3 weight_filler { type: "xavier" } }'


@pytest.fixture
def files(tmp_path):
    """A net of most families with data that are the same in every run, and its solver; nothing names clgraft."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(20)
    with h5py.File(str(tmp_path / "data.h5"), "w") as file:
        file["x"] = file["data"] = rng.standard_normal((12, 3, 8, 8)).astype("f4")
        file["label"] = rng.integers(0, 3, 12).astype("f4")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/data.h5\n")

    def own(kind, parameters="", name=None, **given):
        return layer(kind, parameters, ours=False, name=name or kind.lower(), **given)

    (tmp_path / "net.prototxt").write_text(
        'layer { name: "x" type: "HDF5Data" top: "x" top: "label" '
        f'hdf5_data_param {{ source: "{tmp_path}/list.txt" batch_size: 4 }} }}\n'
        + own("Convolution", CONVOLUTION, "conv")
        + own("BatchNorm", bottoms=["y"], tops=["y"])
        + own("Scale", "scale_param { bias_term: true }", bottoms=["y"], tops=["y"])
        + own("ReLU", bottoms=["y"], tops=["y"])
        + own("Pooling", "pooling_param { kernel_size: 3 stride: 2 }", bottoms=["y"], tops=["p"])
        + own("InnerProduct", DENSE, "score", bottoms=["p"], tops=["score"])
        + own("SoftmaxWithLoss", name="loss", bottoms=["score", "label"], tops=["loss"])
    )
    write_solver(tmp_path, "own")
    return tmp_path


@pytest.fixture
def demo(files, monkeypatch):
    """The net of the digits demo, with random data in place of digits."""
    monkeypatch.syspath_prepend(str(HERE.parents[1] / "examples" / "digits"))
    from train_caffe import digits_prototxt

    text = digits_prototxt((4, 3, 8, 8), normed=True)
    begin = text.index("input_param")
    end = text.index("\n}", begin)
    data = f'hdf5_data_param {{ source: "{files}/list.txt" batch_size: 4 }}'
    (files / "net.prototxt").write_text(text[:begin].replace('"Input"', '"HDF5Data"') + data + text[end:])
    return files


def write_solver(folder, name: str, net: str = "net", steps: int = 6) -> None:
    (folder / f"{name}.prototxt").write_text(
        f'net: "{folder}/{net}.prototxt" base_lr: 0.05 momentum: 0.9 weight_decay: 0.001 lr_policy: "fixed" '
        f'max_iter: {steps} display: 1 random_seed: 3 solver_mode: CPU snapshot_prefix: "{folder}/{name}" '
        "test_iter: 3 test_interval: 3"
    )


def command(*words, replace: str | None = None, fails: bool = False, **variables) -> str:
    """Run caffe, with C++ layers unless `replace` is None; return what it says."""
    environment = {**os.environ, "GLOG_minloglevel": "0", **variables}
    if replace is not None:
        environment.update(LD_PRELOAD=str(process.find()), CLGRAFT_CAFFE_REPLACE=replace)
    done = subprocess.run(["caffe", *words], capture_output=True, text=True, env=environment)
    assert (done.returncode != 0) == fails, done.stderr[-3000:]
    return done.stderr


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss = ([0-9.e+-]+)", text)]


@needs_command
def test_an_unchanged_net_trains_and_its_snapshots_fit_everywhere(demo):
    """Caffe's own layers, Python layers and C++ layers: the same losses, and each goes on from the others' states."""
    swap_file(demo / "own.prototxt", demo / "python.prototxt")
    write_solver(demo, "cpp")
    runs = {"own": ("own", None, "own"), "python": ("python", None, "own_ocl"), "cpp": ("cpp", "all", "cpp")}
    seen = {}
    for name, (solver, replace, _) in runs.items():
        said = command("train", f"--solver={demo}/{solver}.prototxt", replace=replace)
        seen[name] = losses(said)
        assert "stays Caffe's own" not in said
    assert len(seen["own"]) > 8
    for name in ("python", "cpp"):
        assert seen[name] == pytest.approx(seen["own"], rel=1e-4)
    solvers = {name: (demo / f"{solver}.prototxt").read_text() for name, (solver, _, _) in runs.items()}
    for name, text in solvers.items():
        (demo / f"more_{name}.prototxt").write_text(text.replace("max_iter: 6", "max_iter: 9"))
    further: dict[str, list] = {}
    for origin, (_, _, prefix) in runs.items():
        for name, (_, replace, _) in runs.items():
            state = shutil.copy(demo / f"{prefix}_iter_6.solverstate", demo / f"{origin}.solverstate")
            words = ("train", f"--solver={demo}/more_{name}.prototxt", f"--snapshot={state}")
            further.setdefault(origin, []).append(losses(command(*words, replace=replace)))
    for numbers in further.values():
        assert len(numbers[0]) > 4
        for others in numbers[1:]:
            assert others == pytest.approx(numbers[0], rel=1e-4)


@needs_command
@pytest.mark.parametrize("regions", [False, True])
def test_a_net_that_is_swapped_to_cpp_layers_trains(files, regions):
    """With a Flatten, which is clgraft's inside of a region alone."""
    text = (files / "net.prototxt").read_text().replace('bottom: "p" top: "score"', 'bottom: "f" top: "score"')
    flat = layer("Flatten", ours=False, name="flat", bottoms=["p"], tops=["f"])
    (files / "net.prototxt").write_text(text.replace('layer { name: "score"', flat + 'layer { name: "score"'))
    expected = losses(command("train", f"--solver={files}/own.prototxt"))
    swap_file(files / "own.prototxt", files / "cpp.prototxt", native=True, regions=regions)
    text = (files / "net_ocl.prototxt").read_text()
    assert 'type: "OclConvolution"' in text and '"Python"' not in text
    assert ("# clgraft region" in text) == regions == ('type: "OclFlatten"' in text)
    assert swap_back(text)[0] == (files / "net.prototxt").read_text()
    said = command("train", f"--solver={files}/cpp.prototxt", replace="")
    assert losses(said) == pytest.approx(expected, rel=1e-4) and "stays Caffe's own" not in said


@needs_command
def test_an_unchanged_net_forms_regions(files):
    expected = losses(command("train", f"--solver={files}/own.prototxt"))
    for keep, whole in (("none", True), ("p", False)):
        said = command(
            *("train", f"--solver={files}/own.prototxt"),
            replace="all",
            CLGRAFT_CAFFE_REGIONS=keep,
            CLGRAFT_VERBOSE="run",
        )
        assert losses(said) == pytest.approx(expected, rel=1e-4)
        ran = [line.split(",")[2] for line in said.splitlines() if line.startswith("clgraft,run,")]
        passes = ran.count("graph")
        assert len(ran) == passes and passes % (1 if whole else 2) == 0 and passes >= (2 if whole else 4) * 6, set(ran)


@needs_command
def test_regions_hold_several_losses_and_some_without_a_top(files):
    """In the older form of nets, as the command shows their total."""
    (files / "net.prototxt").write_text(
        f'layers {{ name: "x" type: HDF5_DATA top: "x" top: "label" hdf5_data_param {{ source: "{files}/list.txt" '
        "batch_size: 4 } }\n"
        f'layers {{ name: "y" type: CONVOLUTION bottom: "x" top: "y" {CONVOLUTION} }}\n'
        f'layers {{ name: "s" type: INNER_PRODUCT bottom: "y" top: "s" {DENSE} }}\n'
        'layers { name: "first" type: SOFTMAX_LOSS bottom: "s" bottom: "label" }\n'
        'layers { name: "r" type: RELU bottom: "y" top: "r" }\n'
        f'layers {{ name: "t" type: INNER_PRODUCT bottom: "r" top: "t" {DENSE} }}\n'
        'layers { name: "second" type: SOFTMAX_LOSS bottom: "t" bottom: "label" top: "second" loss_weight: 2 }\n'
    )
    expected = losses(command("train", f"--solver={files}/own.prototxt"))
    for keep in ("none", "y"):
        said = command("train", f"--solver={files}/own.prototxt", replace="all", CLGRAFT_CAFFE_REGIONS=keep)
        assert losses(said) == pytest.approx(expected, rel=1e-4) and len(expected) > 6
        assert "no regions in net" not in said


@needs_command
def test_layers_inside_of_layers_and_python_layers_in_one_net(files):
    """Caffe's Scale with a Bias of ours in it, and Python layers that meet an interpreter which clgraft started."""
    expected = losses(command("train", f"--solver={files}/own.prototxt"))
    said = command("train", f"--solver={files}/own.prototxt", replace="Bias,Softmax", CLGRAFT_VERBOSE="plan")
    assert losses(said) == pytest.approx(expected, rel=1e-4)
    assert "softmax forward" in said and "conv forward" not in said
    swap_file(files / "own.prototxt", files / "python.prototxt", types=["ReLU", "Pooling"])
    said = command("train", f"--solver={files}/python.prototxt", replace="all")
    assert losses(said) == pytest.approx(expected, rel=1e-4)


@needs_command
def test_it_is_tested_timed_and_fine_tuned(files):
    command("train", f"--solver={files}/own.prototxt", replace="all")
    weights = f"--weights={shutil.copy(files / 'own_iter_6.caffemodel', files / 'start.caffemodel')}"
    tested = [
        losses(command("test", f"--model={files}/net.prototxt", weights, "--iterations=3", replace=replace))
        for replace in (None, "all", "Convolution,Pooling")
    ]
    assert len(tested[0]) > 3
    assert tested[1] == pytest.approx(tested[0], rel=1e-4) and tested[2] == pytest.approx(tested[0], rel=1e-4)
    timed = command("time", f"--model={files}/net.prototxt", "--iterations=2", replace="all")
    assert "Average Forward-Backward" in timed
    tuned = [
        losses(command("train", f"--solver={files}/own.prototxt", weights, replace=replace))
        for replace in (None, "all")
    ]
    assert tuned[1] == pytest.approx(tuned[0], rel=1e-4)


@needs_command
@pytest.mark.parametrize("replace, ours", [([], True), (["--replace", "none"], False)])
def test_clgraft_caffe_needs_no_other_file(files, replace, ours):
    """From a shell in which nothing was activated or exported."""
    cache = os.environ.get("CLGRAFT_CACHE") or os.path.expanduser("~/.cache/clgraft")
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GLOG_minloglevel": "0", "CLGRAFT_CACHE": cache}
    environment["CLGRAFT_DEVICE"] = os.environ.get("CLGRAFT_DEVICE", "")
    environment["CLGRAFT_VERBOSE"] = "plan"
    words = [sys.executable, "-c", RUN, "caffe", *replace, "train", f"--solver={files}/own.prototxt"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Optimization Done" in done.stderr
    assert ("conv forward" in done.stderr) == ours


def clgraft_caffe(*words, **variables) -> str:
    """Run `clgraft caffe`; return what it and caffe say."""
    environment = {**os.environ, "GLOG_minloglevel": "0", **variables}
    line = [sys.executable, "-c", RUN, "caffe", *words]
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@needs_command
def test_a_solver_for_a_gpu_trains(files, monkeypatch):
    """As BVLC's own are; without a name for snapshots, which Caffe then takes from the solver's file."""
    expected = losses(command("train", f"--solver={files}/own.prototxt"))
    text = (files / "own.prototxt").read_text()
    text = re.sub('snapshot_prefix: "[^"]*"', "", text.replace("solver_mode: CPU", "solver_mode: GPU"))
    (files / "gpu.prototxt").write_text(text)
    said = clgraft_caffe("train", "-solver", f"{files}/gpu.prototxt")
    assert losses(said) == pytest.approx(expected, rel=1e-4)
    assert "gpu.prototxt, but this Caffe was built without a GPU" in said
    assert (files / "gpu.prototxt").read_text() == text and (files / "gpu_iter_6.caffemodel").exists()
    assert "Cannot use GPU in CPU-only Caffe" in command("train", f"--solver={files}/gpu.prototxt", fails=True)


@needs_command
@pytest.mark.parametrize("kind", ["loss", "no loss", "forced"])
def test_time_with_regions_runs_them_and_says_where(files, kind):
    """A forward pass in front, and a backward pass if there is a loss; then two of each."""
    text = (files / "net.prototxt").read_text()
    if kind != "loss":
        text = text[: text.index('layer { name: "loss"')] + "force_backward: true\n" * (kind == "forced")
    (files / "net.prototxt").write_text(text)
    said = clgraft_caffe(
        *("time", "-model", f"{files}/net.prototxt", "-iterations", "2"),
        CLGRAFT_CAFFE_REGIONS="none",
        CLGRAFT_VERBOSE="run",
    )
    where = "forward at its first loss, or else at its last layer, and backward at its last layer"
    assert f"clgraft: a region's time is shown {where}; its other layers run nothing" in said
    assert ("net.prototxt has no loss, so no gradient reaches a region" in said) == (kind == "no loss")
    runs = [line.split(",") for line in said.splitlines() if line.startswith("clgraft,run,")]
    assert {run[2] for run in runs} == {"graph"}
    results = [run[3].partition(" -> ")[2].split() for run in runs]
    gradients = [names for names in results if all(name.startswith("d.") for name in names)]
    # those of the filters, of the scales and of the dense layer, by name; without a loss those of the dense layer alone
    passes, fewest = {"loss": (3, 5), "no loss": (2, 2), "forced": (3, 5)}[kind]
    assert len(gradients) == passes and len(runs) == 3 + passes
    assert all(len(names) >= fewest if kind != "no loss" else len(names) == fewest for names in gradients), gradients


@needs_command
def test_without_python_caffes_own_layers_run(files):
    said = command("train", f"--solver={files}/own.prototxt", replace="all", CLGRAFT_PYTHON="/no/such/python")
    assert said.count("Caffe's own layers run, because Python cannot plan: [") == 1
    # the same bits: a Bias inside of a Scale learns too
    assert losses(said) == losses(command("train", f"--solver={files}/own.prototxt"))


@needs_command
def test_a_bad_model_is_told_before_caffe_ends(files):
    text = (files / "net.prototxt").read_text()
    (files / "net.prototxt").write_text(text.replace("kernel_size: 3 bias", "kernel_size: 9 bias"))
    said = command("train", f"--solver={files}/own.prototxt", replace="all", fails=True)
    assert "clgraft: layer 'conv' (Convolution) stays Caffe's own: [conv] got kernel (9, 9), expected" in said


@needs_command
def test_what_clgraft_does_not_serve_stays_caffes(files):
    data = "shape { dim: 4 dim: 4 dim: 6 dim: 6 } data_filler { value: 2 }"
    added = f'layer {{ name: "d" type: "DummyData" top: "d" dummy_data_param {{ {data} }} }}\n'
    added += layer("Eltwise", ours=False, name="sum", bottoms=["y", "d"], tops=["y"])
    text = (files / "net.prototxt").read_text()
    (files / "net.prototxt").write_text(text.replace('layer { name: "pooling"', added + 'layer { name: "pooling"'))
    said = command("train", f"--solver={files}/own.prototxt", replace="all")
    assert "layer 'sum' (Eltwise) stays Caffe's own: [eltwise] got a top that is its own bottom, expected" in said
    assert said.count("stays Caffe's own") == 2  # in training and in testing
    assert losses(said) == pytest.approx(losses(command("train", f"--solver={files}/own.prototxt")), rel=1e-4)


@needs_command
def test_an_unknown_type_to_replace_is_told(files):
    said = command("time", f"--model={files}/net.prototxt", "--iterations=1", replace="Convolution,Convolutoin")
    assert "clgraft: got Convolutoin among the types to replace, expected all or some of" in said


@needs_command
def test_sanitizers_find_nothing(files, tmp_path):
    """Training, new shapes in the test phase, and layers that are handed over."""
    made = build.make(
        tmp_path / "made", extra=("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1")
    )
    question = [*build.compiler(), "-print-file-name=libasan.so"]
    runtime = subprocess.run(question, capture_output=True, text=True, check=True).stdout.strip()
    text = (files / "net.prototxt").read_text()
    (files / "net.prototxt").write_text(text.replace('type: "ReLU"', 'type: "Dropout"', 1))
    said = command(
        *("train", f"--solver={files}/own.prototxt"),
        LD_PRELOAD=f"{os.path.realpath(runtime)} {made}",
        CLGRAFT_CAFFE_REPLACE="all",
        ASAN_OPTIONS="detect_leaks=0",  # Python and Caffe keep memory until they end
    )
    assert len(losses(said)) > 8
    assert "AddressSanitizer" not in said and "runtime error" not in said


PROGRAM_NET = (
    'force_backward: true layer { name: "x" type: "Input" top: "x" top: "t" input_param { '
    "shape { dim: 4 dim: 3 dim: 9 dim: 7 } shape { dim: 4 dim: 5 } } }\n"
    # without a bias: its gradient in front of a batch norm is 0, and what is computed is rounding
    + layer("Convolution", CONVOLUTION.replace("num_output: 4", "num_output: 6 group: 3"), ours=False, name="conv")
    + layer("BatchNorm", ours=False, name="bn", bottoms=["y"], tops=["y"])
    + layer("Scale", "scale_param { bias_term: true }", ours=False, name="scale", bottoms=["y"], tops=["y"])
    + layer("PReLU", ours=False, name="prelu", bottoms=["y"], tops=["y"])
    + layer("LRN", "lrn_param { local_size: 3 }", ours=False, name="lrn", bottoms=["y"], tops=["n"])
    + layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 }", ours=False, name="pool", bottoms=["n"], tops=["p"])
    + layer(
        "Deconvolution", "convolution_param { num_output: 2 kernel_size: 2 }", ours=False, bottoms=["p"], tops=["d"]
    )
    + layer("TanH", ours=False, name="tanh", bottoms=["d"], tops=["h"])
    + layer("Eltwise", ours=False, name="sum", bottoms=["d", "h"], tops=["s"])
    + layer("InnerProduct", "inner_product_param { num_output: 5 }", ours=False, name="ip", bottoms=["s"], tops=["i"])
    + layer("Softmax", ours=False, name="softmax", bottoms=["i"], tops=["o"])
    + layer("EuclideanLoss", ours=False, name="loss", bottoms=["o", "t"], tops=["loss"])
)


@needs_library
@pytest.mark.skipif(not shutil.which("cmake"), reason="needs CMake")
def test_a_program_of_the_users(tmp_path):
    """Linked by CMake: float and double against Caffe's own layers, and nets in several threads."""
    folder = process.find().parent
    (tmp_path / "net.prototxt").write_text(PROGRAM_NET)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(program CXX)\nset(CMAKE_CXX_STANDARD 11)\n"
        "find_package(clgraft_caffe REQUIRED)\n"
        f"add_executable(program {HERE / 'program.cpp'})\ntarget_link_libraries(program clgraft::caffe)\n"
    )
    for words in (["cmake", ".", f"-Dclgraft_caffe_DIR={folder}"], ["cmake", "--build", "."]):
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(["./program", "net.prototxt"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "served" in done.stdout


@needs_library
def test_no_regions_form_in_nets_of_recurrent_layers(tmp_path):
    """Of layers that stand alone in a program; the generated nets hold such layers too."""
    caffe = build.find_caffe()
    words = [*build.compiler(), "-std=c++11", *caffe.options, f"-I{build.SOURCES}", "-include", "caffe_types.hpp"]
    words += [str(HERE / "recurrent.cpp"), str(caffe.library), "-lglog", "-lprotobuf"]
    done = subprocess.run([*words, "-o", str(tmp_path / "recurrent")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    runs = []
    for regions in (None, "", "none"):
        environment = dict(os.environ)
        if regions is not None:
            environment.update(LD_PRELOAD=str(process.find()), CLGRAFT_CAFFE_REPLACE="all")
            environment.update(CLGRAFT_CAFFE_REGIONS=regions, CLGRAFT_VERBOSE="run")
        done = subprocess.run([tmp_path / "recurrent"], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        assert ("clgraft,run," in done.stderr) == (regions is not None)
        runs.append([float(number) for number in done.stdout.split()])
    assert len(runs[0]) > 200
    for numbers in runs[1:]:
        assert numbers == pytest.approx(runs[0], rel=1e-4, abs=1e-5)


@needs_library
@pytest.mark.skipif(not shutil.which("pkg-config"), reason="needs pkg-config")
def test_the_documented_line_compiles_a_program_with_nets(tmp_path):
    page = (HERE.parents[1] / "docs" / "caffe.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^c\+\+ program\.cpp .*$", page, re.M)
    shutil.copy(HERE / "program.cpp", tmp_path)
    (tmp_path / "net.prototxt").write_text(PROGRAM_NET)
    os.symlink(process.find().parent, tmp_path / "FOLDER")
    done = subprocess.run(
        ["bash", "-ec", f"{line}; ./program net.prototxt"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "served" in done.stdout


@needs_library
def test_pycaffe_replaces_and_restores(tmp_path):
    """In a process of its own, because the library stays."""
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 5 dim: 5 } } }\n'
        + layer("Convolution", CONVOLUTION, ours=False)
    )
    code = f"""
import caffe
from clgraft.caffe_layers import native
from clgraft.core.errors import ArgumentError
counts = [native.served().ours]
caffe.Net("{tmp_path}/net.prototxt", caffe.TEST)
counts.append(native.served().ours)
native.restore()
caffe.Net("{tmp_path}/net.prototxt", caffe.TEST).forward()
counts.append(native.served().ours)
native.replace(["Convolution", "ReLU"])
net = caffe.Net("{tmp_path}/net.prototxt", caffe.TEST)
net.forward()
counts.append(native.served().ours)
print(counts, net.layers[1].type)
try:
    native.replace("Data")
except ArgumentError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "CLGRAFT_CAFFE_REPLACE": "all", "CLGRAFT_CAFFE_LIBRARY": str(process.find())},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[0, 1, 1, 2] Convolution" in done.stdout
    assert "[native] got types 'Data', expected all or some of Convolution," in done.stdout


def test_types_are_checked():
    process.check_types("all")
    process.check_types("none")
    process.check_types("Convolution,SoftmaxWithLoss")
    with pytest.raises(ArgumentError, match=r"got type 'Dta', expected all, none or some of Convolution,"):
        process.check_types("Convolution,Dta")
    with pytest.raises(ArgumentError, match=r"got type 'Flatten', expected"):
        process.check_types("Flatten")


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    with pytest.raises(BuildError, match=r"got no libcaffe.so in .*, expected one that Caffe's programs share"):
        build.find_caffe(str(tmp_path))
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(BuildError, match=r"got no C\+\+ compiler \(tried /no/such/compiler\)"):
        build.compiler()
    monkeypatch.setenv("CLGRAFT_CAFFE_LIBRARY", "/no/such/library")
    with pytest.raises(BuildError, match=r"got CLGRAFT_CAFFE_LIBRARY=/no/such/library, expected a file"):
        process.find()


@pytest.fixture
def fake_library(monkeypatch, tmp_path):
    """A cache of this test's own; what makes the library writes two files, as whatever umask there is wants it."""
    made = []

    def make(folder, root):
        made.append(folder)
        for name in (build.NAME, build.embed.NAME):
            (folder / name).write_text("library")

    monkeypatch.setattr(build, "make", make)
    monkeypatch.setattr(build, "find_caffe", lambda root: build.Caffe(Path(__file__), (), ()))
    monkeypatch.delenv(process.VARIABLE, raising=False)
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "cache"))
    before = os.umask(0)
    yield made
    os.umask(before)


def test_the_library_in_the_cache_is_this_users_alone(fake_library):
    found = process.find()
    assert fake_library == [found.parent]
    for path in (*found.parent.iterdir(), *list(found.parents)[:3]):
        assert not path.stat().st_mode & 0o022, path
    assert process.find() == found and len(fake_library) == 1


@pytest.mark.parametrize("name", [build.NAME, build.embed.NAME])
@pytest.mark.parametrize("fault", ["writable", "missing"])
def test_a_library_that_others_could_have_written_is_made_anew(fake_library, name, fault):
    path = process.find().parent / name
    if fault == "writable":
        path.chmod(0o666)
    else:
        path.unlink()
    process.find()
    assert len(fake_library) == 2 and not path.stat().st_mode & 0o022


def test_a_folder_of_the_library_that_others_may_write_to_is_refused(fake_library):
    folder = process.find().parent
    folder.chmod(0o777)
    with pytest.raises(BuildError, match=r"\[native\] got no cache \(CLGRAFT_CACHE\), expected CLGRAFT_CAFFE_LIBRARY"):
        process.find()


@pytest.mark.skipif(not any(shutil.which(name) for name in ("c++", "g++", "clang++")), reason="needs a C++ compiler")
def test_missing_headers_are_told_as_packages(tmp_path):
    with pytest.raises(BuildError) as found:
        build.check_headers([*build.compiler(), "-nostdinc", f"-I{tmp_path}"])
    assert "apt install libcaffe-dev (or CAFFE_ROOT=/folder/of/caffe) libboost-dev libgflags-dev" in str(found.value)


@needs_library
def test_hidden_blobs_read_as_nan_in_pycaffe(files):
    """Blobs inside of a region; in a process of its own, because the library stays."""
    (files / "regions.prototxt").write_text(
        swap_net((files / "net.prototxt").read_text(), native=True, regions=True, keep=["p"])[0]
    )
    code = f"""
import numpy as np
import caffe
import clgraft.caffe_layers.native
net = caffe.Net("{files}/regions.prototxt", caffe.TRAIN)
net.forward()
net.backward()
hidden = [name for name, blob in net.blobs.items() if np.isnan(blob.data).all()]
print(*hidden, net.blobs["p"].data.any(), net.blobs["p"].diff.any(), net.params["conv"][0].diff.any())
"""
    environment = {**os.environ, "CLGRAFT_CAFFE_LIBRARY": str(process.find())}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "y score True True True"
