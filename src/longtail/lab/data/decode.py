"""Image files → pixels: whole images, and square crops of a given size."""

from __future__ import annotations

import math
import os
import random
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from longtail.lab.data.errors import DataError

Pixels = npt.NDArray[np.uint8]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels of the image as it is stored."""

FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif",),
    "JPEG2000": (".jp2", ".j2k"),
    "TGA": (".tga",),
}
"""What is read, by Pillow's names, with the endings of such files. Pillow knows more formats, and hands those of
PostScript to another program. TGA has no signature, so it comes last."""

CROP_FRACTION = 0.875
"""Of the shorter side, that evaluation keeps: 224 of 256 pixels."""

_FILTERS = threading.Lock()

EXIF_ORIENTATION = 0x0112
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_image(path: Path) -> Pixels:
    """Pixels of the whole image, upright, uint8 of shape (height, width, 3)."""
    with _opened(path) as image:
        turn = _turn(image)
        return np.array(turn(_to_rgb(image)))


def read_crop(
    path: Path,
    size: int,
    choose_box: Callable[[int, int], Box],
    mirror: bool = False,
    interpolation: str = "bilinear",
) -> Tensor:
    """A box of the image, scaled to ``size`` × ``size``, upright, uint8 of shape (3, size, size).

    A JPEG is decoded at the smallest of the scales 1, 1/2, 1/4 and 1/8 that leaves the box at least ``size`` wide and
    high. Then comes interpolation as Pillow does it, but PyTorch's: twice as fast, and the same to one shade.
    ``choose_box`` gets the width and height of the image; ``mirror`` swaps left and right.
    """
    with _opened(path) as image:
        width, height = image.size
        left, top, right, bottom = choose_box(width, height)
        turn = _turn(image)
        image.draft(None, (math.ceil(width * size / (right - left)), math.ceil(height * size / (bottom - top))))
        x, y = image.width / width, image.height / height
        left, top = min(round(left * x), image.width - 1), min(round(top * y), image.height - 1)
        right, bottom = max(round(right * x), left + 1), max(round(bottom * y), top + 1)
        crop = turn(_to_rgb(image).crop((left, top, right, bottom)))
    pixels = torch.from_numpy(np.array(crop)).permute(2, 0, 1)
    scaled = resize(pixels[None], size, interpolation)[0]
    return scaled.flip(2) if mirror else scaled


def read_view(
    path: Path,
    size: int,
    interpolation: str = "bilinear",
    crop_fraction: float = CROP_FRACTION,
    draw: random.Random | None = None,
    flip: bool = False,
) -> Tensor:
    """The middle of the image, as networks are evaluated on it; with ``draw`` a random part, mirrored half of the time.

    The sides of the middle are ``crop_fraction`` of the shorter side. ``flip`` is whether a mirrored image may be.
    """
    if draw is None:
        part = size / round(size / crop_fraction)
        return read_crop(path, size, lambda width, height: centre_box(width, height, part), False, interpolation)
    mirror = flip and draw.random() < 0.5
    return read_crop(path, size, lambda width, height: random_box(width, height, draw), mirror, interpolation)


def resize(pixels: Tensor, size: int, interpolation: str = "bilinear") -> Tensor:
    """Images scaled to ``size`` × ``size``, antialiased.

    Shapes: uint8, (N, channels, height, width) to (N, channels, size, size).
    """
    if pixels.device.type == "cpu":
        return F.interpolate(pixels, (size, size), mode=interpolation, antialias=True)
    # Accelerators interpolate floats only.
    scaled = F.interpolate(pixels.float(), (size, size), mode=interpolation, antialias=True)
    return scaled.round().clamp(0, 255).to(torch.uint8)


def shorter_side(path: Path) -> int:
    """Width or height of an image file in pixels, whichever is less, from its header."""
    with _opened(path) as image:
        return min(image.size)


def check_image(path: Path) -> None:
    """Read the whole file as a training would, at the lowest resolution, and refuse a broken one by name."""
    with _opened(path) as image:
        _turn(image)
        image.draft(None, (1, 1))
        _to_rgb(image)


def random_box(width: int, height: int, draw: random.Random) -> Box:
    """Between 8% and all of the area, sides in a ratio between 3:4 and 4:3, anywhere: the crop of Inception."""
    for _ in range(10):
        area = draw.uniform(0.08, 1.0) * width * height
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, top = draw.uniform(0, width - wide), draw.uniform(0, height - high)
            return left, top, left + wide, top + high
    return centre_box(width, height)


def centre_box(width: int, height: int, part: float = 1.0) -> Box:
    """The square in the middle; its sides are ``part`` of the shorter side of the image."""
    half = min(width, height) * part / 2
    return width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """An image whose header was read; whatever goes wrong with it, then or later, names the file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a FIFO would wait for somebody to write into it
            raise ValueError("not a regular file")
        # Pillow only warns of images between one and two times its limit; threads share the list of filters.
        with _FILTERS, warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(path, formats=tuple(FORMATS))
        with opened as image:
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"{path} is refused: more than {Image.MAX_IMAGE_PIXELS:,} pixels") from None
    except Exception as error:  # a broken file can raise anything: OSError, SyntaxError, EOFError, zlib.error, …
        reason = getattr(error, "strerror", None) or str(error).replace(f" {str(path)!r}", "")
        reason = " ".join(reason.split()) or type(error).__name__
        raise DataError(f"{path} is not a readable image: {reason}") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        # Pillow would cut 16 bits of grey off at 255. It scales those of PGM files to all 16.
        return Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("32-bit grey, whose black and white are undefined: save it with 8 or 16 bits")
    if image.has_transparency_data:
        # On white, as viewers show it; dropping the transparency would uncover whatever colour is stored below.
        opaque = Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
        return opaque.convert("RGB")
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")


def _turn(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """How to set upright what a camera stored lying."""
    # Pillow turns a TIFF by itself; other formats without this entry have no tag.
    method = None
    if "exif" in image.info and image.format != "TIFF":
        with suppress(Exception):  # a tag that cannot be read is none; Pillow raises SyntaxError, struct.error, …
            method = UPRIGHT.get(image.getexif().get(EXIF_ORIENTATION, 1))
    return (lambda picture: picture) if method is None else (lambda picture: picture.transpose(method))
