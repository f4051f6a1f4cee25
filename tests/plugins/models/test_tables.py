"""The tables of docs/models.md say what sessions run."""

from __future__ import annotations

import pytest

from clgraft.caffe_layers.nets.net import CaffeNet, read_net
from clgraft.core.errors import ClgraftError
from clgraft.core.model import UnsupportedOperators
from clgraft.plugins.models.bare import bare
from tests.plugins.models import tables


@pytest.mark.parametrize("name", tables.TABLES)
def test_the_page_holds_the_table(name) -> None:
    with bare("clgraft.mxnet_ops"):
        found = tables.table(name)
    assert found in tables.PAGE.read_text(encoding="utf-8"), "run python -m tests.plugins.models.tables"


def test_a_session_runs_the_layers_of_the_table_and_no_others() -> None:
    runs, forks, trained, refused = tables.layers().values()
    for kind in (*runs, *forks, *trained, *refused):
        text = f'input: "x" input_shape {{ dim: 1 }} layer {{ name: "y" type: "{kind}" bottom: "x" top: "y" }}'
        if kind == "Input":
            text = text.replace(" }", " input_param { shape { dim: 1 } } }").replace('bottom: "x"', "")
        try:
            CaffeNet(read_net(text.encode()))
            served = True
        except UnsupportedOperators:
            served = False
        except ClgraftError:  # the layer is known, and this net is none for it
            served = True
        assert served == (kind in (*runs, *forks)), kind


def test_gluoncvs_models_have_no_other_operators() -> None:
    """GluonCV 0.10.5's nets for classification, detection, segmentation and pose, without CenterNet."""
    wanted = """Activation BatchNorm BlockGrad Concat Convolution Deconvolution Dropout Embedding Flatten FullyConnected
    LRN LeakyReLU Pad Pooling RNN Reshape SliceChannel SwapAxis UpSampling _arange _contrib_AdaptiveAvgPooling2D
    _contrib_BilinearResize2D _contrib_DeformableConvolution _contrib_ModulatedDeformableConvolution _contrib_ROIAlign
    _contrib_box_decode _contrib_box_nms _contrib_SyncBatchNorm _copy _full _maximum _minimum _minus_scalar _mul_scalar
    _ones _plus_scalar _rminus_scalar _zeros abs add_n batch_dot broadcast_add broadcast_div broadcast_like
    broadcast_mul broadcast_sub clip dot elemwise_add elemwise_mul elemwise_sub exp expand_dims max mean ones_like
    reshape_like sigmoid slice slice_axis slice_like softmax sqrt squeeze stack sum tanh tile topk transpose where
    zeros_like ROIPooling take argsort gather_nd repeat reverse shape_array"""
    with bare("clgraft.mxnet_ops"):
        swapped, inner, _ = tables.operators().values()
    assert set(wanted.split()) - {*swapped, *inner} == set()
