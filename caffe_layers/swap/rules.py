"""Rules: which of Caffe's layers have an OpenCL counterpart, and which layers of a net the user chose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clgraft.caffe_layers.prototxt import Message
from clgraft.core.errors import ClgraftError, hint
from clgraft.core.selection import Selection

MODULE = "clgraft.caffe_layers"


class SwapError(ClgraftError, ValueError):
    """A net or a choice of layers that cannot be swapped."""


@dataclass(frozen=True)
class Rule:
    """How a type is replaced: the class, one or two fields with its parameters, whether it is a loss, and of labels."""

    layer: str
    parameters: str = ""
    more: str = ""
    loss: bool = False
    labels: bool = False  # bottom 1 has no gradient


RULES = {
    "Convolution": Rule("OclConvolution", "convolution_param"),
    # the types of the two depthwise forks, which stock Caffe does not know
    "DepthwiseConvolution": Rule("OclDepthwiseConvolution", "convolution_param"),
    "ConvolutionDepthwise": Rule("OclDepthwiseConvolution", "convolution_param"),
    "Deconvolution": Rule("OclDeconvolution", "convolution_param"),
    "InnerProduct": Rule("OclInnerProduct", "inner_product_param"),
    "BatchNorm": Rule("OclBatchNorm", "batch_norm_param"),
    "Pooling": Rule("OclPooling", "pooling_param"),
    "Scale": Rule("OclScale", "scale_param"),
    "Bias": Rule("OclBias", "bias_param"),
    "ReLU": Rule("OclReLU", "relu_param"),
    "PReLU": Rule("OclPReLU", "prelu_param"),
    "ELU": Rule("OclELU", "elu_param"),
    "Sigmoid": Rule("OclSigmoid", "sigmoid_param"),
    "TanH": Rule("OclTanH", "tanh_param"),
    "AbsVal": Rule("OclAbsVal"),
    "Power": Rule("OclPower", "power_param"),
    "Exp": Rule("OclExp", "exp_param"),
    "Log": Rule("OclLog", "log_param"),
    "BNLL": Rule("OclBNLL"),
    "Swish": Rule("OclSwish", "swish_param"),
    "Clip": Rule("OclClip", "clip_param"),
    "Threshold": Rule("OclThreshold", "threshold_param"),
    "Dropout": Rule("OclDropout", "dropout_param"),
    "Concat": Rule("OclConcat", "concat_param"),
    "Slice": Rule("OclSlice", "slice_param"),
    "Crop": Rule("OclCrop", "crop_param"),
    "Tile": Rule("OclTile", "tile_param"),
    "Reduction": Rule("OclReduction", "reduction_param"),
    # layers of the SSD fork and others, which stock Caffe lacks
    "Permute": Rule("OclPermute", "permute_param"),
    "Normalize": Rule("OclNormalize", "norm_param"),
    "Eltwise": Rule("OclEltwise", "eltwise_param"),
    "LRN": Rule("OclLRN", "lrn_param"),
    "MVN": Rule("OclMVN", "mvn_param"),
    "Softmax": Rule("OclSoftmax", "softmax_param"),
    "SoftmaxWithLoss": Rule("OclSoftmaxWithLoss", "loss_param", "softmax_param", loss=True, labels=True),
    "SigmoidCrossEntropyLoss": Rule(
        "OclSigmoidCrossEntropyLoss", "loss_param", "sigmoid_param", loss=True, labels=True
    ),
    "EuclideanLoss": Rule("OclEuclideanLoss", "loss_param", loss=True),
}

# Caffe's own share their bottom's memory: these are replaced inside of regions alone, which they would end
VIEWS = {
    "Flatten": Rule("OclFlatten", "flatten_param"),
    "Reshape": Rule("OclReshape", "reshape_param"),
}
NO_COUNTERPART = "no OpenCL counterpart"

OWN = ("OclPointwise", "OclAdaptiveMaxPooling")  # no types of Caffe's: their param_str is the user's own
# types of Caffe and its forks that are layers of nets without Caffe, and Python layers by hand, but which nothing swaps
UNSWAPPED = (
    *("OclArgMax", "OclBatchReindex", "OclContrastiveLoss", "OclEmbed", "OclHingeLoss", "OclIm2col"),
    *("OclInfogainLoss", "OclLSTM", "OclLSTMUnit", "OclMultinomialLogisticLoss", "OclParameter", "OclRNN", "OclSPP"),
    *("OclAxpy", "OclBN", "OclDetectionOutput", "OclInterp", "OclPriorBox", "OclROIPooling", "OclReLU6"),
    *("OclShuffleChannel", "OclUpsample"),
)
# their fields, which are not Caffe's
FOREIGN = (
    *("bn_param", "detection_output_param", "interp_param", "prior_box_param", "relu6_param", "roi_pooling_param"),
    *("shuffle_channel_param", "upsample_param"),
)
OURS = frozenset(rule.layer for rule in (*RULES.values(), *VIEWS.values()))


def rule_for(layer: Message, views: bool = False) -> Rule | None:
    """Return the rule for a layer, None if it has no counterpart; those of `VIEWS` have one if `views` are wanted.

    A convolution with as many groups as outputs goes to the depthwise class. Whether its inputs are as many too
    only shapes tell; that class computes any group count, so both outcomes are right.
    """
    kind = layer.text("type")
    if kind == "Convolution":
        for parameters in layer.messages("convolution_param"):
            group = parameters.text("group", "1")
            if group != "1" and group == parameters.text("num_output"):
                return Rule("OclDepthwiseConvolution", "convolution_param")
    return RULES.get(kind) or (VIEWS.get(kind) if views else None)


def choose(
    types: Iterable[str] | None = None,
    names: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
) -> Selection:
    """Return the user's choice of layers.

    Parameters
    ----------
    types : iterable of str, optional
        Native types, in any case. All that have a counterpart by default.
    names : iterable of str, optional
        Names of layers or shell patterns of names. All by default.
    exclude : iterable of str, optional
        Names, patterns of names or types that stay native.

    Raises
    ------
    SwapError
        When a type has no counterpart.
    """
    chosen = Selection(types, names, exclude, noun="layer")
    known = {kind.lower() for kind in RULES}
    for kind in chosen.types or ():
        if kind.lower() not in known:
            raise SwapError(f"[swap] got type {kind}, expected one of {', '.join(RULES)}{hint(kind, RULES)}")
    return chosen
