"""What layers in C++ are told, asked here as they ask: no Caffe takes part."""

from __future__ import annotations

import ctypes
import re
import struct

import numpy as np
import pytest

from clgraft.caffe_layers.hosted import service
from clgraft.caffe_layers.hosted.blobs import _Fill, _Pointer, _Shape
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.prototxt.marks import ELEMENTS
from clgraft.core.graph import arguments_of, parse_graph

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 6 } } }
layer { name: "a" type: "Convolution" bottom: "x" top: "a" convolution_param { num_output: 2 kernel_size: 3 } }
layer { name: "b" type: "ReLU" bottom: "a" top: "b" }
layer { name: "c" type: "TanH" bottom: "b" top: "c" }
layer { name: "d" type: "Sigmoid" bottom: "c" top: "d" }
"""


class ProgramMemory:
    """A layer's memory as a program in C++ would hold it: one value, for whatever is asked.

    Attributes
    ----------
    value : numpy array of one element
    described : list of str
        What else the layer that was set up last demands.
    """

    def __init__(self) -> None:
        self.value = np.full(1, 3, np.float32)
        self.pointer = _Pointer(lambda *_: self.value.ctypes.data)
        self.shape = _Shape(lambda *_: 0)
        self.fill = _Fill(lambda *_: 0)

    def set_up(self, text: str, *bottoms: str, tops: int = 1, real: str = "f32") -> str:
        """Return the number of a layer."""
        parameters = schema.parse_layer(text)
        addresses = [ctypes.cast(one, ctypes.c_void_p).value for one in (self.pointer, self.shape, self.fill)]
        line = f"setup {parameters.type} 0 {real} 0 {' '.join(map(str, addresses))} {tops} {' '.join(bottoms)} |"
        number, *self.described = ask(line, parameters.SerializeToString())
        return number


def ask(line: str, data: bytes = b"") -> list[str]:
    return service.answer(line.encode() + b"\n" + data).decode().splitlines()


@pytest.fixture
def program():
    return ProgramMemory()


@pytest.mark.parametrize("keep", ["b", " b ", "z, b", "b,none"])
def test_regions_end_at_blobs_that_are_kept(keep):
    types = "Convolution,ReLU,TanH,Sigmoid"
    whole = [line for line in ask(f"net {types} none", NET.encode()) if line.startswith("@")]
    assert whole == ["@1", "@2", "@3", "@4"]
    together, apart = ("\n".join(ask(f"net {types} {blobs}", NET.encode())) for blobs in ("none", keep))
    numbers = [set(re.findall(r'"region": "(\w+)"', text)) for text in (together, apart)]
    assert [len(found) for found in numbers] == [1, 2]


@pytest.mark.parametrize("mark, elements", [("", 1), (ELEMENTS, 3)])
def test_a_number_that_is_left_open_is_asked_for(program, mark, elements):
    text = f'name: "loss" type: "EuclideanLoss" python_param {{ param_str: "{mark}" }}'
    number = program.set_up(text, "[4,3]", "[4,3]")
    for examples in (4, 2):
        assert ask(f"reshape {number} 0 [{examples},3] [{examples},3]") == ["top []"]
        ask(f"forward {number}")
        lines = ask(f"backward {number} .11 .")
        assert [word for line in lines for word in line.split() if word.startswith("@")] == ["@0"]
        found = np.frombuffer(bytes.fromhex(ask(f"number {number} 0")[0]), ">f8")[0]
        assert found == program.value[0] / (examples * elements)
    assert ask(f"drop {number}") == []


@pytest.mark.parametrize("fields", ["", "use_global_stats: true"])
def test_batch_norm_asks_for_nothing_while_it_runs(program, fields):
    """The numbers that the host computes are named once: each question takes the interpreter's lock."""
    text = f"name: 'norm' type: 'BatchNorm' batch_norm_param {{ moving_average_fraction: 0.5 {fields} }}"
    number = program.set_up(text, "[2,3,4]")
    assert not {"begin", "end"} & set(program.described)
    assert ask(f"reshape {number} 0 [2,3,4]") == ["top [2,3,4]"]
    words = [line.split() for line in ask(f"forward {number}")]
    runs = [line for line in words if line[0] in ("run", "graph")]
    others = [line for line in words if line[0] in ("divide", "count")]
    if not fields:
        assert len(runs) == 1 and others == [["count", "p2", struct.pack(">d", 0.5).hex(), struct.pack(">d", 1).hex()]]
        return
    assert len(runs) == 1 and [line[0] for line in others] == ["divide"] * 2
    read = [word.split(":")[0] for word in runs[0] if word.startswith("h")]
    assert all(f"h{line[1]}" in read for line in others)
    assert [line[2:] for line in others] == [["p0", "p2"], ["p1", "p2"]]


def test_a_question_that_is_none_is_an_error():
    with pytest.raises(ValueError, match=r"\[caffe\] got question 'sing', expected"):
        ask("sing 1")


def test_the_term_after_a_factor_from_a_bottom_learns(program):
    program.set_up("name: 'scale' type: 'Scale' scale_param { bias_term: true }", "[2,3,4]", "[3]")
    assert [line.split()[:2] for line in program.described] == [["blob", "[3]"]]


@pytest.mark.parametrize(
    "text",
    ["name: 'd' type: 'Dropout' dropout_param { dropout_ratio: 0 }", "name: 'b' type: 'Bias' param { lr_mult: 0 }"],
)
def test_what_stays_in_place_is_not_moved(program, text):
    runs = []
    for in_place in "10":
        number = program.set_up(text, "[2,3,4]")
        ask(f"reshape {number} {in_place} [2,3,4]")
        both = [ask(f"forward {number}"), ask(f"backward {number} 1 0")]
        runs.append([sum(line.startswith("run ") for line in lines) for lines in both])
    assert runs == ([[0, 0], [1, 1]] if "Dropout" in text else [[1, 0], [1, 1]])


def test_what_is_overwritten_is_kept_by_the_problem_that_reads_it(program):
    """In place, Power's one problem also writes what its gradient reads; a ReLU's gradient reads the result."""
    for text, outputs in (("type: 'Power' power_param { power: 2 }", 2), ("type: 'ReLU'", 1)):
        number = program.set_up(f"name: 'p' {text}", "[2,3,4]")
        ask(f"reshape {number} 1 [2,3,4]")
        (run,) = (line for line in ask(f"forward {number}") if line.startswith("run "))
        assert int(run.split()[1]) == 1 + outputs and ("s0" in run.split()) == (outputs == 2)


@pytest.mark.parametrize("real", ["f32", "f64"])
def test_a_pass_of_several_problems_is_one_graph(program, real):
    """Its text and its options make the plan in C, whose arguments are the buffers that the line names, in order."""
    number = program.set_up("name: 'norm' type: 'BatchNorm'", "[2,3,4]", real=real)
    ask(f"reshape {number} 0 [2,3,4]")
    head, *lines = (line for line in ask(f"forward {number}") if line.split()[0] not in ("array", "count"))
    word, count, passes, precision, arguments, *words = head.split(" ")
    graph = parse_graph("\n".join(lines))
    assert (word, int(count), passes, precision) == ("graph", len(lines), "-all", "float32")
    assert {value.dtype for value in graph.values.values()} == {"float32" if real == "f32" else "float64"}
    assert int(arguments) == len(arguments_of(graph)) and {"b0", "t0", "p0", "p1"} <= set(words[: int(arguments)])
    assert words[-len(graph.outputs) :] == list(graph.outputs)
