"""Batches of Caffe's data layers: made up, given, or from HDF5, LMDB and lists of images."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.caffe_layers.data.pixels import resized
from clgraft.caffe_layers.data.transform import Transform
from clgraft.caffe_layers.data.windows import Cutter, numbers_of, read_windows
from clgraft.caffe_layers.nets import fillers
from clgraft.caffe_layers.prototxt import schema
from clgraft.core.model import ModelError

Batch = dict[str, np.ndarray]
LMDB = 1  # value of `backend`


def library(name: str, package: str, layer: Any) -> Any:
    """Return a module that a layer needs.

    Raises
    ------
    ModelError
        If it is not installed.
    """
    try:
        return __import__(name)
    except ImportError as error:
        raise ModelError(
            f"[data] got layer {layer.name!r} of type {layer.type}, which needs {package} (pip install {package}):"
            f" {error}"
        ) from None


@dataclass(frozen=True)
class Share:
    """What a process reads of records, and its random numbers.

    Attributes
    ----------
    rank, size : int
        It takes the records rank, rank + size, ...: as Caffe's data layers do.
    order, rng : numpy.random.Generator
        For the order of records, which is the same in all processes, and for everything else.
    """

    rank: int
    size: int
    order: np.random.Generator
    rng: np.random.Generator

    def of(self, records: Iterator[Any]) -> Iterator[Any]:
        """Return this process's records."""
        return records if self.size == 1 else itertools.islice(records, self.rank, None, self.size)


def batches(layer: Any, training: bool, rng: np.random.Generator, share: tuple[int, int] = (0, 1)) -> Iterator[Batch]:
    """Return the batches of a layer, without end: an array for each of its tops.

    Parameters
    ----------
    layer : LayerParameter
    training : bool
    rng : numpy.random.Generator
    share : (int, int)
        The number of this process, and how many train together.

    Raises
    ------
    ModelError
        If the layer's type is not served, or what it reads is missing.
    """
    if layer.type not in KINDS:
        raise ModelError(f"[data] got layer {layer.name!r} of type {layer.type}, expected one of {sorted(KINDS)}")
    rank, size = share
    if size == 1:
        return KINDS[layer.type](layer, training, Share(0, 1, rng, rng))
    seed = int(rng.integers(2**32))
    return KINDS[layer.type](
        layer, training, Share(rank, size, np.random.default_rng(seed), np.random.default_rng((seed, rank)))
    )


def _dummy(layer: Any, training: bool, share: Share) -> Iterator[Batch]:
    given = layer.dummy_data_param
    shapes = [tuple(shape.dim) for shape in given.shape] or [
        tuple(sizes) for sizes in zip(given.num, given.channels, given.height, given.width)
    ]
    if not shapes:
        raise ModelError(f"[data] got layer {layer.name!r} without shapes, expected one for each top")
    own = list(given.data_filler) or [schema.parse("FillerParameter", "type: 'constant'")]
    fixed: Batch = {}
    while True:
        batch = {}
        for place, top in enumerate(layer.top):
            filler = own[place if len(own) > 1 else 0]
            shape = shapes[place if len(shapes) > 1 else 0]
            if filler.type == "constant":
                if top not in fixed:
                    fixed[top] = fillers.drawn(share.rng, shape, filler)
                batch[top] = fixed[top]
            else:
                batch[top] = fillers.drawn(share.rng, shape, filler)
        yield batch


