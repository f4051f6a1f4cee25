"""`resident`: modules whose parameters, gradients and optimizer states stay on a device with memory of its own."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from clgraft import core
from clgraft.core import ProblemError
from clgraft.mxnet_ops.engine.residents import AVAILABLE, resident_of
from clgraft.mxnet_ops.training.executor import ResidentExecutor, Stay
from clgraft.mxnet_ops.training.update import unserved, unserved_type
from clgraft.mxnet_ops.training.updater import ResidentUpdater


def resident(module: Any) -> Any:
    """Have a module keep parameters, gradients, statistics and optimizer states on a device with memory of its own.

    They come to the host when they are asked for: `get_params`, `save_checkpoint`, `save_optimizer_states` and whatever
    else reads the module's arrays sees the true values. On devices that use the host's memory only ``sgd``, ``nag`` and
    ``adam`` become this package's.

    Parameters
    ----------
    module : mx.mod.Module
        Of a swapped symbol; bound or not.

    Returns
    -------
    mx.mod.Module
        The same module, of a class that has the property `host` too: the parameters and auxiliary states that are in
        the host's memory, with the reason.

    Raises
    ------
    ProblemError
        If it is no `Module`, such as a `BucketingModule`.

    Examples
    --------
    >>> swapped, report = swap_symbol(symbol, regions=True)
    >>> module = clgraft.mxnet_ops.resident(mx.mod.Module(swapped))
    >>> module.fit(batches, optimizer="sgd", optimizer_params={"learning_rate": 0.1, "momentum": 0.9}, num_epoch=2)
    """
    if not isinstance(module, mx.mod.Module):
        raise ProblemError(f"[resident] got a {type(module).__name__}, expected a Module of one symbol")
    if not isinstance(module, ResidentModule):
        module.__class__ = _class_of(type(module))
        module._stay, module._reason = None, ""
        if module.binded:
            module._arrange()
        if module.optimizer_initialized:
            module._take_optimizer()
    return module


class ResidentModule(mx.mod.Module):  # type: ignore[misc]
    """What `resident` makes of modules: see there."""

    _stay: Stay | None
    _reason: str
    _updater: Any

    @property
    def host(self) -> dict[str, str]:
        """The parameters and auxiliary states that are in the host's memory, with the reason."""
        names = (*self._param_names, *self._aux_names)
        if not self.binded:
            return dict.fromkeys(names, "the module is not bound")
        executor = self._exec_group.execs[0]
        arrays = {**executor.arg_dict, **executor.aux_dict}
        left = self._reason or (self._stay.left if self._stay else "")
        found = {name: left or self._why_alone(name, executor) for name in names if not resident_of(arrays[name])}
        return {name: reason or "an operator outside of regions reads it" for name, reason in found.items()}

    def bind(self, *args: Any, **kwargs: Any) -> None:
        """Bind the symbol; as MXNet's method of this name."""
        before = self._exec_group
        super().bind(*args, **kwargs)
        if self._exec_group is not before:
            shared = kwargs.get("shared_module") or (args[5] if len(args) > 5 else None)
            self._arrange("it shares its arrays with another module" if shared else "")
            if self.optimizer_initialized:
                self._take_optimizer()

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Make the optimizer; as MXNet's method of this name."""
        if isinstance(optimizer, str) and f"ocl_{optimizer.lower()}" in mx.optimizer.Optimizer.opt_registry:
            optimizer = f"ocl_{optimizer.lower()}"
        before = self._updater
        super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        if self._updater is not before or self._updater is None:
            self._take_optimizer()

    def borrow_optimizer(self, shared_module: Any) -> None:
        """Take another module's optimizer; as MXNet's method of this name."""
        super().borrow_optimizer(shared_module)
        self._take_optimizer()

    def _arrange(self, reason: str = "") -> None:
        """Have the parameters of new executors on the device."""
        self._stay, self._reason = None, reason or self._why_host()
        if self._reason:
            return
        executor = self._exec_group.execs[0]
        names = [name for name in (*self._param_names, *self._aux_names) if not self._why_alone(name, executor)]
        stay = Stay(executor, names, self._exec_group.grad_req)
        if stay.residents:
            self._stay = stay
            ResidentExecutor.made(executor, stay)

    def _take_optimizer(self) -> None:
        """Have the optimizer's updates on the device, or the parameters back on the host."""
        if self._stay is None or self._stay.left:
            return
        reason = "a key-value store has them" if self._kvstore is not None else unserved(self._optimizer)
        if not reason:
            learned = (one for one in self._stay.residents.values() if one.request != "null")
            reason = next(filter(None, (unserved_type(self._optimizer, one.dtype) for one in learned)), "")
        if reason:
            self._stay.leave(reason)
        else:
            self._updater = ResidentUpdater(self._updater)

    def _why_host(self) -> str:
        """Return why all parameters are in the host's memory; empty if they are not."""
        if core.context().device.host_access != "staged":
            return "the device uses the host's memory"
        if not AVAILABLE:
            return "this build of MXNet has arrays of Cython"
        if len(self._context) != 1 or self._context[0].device_type != "cpu":
            return f"they are on {self._context}"
        if self._exec_group.execs[0]._monitor_callback is not None:
            return "a monitor reads them"
        return "group2ctxs places them" if self._group2ctxs else ""

    def _why_alone(self, name: str, executor: Any) -> str:
        """Return why one is in the host's memory; empty if it is not, or if something else reads it."""
        array = executor.arg_dict.get(name, executor.aux_dict.get(name))
        gradient = executor.grad_dict.get(name)
        if array.stype != "default" or (gradient is not None and gradient.stype != "default"):
            return "it is sparse"
        dtype = np.dtype(array.dtype).name
        return "" if dtype in ("float32", "float16") else f"it is {dtype}"


_classes: dict[Any, type] = {mx.mod.Module: ResidentModule}


def _class_of(kind: Any) -> type:
    """Return the class of modules that was another one's."""
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (ResidentModule, kind), {})
    return _classes[kind]
