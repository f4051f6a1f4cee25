"""Optimizers: how gradients change parameters in place, with the conventions of frameworks as arguments.

Numbers are scalars of the graph, given by their names, or literal ones; a run with other numbers compiles nothing.
`Optimizer` has the frameworks' choices and defaults, and computes the scalars of each step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import numpy as np

from clgraft.core.errors import ProblemError, hint
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.pointwise import Reduction

Number = Union[float, str]

RESULT = re.compile(r"\by(\d+) = ")
# where weight decay goes: into the gradient, next to the step that is multiplied by the learning rate, or alone
IN_GRADIENT, IN_STEP, ALONE = "gradient", "step", "alone"


@dataclass(frozen=True)
class Parameter:
    """A parameter, its gradient, and what becomes of the gradient before an optimizer sees it.

    Attributes
    ----------
    weight : Tensor
        A state.
    gradient : Tensor
    lr, lr_mult : float or str
        The learning rate, and the parameter's own factor of it.
    decay, decay_mult : float or str
        Weight decay, and the parameter's own factor of it.
    decay_in : str
        ``gradient``: ``decay * weight`` is added to the gradient; ``step``: to the step that the learning rate
        multiplies; ``alone``: it is subtracted from the weight.
    norm : str
        ``L2``, or ``L1``: the weight's sign takes its place in decay.
    rescale : float or str
        What the gradient is multiplied by.
    clip : float or str, optional
        The largest absolute value of an element of the gradient.
    clip_decayed : bool
        Whether decay is added before the gradient is clipped.
    factor : Tensor, optional
        One element that the gradient is multiplied by first, such as that of `norm_factor`.
    skip : Tensor, optional
        One element: unless it is 0 nothing changes, such as that of `overflows`.
    """

    weight: Tensor
    gradient: Tensor
    lr: Number
    lr_mult: Number = 1.0
    decay: Number | None = None
    decay_mult: Number = 1.0
    decay_in: str = IN_GRADIENT
    norm: str = "L2"
    rescale: Number = 1.0
    clip: Number | None = None
    clip_decayed: bool = False
    factor: Tensor | None = None
    skip: Tensor | None = None


def _add(
    build: Build, parameter: Parameter, histories: Sequence[Tensor], text: str, numbers: Mapping[str, Number]
) -> None:
    """Add the problem that updates a parameter.

    Parameters
    ----------
    build : Build
    parameter : Parameter
    histories : sequence of Tensor
        States: h0, h1, ... in the text, and y1, y2, ... their new values.
    text : str
        Computes `change` from the gradient g, the learning rate `rate` and the histories; it is subtracted from the
        weight.
    numbers : mapping of str to float or str
        Scalars that the text names.
    """
    one, first = parameter, 1 + (parameter.factor is not None) + (parameter.skip is not None)
    shape = one.weight.shape
    reads = [build.reshape(one.gradient, shape)]
    lines = [f"real w = x{first};", "real rate = lr * lr_mult;"]
    lines += [f"real h{i} = x{first + 1 + i};" for i in range(len(histories))]
    scalars: dict[str, Number] = {"lr": one.lr, "lr_mult": one.lr_mult, "rescale": one.rescale}
    gradient = "x0 * rescale"
    if one.factor is not None:
        reads.append(build.reshape(one.factor, (1,) * len(shape)))
        gradient = "x0 * x1 * rescale"
    if one.skip is not None:
        reads.append(build.reshape(one.skip, (1,) * len(shape)))
    taken = ""
    if one.decay is not None:
        scalars.update(decay=one.decay, decay_mult=one.decay_mult)
        lines.append(f"real decayed = decay * decay_mult * {'w' if one.norm == 'L2' else 'sign(w)'};")
        taken = {IN_GRADIENT: "", IN_STEP: " - rate * decayed", ALONE: " - decayed"}[one.decay_in]
    added = " + decayed" if one.decay is not None and one.decay_in == IN_GRADIENT else ""
    if one.clip is None:
        lines.append(f"real g = {gradient}{added};")
    else:
        scalars["clip"] = one.clip
        inside, outside = (added, "") if one.clip_decayed else ("", added)
        lines.append(f"real g = clamp({gradient}{inside}, -clip, clip){outside};")
    lines += [text, f"y0 = w - change{taken};"]
    if one.skip is not None:
        lines = [RESULT.sub(r"real new\1 = ", line) for line in lines]
        lines += [f"y{i} = x{first - 1} == 0 ? new{i} : x{first + i};" for i in range(1 + len(histories))]
    states = [build.reshape(one.weight, shape), *(build.reshape(history, shape) for history in histories)]
    used = {name: number for name, number in {**scalars, **numbers}.items()}
    build.update(" ".join(lines), reads, states, used)


def sgd(
    build: Build,
    parameter: Parameter,
    history: Tensor | None = None,
    *,
    momentum: Number = 0.0,
    nesterov: bool = False,
    dampening: Number = 0.0,
    rate_in_history: bool = True,
    decay_of_new: bool = False,
) -> None:
    """Add a step of gradient descent, with momentum if there is a history of it.

    Parameters
    ----------
    momentum : float or str
        What is kept of the history.
    nesterov : bool
        Whether the step looks ahead (Sutskever et al. 2013).
    dampening : float or str
        1 minus the share of the gradient that the history takes.
    rate_in_history : bool
        Whether the history is of steps, with their learning rates (Caffe, MXNet), or of gradients (PyTorch).
    decay_of_new : bool
        Whether the history takes the decay of the new weight (MXNet's NAG) in place of the old one.
    """
    if history is None:
        return _add(build, parameter, (), "real change = rate * g;", {})
    share = "g" if dampening == 0.0 else "(1 - dampening) * g"
    numbers: dict[str, Number] = {"momentum": momentum}
    if dampening != 0.0:
        numbers["dampening"] = dampening
    if rate_in_history:
        text = f"real h = momentum * h0 + rate * {share};"
        step = "momentum * h + rate * g" if nesterov else "h"
    else:
        text = f"real h = momentum * h0 + {share};"
        step = "rate * (g + momentum * h)" if nesterov else "rate * h"
    kept = "h - rate * decay * decay_mult * change" if decay_of_new and parameter.decay is not None else "h"
    return _add(build, parameter, (history,), f"{text} real change = {step}; y1 = {kept};", numbers)


def adagrad(build: Build, parameter: Parameter, squares: Tensor, *, eps: Number, eps_inside: bool = False) -> None:
    """Add a step of AdaGrad (Duchi et al. 2011).

    Parameters
    ----------
    squares : Tensor
        The sum of the gradients' squares.
    eps : float or str
    eps_inside : bool
        Whether it is added below the root (MXNet) or to the root (Caffe, PyTorch).
    """
    text = f"real v = h0 + g * g; y1 = v; real change = rate * g / {_root('v', eps_inside)};"
    _add(build, parameter, (squares,), text, {"eps": eps})


def rmsprop(
    build: Build,
    parameter: Parameter,
    squares: Tensor,
    means: Tensor | None = None,
    history: Tensor | None = None,
    *,
    keep: Number,
    share: Number,
    eps: Number,
    eps_inside: bool = False,
    momentum: Number = 0.0,
    rate_in_history: bool = False,
) -> None:
    """Add a step of RMSProp (Tieleman and Hinton 2012); with `means` it is centered (Graves 2013).

    Parameters
    ----------
    squares, means : Tensor
        Moving averages of the gradient's square, and of the gradient.
    history : Tensor, optional
        Of momentum.
    keep, share : float or str
        What an average keeps, and what it takes of a new value: 1 - keep.
    eps, eps_inside
        As of `adagrad`.
    momentum, rate_in_history
        As of `sgd`.
    """
    histories, numbers = [squares], {"keep": keep, "share": share, "eps": eps}
    text = "real v = keep * h0 + share * g * g; y1 = v; "
    variance = "v"
    if means is not None:
        text += "real m = keep * h1 + share * g; y2 = m; real c = v - m * m; "
        variance = "c"
        histories.append(means)
    step = f"g / {_root(variance, eps_inside)}"
    if history is None:
        text += f"real change = rate * {step};"
    else:
        place = len(histories)
        factor = "rate * " if rate_in_history else ""
        text += f"real h = momentum * h{place} + {factor}{step}; y{place + 1} = h; "
        text += "real change = h;" if rate_in_history else "real change = rate * h;"
        histories.append(history)
        numbers["momentum"] = momentum
    _add(build, parameter, histories, text, numbers)


def adadelta(
    build: Build, parameter: Parameter, squares: Tensor, steps: Tensor, *, keep: Number, share: Number, eps: Number
) -> None:
    """Add a step of AdaDelta (Zeiler 2012), whose roots have eps inside.

    Parameters
    ----------
    squares, steps : Tensor
        Moving averages of the squares of the gradient and of the steps.
    keep, share : float or str
        As of `rmsprop`.
    eps : float or str
    """
    text = (
        "real v = keep * h0 + share * g * g; y1 = v; real moved = g * sqrt((h1 + eps) / (v + eps)); "
        "y2 = keep * h1 + share * moved * moved; real change = rate * moved;"
    )
    _add(build, parameter, (squares, steps), text, {"keep": keep, "share": share, "eps": eps})


def adam(
    build: Build,
    parameter: Parameter,
    means: Tensor,
    squares: Tensor,
    *,
    beta1: Number,
    share1: Number,
    beta2: Number,
    share2: Number,
    eps: Number,
    correction1: Number = 1.0,
    correction2: Number = 1.0,
    eps_corrected: bool = True,
) -> None:
    """Add a step of Adam (Kingma and Ba 2015), or with decay in the step of AdamW (Loshchilov and Hutter 2019).

    Parameters
    ----------
    means, squares : Tensor
        Moving averages of the gradient and of its square.
    beta1, share1, beta2, share2 : float or str
        What they keep, and what they take of a new value: 1 - beta.
    eps : float or str
        Added to the root.
    correction1, correction2 : float or str
        What the averages are divided by, since they begin with zeros: ``1 - beta ** step``; 1 for no correction.
    eps_corrected : bool
        Whether eps is added to the corrected root (PyTorch) or to that of the average (Caffe, MXNet).
    """
    text = "real m = beta1 * h0 + share1 * g; y1 = m; real v = beta2 * h1 + share2 * g * g; y2 = v; "
    if eps_corrected:
        text += "real change = rate * (m / correction1) / (sqrt(v) / sqrt(correction2) + eps);"
    else:
        text += "real change = rate * (sqrt(correction2) / correction1) * m / (sqrt(v) + eps);"
    numbers = {"beta1": beta1, "share1": share1, "beta2": beta2, "share2": share2, "eps": eps}
    numbers.update(correction1=correction1, correction2=correction2)
    _add(build, parameter, (means, squares), text, numbers)


def corrected_rate(lr: float, beta1: float, beta2: float, step: int) -> float:
    """Return a learning rate with the corrections of `adam` in it, for an update that knows none of them.

    Parameters
    ----------
    lr, beta1, beta2 : float
    step : int
        The first is 1.
    """
    return lr * (math.sqrt(1.0 - beta2**step) / (1.0 - beta1**step))


def norm_factor(build: Build, gradients: Sequence[Tensor], most: Number) -> Tensor:
    """Return what gradients are multiplied by so that the root of the sum of all their squares is `most` at most."""
    total = _total(build, "y0 = x0 * x0;", gradients)
    return build.pointwise("real n = sqrt(x0); y0 = n > most ? most / n : 1;", [total], {"most": most})[0]


def overflows(build: Build, gradients: Sequence[Tensor]) -> Tensor:
    """Return one element that is 0 if all gradients are finite."""
    return _total(build, "y0 = isfinite(x0) ? 0 : 1;", gradients)


def _total(build: Build, text: str, values: Sequence[Tensor]) -> Tensor:
    """Return the sum of an expression of all elements."""
    fold = Reduction("sum", shape=(1,))
    sums = [build.pointwise(text, [build.reshape(x, (x.size,))], reduce=(fold,))[0] for x in values]
    while len(sums) > 1:
        sums = [_sum(build, sums[i : i + 16]) for i in range(0, len(sums), 16)]
    return sums[0]


def _sum(build: Build, values: Sequence[Tensor]) -> Tensor:
    return build.pointwise("y0 = " + " + ".join(f"x{i}" for i in range(len(values))) + ";", values)[0]


def _root(value: str, eps_inside: bool) -> str:
    return f"sqrt({value} + eps)" if eps_inside else f"(sqrt({value}) + eps)"


# what an optimizer's options are called, and their defaults by framework; `lr` is that of PyTorch and MXNet
KINDS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0, "dampening": 0.0, "nesterov": False},
    "nag": {"momentum": 0.9, "dampening": 0.0},
    "adagrad": {"eps": 1e-10},
    "rmsprop": {"rho": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False},
    "adadelta": {"rho": 0.9, "eps": 1e-6},
    "adam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
}
SHARED: dict[str, Any] = {
    "weight_decay": 0.0,
    "norm": "L2",
    "rescale_grad": 1.0,
    "clip_gradient": None,
    "clip_norm": None,
}
ALIASES = {"nesterov": "nag"}
# framework -> optimizer -> options of its own, and the conventions that are arguments of the functions above
CONVENTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "pytorch": {
        "sgd": {"rate_in_history": False},
        "nag": {"rate_in_history": False},
        "adamw": {"decay_in": IN_STEP},
    },
    "mxnet": {
        "nag": {"decay_of_new": True},
        "adagrad": {"eps": 1e-7, "eps_inside": True, "decay_in": IN_STEP},
        "rmsprop": {"rho": 0.9, "eps_inside": True, "clip_decayed": True, "rate_in_history": True},
        "adadelta": {"eps": 1e-5, "decay_in": ALONE, "without_lr": True},
        "adam": {"eps_corrected": False, "clip_decayed": True},
        "adamw": {"eps_corrected": False, "decay_in": ALONE, "weight_decay": 0.0},
    },
    "caffe": {
        "sgd": {"always": True, "single": True},
        "nag": {"always": True, "momentum": 0.0, "single": True},
        "adagrad": {"eps": 1e-8, "single": True},
        "rmsprop": {"single": True},
        "adadelta": {"eps": 1e-8, "single": True},
        "adam": {"eps_corrected": False, "single": True},
        "adamw": {"eps_corrected": False, "single": True, "decay_in": IN_STEP},
    },
}
ARGUMENTS = ("rate_in_history", "decay_of_new", "eps_inside", "eps_corrected")
FLAGS = (*ARGUMENTS, "clip_decayed", "decay_in", "always", "single", "without_lr")


@dataclass(frozen=True)
class Optimizer:
    """An optimizer with a framework's conventions.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    convention : str
        One of `CONVENTIONS`.
    options : mapping, optional
        Such as ``momentum``; by default those of the framework.

    Attributes
    ----------
    histories : tuple of str
        What it keeps for each parameter, an array of its shape each, which begins with zeros.

    Raises
    ------
    ProblemError
        If a word is unknown, or a number does not fit.
    """

    kind: str
    convention: str = "pytorch"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = ALIASES.get(self.kind, self.kind)
        self._expect(kind in KINDS, "optimizer", self.kind, KINDS)
        self._expect(self.convention in CONVENTIONS, "convention", self.convention, CONVENTIONS)
        own = {**SHARED, **KINDS[kind]}
        for name in self.options:
            self._expect(name in own or name in FLAGS, "option", name, {**own, **dict.fromkeys(FLAGS)})
        found = {**own, **CONVENTIONS[self.convention].get(kind, {}), **self.options}
        for name, value in found.items():
            flag = isinstance(KINDS[kind].get(name, SHARED.get(name)), bool) or name in (*FLAGS, "norm")
            numeric = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
            if not flag and not (value is None and SHARED.get(name, 0) is None) and not numeric:
                raise ProblemError(f"[optimizer] got {value!r} for {name}, expected a number")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "options", found)

    def _expect(self, good: bool, what: str, got: str, known: Mapping[str, Any]) -> None:
        if not good:
            raise ProblemError(f"[optimizer] got {what} {got!r}, expected one of {list(known)}{hint(got, list(known))}")

    @property
    def histories(self) -> tuple[str, ...]:
        """Names of what is kept for each parameter."""
        given = self.options
        if self.kind in ("sgd", "nag"):
            return ("momentum",) if given["momentum"] or given.get("always") else ()
        if self.kind == "rmsprop":
            centered = ("means",) if given["centered"] else ()
            return ("squares", *centered, *(("momentum",) if given["momentum"] else ()))
        return {"adagrad": ("squares",), "adadelta": ("squares", "steps")}.get(self.kind, ("means", "squares"))

    def scalars(self, step: int, lr: float) -> dict[str, float]:
        """Return the graph's scalars for a step, of which the first is 1."""
        given = self.options
        single = np.float32 if given.get("single") else float  # Caffe computes with its options in single precision
        found = {
            "lr": 1.0 if given.get("without_lr") else lr,
            "rescale": given["rescale_grad"],
            "decay": given["weight_decay"],
        }
        found.update({name: given[f"{name}_gradient"] for name in ("clip",) if given["clip_gradient"] is not None})
        if given["clip_norm"] is not None:
            found["most"] = given["clip_norm"]
        for name in ("momentum", "eps", "beta1", "beta2"):
            if name in given:
                found[name] = given[name]
        if given.get("dampening"):
            found["dampening"] = given["dampening"] if step > 1 else 0.0  # PyTorch's history begins with a gradient
        if "rho" in given:
            found.update(keep=given["rho"], share=float(single(1) - single(given["rho"])))
        for number in ("1", "2"):
            if f"beta{number}" in given:
                beta = single(given[f"beta{number}"])
                found[f"share{number}"] = float(single(1) - beta)
                found[f"correction{number}"] = -math.expm1(step * math.log(float(beta))) if beta else 1.0
        return {name: float(found[name]) for name in self.names if name in found}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the graph's scalars."""
        given, found = self.options, ["lr", "rescale"]
        found += ["decay"] * self.decays
        found += ["clip"] * (given["clip_gradient"] is not None) + ["most"] * (given["clip_norm"] is not None)
        histories = self.histories
        found += ["momentum"] * ("momentum" in histories)
        found += ["dampening"] * (bool(given.get("dampening")) and "momentum" in histories)
        found += ["keep", "share"] * ("rho" in given) + ["eps"] * ("eps" in given)
        found += ["beta1", "share1", "beta2", "share2", "correction1", "correction2"] * ("beta1" in given)
        return tuple(found)

    @property
    def decays(self) -> bool:
        """Whether weights decay; decides what is compiled."""
        return bool(self.options["weight_decay"])

    def apply(
        self,
        build: Build,
        weight: Tensor,
        gradient: Tensor,
        histories: Mapping[str, Tensor],
        *,
        lr_mult: float = 1.0,
        decay_mult: float = 1.0,
        factor: Tensor | None = None,
        skip: Tensor | None = None,
        suffix: str = "",
    ) -> None:
        """Add the update of a parameter; the scalars are those of the graph by the names of `names`.

        Parameters
        ----------
        build : Build
        weight, gradient : Tensor
        histories : mapping of str to Tensor
            States by the names of `histories`.
        lr_mult, decay_mult : float
            The parameter's own factors of the learning rate and of weight decay.
        factor, skip : Tensor, optional
            See `Parameter`.
        suffix : str
            Ends the names of the graph's scalars, so that parameters of one graph may have different ones.
        """
        given = self.options

        def of(name: str) -> str:
            return name + suffix

        parameter = Parameter(
            weight,
            gradient,
            of("lr"),
            lr_mult,
            of("decay") if self.decays and decay_mult else None,
            decay_mult,
            given.get("decay_in", IN_GRADIENT),
            given["norm"],
            of("rescale"),
            None if given["clip_gradient"] is None else of("clip"),
            given.get("clip_decayed", False),
            factor,
            skip,
        )
        flags = {name: given[name] for name in ARGUMENTS if name in given}
        found = [histories[name] for name in self.histories]
        if self.kind in ("sgd", "nag"):
            dampening = of("dampening") if given["dampening"] else 0.0
            nesterov = self.kind == "nag" or given["nesterov"]
            sgd(build, parameter, *found, momentum=of("momentum"), nesterov=nesterov, dampening=dampening, **flags)
        elif self.kind == "adagrad":
            adagrad(build, parameter, *found, eps=of("eps"), **flags)
        elif self.kind == "rmsprop":
            means, history = histories.get("means"), histories.get("momentum")
            rmsprop(
                build,
                parameter,
                histories["squares"],
                means,
                history,
                keep=of("keep"),
                share=of("share"),
                eps=of("eps"),
                momentum=of("momentum"),
                **flags,
            )
        elif self.kind == "adadelta":
            adadelta(build, parameter, *found, keep=of("keep"), share=of("share"), eps=of("eps"))
        else:
            adam(
                build,
                parameter,
                histories["means"],
                histories["squares"],
                beta1=of("beta1"),
                share1=of("share1"),
                beta2=of("beta2"),
                share2=of("share2"),
                eps=of("eps"),
                correction1=of("correction1"),
                correction2=of("correction2"),
                **flags,
            )
