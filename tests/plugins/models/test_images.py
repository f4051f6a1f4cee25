"""`clgraft run --image`: how images are prepared for each kind of model, the best classes, and what is refused."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import clgraft
from clgraft.caffe_layers.nets.weights import write_caffemodel
from clgraft.plugins.command_line.main import main
from tests.plugins.models.test_caffe_nets import SMALL, WEIGHTS

FILES = Path(__file__).parent / "files"
RNG = np.random.default_rng(8)
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with a net of Caffe, a symbol, a file of labels and images of 8 x 8 and 8 x 16 pixels."""
    Image = pytest.importorskip("PIL.Image", reason="needs pillow")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy.prototxt").write_text(SMALL)
    write_caffemodel(tmp_path / "net.caffemodel", WEIGHTS)
    for name in ("small-symbol.json", "small-0000.params"):
        shutil.copy(FILES / name, tmp_path / name)
    (tmp_path / "labels.txt").write_text("".join(f"n0{i} class {i}\n" for i in range(5)) + "\n")
    for name, width in (("a.ppm", 8), ("b.png", 16)):
        Image.fromarray(RNG.integers(0, 256, (8, width, 3), np.uint8)).save(name)
    return tmp_path


CAFFE = ("run", "deploy.prototxt", "--weights", "net.caffemodel", "--output", "y.npz")
MXNET = ("run", "small-symbol.json", "--shape", "data=1,3,8,8", "--output", "y.npz")


def pixels(name: str) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(name).convert("RGB"), np.float32)


def computed() -> np.ndarray:
    with np.load("y.npz") as results:
        return results[results.files[0]]


def on_caffe(x: np.ndarray) -> np.ndarray:
    images = np.ascontiguousarray(x.reshape(-1, 8, 8, 3).transpose(0, 3, 1, 2))
    return clgraft.load("deploy.prototxt", "net.caffemodel").run({"data": images})["prob"]


def test_a_net_of_caffe_takes_blue_green_and_red_without_their_mean(place, capsys) -> None:
    assert main([*CAFFE, "--image", "a.ppm", "--labels", "labels.txt", "--top", "3"]) == 0
    expected = on_caffe(pixels("a.ppm")[..., ::-1] - np.float32([104, 117, 123]))
    assert np.array_equal(computed(), expected)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "data: a.ppm: 8 x 8 pixels, bgr, 0 to 255, mean 104,117,123, std 1"
    assert lines[1].startswith("prob: float32 [1, 5]") and lines[2].split() == ["score", "class", "label"]
    best = np.argsort(-expected[0])[:3]
    assert [line.split()[1:] for line in lines[3:]] == [[str(i), f"n0{i}", "class", str(i)] for i in best]


def test_a_batch_of_images_and_options_in_place_of_caffes(place, capsys) -> None:
    from PIL import Image

    words = ["--image", "a.ppm", "--image", "b.png", "--channels", "rgb", "--range", "1", "--mean", "0.5,0.25,0"]
    assert main([*CAFFE, *words, "--std", "2", "--scale", "3"]) == 0
    wide = np.asarray(Image.open("b.png").resize((8, 8), Image.BILINEAR), np.float32)  # the whole image
    x = np.stack([pixels("a.ppm"), wide]) * np.float32(1 / 255)
    expected = on_caffe((x - np.float32([0.5, 0.25, 0])) * np.float32(3) / np.float32(2))
    assert np.array_equal(computed(), expected)
    printed = capsys.readouterr().out
    assert "a.ppm, b.png: 8 x 8 pixels, rgb, 0 to 1, mean 0.5,0.25,0, std 2, scale 3" in printed
    rows = [line.split() for line in printed.splitlines()[3:]]
    assert [row[0] for row in rows] == ["a.ppm"] * 5 + ["b.png"] * 5
    assert [int(row[2]) for row in rows] == [*np.argsort(-expected[0]), *np.argsort(-expected[1])]


def test_a_symbol_takes_the_central_part_between_0_and_1(place, capsys) -> None:
    assert main([*MXNET, "--image", "b.png", "--resize", "8"]) == 0
    x = (pixels("b.png")[:, 4:12] * np.float32(1 / 255) - MEAN) / STD
    session = clgraft.load("small-symbol.json")
    (expected,) = session.run({"data": np.ascontiguousarray(x.transpose(2, 0, 1))[None]}).values()
    assert np.array_equal(computed(), expected)
    assert "data: b.png: 8 x 8 pixels, rgb, 0 to 1, mean 0.485,0.456,0.406" in capsys.readouterr().out
    assert main([*MXNET, "--image", "b.png"]) == 0  # 9 of 18 x 9 pixels
    from PIL import Image

    part = np.asarray(Image.open("b.png").resize((18, 9), Image.BILINEAR), np.float32)[:8, 5:13]
    x = (part * np.float32(1 / 255) - MEAN) / STD
    (expected,) = session.run({"data": np.ascontiguousarray(x.transpose(2, 0, 1))[None]}).values()
    assert np.array_equal(computed(), expected)


