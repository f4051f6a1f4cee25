"""The deconvolution layer: OclDeconvolution."""

from __future__ import annotations

from typing import ClassVar

from clgraft.caffe_layers.layers.convolution import OclConvolution


class OclDeconvolution(OclConvolution):
    """Deconvolution (transposed convolution); blobs w (in, out / group, kernel...) and, with `bias_term`, b (out).

    All of `convolution_param`, as of `OclConvolution`; padding is taken away from the output.
    """

    word: ClassVar[str] = "deconv"
    transposed: ClassVar[bool] = True
