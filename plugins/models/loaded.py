"""The session of a model that was loaded without its framework, which can also be written as an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from clgraft.core.files import write_whole
from clgraft.core.model import NetSession
from clgraft.plugins.plugin import PluginError


class LoadedSession(NetSession):
    """A session for a model of MXNet or Caffe."""

    def export(
        self,
        path: str | os.PathLike[str] | None = None,
        opset: int = 17,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> bytes:
        """Return the model as an ONNX model, with what trainers have learned, and write it to a file.

        Parameters
        ----------
        path : path, optional
            The file; by default none is written.
        opset : int
            The version of ONNX's operators, 13 to 23.
        shapes : mapping of str to sequence of int, optional
            Shapes of the inputs that the model does not fix. The ONNX model has these shapes, the batch included.

        Notes
        -----
        Inputs, outputs, parameters and values inside keep their names. Operators that clgraft runs as expressions
        become several nodes.

        Raises
        ------
        ClgraftError
            If ONNX has no operators for what the model computes, or the package onnx is missing.
        """
        try:
            from clgraft.plugins.onnx.writing import to_onnx
        except ImportError as error:
            raise PluginError(f"[export] onnx is needed to write a model and cannot be imported: {error}") from None
        trained = None if self._store is None else self._store.all()
        data: bytes = to_onnx(self._net, self.shapes(shapes), opset, trained).SerializeToString()
        if path is not None:
            write_whole(Path(path), data, 0o644)
        return data
