"""Random symbols that MXNet binds and runs: all families that the swap knows, and many operators that it does not.

The same seed makes the same symbol: `random.Random` decides, whose numbers do not change between versions of Python.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mxnet as mx
import numpy as np

from clgraft.mxnet_ops.swap.table import is_translatable
from tests.mxnet_ops import random_layers, random_operators

Shape = tuple
assert random_layers  # it registers its makers with those of random_operators
DTYPES = ("float32",) * 14 + ("float64",) * 3 + ("float16", "int32", "int32", "int64", "int8", "uint8")
MOST_ELEMENTS = 4096
# no gradients are compared: MXNet leaves those of labels as they are, and those of learned slopes depend on the mode
UNSURE = re.compile(r"_label$|^leakyrelu\d+_gamma$|^slope_gamma")
CONTEXTS = {"dev1": mx.cpu(0), "dev2": mx.cpu(0)}


@dataclass
class Value:
    """An output of an operator, or a variable, with what is known of it when all variables are."""

    symbol: Any
    shape: Shape
    dtype: str


@dataclass
class Model:
    """A symbol and how it is bound.

    Attributes
    ----------
    symbol : mx.sym.Symbol
    shapes, dtypes : dict
        Of all arguments and auxiliary states, by name.
    data : list of str
        The arguments that a Gluon net would be called with; the others are its parameters.
    ones : set of str
        Arguments that hold ones (MXNet writes ones into a gamma that is fixed).
    whole : dict of str to int
        Arguments that hold whole numbers below a bound, such as indices and labels.
    requests : dict of str to str
    train : bool
    numpy_shapes : bool
        Whether a size of 0 and no axes are shapes like others.
    """

    symbol: Any
    shapes: dict[str, Shape]
    dtypes: dict[str, str]
    data: list[str]
    ones: set[str]
    whole: dict[str, int]
    requests: dict[str, str]
    train: bool
    numpy_shapes: bool

    @property
    def arguments(self) -> list[str]:
        return self.symbol.list_arguments()

    @property
    def auxiliary(self) -> list[str]:
        return self.symbol.list_auxiliary_states()

    def arrays(self, seed: int) -> dict[str, np.ndarray]:
        """Return the content of arguments and auxiliary states."""
        rng, found = np.random.default_rng(seed), {}
        for name in [*self.arguments, *self.auxiliary]:
            shape, dtype = self.shapes[name], self.dtypes[name]
            if name in self.whole:
                value = rng.integers(0, self.whole[name], shape)
            elif np.dtype(dtype).kind in "iu":
                value = rng.integers(1, 5, shape)
            elif name.endswith("moving_var"):
                value = rng.uniform(0.5, 1.5, shape)
            else:
                value = np.ones(shape) if name in self.ones else rng.standard_normal(shape)
            found[name] = np.asarray(value).astype(dtype)
        return found


@dataclass
class Maker:
    """Grows a symbol; `random_operators` ask it for values, variables and numbers."""

    rng: random.Random
    dtype: str
    train: bool
    values: list[Value] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    data: list[str] = field(default_factory=list)
    ones: set[str] = field(default_factory=set)
    whole: dict[str, int] = field(default_factory=dict)
    count: int = 0

    # numbers

    def choice(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(list(options))

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def number(self) -> float:
        return self.choice([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, round(self.rng.uniform(-2, 2), 2)])

    def name(self, word: str) -> str:
        self.count += 1
        return f"{word}{self.count}"

    def random_shape(self, ranks: Sequence[int]) -> Shape:
        rank = self.choice(ranks)
        if rank == 4 and self.chance(0.7):
            return (self.choice([1, 2, 3]), self.choice([1, 2, 3, 4, 6, 8]), self.integer(1, 9), self.integer(1, 9))
        return tuple(self.choice([1, 2, 3, 4, 5, 7]) for _ in range(rank))

    # values

    def variable(
        self, shape: Shape, dtype: str | None = None, *, word: str = "w", fresh: bool = False, **kinds: Any
    ) -> Any:
        """Return a variable; unless `fresh`, maybe one that is used already.

        Parameters
        ----------
        shape, dtype
        word : str
            What its name begins with.
        **kinds
            ``data=True``, ``ones=True``, ``whole=5``: see `Model`.
        """
        dtype = dtype or self.dtype
        same = [n for n in self.variables if self.shapes[n] == shape and self.dtypes[n] == dtype]
        same = [n for n in same if n not in self.ones and n not in self.whole]
        if same and not fresh and not kinds and self.chance(0.3):
            return self.variables[self.choice(same)]
        name = self.name(word)
        keys: dict[str, Any] = {}
        if self.chance(0.3):
            keys["shape"] = shape
        # half precision has to be declared: MXNet's batch norm has parameters of another dtype then
        if self.chance(0.5) or dtype == "float16":
            keys["dtype"] = dtype
        if self.chance(0.1):
            keys["lr_mult"] = 2.0
        if self.chance(0.1):
            keys["attr"] = {"__layout__": self.choice(["NCHW", "TNC", "NTC"])}
        self.shapes[name], self.dtypes[name] = shape, dtype
        self.variables[name] = mx.sym.var(name, **keys)
        if kinds.get("data"):
            self.data.append(name)
        if kinds.get("ones"):
            self.ones.add(name)
        if kinds.get("whole"):
            self.whole[name] = kinds["whole"]
        return self.variables[name]

    def source(self, shape: Shape, dtype: str | None = None) -> Value:
        """Return a new variable as a value that later operators may read."""
        symbol = self.variable(shape, dtype, word="x", fresh=True, data=True)
        self.values.append(Value(symbol, shape, dtype or self.dtype))
        return self.values[-1]

    def value(
        self, ranks: Sequence[int] = (1, 2, 3, 4, 5), fits: Callable[[Value], bool] = lambda value: True
    ) -> Value:
        """Return a value of one of these numbers of axes: of an operator, mostly a late one, or a new variable."""
        found = [v for v in self.values if len(v.shape) in ranks and fits(v)]
        if found and not self.chance(0.15):
            return found[-1] if self.chance(0.6) else self.choice(found)
        return self.source(self.random_shape(ranks))

    def partner(self, shape: Shape, dtype: str) -> Any:
        """Return another value of a shape: of an operator, a variable, or a constant."""
        found = [v for v in self.values if v.shape == shape and v.dtype == dtype]
        if found and self.chance(0.5):
            return self.choice(found).symbol
        if self.chance(0.08) and shape:
            kind = self.choice([mx.sym.zeros, mx.sym.ones])
            return kind(shape=self.choice([shape, (0, *shape[1:])]), dtype=dtype)
        return self.variable(shape, dtype)

    def weight(self, shape: Shape, dtype: str) -> dict[str, Any]:
        """Return how an operator gets its weight: by itself, as a variable, or computed."""
        if self.chance(0.6):
            return {}
        found = self.variable(shape, dtype)
        if self.chance(0.3):
            found = self.choice([lambda w: w * 0.5, mx.sym.tanh, mx.sym.identity, lambda w: w + w])(found)
        return {"weight": found}

    # growth

    def add(self, symbol: Any) -> bool:
        """Take an operator's outputs as values if MXNet can tell their shapes and types and they are small."""
        names = symbol.list_arguments()
        known = {n: self.shapes[n] for n in names if n in self.shapes}
        try:
            arguments, outputs, states = symbol.infer_shape(**known)
            types = {n: np.dtype(self.dtypes[n]) for n in names if n in self.dtypes}
            argument_types, output_types, state_types = symbol.infer_type(**types)
        except Exception:  # MXNet's own refusal of a random attribute
            return False
        if arguments is None or argument_types is None or any(np.prod(s) > MOST_ELEMENTS for s in arguments + outputs):
            return False
        if not mx.util.is_np_shape() and any(0 in shape for shape in outputs):
            return False  # a size of 0 is one that is not known
        for group, sizes, kinds in (
            (names, arguments, argument_types),
            (symbol.list_auxiliary_states(), states, state_types),
        ):
            for name, shape, kind in zip(group, sizes, kinds):
                self.shapes.setdefault(name, tuple(shape))
                self.dtypes.setdefault(name, np.dtype(kind).name)
        for place, (shape, kind) in enumerate(zip(outputs, output_types)):
            part = symbol[place] if len(outputs) > 1 else symbol
            self.values.append(Value(part, tuple(shape), np.dtype(kind).name))
        return True

    def grow(self, operators: int) -> None:
        """Add some random operators."""
        names = list(random_operators.OPERATORS)
        weights = [random_operators.WEIGHTS.get(name, 1) for name in names]
        tries = 0
        while operators and tries < 200:
            tries += 1
            name = self.rng.choices(names, weights)[0]
            attributes = {"ctx_group": self.choice(list(CONTEXTS))} if self.chance(0.05) else {}
            if self.chance(0.05):
                attributes["__layout__"] = self.choice(["NCHW", "TNC"])
            before = len(self.values)
            try:
                with mx.AttrScope(**attributes):
                    made = random_operators.OPERATORS[name](self)
            except (mx.MXNetError, AttributeError, ValueError, TypeError, IndexError, KeyError):
                made = None
            if made is not None and self.add(made):
                operators -= 1
            elif made is not None or len(self.values) > before:
                continue

    def heads(self) -> list[Any]:
        """Return what the symbol shows: the last value, and maybe others."""
        found = [self.values[-1].symbol]
        others = [v for v in self.values[:-1] if v.symbol.name not in self.shapes]
        for _ in range(self.choice([0, 0, 1, 1, 2, 3])):
            if others:
                found.append(self.choice(others).symbol)
        if self.chance(0.2):
            found.reverse()
        unique: dict[tuple[str, ...], Any] = {}
        for symbol in found:
            unique.setdefault(tuple(symbol.list_outputs()), symbol)
        return list(unique.values())


