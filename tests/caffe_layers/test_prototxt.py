"""The reader of protobuf text format: every legal form, exact places of errors, edits that touch nothing else."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from clgraft.caffe_layers.prototxt import Document, Edits, PrototxtError, check, quote, schema, unquote

LEGAL = {
    "brackets": "layer < name: 'a' >",
    "colon before a message": "layer: { name: 'a' }",
    "semicolons and commas": "name: 'a'; force_backward: true, input: 'b';",
    "adjacent strings": "name: 'a' \"b\"\n # between\n 'c'",
    "list": "input_dim: [1, 2, 3] input: ['a', 'b']",
    "empty list": "input_dim: []",
    "list of messages": "layer [{ name: 'a' }, { name: 'b' }]",
    "list of messages after a colon": "layer: [{ name: 'a' }, < name: 'b' >]",
    "numbers": "layer { loss_weight: -1.5e-3 loss_weight: 2f loss_weight: .5 loss_weight: 7. loss_weight: -3 }",
    "infinity": "layer { loss_weight: inf loss_weight: -inf loss_weight: Infinity }",
    "hexadecimal and octal": "input_dim: 0x1F input_dim: 017",
    "no space": "name:'a'input:'b'layer{name:'c'}",
    "escapes": r"name: 'a\n\t\x41\101\'\"\\é'",
    "comment at the end": "name: 'a' # no newline",
    "carriage returns": "name: 'a'\r\nlayer {\r\n  name: 'b'\r\n}\r\n",
    "byte order mark": "\ufeffname: 'a'",
    "empty": "",
    "only a comment": "# nothing\n",
}

ILLEGAL = {
    "layer { name: 'a'": (1, 18),
    "layer { name: 'a' >": (1, 19),
    "name: 'a\n'": (1, 7),
    "name: 'a' }": (1, 11),
    "name 'a'": (1, 6),
    "name:": (1, 6),
    "name: \n  : 'a'": (2, 3),
    "input_dim: 3x": (1, 13),
    "input_dim: [1 2]": (1, 15),
    "input_dim: [1, ]": (1, 16),
    "name: 'a' $": (1, 11),
    "# fine\n\n  layer {\n    name: 'a'\n    oops\n  }": (6, 3),
    "name: '\\q'": (1, 7),
    "name: - 'a'": (1, 9),
    "[a.b: 3": (1, 5),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_forms_mean_what_protobuf_says(name):
    text = LEGAL[name]
    document = Document(text)
    check(document, schema.descriptor("NetParameter"))
    expected = text_format.Parse(text.lstrip("\ufeff"), schema.message_class("NetParameter")())
    assert schema.parse("NetParameter", text) == expected
    assert Edits(text).apply() == text


@pytest.mark.parametrize("text", ILLEGAL)
def test_errors_name_line_and_column(text):
    with pytest.raises(PrototxtError) as caught:
        Document(text)
    assert (caught.value.line, caught.value.column) == ILLEGAL[text]
    assert f"line {caught.value.line}, column {caught.value.column}: got " in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("name: 3", (1, 7), "text in quotes"),
        ("layer { name: 'a'\n name: 'b' }", (2, 2), "a second time"),
        ("layer: 'x'", (1, 8), "a message"),
        ("name { }", (1, 6), "a value"),
        ("layer { convolution_param { num_output: -3 } }", (1, 41), "whole number from 0 to 4294967295"),
        ("layer { convolution_param { num_output: 1.5 } }", (1, 41), "whole number"),
        ("layer { convolution_param { bias_term: yes } }", (1, 40), "true or false"),
        ("layer { pooling_param { pool: 'MAX' } }", (1, 31), "one of MAX, AVE, STOCHASTIC"),
        ("layer { relu_param { negative_slope: steep } }", (1, 38), "a number"),
        ("name: ['a', 'b']", (1, 1), "one value"),
        ("input_dim: 2147483648", (1, 12), "from -2147483648 to 2147483647"),
        ("force_backward: 2", (1, 17), "true or false"),
        ("force_backward: TRUE", (1, 17), "true or false"),
        ("input_dim: 089", (1, 12), "whole number"),
    ],
)
def test_check_says_what_caffe_would_refuse(text, place, words):
    with pytest.raises(PrototxtError, match=words) as caught:
        check(Document(text), schema.descriptor("NetParameter"))
    assert (caught.value.line, caught.value.column) == place


@pytest.mark.parametrize(
    ("word", "value"),
    [("true", True), ("t", True), ("1", True), ("0x1", True), ("01", True), ("False", False), ("0", False)],
)
def test_every_way_to_write_a_truth_value(word, value):
    assert schema.parse("NetParameter", f"force_backward: {word}").force_backward is value


def test_check_returns_fields_of_forks():
    text = "layer { name: 'a' fork_param { anything: [1, { x: 2 }] } }\n future: 3"
    assert [item.name for item in check(Document(text), schema.descriptor("NetParameter"))] == ["fork_param", "future"]


def test_depth_is_limited():
    with pytest.raises(PrototxtError, match="at most"):
        Document("a {" * 3000 + "}" * 3000)
    Document("a {" * 90 + "}" * 90)


def test_edits_are_local_and_refuse_overlap():
    text = "a: 1\n  b: 2  # two\nc: 3\n"
    edits = Edits(text)
    edits.replace(3, 4, "10")
    edits.insert(0, "# head\n")
    edits.insert(0, "# second\n")
    edits.remove(19, 23)
    assert edits.apply() == "# head\n# second\na: 10\n  b: 2  # two\n"
    edits.replace(2, 6, "")
    with pytest.raises(ValueError, match="overlapping"):
        edits.apply()
    with pytest.raises(ValueError, match="span"):
        edits.replace(5, 500, "")


@given(st.text(), st.sampled_from("'\""))
@settings(max_examples=200)
def test_quote_and_unquote_are_inverse(text, mark):
    literal = quote(text, mark)
    assert unquote(literal) == text
    assert "\n" not in literal
    assert Document(f"name: {literal}").root.text("name") == text


@given(st.text(alphabet="{}<>[]:;,.-'\"\\# \nab1", max_size=60))
@settings(max_examples=500)
def test_any_text_is_read_or_refused_with_a_place(text):
    try:
        Document(text)
    except PrototxtError as error:
        assert error.line >= 1
        assert error.column >= 1


def random_net(draw):
    """Random nets as protobuf itself writes them."""
    net = schema.message_class("NetParameter")()
    names = st.text(alphabet="abc/_ é'\"\\\n", max_size=6)
    net.name = draw(names)
    for _ in range(draw(st.integers(0, 3))):
        layer = net.layer.add(name=draw(names), type=draw(st.sampled_from(["Convolution", "ReLU", "Data"])))
        layer.bottom.extend(draw(st.lists(names, max_size=2)))
        layer.loss_weight.extend(draw(st.lists(st.floats(width=32, allow_nan=False), max_size=2)))
        layer.convolution_param.pad.extend(draw(st.lists(st.integers(0, 2**32 - 1), max_size=3)))
        layer.convolution_param.bias_term = draw(st.booleans())
        layer.include.add(phase=draw(st.integers(0, 1)))
    return net


@given(st.data())
@settings(max_examples=60)
def test_reads_what_protobuf_writes(data):
    net = random_net(data.draw)
    for options in ({}, {"as_one_line": True}, {"as_utf8": True}, {"use_short_repeated_primitives": True}):
        text = text_format.MessageToString(net, **options)
        document = Document(text)
        assert not check(document, schema.descriptor("NetParameter"))
        assert schema.parse("NetParameter", text) == net
        assert [layer.text("name") for layer in document.root.messages("layer")] == [layer.name for layer in net.layer]
        for ours, theirs in zip(document.root.messages("layer"), net.layer):
            pads = ours.messages("convolution_param")[0].texts("pad")
            assert [int(pad) for pad in pads] == list(theirs.convolution_param.pad)


def test_the_largest_float_is_no_infinity():
    """protobuf writes it rounded up."""
    weights = schema.parse("LayerParameter", "loss_weight: 3.4028235e+38 loss_weight: 3.5e+38").loss_weight
    assert list(weights) == [2.0**128 - 2.0**104, float("inf")]
