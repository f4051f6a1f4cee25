"""Swap on nets with random layers in random layouts: meaning kept, every letter restored."""

from __future__ import annotations

from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clgraft.caffe_layers.prototxt import PrototxtError, check, schema
from clgraft.caffe_layers.prototxt.tokens import Lines, tokenize
from clgraft.caffe_layers.prototxt.tree import Document
from clgraft.caffe_layers.swap import RULES, swap_back, swap_net

NAMES = st.text(alphabet="ab1/_ é'\"\\", min_size=1, max_size=5)
SPACES = st.sampled_from([" ", "\n", "\n  ", "\t", "\n\n", "  # note { } \" '\n  ", "\r\n  ", " \n"])


@st.composite
def nets(draw):
    """A net of layers that are swapped and layers that are not, with fields in any order."""
    net = schema.message_class("NetParameter")()
    for _ in range(draw(st.integers(1, 4))):
        layer = net.layer.add(name=draw(NAMES), type=draw(st.sampled_from([*RULES, "Data", "Dropout"])))
        layer.bottom.extend(draw(st.lists(NAMES, max_size=2)))
        layer.top.extend(draw(st.lists(NAMES, max_size=1)))
        for _ in range(draw(st.integers(0, 3))):
            spec = layer.param.add()
            if draw(st.booleans()):
                spec.lr_mult = draw(st.sampled_from([0.0, 0.5]))
            if draw(st.booleans()):
                spec.decay_mult = draw(st.sampled_from([0.0, 1.0]))
            if draw(st.booleans()):
                spec.name = draw(NAMES)
        if draw(st.booleans()):
            layer.convolution_param.num_output = draw(st.integers(1, 4))
            layer.convolution_param.group = draw(st.integers(1, 4))
            layer.convolution_param.weight_filler.type = draw(NAMES)
        if draw(st.booleans()):
            layer.batch_norm_param.eps = 0.5
        if draw(st.booleans()):
            layer.include.add(phase=1)
    return net


@st.composite
def layouts(draw, net):
    """The net's text with other white space, comments and separators between its tokens."""
    text = text_format.MessageToString(net, as_one_line=True)
    result = draw(st.sampled_from(["", "# head\n", "\n"]))
    for token in tokenize(text, Lines(text)):
        result += token.text + draw(SPACES)
        if token.text == "}" and draw(st.integers(0, 9)) == 0:
            result += draw(st.sampled_from([";", ","])) + draw(SPACES)
    return result


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_meaning_is_kept_and_every_letter_restored(data):
    net = data.draw(nets())
    text = data.draw(layouts(net))
    assert schema.parse("NetParameter", text) == net
    swapped, report = swap_net(text)
    assert swap_back(swapped)[0] == text
    after = schema.parse("NetParameter", swapped)
    for native, ours, row in zip(net.layer, after.layer, report.rows):
        if not row.became:
            assert ours == native
            continue
        rule = RULES[native.type]
        carried = schema.parse_layer(ours.python_param.param_str)
        assert carried.type == native.type
        for field in filter(None, (rule.parameters, rule.more)):
            assert getattr(carried, field) == getattr(native, field)
            assert not ours.HasField(field)
        if rule.loss:  # in Caffe it has a weight and a top by itself
            assert list(ours.loss_weight) == (list(native.loss_weight) or [1] + [0] * (len(native.top) - 1))
            assert len(ours.top) == max(1, len(native.top))
            if not native.top:
                ours.ClearField("top")
        assert (ours.name, ours.bottom, ours.top, ours.include) == (
            native.name,
            native.bottom,
            native.top,
            native.include,
        )
        if native.type == "BatchNorm":
            assert [(spec.lr_mult, spec.decay_mult) for spec in ours.param] == [(0, 0)] * 3
            assert [spec.name for spec in ours.param][: len(native.param)] == [spec.name for spec in native.param]
        else:
            assert ours.param == native.param
    once_more, nothing = swap_net(swapped)
    assert once_more == swapped
    assert not nothing.swapped


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_damaged_nets_are_swapped_or_refused_with_a_place(data):
    text = data.draw(layouts(data.draw(nets())))
    start = data.draw(st.integers(0, len(text)))
    end = min(len(text), start + data.draw(st.integers(0, 6)))
    damaged = text[:start] + data.draw(st.text(alphabet="{}<>[]:;'\"#\\ \na1-", max_size=4)) + text[end:]
    try:
        swapped, _ = swap_net(damaged)
    except PrototxtError as error:
        assert error.line >= 1
        assert error.column >= 1
    else:
        check(Document(swapped), schema.descriptor("NetParameter"))
        assert swap_back(swapped)[0] == damaged
