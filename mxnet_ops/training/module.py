"""`resident`: modules with parameters, gradients and optimizer states on a device with memory of its own."""

from __future__ import annotations

import contextlib
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
    module : mx.mod.Module, mx.mod.BucketingModule or mx.mod.SequentialModule
        Of swapped symbols; bound or not. Buckets share what is on the device.

    Returns
    -------
    mx.mod.BaseModule
        The same module, of a class that has the property `host` too: the parameters and auxiliary states that are in
        the host's memory, with the reason.

    Raises
    ------
    ProblemError
        If it is none of these, such as a `PythonModule`.

    Examples
    --------
    >>> swapped, report = swap_symbol(symbol, regions=True)
    >>> module = clgraft.mxnet_ops.resident(mx.mod.Module(swapped))
    >>> module.fit(batches, optimizer="sgd", optimizer_params={"learning_rate": 0.1, "momentum": 0.9}, num_epoch=2)
    """
    kinds = [kind for kind in _KINDS if isinstance(module, kind)]
    if not kinds:
        raise ProblemError(
            f"[resident] got a {type(module).__name__}, expected a Module, a BucketingModule or a SequentialModule"
        )
    if not isinstance(module, _KINDS[kinds[0]]):
        module.__class__ = _class_of(type(module), _KINDS[kinds[0]])
        module._begin()
    return module


class ResidentModule(mx.mod.Module):  # type: ignore[misc]
    """What `resident` makes of modules: see there."""

    _stay: Stay | None
    _reason: str
    _updater: Any

    def _begin(self, shared: Any = None) -> None:
        """Have a module that was one of MXNet's until now keep its arrays on the device."""
        self._stay, self._reason = None, ""
        if self.binded:
            self._arrange(shared)
        if self.optimizer_initialized and shared is not None and shared.optimizer_initialized:
            self.borrow_optimizer(shared)  # whose updater is another one now
        elif self.optimizer_initialized:
            self._take_optimizer()

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
        shared = kwargs.get("shared_module") or (args[5] if len(args) > 5 else None)
        with _lent(shared):
            super().bind(*args, **kwargs)
        if self._exec_group is not before:
            self._arrange(shared)
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

    def _arrange(self, shared: Any = None) -> None:
        """Have the parameters of new executors on the device; with `shared`, where those of that module are."""
        group, requests = self._exec_group, self._exec_group.grad_req
        executor, self._stay, self._reason = group.execs[0], None, self._why_host()
        if shared is not None and not isinstance(shared, ResidentModule):
            self._reason = self._reason or "it shares its arrays with another module"
        elif shared is not None and shared._stay is None:
            self._reason = self._reason or shared._reason
        elif shared is not None:
            stay: Any = shared._stay
            self._stay = stay
            if self._reason and not stay.left:
                stay.leave(self._reason)
            if not stay.left:
                stay.join(executor, shared._exec_group.execs[0], requests)
                group._collect_arrays()
        elif not self._reason:
            names = [name for name in (*self._param_names, *self._aux_names) if not self._why_alone(name, executor)]
            made = Stay(executor, names, requests)
            self._stay = made if made.residents else None

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
        elif not isinstance(self._updater, ResidentUpdater):  # which one of a shared module is already
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


class ResidentBuckets(mx.mod.BucketingModule):  # type: ignore[misc]
    """What `resident` makes of modules with buckets, which share what is on the device."""

    _buckets: dict[Any, Any]

    @property
    def host(self) -> dict[str, str]:
        """The parameters and auxiliary states that are in the host's memory, with the reason."""
        return dict(self._buckets[self._default_bucket_key].host)

    def switch_bucket(self, bucket_key: Any, data_shapes: Any, label_shapes: Any = None) -> None:
        """Have another bucket compute; as MXNet's method of this name."""
        new = self.binded and self._prepare(bucket_key)
        super().switch_bucket(bucket_key, data_shapes, label_shapes)
        if new and self._monitor is not None:
            self._buckets[bucket_key].install_monitor(self._monitor)

    def _begin(self) -> None:
        """Have a module that was one of MXNet's until now keep its arrays on the device."""
        self._prepare(self._default_bucket_key)
        default = resident(self._buckets[self._default_bucket_key])
        for bucket in self._buckets.values():
            if bucket is not default:
                bucket.__class__ = _class_of(type(bucket), ResidentModule)
                bucket._begin(default)

    def _reset_bind(self) -> None:
        super()._reset_bind()
        self._prepare(self._default_bucket_key)

    def _prepare(self, bucket_key: Any) -> bool:
        """Make the module of a bucket, which MXNet binds; return False if there is one."""
        if bucket_key in self._buckets:
            return False
        symbol, data_names, label_names = self._call_sym_gen(bucket_key)
        made = mx.mod.Module(
            symbol,
            data_names,
            label_names,
            logger=self.logger,
            context=self._context,
            work_load_list=self._work_load_list,
            fixed_param_names=self._fixed_param_names,
            state_names=self._state_names,
            group2ctxs=self._group2ctxs,
            compression_params=self._compression_params,
        )
        self._buckets[bucket_key] = resident(made)
        return True


class ResidentSequence(mx.mod.SequentialModule):  # type: ignore[misc]
    """What `resident` makes of modules one after the other; those that it does not know stay as they are."""

    _modules: list[Any]

    @property
    def host(self) -> dict[str, str]:
        """The parameters and auxiliary states that are in the host's memory, with the reason."""
        found: dict[str, str] = {}
        for module in self._modules:
            found.update(getattr(module, "host", {}))
        return found

    def add(self, module: Any, **kwargs: Any) -> Any:
        """Add a module at the end; as MXNet's method of this name."""
        return super().add(_resident_if_served(module), **kwargs)

    def _begin(self) -> None:
        """Have modules that were MXNet's until now keep their arrays on the device."""
        for module in self._modules:
            _resident_if_served(module)


_KINDS: dict[Any, Any] = {
    mx.mod.Module: ResidentModule,
    mx.mod.BucketingModule: ResidentBuckets,
    mx.mod.SequentialModule: ResidentSequence,
}
_classes: dict[Any, type] = dict(_KINDS)


def _class_of(kind: Any, resident_kind: Any) -> type:
    """Return the class of modules that was another one's."""
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (resident_kind, kind), {})
    return _classes[kind]


def _resident_if_served(module: Any) -> Any:
    return resident(module) if isinstance(module, tuple(_KINDS)) else module


def _lent(module: Any) -> contextlib.AbstractContextManager[None]:
    """Have MXNet use the executor of a module for one that gets residents too."""
    executor = module._exec_group.execs[0] if isinstance(module, ResidentModule) and module.binded else None
    return executor.lent() if isinstance(executor, ResidentExecutor) else contextlib.nullcontext()
