"""Indices out of range: refused where they are known or given, and never whole numbers that nobody wrote."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from clgraft.plugins.onnx import OnnxError, Session  # noqa: E402
from tests.plugins.onnx.models import model, node  # noqa: E402

DATA = np.arange(12, dtype=np.float32).reshape(4, 3)
LEAST = -(2**63)
# operator -> its inputs around the index, attributes, the index's shape, and good and bad ones
OPERATORS = {
    "Gather": ("d i", {"axis": 0}, [2], [0, -4], [[0, 4], [-5, 0], [LEAST, 0], [0, 2**32]]),
    "GatherElements": ("d i", {"axis": 1}, [1, 2], [[2, -3]], [[[3, 0]], [[-4, 0]], [[0, LEAST]], [[0, 2**32]]]),
    "GatherND": ("d i", {}, [1, 2], [[3, -3]], [[[0, 3]], [[4, 0]], [[-5, 0]], [[0, LEAST]], [[2**32, 0]]]),
    "ScatterElements": ("d i u", {"axis": 1}, [1, 2], [[2, -2]], [[[3, 0]], [[-4, 0]], [[0, LEAST]], [[0, 2**32]]]),
    "ScatterND": ("d i v", {}, [1, 2], [[3, -3]], [[[0, 3]], [[4, 0]], [[-5, 0]], [[0, LEAST]], [[2**32, 0]]]),
}
cases = pytest.mark.parametrize("operator", OPERATORS)


def built(operator: str, index: np.ndarray | None, nodes: tuple = (), dtype: type = np.float32) -> onnx.ModelProto:
    """Return a model whose index is known, an input (None), or what nodes make of the input j."""
    reads, attributes, shape, *_ = OPERATORS[operator]
    weights = {"u": -np.ones((1, 2), np.float32), "v": -np.ones(1, np.float32)}
    weights = {name: array for name, array in weights.items() if name in reads.split()}
    inputs = {"d": (dtype, DATA.shape)}
    if index is not None:
        weights["i"] = index
    else:
        inputs["j" if nodes else "i"] = (np.int64, shape)
    made = node(operator, reads, "y", **attributes)
    if nodes:
        weights["none"] = np.array(0, np.int64)
    return model([*nodes, made], inputs, {"y": (dtype, None)}, weights)


def expected(operator: str, index: np.ndarray) -> np.ndarray:
    y = DATA.copy()
    if operator == "Gather":
        return y[index]
    if operator == "GatherElements":
        return np.take_along_axis(y[: len(index)], index, 1)
    if operator == "GatherND":
        return y[tuple(index.T)]
    if operator == "ScatterND":
        y[tuple(index.T)] = -1
    else:
        y[0, index[0]] = -1
    return y


@cases
def test_known_indices_are_checked_when_the_model_is_loaded(operator: str) -> None:
    _, _, _, good, bad = OPERATORS[operator]
    index = np.array(good, np.int64)
    y = Session(built(operator, index)).run({"d": DATA})["y"]
    np.testing.assert_array_equal(y, expected(operator, index))
    for wrong in bad:
        with pytest.raises(OnnxError, match=rf"index .* in {operator}"):
            Session(built(operator, np.array(wrong, np.int64)))


@cases
def test_indices_that_are_inputs_are_checked_in_every_run(operator: str) -> None:
    _, _, _, good, bad = OPERATORS[operator]
    session = Session(built(operator, None))
    index = np.array(good, np.int64)
    for wrong in bad:
        np.testing.assert_array_equal(session.run({"d": DATA, "i": index})["y"], expected(operator, index))
        with pytest.raises(OnnxError, match=rf"index .* in {operator}"):
            session.run({"d": DATA, "i": np.array(wrong, np.int64)})


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, bool])
def test_whole_numbers_from_indices_that_are_computed(dtype: type) -> None:
    """Real numbers are NaN there."""
    shift = (node("Add", "j none", "i"),)
    wrong = np.array([0, 4], np.int64)
    y = Session(built("Gather", None, shift)).run({"d": DATA, "j": wrong})["y"]
    assert np.isnan(y[1]).all() and (y[0] == DATA[0]).all()
    session = Session(built("Gather", None, shift, dtype))
    with pytest.raises(OnnxError, match="an index is out of range"):
        session.run({"d": DATA.astype(dtype), "j": wrong})
    y = session.run({"d": DATA.astype(dtype), "j": np.array([3, -1], np.int64)})["y"]
    np.testing.assert_array_equal(y, DATA[[3, -1]].astype(dtype))


@pytest.mark.parametrize("operator", ["GatherND", "ScatterND"])
def test_tuples_that_are_computed_reach_no_other_element(operator: str) -> None:
    """(0, 3) of an array of three columns is not (1, 0)."""
    session = Session(built(operator, None, (node("Add", "j none", "i"),)))
    for wrong in OPERATORS[operator][4]:
        y = session.run({"d": DATA, "j": np.array(wrong, np.int64)})["y"]
        if operator == "GatherND":
            assert np.isnan(y).all()
        else:
            np.testing.assert_array_equal(y, DATA)


def test_scattered_elements_that_are_computed_reach_no_other_element() -> None:
    """The updates are of fewer rows than the data, so each index becomes a place in the whole array."""
    weights = {"none": np.array(0, np.int64), "u": -np.ones((1, 1), np.float32)}
    nodes = [node("Add", "j none", "i"), node("ScatterElements", "d i u", "y", axis=1)]
    kinds = {"d": (np.float32, DATA.shape), "j": (np.int64, [1, 1])}
    session = Session(model(nodes, kinds, {"y": (np.float32, None)}, weights))
    for wrong in (3, -4, LEAST):
        y = session.run({"d": DATA, "j": np.array([[wrong]], np.int64)})["y"]
        np.testing.assert_array_equal(y, DATA)


@pytest.mark.parametrize("images", [[0, 2], [-1, 0]])
def test_regions_of_images_that_do_not_exist(images: list[int]) -> None:
    weights = {"rois": np.ones((2, 4), np.float32), "images": np.array(images, np.int64)}
    kinds = {"x": (np.float32, [2, 1, 4, 4])}
    with pytest.raises(OnnxError, match=r"index .* in RoiAlign"):
        Session(model([node("RoiAlign", "x rois images", "y")], kinds, {"y": (np.float32, None)}, weights))


def test_lengths_beyond_the_sequences() -> None:
    weights = {"lengths": np.array([3, 5], np.int64)}
    kinds = {"x": (np.float32, [4, 2])}
    with pytest.raises(OnnxError, match="lengths"):
        Session(model([node("ReverseSequence", "x lengths", "y")], kinds, {"y": (np.float32, None)}, weights))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_casts_of_what_is_not_finite_stay_whole_numbers(dtype: type) -> None:
    to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = model([node("Cast", "x", "y", to=to)], {"x": (np.float32, [4])}, {"y": (dtype, [4])})
    y = Session(proto).run({"x": np.array([np.nan, np.inf, -np.inf, 3], np.float32)})["y"]
    none = 0 if dtype is np.uint8 else np.iinfo(dtype).min
    np.testing.assert_array_equal(y, np.array([none, none, none, 3], dtype))
