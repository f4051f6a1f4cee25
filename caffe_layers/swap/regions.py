"""Forms regions: swapped layers that run as one graph, with the values between them on the device.

Caffe runs the layers in the order of the text and back again, and adds the gradients of a blob's readers itself. A
region therefore ends where a layer outside of it reads one of its values, and a value that is read outside of its
region is not read inside of it. If it has several readers, its layer is the last one of the region: only after that one
Caffe has all of the value's gradient.

Caffe adds a loss up as soon as its layer has run. The first loss of a region therefore runs all of the region, so that
each loss has its value in time. Everything that the region reads must be there by then: after a loss, a region ends at
the next layer outside of it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from clgraft.caffe_layers.prototxt import Message, Scalar
from clgraft.caffe_layers.prototxt.marks import PHASES, Mark
from clgraft.caffe_layers.swap.layer import FALSE, TRUE

# types of Caffe's with blobs that learn, and how many blobs they have at most
_LEARNING = {
    **dict.fromkeys(("Convolution", "Deconvolution", "DepthwiseConvolution", "ConvolutionDepthwise"), 2),
    **dict.fromkeys(("InnerProduct", "Scale", "Embed"), 2),
    **dict.fromkeys(("Bias", "PReLU", "Normalize", "Parameter"), 1),
    **dict.fromkeys(("LSTM", "RNN", "Recurrent", "Python"), 99),
}
_TIMED = ("min_level", "max_level", "stage", "not_stage")
YES, NO, MAYBE = "yes", "no", "maybe"
Value = tuple  # the number of the layer that writes it, and the place of its top


@dataclass
class Item:
    """A layer as regions see it.

    Attributes
    ----------
    why : str
        Why it cannot be in a region; empty if it can.
    marked : tuple of int
        Tops that the host computes or reads: losses.
    unforced : tuple of int
        Bottoms that `force_backward` gives no gradient.
    """

    name: str
    kind: str
    bottoms: list
    tops: list
    why: str
    marked: tuple = ()
    unforced: tuple = ()
    presence: dict = field(default_factory=dict)
    down: list = field(default_factory=list)
    learns: bool = False


@dataclass
class Region:
    """A region of one or both phases.

    Attributes
    ----------
    phases, layers, hidden : list of str
        Phases, names of the layers, and names of the blobs that are not on the host.
    ends : str
        Why the region does not go on; empty at the end of the net.
    """

    phases: list
    layers: list
    hidden: list
    ends: str = ""

    def __str__(self) -> str:
        phases = f" in {self.phases[0]}" if len(self.phases) == 1 else ""
        text = f"region {self.layers[0]} to {self.layers[-1]}{phases}: {len(self.layers)} layers"
        text += f"; not on the host: {', '.join(self.hidden)}" if self.hidden else ""
        return text + (f"; ends there because {self.ends}" if self.ends else "")


def item_of(layer: Message, why: str, loss: bool) -> Item:
    """Return a layer as regions see it; `why` it cannot be in one, empty for a swapped layer."""
    if not why and layer.values("phase"):
        why = "it names a phase of its own"
    weights = [float(value.value.rstrip("fF")) for value in layer.values("loss_weight") if isinstance(value, Scalar)]
    marked = {place for place, weight in enumerate(weights) if weight} | ({0} if loss else set())
    presence = {phase: _presence(layer, phase) for phase in PHASES}
    if not why and MAYBE in presence.values():
        why = "stages or levels decide whether it is there"
    return Item(
        name=layer.text("name"),
        kind=layer.text("type"),
        bottoms=[value.value for value in layer.values("bottom") if isinstance(value, Scalar)],
        tops=[value.value for value in layer.values("top") if isinstance(value, Scalar)],
        why=why,
        marked=tuple(sorted(marked)),
        presence=presence,
        down=[value.value in TRUE for value in layer.values("propagate_down") if isinstance(value, Scalar)],
        learns=_learns(layer),
    )


def form_regions(items: Sequence[Item], keep: Iterable[str], forced: bool) -> tuple:
    """Return the marks of each layer by phase, the regions, and the patterns of `keep` that match no blob.

    Parameters
    ----------
    items : sequence of Item
        All layers of the net, in its order.
    keep : iterable of str
        Names, or patterns of names, of blobs that stay on the host with their gradients.
    forced : bool
        Whether the net computes the gradients of everything.
    """
    marks: list = [{} for _ in items]
    regions: list = []
    names = {name for item in items for name in (*item.bottoms, *item.tops)}
    patterns = list(keep)
    kept = {name for name in names if any(name == p or fnmatch.fnmatchcase(name, p) for p in patterns)}
    unused = [p for p in patterns if not any(name == p or fnmatch.fnmatchcase(name, p) for name in names)]
    for phase in PHASES:
        net = _Phase(items, phase, kept, forced)
        for group, ends in net.groups():
            own = net.marks(group)
            for number, mark in own.items():
                marks[number][phase] = mark
            found = Region([phase], [items[number].name for number in group], net.hidden(group), ends)
            same = next((r for r in regions if (r.layers, r.hidden) == (found.layers, found.hidden)), None)
            if same is None:
                regions.append(found)
            else:
                same.phases.append(phase)
    return marks, regions, unused


class _Phase:
    """The layers of a net in one phase, and who reads what."""

    def __init__(self, items: Sequence[Item], phase: str, kept: Collection[str], forced: bool) -> None:
        self.items = items
        self.order = [number for number, item in enumerate(items) if item.presence[phase] != NO]
        self.reads: dict = {}
        self.readers: dict = {}
        self.back: dict = {}
        last: dict = {}
        needs: dict = {}
        for number in self.order:
            item = items[number]
            self.reads[number] = [last.get(name) for name in item.bottoms]
            down = [needs.get(name, False) for name in item.bottoms]
            if len(item.down) == len(down):
                down = list(item.down)
            self.back[number] = [own or (forced and i not in item.unforced) for i, own in enumerate(down)]
            for name, value in zip(item.bottoms, self.reads[number]):
                self.readers.setdefault(value if value is not None else name, []).append(number)
            for place, name in enumerate(item.tops):
                last[name] = (number, place)
                self.readers.setdefault((number, place), [])
                needs[name] = item.learns or any(down)
        self.last = last
        self.shown = {value for name, value in last.items() if name in kept}
        self.shown |= {(number, place) for number in self.order for place in items[number].marked}

    def groups(self) -> list:
        """Return regions as lists of layers, each with the reason why it ends."""
        found: list = []
        group: list = []
        touched: set = set()
        full = ""  # why no further layer joins the group
        for number in self.order:
            item = self.items[number]
            if not item.why:
                if full:
                    found.append((group, full))
                    group, touched, full = [], set(), ""
                group.append(number)
                touched |= {*item.bottoms, *item.tops}
                continue
            members = set(group)
            reads = any(value is not None and value[0] in members for value in self.reads[number])
            if reads or touched & set(item.tops):
                found.append((group, f"{item.name} ({item.kind}) {'reads' if reads else 'overwrites'} a value of it"))
                group, touched, full = [], set(), ""
            elif not full:
                losses = [self.items[member].name for member in group if self.items[member].marked]
                full = f"{item.name} ({item.kind}) follows the loss {losses[0]}" if losses else ""
        found.append((group, ""))
        parts = [part for members, ends in found for part in self._parted(members, ends)]
        return [(members, ends) for members, ends in parts if len(members) > 1]

    def _parted(self, group: list, ends: str) -> list:
        """Return a group in parts whose values are read either inside of them or outside."""
        members = set(group)
        for at, number in enumerate(group, 1):
            for place, name in enumerate(self.items[number].tops):
                value = (number, place)
                inside = [reader for reader in self.readers[value] if reader in members]
                outside = [reader for reader in self.readers[value] if reader not in members]
                if inside and not outside and value not in self.shown:
                    continue
                # Caffe's Split stands right after the layer, and adds the gradients up when its turn comes
                split = len(inside) + len(outside) + (place in self.items[number].marked) > 1
                cut = at if split else group.index(inside[0]) if inside else len(group)
                if cut < len(group):
                    why = f"{name} stays on the host"
                    if outside:
                        other = self.items[outside[0]]
                        why = f"{other.name} ({other.kind}) reads {name} too"
                    return [*self._parted(group[:cut], why), *self._parted(group[cut:], ends)]
        return [(group, ends)] if group else []

    def marks(self, group: list) -> dict:
        """Return the marks of a region's layers by their numbers."""
        members, found = set(group), {}
        losses = [place for place, number in enumerate(group) if self.items[number].marked]
        rewritten = {
            value
            for number in self.order
            if number not in members
            for name, value in zip(self.items[number].bottoms, self.reads[number])
            if value is not None and name in self.items[number].tops
        }
        for place, number in enumerate(group):
            item = self.items[number]
            values = [(number, top) for top in range(len(item.tops))]
            found[number] = Mark(
                region=self.items[group[0]].name,
                place=place,
                count=len(group),
                runs=losses[0] if losses else len(group) - 1,
                bottoms=tuple(item.bottoms),
                tops=tuple(item.tops),
                shows=tuple(not any(reader in members for reader in self.readers[value]) for value in values),
                changes=tuple(value in rewritten for value in values),
                back=tuple(self.back[number]),
            )
        return found

    def hidden(self, group: list) -> list:
        """Return the names of the blobs that a region leaves off the host."""
        members = set(group)
        return [
            name
            for name, value in self.last.items()
            if value[0] in members and any(reader in members for reader in self.readers[value])
        ]


def _learns(layer: Message) -> bool:
    """Return whether a blob of a layer may have a gradient."""
    blobs = _LEARNING.get(layer.text("type"), 0)
    parameters = [message for item in layer.fields for message in item.values if isinstance(message, Message)]
    if blobs == 2 and any(message.text("bias_term") in FALSE for message in parameters):
        blobs = 1
    rates = [message.text("lr_mult", "1") for message in layer.messages("param")]
    return blobs > len(rates) or (blobs > 0 and any(float(rate.rstrip("fF")) for rate in rates))


def _presence(layer: Message, phase: str) -> str:
    """Return whether a layer is there in a phase."""
    include = [_meets(rule, phase) for rule in layer.messages("include")]
    if include:
        return YES if YES in include else MAYBE if MAYBE in include else NO
    exclude = [_meets(rule, phase) for rule in layer.messages("exclude")]
    return NO if YES in exclude else MAYBE if MAYBE in exclude else YES


def _meets(rule: Message, phase: str) -> str:
    named = rule.text("phase")
    if named and named not in (phase, str(PHASES.index(phase))):
        return NO
    return MAYBE if any(rule.values(name) for name in _TIMED) else YES
