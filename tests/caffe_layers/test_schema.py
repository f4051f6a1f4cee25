"""The schema against the descriptors that a real Caffe carries, and against text and bytes from nets."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, text_format

from clgraft.caffe_layers.prototxt import PrototxtError, schema
from clgraft.caffe_layers.prototxt.schema.language import read_proto

# What this wheel added to Caffe; other forks use the same numbers for other things.
WHEEL_ONLY = {
    "LayerParameter": {
        "ctc_loss_param",
        "continuation_indicator_param",
        "labelsequence_accuracy_param",
        "reverse_param",
    },
    "V1LayerParameter": {"reverse_param"},
    "V0LayerParameter": {"axis"},
}
WHEEL_ONLY_MESSAGES = {
    "ReverseParameter",
    "CtcLossParameter",
    "ContinuationIndicatorParameter",
    "LabelsequenceAccuracyParameter",
}


# What ours knows by name, of Caffes later than these or of forks; a fork's own number for it is not ours.
LATER = {"clip_param"}
OF_FORKS = {
    "LayerParameter": {
        *("permute_param", "norm_param", "prior_box_param", "detection_output_param", "roi_pooling_param"),
        *("interp_param", "upsample_param", "shuffle_channel_param", "relu6_param", "bn_param"),
    },
    "PoolingParameter": {"ceil_mode"},
}


def caffe_definition():
    """The file descriptor in Caffe's own `caffe_pb2.py`, read without running it."""
    package = importlib.util.find_spec("caffe")
    if package is None or package.origin is None:
        pytest.skip("Caffe is not installed for this Python")
    tree = ast.parse((Path(package.origin).parent / "proto" / "caffe_pb2.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            value = node.value.args[0] if isinstance(node.value, ast.Call) else node.value
            data = ast.literal_eval(value)
            return descriptor_pb2.FileDescriptorProto.FromString(
                data if isinstance(data, bytes) else data.encode("latin-1")
            )
    raise AssertionError("caffe_pb2.py holds no descriptor")


def our_definition():
    return read_proto((Path(schema.__file__).parent / "caffe.proto").read_text(encoding="utf-8"), "caffe.proto")


def fields(message, package):
    result = {}
    for field in message.field:
        default = field.default_value
        if default and field.type == field.TYPE_FLOAT:
            default = float(np.float32(default))
        type_name = field.type_name.replace(f".{package}.", "", 1)
        result[field.name] = (field.number, field.type, field.label, type_name, default, field.options.packed)
    return result


def enums(holder):
    return {enum.name: {(value.name, value.number) for value in enum.value} for enum in holder.enum_type}


def test_every_field_is_caffes():
    theirs, ours = caffe_definition(), our_definition()
    their_messages = {message.name: message for message in theirs.message_type}
    our_messages = {message.name: message for message in ours.message_type}
    assert set(their_messages) - set(our_messages) == WHEEL_ONLY_MESSAGES & set(their_messages)
    assert enums(theirs) == enums(ours)
    compared = 0
    for name, message in their_messages.items():
        if name in WHEEL_ONLY_MESSAGES:
            continue
        expected = fields(message, theirs.package)
        got = fields(our_messages[name], ours.package)
        for extra in WHEEL_ONLY.get(name, ()):
            expected.pop(extra, None)
        for extra in OF_FORKS.get(name, ()):
            expected.pop(extra, None)
            assert got.pop(extra)[0] > 10**8, "a number that a file may hold"
        later = set(got) - set(expected)
        assert later <= LATER, f"{name} has {later}, which Caffe lacks"
        for extra in later:
            got.pop(extra)
        assert got == expected, name
        for enum, values in enums(message).items():
            assert {pair for pair in values if pair[0] != "REVERSE"} == enums(our_messages[name])[enum], (name, enum)
        compared += len(got)
    assert compared > 400


def test_schema_lives_next_to_caffes_own():
    assert schema.descriptor("LayerParameter").full_name == "clgraft.caffe.LayerParameter"
    other = schema.pool()
    assert other is schema.pool()
    with pytest.raises(KeyError):
        from google.protobuf import descriptor_pool

        descriptor_pool.Default().FindMessageTypeByName("clgraft.caffe.LayerParameter")


def test_parse_layer_reads_defaults_and_passes_over_unknown_fields():
    layer = schema.parse_layer(
        'type: "Convolution" convolution_param { num_output: 4 kernel_size: [3, 5] weight_filler { type: "msra" } '
        "fork_only: 3 fork_message { a: [1, { b: <> }] } }"
    )
    parameters = layer.convolution_param
    assert (parameters.num_output, list(parameters.kernel_size), parameters.group) == (4, [3, 5], 1)
    assert parameters.bias_term is True
    assert parameters.weight_filler.type == "msra"
    assert not parameters.HasField("kernel_h")


def test_defaults_are_single_precision_as_numbers_of_files_are():
    given = schema.parse_layer("batch_norm_param { moving_average_fraction: 0.999 eps: 1e-5 }").batch_norm_param
    missing = schema.parse_layer("batch_norm_param { }").batch_norm_param
    assert missing.moving_average_fraction == given.moving_average_fraction == float(np.float32(0.999))
    assert missing.eps == given.eps == float(np.float32(1e-5))


def test_errors_name_line_and_column():
    with pytest.raises(PrototxtError, match="line 2, column 30: got steep"):
        schema.parse_layer('type: "ReLU"\nrelu_param { negative_slope: steep }')
    with pytest.raises(PrototxtError, match="got MEAN for operation, expected one of PROD, SUM, MAX"):
        schema.parse_layer("eltwise_param { operation: MEAN }")
    with pytest.raises(PrototxtError, match="got 9 for pool, expected one of MAX, AVE, STOCHASTIC"):
        schema.parse_layer("pooling_param { pool: 9 }")
    with pytest.raises(PrototxtError, match="line 1, column 35: got strid, expected a field of Caffe's"):
        schema.parse("LayerParameter", "convolution_param { num_output: 2 strid: 2 }", forks=False)
    with pytest.raises(schema.SchemaError):
        schema.parse_bytes("NetParameter", b"\xff\xff\xff")


def test_binary_round_trip_keeps_fields_of_forks():
    net = schema.message_class("NetParameter")()
    layer = net.layer.add(name="ip", type="InnerProduct")
    layer.blobs.add(data=[1.0, 2.5]).shape.dim.extend([2])
    data = net.SerializeToString() + b"\xfa\x7f\x03abc"  # field 2047, which no Caffe has
    again = schema.parse_bytes("NetParameter", data)
    assert list(again.layer[0].blobs[0].data) == [1.0, 2.5]
    assert b"\x03abc" in again.SerializeToString()
    assert text_format.MessageToString(again).startswith("layer")


@pytest.mark.parametrize(
    "text", ["message A { optional Int x = 1 }", "service X {}", "message A { map x = 1; }", "message A { $ }"]
)
def test_language_refuses_what_it_does_not_know(text):
    with pytest.raises(ValueError, match=r"\[proto\]"):
        read_proto(text, "a.proto")