def read_by_known_operators(symbol: Any) -> set[str]:
    """Return the variables that only operators of known families read: others of MXNet's mistake add for write."""
    nodes = json.loads(symbol.tojson())["nodes"]
    others = {nodes[e[0]]["name"] for n in nodes if not is_translatable(n["op"]) for e in n["inputs"]}
    return {node["name"] for node in nodes if node["op"] == "null"} - others


def make(seed: int) -> Model:
    """Return the random model of a seed."""
    rng = random.Random(seed)
    train = rng.random() < 0.85
    numpy_shapes = rng.random() < 0.06
    maker = Maker(rng, rng.choice(DTYPES), train)
    with mx.util.np_shape(numpy_shapes), mx.name.NameManager(), mx.attribute.AttrScope():
        ranks = (0, 1, 2, 3, 4, 5) if numpy_shapes else (1, 2, 3, 4, 4, 4, 5)
        maker.source(maker.random_shape(ranks))
        maker.grow(rng.choice([1, 1, 2, 2, 3, 4, 5, 7, 10, 14]))
        symbol = mx.sym.Group(maker.heads())
    names = symbol.list_arguments()
    usual = rng.choice(["write", "write", "add", "mixed", "mixed"])
    requests = {n: rng.choice(["write", "add", "null"]) if usual == "mixed" else usual for n in names}
    if not train and '"Pooling"' in symbol.tojson():
        requests = dict.fromkeys(names, "null")  # oneDNN's maxima are only kept for backward in training
    added_well = read_by_known_operators(symbol)
    for name in names:
        if requests[name] == "add" and name not in added_well:
            requests[name] = "write"
        if np.dtype(maker.dtypes[name]).kind in "iu" or name in maker.whole or UNSURE.search(name):
            requests[name] = "null"
    known = {*names, *symbol.list_auxiliary_states()}
    return Model(
        symbol,
        {name: maker.shapes[name] for name in known},
        {name: maker.dtypes[name] for name in known},
        [name for name in maker.data if name in known] or names[:1],
        maker.ones & known,
        {name: bound for name, bound in maker.whole.items() if name in known},
        requests,
        train,
        numpy_shapes,
    )
