"""Regions in the text of nets: which layers join, what they hide, and that the way back restores every byte."""

from __future__ import annotations

import pytest

from clgraft.caffe_layers.prototxt import Document
from clgraft.caffe_layers.prototxt.marks import Mark, read_mark, without_marks, write_marks
from clgraft.caffe_layers.swap import swap_back, swap_file, swap_net
from clgraft.core.errors import ProblemError
from tests.caffe_layers.net_styles import STYLES, small

HEAD = """layer { name: "data" type: "Input" top: "data" top: "label" }
"""


def op(kind: str, name: str, bottom: str, top: str = "", more: str = "") -> str:
    bottoms = " ".join(f'bottom: "{blob}"' for blob in bottom.split())
    tops = " ".join(f'top: "{blob}"' for blob in (top or name).split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} {tops} {more} }}\n'


def conv(name: str, bottom: str, more: str = "") -> str:
    return op("Convolution", name, bottom, more="convolution_param { num_output: 4 kernel_size: 3 pad: 1 } " + more)


def regions_of(text: str, **choice: object) -> list:
    """Return (phases, layers, hidden blobs) of each region."""
    _, report = swap_net(HEAD + text, regions=True, **choice)
    return [(" ".join(r.phases), " ".join(r.layers), " ".join(r.hidden)) for r in report.regions]


def ends_of(text: str) -> list:
    return [region.ends for region in swap_net(HEAD + text, regions=True)[1].regions]


CHAIN = conv("a", "data") + op("ReLU", "r", "a", "a") + conv("b", "a") + op("SoftmaxWithLoss", "loss", "b label")


def test_a_chain_is_one_region():
    assert regions_of(CHAIN) == [("TRAIN TEST", "a r b loss", "a b")]
    assert ends_of(CHAIN) == [""]
    assert swap_net(HEAD + CHAIN)[1].regions == []


def test_a_layer_of_caffes_ends_a_region():
    text = conv("a", "data") + op("ReLU", "r", "a") + op("Im2col", "f", "r") + conv("b", "f") + op("ReLU", "s", "b")
    assert regions_of(text) == [("TRAIN TEST", "a r", "a"), ("TRAIN TEST", "b s", "b")]
    assert ends_of(text)[0] == "f (Im2col) reads a value of it"


def test_views_join_regions_and_stay_caffes_elsewhere():
    text = (
        conv("a", "data") + op("Flatten", "f", "a") + op("Reshape", "g", "f", more="reshape_param { shape { dim: 0 } }")
    )
    text += op("ReLU", "r", "g") + op("Im2col", "i", "r") + op("Flatten", "h", "i")
    assert regions_of(text) == [("TRAIN TEST", "a f g r", "a f g")]
    swapped, report = swap_net(HEAD + text, regions=True)
    assert [(row.became, row.reason) for row in report.rows if row.kind in ("Flatten", "Reshape")] == [
        ("OclFlatten", ""), ("OclReshape", ""), ("", "no OpenCL counterpart"),
    ]  # fmt: skip
    assert swap_back(swapped)[0] == HEAD + text
    _, alone = swap_net(HEAD + text)
    assert [row.became for row in alone.rows if row.kind in ("Flatten", "Reshape")] == ["", "", ""]


def expression(name: str, bottom: str, text: str) -> str:
    more = f"python_param {{ module: 'clgraft.caffe_layers' layer: 'OclPointwise' param_str: {text} }}"
    return op("Python", name, bottom, more=more)


def test_expressions_join_regions():
    text = conv("a", "data") + expression("e", "a", """'{"forward": ' "\\"y0 = 2 * x0;\\"}" """) + op("ReLU", "r", "e")
    assert regions_of(text) == [("TRAIN TEST", "a e r", "a e")]
    swapped, _ = swap_net(HEAD + text, regions=True)
    (layer,) = [x for x in Document(swapped).root.messages("layer") if x.text("name") == "e"]
    param_str = layer.messages("python_param")[0].text("param_str")
    assert without_marks(param_str) == '{"forward": "y0 = 2 * x0;"}'
    mark = read_mark(param_str, "TEST")
    assert mark is not None and (mark.place, mark.count, mark.tops) == (1, 3, ("e",))
    assert swap_back(swapped)[0] == HEAD + text
    alone = expression("e", "data", """'{"forward": "y0 = x0;"}'""")
    assert swap_net(HEAD + alone, regions=True)[0] == HEAD + alone
    assert swap_net(swapped, regions=True)[0] == swapped


