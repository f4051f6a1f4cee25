"""clgraft as a backend in the sense of `onnx.backend.base`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from clgraft.plugins.onnx.errors import UnsupportedError
from clgraft.plugins.onnx.loading import load
from clgraft.plugins.onnx.session import Session


class ClgraftRep(BackendRep):  # type: ignore[misc]
    """A prepared model."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """Run on the inputs in the model's order, or by name, and return the outputs in order."""
        names = [port.name for port in self.session.inputs]
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        arrays = inputs if isinstance(inputs, dict) else dict(zip(names, inputs))
        results = self.session.run(arrays)
        return tuple(results[port.name] for port in self.session.outputs)


class ClgraftBackend(Backend):  # type: ignore[misc]
    """The interface `onnx.backend.base.Backend`; the device ``CPU`` stands for clgraft's own choice of a device."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether clgraft runs all nodes of a model."""
        try:
            load(model)
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> ClgraftRep:
        """Return a model prepared for a device.

        Raises
        ------
        UnsupportedError
            If it has nodes that clgraft does not run.
        """
        return ClgraftRep(Session(model, None if device == "CPU" else device))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[np.ndarray, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[np.ndarray],
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[np.ndarray, ...]:
        """Run one node of the newest opset on arrays."""
        helper = onnx.helper
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip((name for name in node.input if name), inputs)
        ]
        types = [info[0] for info in outputs_info] if outputs_info else [inputs[0].dtype] * len(node.output)
        outputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
            for name, dtype in zip(node.output, types)
        ]
        return cls.run_model(helper.make_model(helper.make_graph([node], "node", infos, outputs)), list(inputs), device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether a device of that name can be asked for."""
        return device == "CPU"


prepare = ClgraftBackend.prepare
run_model = ClgraftBackend.run_model
run_node = ClgraftBackend.run_node
supports_device = ClgraftBackend.supports_device
is_compatible = ClgraftBackend.is_compatible
