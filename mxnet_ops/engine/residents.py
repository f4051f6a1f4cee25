"""Arrays of MXNet whose elements live on the device, and are brought to the host when MXNet is asked for them.

MXNet's array of a CPU is memory of the host. A resident array has that memory too, but its elements may be newer on the
device. Whatever Python does with an array of MXNet, be it an operator, a write, a file or a copy, begins with its
attribute ``handle``: that is where a resident array brings its elements, and from then on the host's are the true ones
until the device needs them again. What describes an array only (its shape, its dtype) brings nothing.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray.ndarray import NDArray, NDArrayBase

from clgraft.core.graph import GraphBuilder
from clgraft.core.model.memory import Block, Memory
from clgraft.core.nn import norms
from clgraft.core.nn.builder import Build
from clgraft.mxnet_ops.engine.backward_order import Order, name_of
from clgraft.mxnet_ops.engine.backward_writes import OrderOf
from clgraft.mxnet_ops.engine.changes import address_of
from clgraft.mxnet_ops.engine.errors import OperatorError
from clgraft.mxnet_ops.engine.on_demand import DESCRIBING, AsNDArray, fill

AVAILABLE = NDArrayBase.__module__ == "mxnet._ctypes.ndarray"  # a build with Cython reads handles without Python
DTYPE, HALF = "float32", "float16"
MOST_ADDED = 16  # sets of moving statistics whose changes by several calls stay compiled
MOST_CALLS = 1024  # that are told apart between two backwards
HOST, BOTH, DEVICE = "host", "both", "device"  # where the true elements are

WEIGHT, GRADIENT, MASTER = "weight", "gradient", "master"  # kinds of arrays of a block

_handle: Any = NDArrayBase.handle  # type: ignore[attr-defined]  # of the slot
_known: dict[int, Resident] = {}  # by the identity of the array
_numbers = itertools.count(1)
_changes = itertools.count(1)
_state = [0]  # changes with what is known: what was found out about arrays holds as long as it stays
_homes: weakref.WeakSet[Home] = weakref.WeakSet()


class Home:
    """Memory of a device for resident arrays, and the order of what reads and writes them there.

    MXNet's engine orders operators by their arrays, and residents are none of a region's. So each region that has some
    takes a token as an input: who waits for that and its gradient waits for all of them. There is one for each type of
    regions' data, with one element and a gradient.

    Parameters
    ----------
    context : core.Context
    place : mx.Context
        Of the arrays.

    Attributes
    ----------
    lock : threading.Lock
        Held while a backward writes.
    backwards : int
        How many were started.
    discards : bool
        Whether a backward leaves the gradients of residents alone, because only others are wanted.
    changes : dict of int to list of Change
        Moving statistics that several regions of a backward change, by their identities: the changes that are to come,
        in the order in which they have to be made.
    """

    def __init__(self, context: Any, place: mx.Context) -> None:
        self.context, self.memory, self.number = context, Memory(context), next(_numbers)
        self._place = place
        self.lock = threading.Lock()
        self.backwards, self.discards = 0, False
        self._tokens: dict[tuple[str, int], tuple[NDArray, NDArray]] = {}  # with their gradients
        self._numbers: dict[int, int] = {}  # of calls, by the addresses of their tokens
        self._calls: list[Mapping[int, tuple[int, ...]]] = []  # recorded: what they change (see `call_number`)
        self._several = False  # whether calls have tokens of their own
        self.changes: dict[int, list[Change]] = {}
        self._changed: dict[int, Resident] = {}  # some of whose changes have arrived
        self._adding: dict[Any, tuple[Callable[[], None], Any]] = {}
        self._queued = self._backward_queued = self._ended = False
        self._recorded: dict[int, Resident] = {}
        _homes.add(self)

    def token(self, dtype: str, call: int = 0) -> NDArray:
        """Return the token of regions whose data have a type, for a recorded call."""
        if (dtype, call) not in self._tokens:
            with mx.autograd.pause():
                made = mx.nd.zeros((1,), ctx=self._place, dtype=dtype)
                made.attach_grad()
            self._tokens[dtype, call] = made, made.grad
            self._numbers[address_of(made)] = call
        return self._tokens[dtype, call][0]

    def call_number(self, changing: Mapping[int, tuple[int, ...]]) -> int:
        """Return the number of a call that is about to be recorded, or 0 as long as no two change the same.

        Parameters
        ----------
        changing : mapping of int to tuple of int
            For each moving statistic, by its identity, the numbers of the regions that change it, as they are called.
        """
        if not self._several:
            others = any(not changing.keys().isdisjoint(call) for call in self._calls)
            self._several = others or any(len(regions) > 1 for regions in changing.values())
        if len(self._calls) == MOST_CALLS:  # of calls without a backward, as a rule: their tokens serve again
            self._calls = []
        self._calls.append(changing)
        return len(self._calls) - 1 if self._several else 0

    def token_names(self) -> list[str]:
        """Return the names of the tokens in recorded graphs."""
        return [name_of(token) for token, _ in self._tokens.values()]

    def number_of(self, token: int) -> int:
        """Return the number of the call that has a token, by its address."""
        return self._numbers.get(token, 0)

    def start(self, residents: Collection[Resident], recorded: bool) -> None:
        """Send what a forward of regions is going to read; with `recorded`, its backward reads it too."""
        self.send(residents)
        if recorded:
            if self._ended:
                self._recorded, self._ended, self._calls = {}, False, []
            self._recorded.update(zip(map(id, residents), residents))
        self._queued = True

    def send(self, residents: Iterable[Resident]) -> None:
        """Send the elements that are newer on the host."""
        for resident in [one for one in residents if one.place == HOST]:
            self.settle()  # after which it may be newer on the device
            if resident.place == HOST:
                resident.send()

    def settle(self) -> None:
        """Wait for the regions that were called."""
        if self._queued:
            for token, gradient in self._tokens.values():
                check_call(_LIB.MXNDArrayWaitToWrite(token.handle))  # those who read it have ended
                gradient.wait_to_read()
            self._queued = self._backward_queued = False

    def forget(self) -> None:
        """Have no resident wait for a backward."""
        self.settle()
        self._recorded, self._calls = {}, []

    def waits_for_backward(self, resident: Resident) -> bool:
        """Return whether a recorded forward has read a resident, and its backward is still to come."""
        return not self._ended and id(resident) in self._recorded

    def begin_backward(self, only: bool, order: Callable[[], Order | None] = lambda: None) -> None:
        """Prepare for a backward; with `only`, one of which the gradients of residents are not wanted.

        `order` returns that of the backwards of its graph, if there is one.
        """
        if not self._recorded:
            return
        if self._backward_queued:
            self.settle()
        read = list(self._recorded.values())
        self.send(read)
        self.send(one.gradient for one in read if one.gradient is not None and one.request == "add")
        found = order() if self._several and self._calls else None
        for resident in self._changed.values():  # a backward has failed: what was left aside is not to be added
            resident.forget_asides()
        self.changes, self._changed = {} if found is None else self._changes(found), {}
        self.backwards += 1
        self.discards = only
        self._queued = self._backward_queued = self._ended = True

    def _changes(self, order: Order) -> dict[int, list[Change]]:
        places: dict[int, int] = {}
        for (_, number), (token, _) in self._tokens.items():
            # until two calls changed the same, all had the same tokens: the place is that of the last one
            place = order.place_of(name_of(token)) if number < len(self._calls) else -1
            if place >= 0:
                places[number] = max(place, places.get(number, -1))
        made: dict[int, list[Change]] = {}
        for number in sorted(places, key=places.__getitem__):
            for identity, regions in self._calls[number].items():
                made.setdefault(identity, []).extend(Change((number, region)) for region in reversed(regions))
        return {identity: changes for identity, changes in made.items() if len(changes) > 1}

    def waits(self, resident: Resident, key: tuple[int, int], keep: float | None) -> bool:
        """Return whether a region is to leave aside what it changes of a resident; it is about to begin.

        Parameters
        ----------
        resident : Resident
        key : (int, int)
            The numbers of the call and of the region.
        keep : float or None
            What the region multiplies the resident by; None if it does not change it.
        """
        changes = self.changes.get(id(resident), [])
        found = [change for change in changes if change.key == key]
        for change in found:
            change.keep = keep
            if keep is None:
                changes.remove(change)
        return bool(found) and keep is not None

    def arrived(self, resident: Resident, key: tuple[int, int]) -> None:
        """Say that a region has left a change aside."""
        changes = self.changes[id(resident)]
        for change in changes:
            change.arrived = change.arrived or change.key == key
        self._changed[id(resident)] = resident

    def add_what_arrived(self) -> None:
        """Change the moving statistics of which all changes have arrived."""
        complete = []
        for identity, resident in list(self._changed.items()):
            if all(change.arrived for change in self.changes[identity]):
                complete.append((resident, self.changes.pop(identity)))
                del self._changed[identity]
        if not complete:
            return
        key = tuple((id(one), tuple((change.key, change.keep) for change in changes)) for one, changes in complete)
        if key not in self._adding:
            if len(self._adding) >= MOST_ADDED:
                self._adding.clear()
            self._adding[key] = self._compiled(complete), [one for one, _ in complete]
        self._adding[key][0]()

    def _compiled(self, complete: Sequence[tuple[Resident, list[Change]]]) -> Callable[[], None]:
        """Return what changes moving statistics, and leaves zeros for the next changes."""
        builder = GraphBuilder(prefix="m")
        build, arrays = Build(builder, training=True), {}
        for number, (resident, changes) in enumerate(complete):
            average = build.state(f"average{number}", resident.shape, resident.dtype)
            arrays[average.name] = resident.device
            for place, change in enumerate(changes):
                share = build.state(f"share{number}_{place}", resident.shape, resident.dtype)
                arrays[share.name] = resident.aside(change.key)
                norms.take_share(build, average, share, keep=change.keep or 0.0)
        compiled = self.context.compile(builder.graph())
        plan, constants = compiled.prepared([])
        bound = plan.bind_arrays({**arrays, **constants})
        owners = compiled, arrays, constants  # of what is bound

        def run() -> None:
            assert owners
            plan.run_bound(bound, [])

        return run

    def end_backward(self) -> None:
        """Go on with gradients of residents after a backward without them."""
        if self.discards:
            self.settle()
            self.discards = False


@dataclass
class Change:
    """What a region changes of a moving statistic.

    Attributes
    ----------
    key : (int, int)
        The numbers of the call and of the region.
    keep : float or None
        What the statistic is multiplied by; None until it is known.
    arrived : bool
        Whether it has been left aside.
    """

    key: tuple[int, int]
    keep: float | None = None
    arrived: bool = False


class Place(NamedTuple):
    """Where an array lies among others of its kind, and those of the same parameter among theirs.

    Attributes
    ----------
    block : Block
    kind : str
    number : int
    """

    block: Block
    kind: str
    number: int

    def of(self, kind: str) -> Place:
        """Return the place of what another kind has for the same parameter."""
        return self._replace(kind=kind)


def together(home: Home, arrays: Mapping[str, NDArray]) -> dict[str, Place]:
    """Return places for the arrays of parameters, by their names: one after another in a block for each type.

    Optimizers tell parameters apart by the ends of names, so those that end alike lie together.
    """
    places: dict[str, Place] = {}
    for dtype in dict.fromkeys(array.dtype for array in arrays.values()):
        alike = [name for name, array in arrays.items() if array.dtype == dtype]
        alike.sort(key=lambda name: name.rsplit("_", 1)[-1])
        block = Block(home.memory, [tuple(arrays[name].shape) for name in alike])
        places.update((name, Place(block, WEIGHT, number)) for number, name in enumerate(alike))
    return places


class Resident:
    """What is on the device of an array.

    Parameters
    ----------
    array : NDArray
        Becomes a `ResidentArray`.
    home : Home
    negative : bool
        Whether the device has the elements with the other sign.
    device : array, optional
        What holds the elements; by default new memory.
    lies : Place, optional
        Where it is, or new memory is taken if nobody has it.

    Attributes
    ----------
    lies : Place or None
    array : NDArray
        Another view of the memory on the host, which brings nothing.
    dtype : str
    taped : bool
        Whether autograd may record what others read of it.
    device : array
        As of `core.model.memory.Memory`.
    place : str
    gradient : Resident or None
        Of a parameter that is learned.
    request : str
        How its gradient is written: ``write``, ``add`` or ``null``.
    fresh : bool
        Whether a backward has written its gradient since the last update.
    backward : int
        Of a gradient, the number of the last backward that wrote it.
    parameter : callable
        Returns the parameter of Gluon whose array it is, or None.
    left : str
        Why the array is MXNet's alone again, if it is.
    """

    def __init__(
        self, array: NDArray, home: Home, negative: bool = False, device: Any = None, lies: Place | None = None
    ) -> None:
        self.array = array.detach()
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: str = np.dtype(array.dtype).name
        self.home, self.negative, self.taped = home, negative, True
        if device is None and lies is not None:
            device = lies.block.array(lies.kind, lies.number, self.dtype)
            lies = None if device is None else lies
        self.lies = lies
        self.device = home.memory.zeros(self.shape, self.dtype) if device is None else device
        self.place, self.left, self.request = HOST, "", "null"
        self.gradient: Resident | None = None
        self.parameter: Callable[[], Any] = _nobody
        self.fresh, self.backward = False, 0
        self._zero = False  # whether the device has nothing but zeros
        self._asides: dict[tuple[int, int], Any] = {}
        self._identity = id(array)
        array.__class__ = ResidentArray
        _known[self._identity] = self
        _state[0] = next(_changes)

    def aside(self, key: tuple[int, int]) -> Any:
        """Return the array on the device for what a call of a region changes; zeros at first."""
        if key not in self._asides:
            self._asides[key] = self.home.memory.zeros(self.shape, self.dtype)
        return self._asides[key]

    def forget_asides(self) -> None:
        """Have zeros be what calls change from now on."""
        for array in self._asides.values():
            self.home.memory.change(array, np.zeros(self.shape, self.dtype))

    def follow(self) -> None:
        """Take over how the gradient of a parameter is asked for, and the array that it is in."""
        parameter = self.parameter()
        if parameter is None:
            return
        self.request = parameter.grad_req
        array = parameter._grad[0] if parameter._grad else None
        if array is None or resident_of(array) is self.gradient is not None:
            return
        if self.gradient is None:
            self.gradient = Resident(array, self.home, lies=self.beside(GRADIENT))
        else:
            self.gradient = Resident(array, self.home, device=self.gradient.device, lies=self.gradient.lies)

    def beside(self, kind: str) -> Place | None:
        """Return the place of what another kind has for a parameter; None if that lies alone."""
        return None if self.lies is None else self.lies.of(kind)

    def send(self) -> None:
        """Have the elements of the host on the device, too."""
        elements = self.array.asnumpy()
        self.home.memory.change(self.device, -elements if self.negative else elements)
        self.place = BOTH

    def check_out(self) -> None:
        """Have the true elements on the host, where MXNet is going to read or write them."""
        if self.taped and self.request != "null" and mx.autograd.is_recording():
            self.leave("an operator outside of regions reads it under autograd.record")
        else:
            self.bring()

    def written(self, zero: bool, all_of_it: bool) -> None:
        """Say that a backward has written a gradient; one that is zero has been left as it was."""
        if zero and all_of_it and not self._zero:
            self.home.memory.change(self.device, np.zeros(self.shape, self.dtype))
        self._zero = zero and (all_of_it or self._zero)
        self.place = DEVICE

    def leave(self, reason: str) -> None:
        """Make the array MXNet's alone again.

        Raises
        ------
        OperatorError
            If a region has read it in a forward whose backward is still to come.
        """
        if self.home.waits_for_backward(self):
            raise OperatorError(
                f"[Trainer] got a parameter of shape {self.shape} that a region has read and now an operator outside "
                f"of regions reads in the same autograd.record ({reason}), expected one of both: the Trainer's "
                "argument `outside` takes parameters that stay MXNet's"
            )
        self.left = reason
        for one in (self, self.gradient):
            if one is not None:
                one.bring()
                _forget(one._identity)

    def bring(self) -> None:
        """Have the true elements on the host."""
        self.home.settle()
        if self.place == DEVICE:
            elements = np.ascontiguousarray(self.home.memory.elements(self.device))
            if self.negative:
                elements = -elements
            fill(self.array, elements)
        self.place = HOST


def _forget(identity: int) -> None:
    if _known.pop(identity, None) is not None:
        _state[0] = next(_changes)


def _nobody() -> None:
    return None


def _described(name: str) -> property:
    """Return a property of arrays that brings no elements."""
    original = getattr(NDArray, name)

    def get(self: NDArray) -> Any:
        resident = _known.get(id(self))
        return original.fget(self if resident is None else resident.array)

    return property(get, doc=original.__doc__)


class ResidentArray(NDArray, metaclass=AsNDArray):  # type: ignore[misc]
    """MXNet's array with elements on the device."""

    __slots__ = ()

    @property
    def handle(self) -> Any:
        """MXNet's handle, after the elements are on the host."""
        resident = _known.get(id(self))
        if resident is not None:
            resident.check_out()
        return _handle.__get__(self)

    @handle.setter
    def handle(self, value: Any) -> None:
        _handle.__set__(self, value)

    @property
    def handle_alone(self) -> Any:
        """MXNet's handle, wherever the elements are."""
        return _handle.__get__(self)

    shape, size, ndim, dtype, stype, context, ctx = map(_described, DESCRIBING)

    @property
    def grad(self) -> Any:
        """The gradient, after its elements are on the host."""
        resident = _known.get(id(self))
        if resident is not None and resident.gradient is not None:
            resident.gradient.check_out()
        return NDArray.grad.fget(self)

    @property
    def _fresh_grad(self) -> Any:
        resident, found = _known.get(id(self)), ctypes.c_int()
        check_call(_LIB.MXNDArrayGetGradState(_handle.__get__(self), ctypes.byref(found)))
        return found.value or (resident is not None and resident.fresh)

    @_fresh_grad.setter
    def _fresh_grad(self, state: Any) -> None:
        resident = _known.get(id(self))
        if resident is not None:
            resident.fresh = bool(state)
        check_call(_LIB.MXNDArraySetGradState(_handle.__get__(self), ctypes.c_int(state)))

    def __del__(self) -> None:
        _forget(id(self))
        check_call(_LIB.MXNDArrayFree(_handle.__get__(self)))


def resident_of(array: Any) -> Resident | None:
    """Return what is on the device of an array; None if it is MXNet's alone."""
    return _known.get(id(array)) if type(array) is ResidentArray else None


def state_of_all() -> int:
    """Return a number that changes whenever an array gets elements on the device or loses them."""
    return _state[0]


def there_are_residents() -> bool:
    """Return whether any array has elements on the device."""
    return bool(_known)


def around_backward(only: bool, order: OrderOf) -> Callable[[], None]:
    """Prepare all homes for a backward, and return what is to be called when it is queued."""
    homes = list(_homes)
    for home in homes:
        home.begin_backward(only, lambda: order([home.token_names() for home in homes]))

    def end() -> None:
        for home in homes:
            home.end_backward()

    return end
