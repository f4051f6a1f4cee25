"""What the optimizers share: all parameters that C serves in one operation, and the rest by MXNet."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any, Callable, ClassVar, NamedTuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.runtime import Features

from clgraft.core import settings
from clgraft.mxnet_ops.engine.calls import REORDER, VERSIONS, ffi, lib
from clgraft.mxnet_ops.optimizers.numbers import as_mxnet_reads

ALL = 1 << 30  # parameters in one call


def available() -> bool:
    """Return whether C may update this MXNet's arrays."""
    return mx.__version__ in VERSIONS and (not Features().is_enabled("MKLDNN") or hasattr(_LIB, REORDER))


AVAILABLE = available()
SERVED: set[type] = set()  # ours; subclasses of users are pickled as what they are


@functools.cache
def _check_settings() -> None:
    """Check the settings before the first update: C takes a wrong one for none."""
    settings.check()


class Arrays(NamedTuple):
    """A parameter's arrays in the order of `clg_mx_parameter`."""

    weight: Any
    gradient: Any
    master: Any = None
    mean: Any = None
    variance: Any = None

    def handles(self) -> list[int]:
        """Return MXNet's handles; 0 for what is absent."""
        return [0 if array is None else array.handle.value for array in self]


class Update(NamedTuple):
    """How one parameter is updated: a rule of C's and its arrays."""

    kind: int
    mixed: bool
    arrays: Arrays


class Served(mx.optimizer.Optimizer):
    """The first base of our optimizers, in front of MXNet's: its methods take what C serves and leave the rest to that.

    States, and what is pickled, are those of MXNet's optimizer, so that files of either load into the other.
    """

    MXNETS: ClassVar[type]

    @property
    def aggregate_num(self) -> int:
        """How many parameters MXNet hands over at once; what MXNet's optimizer has here is only kept and pickled."""
        return ALL

    @aggregate_num.setter
    def aggregate_num(self, value: int) -> None:
        self.__dict__["aggregate_num"] = value

    @classmethod
    def of(cls, optimizer: Any) -> Any:
        """Return MXNet's optimizer as one of ours, with its settings and counts."""
        made = cls.__new__(cls)
        made.__dict__.update(optimizer.__dict__)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self) not in SERVED:
            return super().__reduce_ex__(protocol)
        made: Any = object.__new__(self.MXNETS)
        made.__dict__.update(self.__dict__)
        return made.__reduce_ex__(1)  # later protocols insist on the class of the object itself

    def __copy__(self) -> Any:
        return self.of(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return made

    def plan_update(self, weight: Any, gradient: Any, state: Any, mixed: bool) -> Update | None:
        """Return the update of a parameter, or None if it is MXNet's."""
        raise NotImplementedError

    def rates(self, indices: Sequence[Any]) -> list[tuple[float, float]]:
        """Return the learning rate and the weight decay of parameters, as MXNet's operator gets them."""
        found = zip(self._get_lrs(indices), self._get_wds(indices))
        return [(as_mxnet_reads(lr), as_mxnet_reads(wd)) for lr, wd in found]

    def numbers(self) -> dict[str, Any]:
        """Return the rule's numbers that are the same for all parameters."""
        clip = self.clip_gradient
        return {
            "rescale": as_mxnet_reads(self.rescale_grad),
            "clip": as_mxnet_reads(clip) if clip else -1,
        }

    def _rule(self, kind: int, mixed: bool) -> Any:
        return ffi.new("clg_mx_rule *", {"kind": kind, "mixed": mixed, **self.numbers()})

    def _count(self, indices: Sequence[Any]) -> list[tuple[float, float]]:
        """Count an update of parameters and return their rates, in MXNet's groups: schedulers see the counts so far."""
        found: list[tuple[float, float]] = []
        size = self.__dict__["aggregate_num"] or 1
        for start in range(0, len(indices), size):
            self._update_count(indices[start : start + size])
            found += self.rates(indices[start : start + size])
        return found

    def _update_served(self, indices: Any, weights: Any, gradients: Any, states: Any, multi_precision: bool) -> None:
        parent: Any = super()
        _check_settings()
        others = parent.update_multi_precision if multi_precision else parent.update
        if not isinstance(indices, (tuple, list)):
            indices, weights, gradients, states = [indices], [weights], [gradients], [states]
        served: dict[tuple[int, bool], list[tuple[Any, list[int]]]] = {}
        rules: dict[tuple[int, bool], Any] = {}
        for index, weight, gradient, state in zip(indices, weights, gradients, states):
            mixed = multi_precision and self.multi_precision and weight.dtype == np.float16
            update = self.plan_update(weight, gradient, state, mixed) if AVAILABLE else None
            if update is not None:
                key, handles = update[:2], update.arrays.handles()
                rule = rules.get(key) or rules.setdefault(key, self._rule(*key))
                if lib.clg_mx_serves(rule, ffi.new("clg_mx_parameter *", [handles, 0, 0])):
                    served.setdefault(key, []).append((index, handles))
                    continue
            others(index, weight, gradient, state)
        for key, parameters in served.items():
            counted = self._count([index for index, _ in parameters])
            block = [(handles, *rates) for (_, handles), rates in zip(parameters, counted)]
            check_call(lib.clg_mx_push_update(rules[key], ffi.new("clg_mx_parameter[]", block), len(block)))

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update parameters, all in their own precision; as MXNet's method of this name."""
        self._update_served(index, weight, grad, state, False)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update parameters, those in float16 by way of a copy in float32; as MXNet's method of this name."""
        self._update_served(index, weight, grad, state, True)


def register(name: str) -> Callable[[type], type]:
    """Make an optimizer known to MXNet by a name; use as a decorator.

    Parameters
    ----------
    name : str
        For `gluon.Trainer`, `Module.init_optimizer` and `mx.optimizer.create`.
    """

    def known(kind: Any) -> Any:
        kind.MXNETS = next(base for base in kind.__mro__ if base.__module__.startswith("mxnet."))
        SERVED.add(kind)
        mx.optimizer.Optimizer.opt_registry[name] = kind
        return kind

    return known


def install() -> None:
    """Let an updater that has one of our optimizers keep it when a file brings MXNet's; once per process."""
    original = mx.optimizer.Updater.set_states
    if getattr(original, "_keeps", None) is not None:
        return

    @functools.wraps(original)
    def set_states(self: Any, states: bytes) -> None:
        kind = type(self.optimizer)
        original(self, states)
        if kind in SERVED and type(self.optimizer) is kind.MXNETS:
            self.optimizer = kind.of(self.optimizer)

    set_states._keeps = True  # type: ignore[attr-defined]
    mx.optimizer.Updater.set_states = set_states