def test_a_layer_of_caffes_that_reads_nothing_of_a_region_does_not_end_it():
    text = conv("a", "data") + op("Im2col", "f", "label") + op("ReLU", "r", "a") + op("Eltwise", "s", "r f")
    assert regions_of(text) == [("TRAIN TEST", "a r s", "a r")]


def test_a_layer_of_caffes_in_place_ends_a_region_that_has_read_the_blob():
    text = conv("a", "data") + op("Split", "f", "data", "data") + op("ReLU", "r", "a") + conv("b", "r")
    assert regions_of(text) == [("TRAIN TEST", "r b", "r")]
    assert ends_of(text) == [""]


def test_a_value_that_is_read_outside_is_not_read_inside():
    """Caffe adds the gradients of a blob's readers: a region cannot know the part of a reader outside of it."""
    text = (
        conv("a", "data") + op("ReLU", "r", "a") + conv("b", "r") + conv("c", "b")
        + op("Eltwise", "s", "c r") + op("Im2col", "f", "b") + conv("d", "s")
    )  # fmt: skip
    # b is read by c and by the Im2col; so r, which is read on both sides of the cut, ends a region as well
    assert regions_of(text) == [("TRAIN TEST", "a r", "a"), ("TRAIN TEST", "c s", "c")]


def test_kept_blobs_end_regions():
    text = conv("a", "data") + op("ReLU", "r", "a", "a") + conv("b", "a") + conv("c", "b") + conv("d", "c")
    assert regions_of(text, keep=["b"]) == [("TRAIN TEST", "a r b", "a"), ("TRAIN TEST", "c d", "c")]
    assert regions_of(text, keep="a") == [("TRAIN TEST", "a r", ""), ("TRAIN TEST", "b c d", "b c")]
    assert regions_of(text, keep=["[bd]"]) == [("TRAIN TEST", "a r b", "a"), ("TRAIN TEST", "c d", "c")]
    _, report = swap_net(HEAD + text, regions=True, keep=["b", "nothing*"])
    assert report.notes == ["no blob matches nothing*"]


def test_losses_are_visible():
    text = conv("a", "data") + op("EuclideanLoss", "l", "a label") + op("Power", "p", "l") + op("Power", "q", "p")
    assert regions_of(text) == [("TRAIN TEST", "a l", "a"), ("TRAIN TEST", "p q", "p")]
    weighted = conv("a", "data") + op("Reduction", "m", "a", more="loss_weight: 0.5") + op("Power", "p", "m")
    assert regions_of(weighted) == [("TRAIN TEST", "a m", "a")]


def runs_of(text: str, **choice: object) -> list:
    """Return, for each layer that is in a region, the layer that runs it."""
    layers = Document(swap_net(HEAD + text, regions=True, **choice)[0]).root.messages("layer")
    found = []
    for layer in layers:
        texts = [parameters.text("param_str") for parameters in layer.messages("python_param")]
        mark = read_mark(texts[0], "TRAIN") if texts else None
        if mark:
            region = [other.text("name") for other in layers if other.text("name") == mark.region]
            names = [other.text("name") for other in layers]
            found.append(names[names.index(region[0]) + mark.runs])
    return found


TWO_LOSSES = (
    conv("a", "data") + conv("b", "a") + op("SoftmaxWithLoss", "l", "b label")
    + conv("c", "a") + op("SoftmaxWithLoss", "m", "c label") + op("ReLU", "r", "c")
)  # fmt: skip


def test_the_first_loss_runs_a_region():
    assert regions_of(TWO_LOSSES) == [("TRAIN TEST", "a b l c m r", "a b c")]
    assert runs_of(TWO_LOSSES) == ["l"] * 6
    assert runs_of(conv("a", "data") + op("ReLU", "r", "a")) == ["r"] * 2
    weighted = conv("a", "data") + op("Reduction", "s", "a", more="loss_weight: [-2]") + op("ReLU", "r", "a")
    assert runs_of(weighted) == ["s"] * 3


