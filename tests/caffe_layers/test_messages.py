"""What a user reads when Caffe or a layer refuses a net."""

from __future__ import annotations

import pytest

caffe = pytest.importorskip("caffe")

from clgraft.caffe_layers.swap import swap_net
from clgraft.plugins.caffe import check
from clgraft.plugins.command_line.check import runner
from tests.caffe_layers.caffe_nets import inputs, layer, load

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }\n'
RELU = 'layer { name: "r" type: "ReLU" bottom: "x" top: "y" }\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (INPUT + RELU + "novelty: 3\n", r'rejects: line 3, column 8: .*has no field named "novelty"\.?$'),
        ("force_backward: false\n" + INPUT + RELU + "novelty: 3\n", r"rejects: line 4, column 8: "),
        (INPUT + RELU.replace('"x"', '"z"'), r"rejects: Unknown bottom blob 'z' \(layer 'r', bottom index 0\)$"),
        (INPUT + RELU + 'layer { name: "n" type: "Novel" }', "rejects: .*Unknown layer type: Novel"),
    ],
)
def test_check_says_why_caffe_rejects_a_net(tmp_path, text, words):
    (tmp_path / "net.prototxt").write_text(text)
    with pytest.raises(runner.CheckError, match=r"net.prototxt, which this Caffe " + words):
        list(runner.run("clgraft.plugins.caffe.check", {"path": str(tmp_path / "net.prototxt")}))


def test_the_reason_is_found_among_other_lines():
    """With a handler of signals glog prints a long trace after the reason."""
    trace = [f"    @     0x7f{number:06x}  caffe::Net<>::Init()" for number in range(30)]
    lines = [
        "  warn('something else')",
        "WARNING: Logging before InitGoogleLogging() is written to STDERR",
        "I1121 23:17:26.556815  3100 net.cpp:51] Initializing net",
        "F1121 23:17:26.556815  3100 insert_splits.cpp:29] Unknown bottom blob 'z' (layer 'r', bottom index 0)",
        "*** Check failure stack trace: ***",
        *trace,
        "Aborted",
    ]
    expected = "[caffe] got a.prototxt, which this Caffe rejects: Unknown bottom blob 'z' (layer 'r', bottom index 0)"
    assert check.explain(lines, "a.prototxt", phase="train") == expected
    assert check.explain(["Killed"], "a.prototxt") == ""


@pytest.mark.parametrize("name", ["conv1", "a/b c"])
def test_errors_of_layers_name_the_layer(name, caplog):
    fields = "convolution_param { num_output: 2 kernel_size: 9 }"
    text = inputs({"x": (1, 3, 6, 6)}) + layer("Convolution", fields, ours=False, name=name)
    with pytest.raises(Exception, match=rf"\[conv\] got kernel \(9, 9\), expected .* \(in layer '{name}'\)$"):
        load(swap_net(text)[0])
    assert f"clgraft: OclConvolution '{name}' failed in reshape: [conv] got" in caplog.text
