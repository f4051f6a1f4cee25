"""Images as inputs of models: read by pillow, resized, cut and normalised as the model's framework does it."""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.files import FileError, read_file
from clgraft.core.model import Port, Session
from clgraft.core.model.session import IMAGE
from clgraft.core.nn.shapes import middle
from clgraft.plugins.plugin import PluginError

EXPECTED = "an image that pillow reads: PPM, PNG, JPEG and others"
CHANNELS = ("rgb", "bgr")
LARGEST = (255, 1)
COLOURS = 3
CUT = 256 / 224  # the shorter side of an image over the side of the central part on which classifiers are tested


@dataclass(frozen=True)
class Preparation:
    """What becomes of an image's pixels: ``(pixel * largest / 255 - mean) * scale / std``.

    Attributes
    ----------
    channels : str
        One of `CHANNELS`.
    largest : int
        What the brightest pixel becomes first.
    mean, std : tuple of float
        For each channel in their order, or one for all.
    scale : float
    resize : int or None
        The shorter side, whose central part is taken; 0: the whole image gets the input's size; None: the longer side
        of the input, times `CUT`.
    """

    channels: str = "rgb"
    largest: int = 1
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    scale: float = 1.0
    resize: int | None = None


OTHERS = Preparation()  # of Gluon's and torchvision's models
PREPARATIONS = {"caffe": Preparation("bgr", 255, (104.0, 117.0, 123.0), (1.0,), resize=0)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--image`` and what says how images are prepared."""
    add = parser.add_argument
    add("--image", type=Path, action="append", default=[], metavar="FILE", help="an image as the input, or several")
    add("--channels", choices=CHANNELS, help="of images: the order of colours (default: Caffe bgr, others rgb)")
    add(
        "--range",
        dest="largest",
        type=int,
        choices=LARGEST,
        metavar="{255,1}",
        help="of images: what the brightest pixel becomes (default: Caffe 255, others 1)",
    )
    usual = "(default: Caffe 104,117,123, others 0.485,0.456,0.406; grey 0)"
    add("--mean", type=_numbers, metavar="N,N,N", help=f"of images: what is subtracted from each channel {usual}")
    usual = "(default: Caffe 1, others 0.229,0.224,0.225; grey 1)"
    add("--std", type=_divisors, metavar="N,N,N", help=f"of images: what each channel is divided by then {usual}")
    add("--scale", type=_factor, metavar="N", help="of images: what they are multiplied by then (default: 1)")
    add(
        "--resize",
        type=_side,
        metavar="N",
        help="of images: the shorter side, whose central part is taken; 0: the whole image gets the input's size "
        "(default: Caffe 0, others 256 for 224 pixels)",
    )


def _numbers(text: str) -> tuple[float, ...]:
    """Read numbers between commas."""
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(map(math.isfinite, found)):
        raise argparse.ArgumentTypeError(f"got {text}, expected numbers between commas")
    return found


def _divisors(text: str) -> tuple[float, ...]:
    found = _numbers(text)
    if 0 in found:
        raise argparse.ArgumentTypeError(f"got {text}, expected numbers other than 0")
    return found


def _factor(text: str) -> float:
    found = _divisors(text)
    if len(found) > 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected one number")
    return found[0]


def _side(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text}, expected a whole number from 0")
    return int(text)


def read(file: Path) -> Any:
    """Return an image of pillow.

    Raises
    ------
    PluginError
        If pillow is not installed.
    FileError
        If the file cannot be read or is no image.
    """
    data = read_file(file, "run", EXPECTED)
    try:
        from PIL import Image
    except ImportError as error:
        raise PluginError(
            f"[run] got --image {file}, which needs pillow (pip install 'clgraft[data]'): {error}"
        ) from None
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
    except Image.UnidentifiedImageError:
        raise FileError(f"[run] got {file}, which is no image; expected {EXPECTED}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise FileError(f"[run] got {file}, which is a damaged image ({error}); expected {EXPECTED}") from None
    return image


def inputs(
    session: Session,
    images: Sequence[Any],
    given: Collection[str],
    shapes: Mapping[str, Sequence[int]],
    options: argparse.Namespace,
) -> tuple[dict[str, np.ndarray], str]:
    """Return the input that images are, as an array by its name, and in words what was done to them.

    Parameters
    ----------
    session : Session
    images : sequence of pillow's images
    given : collection of str
        Inputs that have arrays already.
    shapes : mapping of str to sequence of int
        Shapes of inputs that the user says.
    options : argparse.Namespace
        Of `add_arguments`.

    Raises
    ------
    PluginError
        If the model has no input for images, or the options do not fit them.
    """
    port = _port(session, given)
    place, sizes = _axes(port, shapes.get(port.name, port.sizes or port.shape))
    channels, height, width = sizes
    how = PREPARATIONS.get(session.kind, OTHERS)
    names = ("channels", "largest", "mean", "std", "scale", "resize")
    said = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    whole = not port.dtype.startswith(("float", "bfloat"))
    if whole or channels != COLOURS:
        how = replace(how, mean=(0.0,), std=(1.0,), largest=LARGEST[0] if whole else how.largest)
    how = replace(how, **said)
    for option, numbers in (("--mean", how.mean), ("--std", how.std)):
        if len(numbers) not in (1, channels):
            raise PluginError(f"[run] got {len(numbers)} numbers for {option}, expected {channels} or 1")
    arrays = [_prepared(image, how, channels, height, width) for image in images]
    batch = np.stack(arrays) if place == 1 else np.stack(arrays).transpose(0, 2, 3, 1)
    colours = how.channels if channels == COLOURS else "grey"
    words = f"{width} x {height} pixels, {colours}, 0 to {how.largest}, mean {_said(how.mean)}, std {_said(how.std)}"
    words += f", scale {how.scale:g}" if how.scale != 1 else ""
    if whole and not np.array_equal(batch, batch.astype(port.dtype)):
        raise PluginError(f"[run] got {words} for input {port.name!r}, expected numbers that {port.dtype} holds")
    return {port.name: np.ascontiguousarray(batch, port.dtype)}, words


def _said(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def _port(session: Session, given: Collection[str]) -> Port:
    """Return the input for which there is no array yet."""
    left = [port for port in session.inputs if port.name not in given]
    if len(left) != 1:
        names = [port.name for port in left]
        raise PluginError(f"[run] got --image for the inputs {names}, expected one: give the others by --input")
    return left[0]


def _axes(port: Port, shape: Sequence[int | str] | None) -> tuple[int, tuple[int, int, int]]:
    """Return the place of an input's channels, and how many they are, its height and its width."""
    found = ["batch", COLOURS, "height", "width"] if shape is None else list(shape)
    if len(found) == 4:
        place = 3 if found[3] in (1, COLOURS) and found[1] not in (1, COLOURS) else 1
        channels = found.pop(place)
        height, width = (size if isinstance(size, int) else IMAGE for size in found[1:])
        if not isinstance(channels, int):
            channels = COLOURS
        if channels in (1, COLOURS) and height and width:
            return place, (channels, height, width)
    expected = "batch, 1 or 3 channels, height and width: --shape says what it does not"
    raise PluginError(f"[run] got --image for input {port.name!r} of shape {port.shape}, expected {expected}")


def _prepared(image: Any, how: Preparation, channels: int, height: int, width: int) -> np.ndarray:
    """Return an image as float32 of channels, height, width."""
    from PIL import Image

    image = image.convert("RGB" if channels == COLOURS else "L")
    if how.resize == 0:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    else:
        side = round(max(height, width) * CUT) if how.resize is None else how.resize
        shorter = min(image.size)
        columns, rows = (side * size // shorter for size in image.size)
        if columns < width or rows < height:
            raise PluginError(f"[run] got --resize {side}, expected sides of at least {width} x {height}, the input's")
        left, top = middle((columns, rows), (width, height))
        image = image.resize((columns, rows), Image.Resampling.BILINEAR).crop((left, top, left + width, top + height))
    pixels = np.asarray(image, np.float32).reshape(height, width, channels).transpose(2, 0, 1)
    if how.channels == "bgr":
        pixels = pixels[::-1]
    if how.largest != 255:
        pixels = pixels * np.float32(how.largest / 255)
    mean, std = (np.array(numbers, np.float32).reshape(-1, 1, 1) for numbers in (how.mean, how.std))
    found: np.ndarray = (pixels - mean) * np.float32(how.scale) / std
    return found