def test_after_a_loss_a_layer_of_caffes_ends_a_region():
    """What it writes may be read further on, and would not be there when the loss runs the region."""
    text = conv("a", "data") + op("SoftmaxWithLoss", "l", "a label") + op("Im2col", "f", "label")
    assert regions_of(text + op("ReLU", "r", "data") + op("Eltwise", "s", "r f")) == [
        ("TRAIN TEST", "a l", "a"), ("TRAIN TEST", "r s", "r"),
    ]  # fmt: skip
    assert ends_of(text + op("ReLU", "r", "data") + op("TanH", "s", "r"))[0] == "f (Im2col) follows the loss l"
    assert ends_of(text) == [""]


def test_a_value_with_several_readers_outside_ends_a_region():
    """Caffe's Split adds their gradients up, and stands right after the layer of the value."""
    text = conv("a", "data") + op("ReLU", "r", "a") + op("TanH", "t", "data") + op("Power", "p", "t")
    once = text + op("Im2col", "f", "r")
    assert regions_of(once) == [("TRAIN TEST", "a r t p", "a t")]
    assert regions_of(once + op("Im2col", "g", "r")) == [("TRAIN TEST", "a r", "a"), ("TRAIN TEST", "t p", "t")]
    weighted = once.replace('top: "r"', 'top: "r" loss_weight: 1')
    assert regions_of(weighted) == [("TRAIN TEST", "a r", "a"), ("TRAIN TEST", "t p", "t")]


@pytest.mark.parametrize("native", [False, True])
def test_a_loss_without_a_top_joins_a_region(native):
    """Caffe makes it a top without a name; the swap writes one."""
    text = conv("a", "data") + 'layer { name: "a" type: "SoftmaxWithLoss" bottom: "a" bottom: "label" }\n'
    swapped, report = swap_net(HEAD + text, regions=True, native=native)
    assert [region.layers for region in report.regions] == [["a", "a"]]
    last = Document(swapped).root.messages("layer")[-1]
    mark = read_mark(last.messages("python_param")[0].text("param_str"), "TRAIN")
    assert (mark.tops, mark.shows, mark.runs) == (("a_loss",), (True,), 1) and last.text("top") == "a_loss"
    assert swap_back(swapped)[0] == HEAD + text


def test_labels_of_cpp_layers_have_no_gradient_even_if_it_is_forced():
    """Caffe asks its own losses which of their bottoms may be forced, and those of C++ layers; not Python layers."""
    for native, expected in ((False, True), (True, False)):
        swapped, _ = swap_net("force_backward: true " + HEAD + CHAIN, regions=True, native=native)
        last = Document(swapped).root.messages("layer")[-1].messages("python_param")[0]
        assert read_mark(last.text("param_str"), "TRAIN").back == (True, expected)


def test_a_mark_of_another_version_is_refused():
    line = write_marks({"TRAIN": Mark("a", 0, 2, 1, ("x",), ("y",), (True,), (False,), (True,))})[0]
    with pytest.raises(
        ProblemError, match=r"\[region\] got a mark with region, .*, expected .* runs.*swap the net again"
    ):
        read_mark(line.replace('"runs": 1, ', ""), "TRAIN")


def test_phases_have_regions_of_their_own():
    text = (
        conv("a", "data") + op("ReLU", "r", "a", "a") + conv("b", "a")
        + op("Accuracy", "acc", "b label", more="include { phase: TEST }")
        + op("SoftmaxWithLoss", "loss", "b label")
    )  # fmt: skip
    assert regions_of(text) == [("TRAIN", "a r b loss", "a b"), ("TEST", "a r b", "a")]
    swapped, _ = swap_net(HEAD + text, regions=True)
    layer = Document(swapped).root.messages("layer")[3]
    mark = layer.messages("python_param")[0].text("param_str")
    assert read_mark(mark, "TRAIN").shows == (False,) and read_mark(mark, "TEST").shows == (True,)
    excluded = conv("a", "data") + op("ReLU", "r", "a", more="exclude { phase: TRAIN }")
    assert regions_of(excluded) == [("TEST", "a r", "a")]


