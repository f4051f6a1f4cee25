"""Finds out what a model is, and prepares it for a device."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Union

from clgraft.core.files import FileError
from clgraft.core.model import ModelError, Session, expect_precision
from clgraft.plugins.models.bare import bare
from clgraft.plugins.models.loaded import LoadedSession
from clgraft.plugins.plugin import PluginError

File = Union[str, "os.PathLike[str]"]
KINDS = "an ONNX model's .onnx, an MXNet symbol's .json, or a Caffe net's .prototxt"


def load(path: File, weights: File | None = None, device: str | None = None, precision: str | None = None) -> Session:
    """Return a session for a model of any kind, without its framework.

    Parameters
    ----------
    path : path
        An ONNX model (``.onnx``), a symbol of MXNet (``-symbol.json``), or a net of Caffe for predictions
        (``deploy.prototxt``).
    weights : path, optional
        The parameters of a net of Caffe (``.caffemodel``), or of a symbol (``.params``), as `Module.save_checkpoint`,
        `HybridBlock.export`, `HybridBlock.save_parameters` and `mxnet.nd.save` write them. Those of a symbol are by
        default what lies next to it, ``NAME-0000.params`` for ``NAME-symbol.json``, if there is one such file.
    device : str, optional
        As `clgraft.core.context` takes it; by default ``CLGRAFT_DEVICE`` or the best device.
    precision : str, optional
        ``float16`` or ``bfloat16``: products of float32 are computed in 16 bits, and what rounding would spoil in
        float32; inputs, outputs and parameters stay float32. ``float32``: they are not, whatever ``CLGRAFT_PRECISION``
        says. For a symbol, ``float16``, ``float32`` and ``float64`` are the type in which its real numbers travel, as
        ``net.cast`` makes it; by default that of the files.

    Returns
    -------
    Session
        `run` takes arrays by the inputs' names and returns arrays by those of the outputs.

    Raises
    ------
    ClgraftError
        If the files cannot be read, are damaged, do not fit each other, or have operators that clgraft does not run:
        the text lists them.

    Examples
    --------
    >>> session = clgraft.load("resnet50-symbol.json", "resnet50-0000.params")
    >>> session.run({"data": images})["softmax_output"]
    """
    expect_precision("load", precision)
    file = Path(path)
    if file.suffix == ".onnx":
        return _onnx(file, weights, device, precision)
    if file.suffix == ".json":
        return _mxnet(file, weights, device, precision)
    if file.suffix == ".prototxt":
        return _caffe(file, weights, device, precision)
    raise FileError(f"[load] got {file}, expected a model: {KINDS}")


def _onnx(file: Path, weights: File | None, device: str | None, precision: str | None) -> Session:
    if weights is not None:
        raise ModelError(f"[load] got weights {os.fspath(weights)} for {file}, expected none: the model has them")
    if precision == "float64":
        raise ModelError(f"[load] got precision {precision!r} for {file}, expected one that is mixed with float32")
    try:
        from clgraft.plugins.onnx.session import Session as OnnxSession
    except ImportError as error:
        raise PluginError(f"[load] onnx is needed to read {file} and cannot be imported: {error}") from None
    return OnnxSession(file, device, precision=precision)


def _mxnet(file: Path, weights: File | None, device: str | None, precision: str | None) -> Session:
    with bare("clgraft.mxnet_ops"):
        from clgraft.mxnet_ops.symbols.lowering import SymbolNet
        from clgraft.mxnet_ops.symbols.params import read_named
        from clgraft.mxnet_ops.symbols.structural import by_structure, is_structural
        from clgraft.mxnet_ops.symbols.symbol import read_symbol
    symbol = read_symbol(file)
    found = _params_of(file) if weights is None else Path(weights)
    parameters = {} if found is None else read_named(found)
    if is_structural(symbol, parameters):
        parameters = by_structure(symbol, parameters)
    mixed = "bfloat16" if precision == "bfloat16" else None
    return LoadedSession(SymbolNet(symbol, parameters, None if mixed else precision), device, precision=mixed)


def _caffe(file: Path, weights: File | None, device: str | None, precision: str | None) -> Session:
    if precision == "float64":
        raise ModelError(f"[load] got precision {precision!r} for {file}, expected float32, which nets of Caffe have")
    from clgraft.caffe_layers.nets.net import CaffeNet, read_net
    from clgraft.caffe_layers.nets.weights import read_caffemodel

    net = read_net(file)
    blobs = [] if weights is None else read_caffemodel(weights)
    return LoadedSession(CaffeNet(net, blobs), device, precision=precision)


def _params_of(symbol: Path) -> Path | None:
    """Return the parameters next to a symbol; None if there are none.

    Raises
    ------
    ModelError
        If there are several.
    """
    name = symbol.name[: -len("-symbol.json")] if symbol.name.endswith("-symbol.json") else symbol.stem
    pattern = re.compile(rf"{re.escape(name)}(-\d{{4,}})?\.params")
    try:
        found = sorted(each for each in symbol.parent.iterdir() if pattern.fullmatch(each.name))
    except OSError as error:
        raise ModelError(f"[load] got {symbol}, whose folder cannot be read: {error.strerror}") from None
    if len(found) > 1:
        raise ModelError(
            f"[load] got {symbol} next to {[each.name for each in found]}, expected one of them as weights"
        )
    return found[0] if found else None
