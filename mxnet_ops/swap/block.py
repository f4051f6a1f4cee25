"""Swap of a Gluon net, in place: blocks keep their names, parameters and structure, and compute with clgraft operators.

Hybridized, a block's traced graph is swapped as a Symbol is, so that the arithmetic written with Python's own operators
counts too. Not hybridized, the functions of `mx.nd` are the clgraft's while a block of the net computes.
"""

from __future__ import annotations

import functools
import json
import threading
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon.block import _flatten

from clgraft.core import ProblemError
from clgraft.mxnet_ops.guards.guard import COPIES
from clgraft.mxnet_ops.swap.frozen import expect_precision, expect_regions
from clgraft.mxnet_ops.swap.report import Report, Row
from clgraft.mxnet_ops.swap.selection import Chosen, Select, as_choice, refusal, tell
from clgraft.mxnet_ops.swap.symbol import swap_known
from clgraft.mxnet_ops.swap.table import POSITIONAL, Kept, ModelOperator, is_translatable, translate

FLOATS = ("float32", "float16", "float64")
COUNTED = ("add_n", "ElementWiseSum", "Concat", "concat", "stack", "UpSampling", "Crop")  # they are told num_args
NAMED = {"lhs": "data0", "rhs": "data1"}


NOTHING = {"select": None, "fuse": False, "regions": False, "frozen": False, "precision": None}  # of a swap
REPLACED_LATER = "a layer that replaces one of these later is MXNet's own until swap_block is called again"
ONEDNN_COPIES = (
    "this MXNet has oneDNN, so a hybridized net copies each parameter before a region and each gradient after it: "
    "MXNET_MKLDNN_ENABLED=0 saves that, and in training on a device with memory of its own clgraft.mxnet_ops.Trainer"
)
AGAIN = "already swapped: what this call says takes the place of what the earlier one said"


