"""Whole nets, native against swapped in a real Caffe: outputs, the input's gradient and every parameter's."""

from __future__ import annotations

import pytest

caffe = pytest.importorskip("caffe", reason="Caffe is not installed for this Python")

from clgraft.caffe_layers.swap import swap_back, swap_net
from tests.caffe_layers import net_comparison
from tests.caffe_layers.net_comparison import compare_nets
from tests.caffe_layers.net_styles import STYLES, full, small

REGIONS = [pytest.param(style, True, id=f"{style}-regions") for style in ("googlenet", "mobilenet_v1", "ssd")]


@pytest.mark.parametrize("style, regions", [*(pytest.param(style, False, id=style) for style in STYLES), *REGIONS])
def test_swapped_nets_compute_the_same(style, regions, tmp_path):
    compared = compare_nets(small(style), str(tmp_path / "native.caffemodel"), regions=regions)
    assert not compared.failures
    assert bool(compared.report.regions) == regions
    assert [row.kind for row in compared.report.left if row.kind not in ("Input", "Flatten")] == []


def test_a_wrong_layer_is_noticed(tmp_path, monkeypatch):
    def wrong(text, **choice):
        swapped, report = swap_net(text, **choice)
        assert "beta: 0.75" in swapped
        return swapped.replace("beta: 0.75", "beta: 0.76", 1), report

    monkeypatch.setattr(net_comparison, "swap_net", wrong)
    assert compare_nets(small("caffenet"), str(tmp_path / "native.caffemodel")).failures


@pytest.mark.parametrize("style", STYLES)
def test_nets_of_full_size_come_back_to_the_byte(style):
    text = full(style)
    swapped, report = swap_net(text)
    assert report.swapped and swapped != text
    assert swap_back(swapped)[0] == text


@pytest.mark.parametrize("style", ["alexnet", "squeezenet", "fcn"])
def test_caffe_takes_swapped_nets_of_full_size(style, tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(swap_net(full(style))[0])
    net = caffe.Net(str(path), caffe.TEST)
    assert net.blobs["loss"].data.shape == ()