def _hdf5(layer: Any, training: bool, share: Share) -> Iterator[Batch]:
    given = layer.hdf5_data_param
    h5py = library("h5py", "h5py", layer)
    names = [Path(line.strip()) for line in _lines(given.source, layer) if line.strip()]
    size = _batch_size(given, layer)

    def rows() -> Iterator[tuple[dict[str, np.ndarray], int]]:
        while True:
            for number in share.order.permutation(len(names)) if given.shuffle else range(len(names)):
                try:
                    with h5py.File(names[number], "r") as file:
                        arrays = {top: np.asarray(file[top], np.float32) for top in layer.top}
                except (OSError, KeyError) as error:
                    raise ModelError(f"[data] got {names[number]} for layer {layer.name!r}: {error}") from None
                count = min(len(array) for array in arrays.values())
                if not count:
                    raise ModelError(f"[data] got {names[number]} without rows for layer {layer.name!r}")
                for row in share.order.permutation(count) if given.shuffle else range(count):
                    yield arrays, row

    if not names:
        raise ModelError(f"[data] got {given.source} without files for layer {layer.name!r}")
    source = share.of(rows())
    while True:
        taken = [next(source) for _ in range(size)]
        yield {top: np.stack([arrays[top][row] for arrays, row in taken]) for top in layer.top}


def _database(layer: Any, training: bool, share: Share) -> Iterator[Batch]:
    given = layer.data_param
    if given.backend != LMDB:
        raise ModelError(
            f"[data] got LevelDB {given.source} in layer {layer.name!r}, expected backend: LMDB: Caffe's"
            " convert_imageset --backend lmdb writes one"
        )
    lmdb = library("lmdb", "lmdb", layer)
    try:
        database = lmdb.open(
            given.source, readonly=True, lock=False, readahead=True, subdir=Path(given.source).is_dir()
        )
    except lmdb.Error as error:
        raise ModelError(f"[data] got {given.source} for layer {layer.name!r}, which cannot be read: {error}") from None

    def items() -> Iterator[tuple[np.ndarray, int]]:
        while True:
            count = 0
            with database.begin() as transaction:
                for _, value in transaction.cursor():
                    count += 1
                    yield _of_datum(schema.parse_bytes("Datum", value), layer)
            if not count:
                raise ModelError(f"[data] got {given.source} without images for layer {layer.name!r}")

    source = items()
    for _ in range(int(share.order.integers(0, given.rand_skip)) if given.rand_skip else 0):
        next(source)
    yield from _images(layer, _batch_size(given, layer), share.of(source), Transform(layer, training, share.rng))


def _of_datum(datum: Any, layer: Any) -> tuple[np.ndarray, int]:
    """Return the image and the label of a datum."""
    if datum.encoded:
        return _decoded(datum.data, layer, color=None), datum.label
    shape = (datum.channels, datum.height, datum.width)
    found = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)
    if found.size != shape[0] * shape[1] * shape[2]:
        raise ModelError(f"[data] got {found.size} numbers of an image of shape {shape} in layer {layer.name!r}")
    return found.reshape(shape), datum.label


def _listed(layer: Any, training: bool, share: Share) -> Iterator[Batch]:
    given = layer.image_data_param
    pairs = [line.rsplit(None, 1) for line in _lines(given.source, layer) if line.strip()]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise ModelError(f"[data] got {given.source} for layer {layer.name!r}, expected lines of a path and a label")
    size = (given.new_height, given.new_width) if given.new_height and given.new_width else None

    def items() -> Iterator[tuple[np.ndarray, int]]:
        while True:
            for number in share.order.permutation(len(pairs)) if given.shuffle else range(len(pairs)):
                name, label = pairs[number]
                try:
                    data = Path(given.root_folder + name).read_bytes()
                except OSError as error:
                    raise ModelError(f"[data] got {given.root_folder + name}, which cannot be read: {error}") from None
                yield _decoded(data, layer, given.is_color, size), int(label)

    source = items()
    for _ in range(int(share.order.integers(0, given.rand_skip)) if given.rand_skip else 0):
        next(source)
    yield from _images(layer, _batch_size(given, layer), share.of(source), Transform(layer, training, share.rng))