def test_grey_images_and_inputs_of_channels_last(place) -> None:
    from PIL import Image

    from clgraft.core.model import Port
    from clgraft.plugins.command_line.main import build_parser
    from clgraft.plugins.models import images

    class Model:
        kind = "onnx"

        def __init__(self, dtype: str, *shape: int | str) -> None:
            self.inputs = (Port("x", dtype, shape), Port("y", "float32", (1,)))

    options = build_parser().parse_args(["run", "net.onnx", "--resize", "8"])
    image = Image.open("a.ppm")
    found, words = images.inputs(Model("uint8", "n", 8, 8, 3), [image], ["y"], {}, options)
    assert np.array_equal(found["x"][0], np.asarray(image)) and found["x"].dtype == np.uint8
    assert words == "8 x 8 pixels, rgb, 0 to 255, mean 0, std 1"
    found, words = images.inputs(Model("float32", "n", 1, 8, 8), [image], ["y"], {}, options)
    assert np.array_equal(found["x"][0, 0], np.asarray(image.convert("L"), np.float32) * np.float32(1 / 255))
    assert words == "8 x 8 pixels, grey, 0 to 1, mean 0, std 1"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--image", "none.ppm"], 2, "got none.ppm, which does not exist"),
        (["--image", "labels.txt"], 2, "got labels.txt, which is no image; expected an image that pillow reads"),
        (["--image", "cut.ppm"], 2, "got cut.ppm, which is a damaged image"),
        (["--image", "a.ppm", "--labels", "none.txt"], 2, "got none.txt, which does not exist"),
        (["--image", "a.ppm", "--labels", "four.txt"], 1, "got 4 labels for output 'prob' of 5 classes, expected 5"),
        (["--image", "a.ppm", "--mean", "1,2"], 1, "got 2 numbers for --mean, expected 3 or 1"),
        (["--image", "a.ppm", "--resize", "4"], 1, "got --resize 4, expected sides of at least 8 x 8, the input's"),
        (["--image", "a.ppm", "--shape", "data=1,4,8,8"], 1, "expected batch, 1 or 3 channels, height and width"),
        (["--image", "a.ppm", "--shape", "data=2,3,8,8"], 1, "--shape data=2,3,8,8"),
        (["--image", "a.ppm", "--input", "data=x.npy"], 1, "got --image for the inputs [], expected one"),
    ],
)
def test_what_does_not_fit_is_named(place, capsys, words, status, message) -> None:
    (place / "cut.ppm").write_bytes((place / "a.ppm").read_bytes()[:40])
    (place / "four.txt").write_text("a\nb\nc\nd\n")
    np.save("x.npy", np.zeros((1, 3, 8, 8), np.float32))
    assert main([*CAFFE, *words]) == status
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mean", "1,x"], "--mean: got 1,x, expected numbers between commas"),
        (["--std", "1,0,1"], "--std: got 1,0,1, expected numbers other than 0"),
        (["--scale", "1,2"], "--scale: got 1,2, expected one number"),
        (["--resize", "-1"], "--resize: got -1, expected a whole number from 0"),
    ],
)
def test_options_are_read_before_anything_runs(words, message, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["run", "deploy.prototxt", *words])
    assert message in capsys.readouterr().err


def test_without_pillow_the_extra_is_named(place, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert main([*CAFFE, "--image", "a.ppm"]) == 1
    assert "got --image a.ppm, which needs pillow (pip install 'clgraft[data]')" in capsys.readouterr().err


def test_labels_need_a_row_of_classes(place, capsys) -> None:
    text = "\n".join(line for line in SMALL.split("\n") if not re.search(r"\"(drop|fc|prob)\"", line))
    (place / "part.prototxt").write_text(text)
    assert main(["run", "part.prototxt", "--weights", "net.caffemodel", "--top", "2"]) == 1
    assert "for --top and --labels, expected one with a row of classes" in capsys.readouterr().err
    assert main(["run", "part.prototxt", "--weights", "net.caffemodel", "--image", "a.ppm"]) == 0
