"""The table of operators in docs/onnx.md says what the lowering does."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx", reason="needs onnx")
from tests.plugins.onnx import operator_table  # noqa: E402


def test_the_page_holds_the_table() -> None:
    page, table = operator_table.PAGE.read_text(encoding="utf-8"), operator_table.table()
    heading = next(line for line in table.splitlines() if line.startswith("onnx "))
    if heading not in page:
        pytest.skip(f"the page is about another version of onnx than {onnx.__version__}")
    assert table in page, "run python -m tests.plugins.onnx.operator_table"


def test_what_vision_nets_use_runs_on_the_device() -> None:
    wanted = """Conv ConvTranspose Gemm MatMul BatchNormalization MaxPool AveragePool LpPool GlobalAveragePool
    GlobalMaxPool Relu LeakyRelu Elu Selu Celu Sigmoid Tanh Softplus Softsign HardSwish HardSigmoid Mish Gelu Erf Clip
    PRelu Add Sub Mul Div Pow Sqrt Exp Log Abs Neg Max Min Sum Mean Mod Equal Greater Less GreaterOrEqual LessOrEqual
    And Or Not Xor ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceSumSquare Softmax LogSoftmax Hardmax LRN InstanceNormalization LayerNormalization GroupNormalization Concat
    Split Slice Pad Transpose Reshape Flatten Squeeze Unsqueeze Expand Tile Gather GatherElements GatherND Where Resize
    Upsample DepthToSpace SpaceToDepth ArgMax ArgMin TopK Dropout Identity Cast QuantizeLinear DequantizeLinear
    NonMaxSuppression RoiAlign CumSum Einsum GridSample ScatterND ScatterElements Trilu OneHot LSTM GRU RNN
    DeformConv"""
    assert {name for name in wanted.split() if operator_table.kind_of(name) != "runs"} == set()