def _windows(layer: Any, training: bool, share: Share) -> Iterator[Batch]:
    given = layer.window_data_param
    _batch_size(given, layer)
    listed, cut = read_windows("\n".join(_lines(given.source, layer)), layer), Cutter(layer)
    rng, cached = share.rng, dict[int, np.ndarray]()

    def image(number: int) -> np.ndarray:
        if number in cached:
            return cached[number]
        try:
            found = _decoded(Path(listed.images[number]).read_bytes(), layer, color=True)
        except OSError as error:
            raise ModelError(f"[data] got {listed.images[number]}, which cannot be read: {error}") from None
        if given.cache_images:
            cached[number] = found
        return found

    while True:
        windows = [
            kind[int(rng.integers(0, len(kind)))]
            for kind, count in zip((listed.backgrounds, listed.objects), numbers_of(layer))
            for _ in range(count)
        ]
        mirrors = [bool(layer.transform_param.mirror and rng.integers(0, 2)) for _ in windows]
        batch = {layer.top[0]: np.stack([cut(image(w.image), w, m) for w, m in zip(windows, mirrors)])}
        if len(layer.top) > 1:
            batch[layer.top[1]] = np.array([window.label for window in windows], np.float32)
        yield batch


def _decoded(data: bytes, layer: Any, color: bool | None, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return an image file as (channels, height, width), blue first, as OpenCV has it; `size` is height and width."""
    library("PIL", "pillow", layer)
    from PIL import Image

    image: Any
    try:
        image = Image.open(io.BytesIO(data))
        if color is None:
            color = image.mode not in ("1", "L", "I;16")
        image = image.convert("RGB" if color else "L")
    except OSError as error:
        raise ModelError(f"[data] got an image of layer {layer.name!r} that cannot be read: {error}") from None
    pixels = np.asarray(image)
    pixels = pixels[:, :, ::-1].transpose(2, 0, 1) if color else pixels[None]
    return pixels if size is None else resized(pixels, size)


def _images(
    layer: Any, size: int, source: Iterator[tuple[np.ndarray, int]], transform: Callable[[np.ndarray], np.ndarray]
) -> Iterator[Batch]:
    while True:
        taken = [next(source) for _ in range(size)]
        images = [transform(image) for image, _ in taken]
        if len({image.shape for image in images}) > 1:
            shapes = sorted({image.shape for image in images})
            raise ModelError(f"[data] got images of shapes {shapes} in a batch of layer {layer.name!r}, expected one")
        batch = {layer.top[0]: np.stack(images)}
        if len(layer.top) > 1:
            batch[layer.top[1]] = np.array([label for _, label in taken], np.float32)
        yield batch


def given_arrays(layer: Any, feed: Mapping[str, Any]) -> Iterator[Batch]:
    """Return the batches that a program gives for the tops of a layer: arrays, or iterators of arrays.

    Raises
    ------
    ModelError
        If a top is missing.
    """
    missing = [top for top in layer.top if top not in feed]
    if missing:
        raise ModelError(
            f"[data] got no arrays for {missing} of layer {layer.name!r} of type {layer.type}, expected some: a"
            " program gives them as `feed`"
        )
    while True:
        batch = {}
        for top in layer.top:
            source = feed[top]
            if isinstance(source, np.ndarray):
                batch[top] = source
            else:
                try:
                    batch[top] = next(source)
                except StopIteration:
                    raise ModelError(f"[data] got no more arrays for {top!r}, expected one for each step") from None
        yield batch


def _batch_size(given: Any, layer: Any) -> int:
    if given.batch_size < 1:
        raise ModelError(f"[data] got batch_size {given.batch_size} in layer {layer.name!r}, expected at least 1")
    return int(given.batch_size)


def _lines(source: str, layer: Any) -> list[str]:
    try:
        return Path(source).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"[data] got {source} in layer {layer.name!r}, which cannot be read: {error}") from None


KINDS: dict[str, Callable[[Any, bool, Share], Iterator[Batch]]] = {
    "DummyData": _dummy,
    "HDF5Data": _hdf5,
    "Data": _database,
    "ImageData": _listed,
    "WindowData": _windows,
}
GIVEN = ("Input", "MemoryData")  # a program gives what they have
