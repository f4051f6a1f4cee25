"""`ocl_sgd`, `ocl_nag`, `ocl_adam`, and `ocl_adamw`, which MXNet has no class for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from clgraft.core.nn.optimizers import corrected_rate
from clgraft.mxnet_ops.engine.calls import lib
from clgraft.mxnet_ops.optimizers.numbers import as_mxnet_reads
from clgraft.mxnet_ops.optimizers.update import Arrays, Served, Update, register


def _with_momentum(state: Any, mixed: bool) -> tuple[Any, Any]:
    """Return the momentum and the copy in float32 of a state of SGD or NAG."""
    return (state[0], state[1]) if mixed else (state, None)


@register("ocl_sgd")
class OclSGD(Served, mx.optimizer.SGD):
    """MXNet's SGD, with the same parameters, states and results, as one operation on several threads.

    What is not served, row-sparse arrays for example, goes to MXNet's own update: see `mxnet.optimizer.SGD`.

    Examples
    --------
    >>> trainer = gluon.Trainer(net.collect_params(), "ocl_sgd", {"learning_rate": 0.1, "momentum": 0.9})
    """

    def plan_update(self, weight: Any, gradient: Any, state: Any, mixed: bool) -> Update | None:
        """Return the update of a parameter, or None if it is MXNet's."""
        momentum, master = _with_momentum(state, mixed)
        if self.momentum > 0:
            return Update(lib.CLG_MX_SGD_MOMENTUM, mixed, Arrays(weight, gradient, master, momentum))
        return Update(lib.CLG_MX_SGD, mixed, Arrays(weight, gradient, master))

    def rates(self, indices: Sequence[Any]) -> list[tuple[float, float]]:
        """Return the learning rate and the weight decay of parameters: MXNet's operator gets tuples of them."""
        return [(float(lr), float(wd)) for lr, wd in zip(self._get_lrs(indices), self._get_wds(indices))]

    def numbers(self) -> dict[str, Any]:
        """Return the rule's numbers that are the same for all parameters."""
        return {**super().numbers(), "momentum": as_mxnet_reads(self.momentum)}


@register("ocl_nag")
class OclNAG(Served, mx.optimizer.NAG):
    """MXNet's NAG, with the same parameters, states and results, as one operation on several threads.

    What is not served goes to MXNet's own update: see `mxnet.optimizer.NAG`.
    """

    def plan_update(self, weight: Any, gradient: Any, state: Any, mixed: bool) -> Update | None:
        """Return the update of a parameter, or None if it is MXNet's."""
        if mixed and not isinstance(state, (tuple, list)):
            return None
        momentum, master = _with_momentum(state, mixed)
        if momentum is None:
            return Update(lib.CLG_MX_DECAY, mixed, Arrays(weight, gradient, master))
        if self.momentum <= 0:
            return None
        return Update(lib.CLG_MX_NAG, mixed, Arrays(weight, gradient, master, momentum))

    def numbers(self) -> dict[str, Any]:
        """Return the rule's numbers that are the same for all parameters."""
        return {**super().numbers(), "momentum": as_mxnet_reads(self.momentum)}


@register("ocl_adam")
class OclAdam(Served, mx.optimizer.Adam):
    """MXNet's Adam, with the same parameters, states and results, as one operation on several threads.

    What is not served, row-sparse arrays for example, goes to MXNet's own update: see `mxnet.optimizer.Adam`.
    """

    def plan_update(self, weight: Any, gradient: Any, state: Any, mixed: bool) -> Update | None:
        """Return the update of a parameter, or None if it is MXNet's."""
        master, (mean, variance) = state if mixed else (None, state)
        return Update(lib.CLG_MX_ADAM, mixed, Arrays(weight, gradient, master, mean, variance))

    def rates(self, indices: Sequence[Any]) -> list[tuple[float, float]]:
        """Return the learning rate, with the correction of the first means, and the weight decay of parameters."""
        found = []
        for index, lr, wd in zip(indices, self._get_lrs(indices), self._get_wds(indices)):
            lr = corrected_rate(lr, self.beta1, self.beta2, self._index_update_count[index])
            found.append((as_mxnet_reads(lr), as_mxnet_reads(wd)))
        return found

    def numbers(self) -> dict[str, Any]:
        """Return the rule's numbers that are the same for all parameters."""
        read = {"momentum": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        return {**super().numbers(), **{name: as_mxnet_reads(value) for name, value in read.items()}}


class OclAdamW(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Adam whose weight decay is taken from the weight itself (Loshchilov and Hutter 2019), by MXNet's `adamw_update`.

    A step subtracts ``lr * mean / (sqrt(variance) + epsilon) + wd * weight``, with Adam's correction of the means.

    Parameters
    ----------
    learning_rate, beta1, beta2, epsilon : float
        As of `mxnet.optimizer.Adam`.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def create_state(self, index: Any, weight: Any) -> tuple[Any, Any]:
        """Return zeros for the means of gradients and of their squares."""
        return tuple(mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype) for _ in range(2))  # type: ignore

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update a parameter; as MXNet's method of this name."""
        self._update_count(index)
        rate = corrected_rate(self._get_lr(index), self.beta1, self.beta2, self._index_update_count[index])
        given = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon, "wd": self._get_wd(index)}
        given.update({"clip_gradient": self.clip_gradient} if self.clip_gradient else {})
        mean, variance = state
        mx.nd.contrib.adamw_update(
            weight, grad, mean, variance, self.rescale_grad, lr=rate, eta=1.0, out=weight, **given
        )


mx.optimizer.Optimizer.opt_registry["ocl_adamw"] = OclAdamW
