"""What objects show in a console and in a notebook."""

from __future__ import annotations

import html.parser
from pathlib import Path

from clgraft import core
from clgraft.caffe_layers.swap import swap_net
from clgraft.plugins.command_line.check.report import CheckReport
from clgraft.plugins.command_line.check.runner import CheckRow

NETS = Path(__file__).resolve().parent.parent / "caffe_layers" / "nets"
POOL = "pool forward max n1 c2 ih4 iw4 kh2 kw2"


class Cells(html.parser.HTMLParser):
    """The text of an HTML table's cells, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def test_context_and_plan():
    context = core.Context.on(None)
    assert repr(context) == f"Context({context.device}, 0 plans)"
    plan = context.plan(core.parse(POOL))
    assert repr(context) == f"Context({context.device}, 1 plan)"
    assert repr(plan).startswith(f"Plan('{POOL}', algorithm='")
    cells = Cells(context._repr_html_()).cells
    assert POOL in cells and plan.algorithm in cells
    cells = Cells(plan._repr_html_()).cells
    assert cells[:8] == ["argument", "role", "shape", "dtype", "x", "in", "1x2x4x4", "float32"]
    function = context.plan(core.parse("pointwise x0[3] : y0 = x0 < 1 ? x0 : 0"))
    assert "x0 &lt; 1" in function._repr_html_()


def test_a_check():
    rows = [
        CheckRow("<conv>", "y", 0.5, 1.0, seconds=0.001),
        CheckRow("b", "y", 2.0, 1.0),
        CheckRow("c", "y", 0, 1, note="random"),
    ]
    report = CheckReport("a device", rows)
    assert repr(report) == "CheckReport(2 of 3 rows pass on a device)" and not report.passed
    assert str(report).splitlines()[-1] == "2 of 3 rows pass" and "FAIL" in str(report)
    cells = Cells(report._repr_html_()).cells
    assert cells[7:14] == ["pass", "<conv>", "y", "5.0e-01", "1.0e+00", "", "1.000"]
    assert "FAIL" in cells and "random" in cells


def test_a_swapped_net():
    report = swap_net((NETS / "lenet.prototxt").read_text())[1]
    report.source, report.target = "a.prototxt", "b.prototxt"
    assert repr(report) == f"Report(a.prototxt -> b.prototxt: {str(report).splitlines()[-1]})"
    assert {"conv1", "Convolution", "OclConvolution"} <= set(Cells(report._repr_html_()).cells)


def test_a_swapped_symbol():
    import pytest

    mxnet = pytest.importorskip("mxnet")
    from clgraft.mxnet_ops import swap_symbol

    net = mxnet.sym.Activation(mxnet.sym.var("data"), act_type="relu")
    report = swap_symbol(net)[1]
    assert repr(report) == f"Report({str(report).splitlines()[-1]})"
    assert {"Activation", "ocl_activation"} <= set(Cells(report._repr_html_()).cells)