@pytest.mark.parametrize("more", ["include { stage: 'x' }", "exclude { min_level: 2 }", "phase: TEST"])
def test_layers_that_may_be_missing_join_nothing(more):
    assert regions_of(conv("a", "data") + op("ReLU", "r", "a", more=more) + conv("b", "a")) == []


def test_only_chosen_layers_join():
    assert regions_of(CHAIN, exclude=["r"]) == [("TRAIN TEST", "b loss", "b")]
    assert regions_of(CHAIN, types=["Convolution"]) == []


def test_gradients_are_expected_where_something_learns():
    swapped, _ = swap_net(
        HEAD
        + conv("a", "data", "param { lr_mult: 0 } param { lr_mult: 0 }") + op("ReLU", "r", "a")
        + conv("b", "r") + op("Eltwise", "s", "b r") + op("Power", "p", "s", more="propagate_down: false"),
        regions=True,
    )  # fmt: skip
    texts = [layer.messages("python_param") for layer in Document(swapped).root.messages("layer")]
    marks = [read_mark(text[0].text("param_str"), "TRAIN") for text in texts if text]
    assert [mark.back for mark in marks] == [(False,), (False,), (False,), (True, False), (False,)]
    forced, _ = swap_net("force_backward: true " + HEAD + CHAIN, regions=True)
    texts = [layer.messages("python_param") for layer in Document(forced).root.messages("layer")]
    marks = [read_mark(text[0].text("param_str"), "TRAIN") for text in texts if text]
    assert all(all(mark.back) for mark in marks)


def test_tops_that_are_overwritten_outside_are_marked():
    swapped, _ = swap_net(
        HEAD + conv("a", "data") + op("ReLU", "r", "a") + op("Dropout", "d", "r", "r"), exclude=["d"], regions=True
    )
    layer = Document(swapped).root.messages("layer")[2]
    mark = read_mark(layer.messages("python_param")[0].text("param_str"), "TEST")
    assert (mark.shows, mark.changes) == ((True,), (True,))


def test_marks_survive_their_text():
    mark = Mark("a \"b\" 'c' \\ ü", 1, 3, 2, ("x",), ("y", "y\u0301"), (True, False), (False, False), (True,))
    other = Mark("d", 0, 2, 1, (), ("z",), (True,), (False,), ())
    lines = write_marks({"TRAIN": mark, "TEST": other})
    text = "\n".join(["type: 'ReLU'", *lines])
    assert (read_mark(text, "TRAIN"), read_mark(text, "TEST")) == (mark, other)
    assert len(write_marks({"TRAIN": mark, "TEST": mark})) == 1
    assert write_marks({}) == [] and read_mark("type: 'ReLU'", "TRAIN") is None


@pytest.mark.parametrize("style", STYLES)
def test_the_way_back_restores_every_byte(style):
    text = small(style)
    swapped, report = swap_net(text, regions=True)
    assert report.regions
    assert swap_back(swapped)[0] == text
    members = [name for region in report.regions for name in region.layers]
    assert set(members) <= {row.name for row in report.swapped}


def test_a_solvers_nets_get_regions(tmp_path):
    (tmp_path / "net.prototxt").write_text(HEAD + CHAIN)
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt"\nbase_lr: 1\n')
    target = tmp_path / "solver_ocl.prototxt"
    (report,) = swap_file(tmp_path / "solver.prototxt", target, regions=True, keep="b", root=tmp_path)
    assert [region.layers for region in report.regions] == [["a", "r", "b"]]
    assert (tmp_path / "net_ocl.prototxt").read_text() == swap_net(HEAD + CHAIN, regions=True, keep=["b"])[0]
    assert "region a to b: 3 layers; not on the host: a; ends there because b stays on the host" in str(report)


def test_a_net_inside_of_a_solver_gets_regions(tmp_path):
    (tmp_path / "solver.prototxt").write_text(f"net_param {{ {HEAD}{CHAIN} }}\nbase_lr: 1\n")
    target = tmp_path / "solver_ocl.prototxt"
    (report,) = swap_file(tmp_path / "solver.prototxt", target, regions=True, keep=["none"])
    assert [region.layers for region in report.regions] == [["a", "r", "b", "loss"]]
    assert "no blob matches none" in report.notes
    assert target.read_text().count("# clgraft region TRAIN TEST") == 4
