"""The node tests of the onnx package: every one passes, or its model is refused by name when it is loaded."""

from __future__ import annotations

import unittest
import warnings
from functools import cache
from typing import Any

import pytest

onnx = pytest.importorskip("onnx", reason="needs onnx")
if tuple(int(part) for part in onnx.__version__.split(".")[:2]) < (1, 19):
    pytest.skip("needs onnx 1.19 or newer", allow_module_level=True)
from onnx.backend.test import BackendTest  # noqa: E402
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt  # noqa: E402

from clgraft.plugins.onnx import ClgraftBackend, UnsupportedError  # noqa: E402

PARTS = 6  # for several processes, and shares
REAL = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
refused: dict[str, str] = {}
passed: set[str] = set()


class RecordingBackend(ClgraftBackend):
    """Notes which models are refused."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
        try:
            return super().prepare(model, device, **kwargs)
        except UnsupportedError as error:
            refused[model.graph.name] = str(error)
            raise BackendIsNotSupposedToImplementIt(str(error)) from None


@cache
def node_tests() -> tuple[type[unittest.TestCase], dict[str, bool]]:
    """Return the test case, and for each test's name whether its model takes or gives real numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the data's own overflows
        tests = BackendTest(RecordingBackend, __name__)
    case = tests.test_cases["OnnxBackendNodeModelTest"]
    from onnx.backend.test.loader import load_model_tests

    found = {}
    for test in load_model_tests(kind="node"):
        graph = test.model.graph
        types = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
        found[f"{test.name}_cpu"] = bool(types & REAL)
    return case, found


def names() -> list[str]:
    """Return the tests' names; those of the operators' expansions repeat the others' results with simpler operators."""
    case, _ = node_tests()
    loader = unittest.defaultTestLoader
    return sorted(n for n in loader.getTestCaseNames(case) if n.endswith("_cpu") and "expanded" not in n)


def run(name: str) -> None:
    case, _ = node_tests()
    before, result = set(refused), unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case(name).run(result)
    wrong = [text for _, text in (*result.failures, *result.errors)]
    assert not wrong, f"{name}: {wrong[0][-1500:]}"
    if set(refused) == before and not result.skipped:
        passed.add(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
def test_every_node_test_passes_or_is_refused(part: int) -> None:
    """None fails, and at least three quarters of those with real numbers pass."""
    wrong, chosen = [], names()[part::PARTS]
    for name in chosen:
        try:
            run(name)
        except AssertionError as error:
            wrong.append(str(error))
    _, real = node_tests()
    wanted = [name for name in chosen if real[name]]
    good = len(passed & set(wanted))
    print(f"{good} of {len(wanted)} tests with real numbers pass, {len(passed & set(chosen))} of {len(chosen)}")
    assert not wrong, "\n\n".join(wrong)
    assert good >= 0.75 * len(wanted)


@pytest.mark.parametrize(
    "name",
    [
        *("test_conv_with_strides_and_asymmetric_padding", "test_convtranspose_output_shape", "test_maxpool_2d_ceil"),
        *(
            "test_averagepool_2d_precomputed_pads_count_include_pad",
            "test_resize_downsample_scales_cubic",
            "test_gemm_all_attributes",
        ),
        *("test_layer_normalization_4d_axis2", "test_top_k", "test_nonmaxsuppression_suppress_by_IOU"),
        *("test_scatter_elements_with_negative_indices", "test_gathernd_example_float32", "test_lstm_with_peepholes"),
        *(
            "test_quantizelinear_axis",
            "test_einsum_batch_matmul",
            "test_roialign_aligned_true",
            "test_deform_conv_with_multiple_offset_groups",
            "test_reduce_log_sum_exp_default_axes_keepdims_random",
        ),
    ],
)
def test_some_of_them(name: str) -> None:
    run(f"{name}_cpu")
    assert f"{name}_cpu" in passed