class _Functions:
    """What the functions of `mx.nd` do while a block computes: clgraft operators where there are some."""

    def __init__(self, select: Chosen, prefix: str) -> None:
        self._select, self._prefix = select, prefix

    def call(self, operator: str, native: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the clgraft operator that does what one of MXNet's does, or that one."""
        arrays = [value for value in args if _is_array(value)]
        named = {NAMED.get(key, key): value for key, value in kwargs.items() if _is_array(value) and key != "out"}
        try:
            attributes = _attributes(operator, args, kwargs, len(arrays))
            node = ModelOperator(self._prefix + str(kwargs.get("name") or ""), operator, attributes)
            refused = refusal(self._select, node)
            if refused:
                raise Kept(refused)
            if not all(
                array.stype == "default" and array.dtype.__name__ in FLOATS for array in (*arrays, *named.values())
            ):
                raise Kept("its inputs are no dense arrays of real numbers")
            if attributes.get("act_type") == "rrelu":
                raise Kept("it returns a second array")
            weight = arrays[1] if len(arrays) > 1 else named.get("weight")
            op_type, translated = translate(node, None if weight is None else weight.shape)
        except Kept:
            return native(*args, **kwargs)
        return mx.nd.Custom(*arrays, **named, out=kwargs.get("out"), op_type=op_type, **translated)


_computing = threading.local()  # functions: of the block that computes in this thread


def _switching(name: str, native: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `mx.nd` that clgraft computes while a block of a swapped net computes."""

    @functools.wraps(native)
    def function(*args: Any, **kwargs: Any) -> Any:
        functions = getattr(_computing, "functions", None)
        return native(*args, **kwargs) if functions is None else functions.call(name, native, *args, **kwargs)

    function._switches = True  # type: ignore[attr-defined]
    return function


def _install() -> None:
    """Replace the functions of `mx.nd` that clgraft can compute; once per process.

    Blocks compare their `F` with `mx.nd` and use it as a key, so no other object can take its place.
    """
    for name in [name for name in dir(mx.nd) if is_translatable(name)]:
        native = getattr(mx.nd, name)
        if not hasattr(native, "_switches"):
            setattr(mx.nd, name, _switching(name, native))


def _is_array(value: Any) -> bool:
    return isinstance(value, mx.nd.NDArray)


def _attributes(operator: str, args: tuple[Any, ...], kwargs: dict[str, Any], arrays: int) -> dict[str, str]:
    """Return the attributes of a call as MXNet writes them, those by position too."""
    places, others = POSITIONAL.get(operator, ()), [v for v in args if v is not None and not _is_array(v)]
    if len(others) > len(places):
        raise Kept("its attributes are given by position")
    given = dict(zip(places, others))
    given.update({key: v for key, v in kwargs.items() if key not in ("name", "out") and not _is_array(v)})
    if operator in COUNTED:
        given["num_args"] = arrays
    return {key: str(value) for key, value in given.items() if value is not None}


class _SwappedKind(type):
    """Makes the blocks of a native class instances of its swapped one.

    Gluon lets an attribute that holds a block change only to a block of the same class: a layer of a swapped net may
    still be replaced by a native one, such as the last one for fine-tuning.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__bases__)


def _swapped_class(base: Any) -> type:
    """Return the subclass of a block's class that computes with clgraft operators."""

    def hybrid_forward(self: Any, F: Any, *args: Any, **kwargs: Any) -> Any:
        if F is not mx.nd:
            return base.hybrid_forward(self, F, *args, **kwargs)
        before = getattr(_computing, "functions", None)
        _computing.functions = _settings(self)["_swap_functions"]
        try:
            return base.hybrid_forward(self, F, *args, **kwargs)
        finally:
            _computing.functions = before

    def _get_graph(self: Any, *args: Any) -> Any:
        if not self._cached_graph:
            inputs, out = base._get_graph(self, *args)
            names = [symbol.name for symbol in inputs]
            self.__dict__["_swap_order"] = out.list_inputs()
            self.__dict__["_swap_dtypes"] = known = _dtypes_of_indices(out, names, args)
            given = {} if known is None else dict.fromkeys(known[1], known[0][0])
            self._cached_graph = (
                inputs,
                swap_known(out, given, names, **_options_for(out, names, _settings(self)["_swap_options"]))[0],
            )
        return self._cached_graph

    def _call_cached_op(self: Any, *args: Any) -> Any:
        known = self.__dict__.get("_swap_dtypes")
        if known and _dtypes(args) != known[0]:
            self._clear_cached_op()
        return base._call_cached_op(self, *args)

    def _deferred_infer_shape(self: Any, *args: Any) -> None:
        base._deferred_infer_shape(self, *args)
        if self._active:  # random initial values are drawn in the order of MXNet's own graph
            parameters = self.collect_params()
            for name in self.__dict__.get("_swap_order", ()):
                if name in parameters:
                    parameters[name]._finish_deferred_init()

    members = {
        "hybrid_forward": hybrid_forward,
        "_get_graph": _get_graph,
        "_call_cached_op": _call_cached_op,
        "_deferred_infer_shape": _deferred_infer_shape,
        "__module__": base.__module__,
    }
    # the name stays too: Gluon makes prefixes of it
    return types.new_class(base.__name__, (base,), {"metaclass": _SwappedKind}, lambda body: body.update(members))


_classes: dict[type, type] = {}


def _dtypes(args: Sequence[Any]) -> list[str]:
    """Return the dtypes of a call's arrays."""
    return [np.dtype(array.dtype).name for array in _flatten(args, "input")[0] if array is not None]


def _dtypes_of_indices(
    symbol: mx.sym.Symbol, inputs: Sequence[str], args: Sequence[Any]
) -> tuple[list[str], set[str]] | None:
    """Return the dtypes of a call's arrays, and the inputs that are indices of `pick`, such as labels of a loss.

    Indices may be of any type, and a graph does not say which. Where all arrays are real numbers of one type, indices
    count as such, and a call with other arrays traces the block anew. Else, and without indices, None is returned.
    """
    nodes = json.loads(symbol.tojson())["nodes"]
    entries = [(node, place, entry[0]) for node in nodes for place, entry in enumerate(node["inputs"])]
    read = [(node["op"] == "pick" and place == 1, source) for node, place, source in entries]
    indices = {nodes[source]["name"] for is_index, source in read if is_index}
    indices -= {nodes[source]["name"] for is_index, source in read if not is_index}
    indices &= set(inputs)
    dtypes = _dtypes(args) if indices and all(map(_is_array, _flatten(args, "input")[0])) else []
    return (dtypes, indices) if len(set(dtypes)) == 1 and dtypes[0] in FLOATS else None


def _settings(block: gluon.Block) -> dict[str, Any]:
    """Return what `_swap` left in a block; one that was made of its class, such as a slice of a net, has its parts'."""
    found = block.__dict__
    if "_swap_options" not in found:
        parts = (child.__dict__.get("_swap_options") for child in block._children.values())
        options = next((part for part in parts if part is not None), NOTHING)
        _settle(block, options)
    return found


def _options_for(symbol: mx.sym.Symbol, inputs: Collection[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a swap for a block's symbol: its inputs are known, all other variables are parameters."""
    frozen = options["frozen"] and [name for name in symbol.list_inputs() if name not in inputs]
    return {**options, "frozen": frozen, "ordered": False}  # Gluon binds by name


def _settle(block: gluon.Block, options: dict[str, Any]) -> None:
    block.__dict__["_swap_functions"] = _Functions(options["select"], block.prefix)
    block.__dict__["_swap_options"] = options


def swap_block(
    net: gluon.Block,
    *,
    select: Select = None,
    fuse: bool = True,
    regions: bool = True,
    frozen: bool = False,
    precision: str | None = None,
) -> Report:
    """Make a Gluon net compute with clgraft operators, in place.

    Parameters
    ----------
    net : gluon.Block
        Initialized or not, hybridized or not. Names of blocks and parameters stay, structural and full ones:
        `save_parameters`, `load_parameters` and `export` work with files of the native net and the other way round.
    select : callable or patterns, optional
        As of `swap_symbol`. In blocks that are not hybridized, an operator without a name goes by its block's.
    fuse, regions : bool
        As of `swap_symbol`, but True by default: nobody sees the values inside a block. Without both, each operator
        stays one. Only hybridized nets have regions.
    frozen : bool
        With regions: inference reads all parameters once and takes them as constants (see `refresh`).
    precision : str, optional
        With regions: ``float16`` or ``bfloat16`` as the type of their products, as of `swap_symbol`. Parameters,
        gradients and files stay float32.

    Returns
    -------
    Report
        What is replaced once the net is hybridized. Without, sums and products that are written with Python's operators
        (``x + y``) stay MXNet's.

    Raises
    ------
    ProblemError
        If it is no net.
    SelectionError
        If `select` chooses no operator of a net that can be traced.

    Notes
    -----
    A layer that is replaced after the swap, such as ``net.output = nn.Dense(10)``, is served with the net that holds it
    when that net is hybridized; alone it is MXNet's until `swap_block` is called again, which says what became of it.
    """
    if not isinstance(net, gluon.Block):
        other = " (swap_symbol takes symbols)" if isinstance(net, mx.sym.Symbol) else ""
        raise ProblemError(f"[swap] got {type(net).__name__}, expected a gluon.Block{other}")
    expect_regions(frozen, regions)
    expect_precision(precision, regions)
    _install()
    options = {
        "select": as_choice(select),
        "fuse": fuse,
        "regions": regions,
        "frozen": frozen,
        "precision": precision,
    }
    untraced: list[str] = []
    report = _describe(net, options, untraced)
    report.note = f"{AGAIN}\n{REPLACED_LATER}" if _was_swapped(net) else REPLACED_LATER
    if COPIES and regions and report.regions and not report.kept:
        report.note += f"\n{ONEDNN_COPIES}"
    if not untraced:  # else there is more in the net than the report has
        tell(options["select"], report)
    _swap(net, options)
    return report


def _was_swapped(block: gluon.Block) -> bool:
    """Return whether a block or one in it was swapped before; symbols of blocks say it themselves."""
    return "_swap_options" in block.__dict__ or any(map(_was_swapped, block._children.values()))


def _swap(block: gluon.Block, options: dict[str, Any]) -> None:
    for child in block._children.values():
        _swap(child, options)
    if isinstance(block, gluon.SymbolBlock):
        inputs, out = block._cached_graph
        block._clear_cached_op()
        given = _options_for(out, [symbol.name for symbol in inputs], options)
        block._cached_graph = inputs, swap_known(out, _parameter_dtypes(block), **given)[0]
    elif isinstance(block, gluon.HybridBlock):
        kind = type(block)
        if kind not in _classes.values():
            block.__class__ = _classes.setdefault(kind, _swapped_class(kind))
        _settle(block, options)
        block._clear_cached_op()


def _parameter_dtypes(block: gluon.Block) -> dict[str, Any]:
    """Return the dtypes of the parameters that hold arrays already."""
    return {name: p.dtype for name, p in block.collect_params().items() if p._data is not None}


def _describe(block: gluon.Block, options: dict[str, Any], untraced: list[str]) -> Report:
    """Trace what can be traced, from the top down, and say what a swap of the traced graphs does.

    Names of blocks that cannot be traced alone are added to `untraced`.
    """
    report = Report()
    if isinstance(block, gluon.HybridBlock):
        try:
            if isinstance(block, gluon.SymbolBlock):
                inputs, out = block._cached_graph
                given = _options_for(out, [symbol.name for symbol in inputs], options)
                return swap_known(out, _parameter_dtypes(block), **given)[1]
            found = block(mx.sym.var("data"))
            out = mx.sym.Group(list(found) if isinstance(found, (list, tuple)) else [found])
            return swap_known(out, {}, **_options_for(out, ["data"], options))[1]
        except Exception as error:  # a block of several inputs, or one that looks at shapes: its children tell
            untraced.append(block.name)
            reason = f"could not be traced alone: {error}".splitlines()[0]
            if not block._children:
                report.rows.append(Row(block.name, type(block).__name__, reason=reason))
    for child in block._children.values():
        part = _describe(child, options, untraced)
        report.rows += part.rows
        report.guards += part.guards
        report.before += part.before
        report.regions.update(part.regions)
        report.frozen.update(part.frozen)
        report.precision = report.precision or part.precision
    return report
