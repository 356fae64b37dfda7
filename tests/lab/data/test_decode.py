"""Image files of all kinds, broken ones included."""

import io
import os
import random
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from longtail.lab.data.decode import centre_box, check_image, random_box, read_crop, read_image
from longtail.lab.data.errors import DataError


def photo(width, height):
    """Smooth and in colour, so that JPEG and scaling keep it."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * x / width, 255 * y / height, 128 + 100 * np.sin((x + y) / 40)], axis=-1).astype(np.uint8)


def save(path, pixels, **options):
    Image.fromarray(pixels).save(path, **options)
    return path


def crop_of(path, size, choose_box, **options):
    """The crop as Pillow has its images, so that they can be compared."""
    return read_crop(path, size, choose_box, **options).permute(1, 2, 0).numpy()


def whole(width, height):
    return 0, 0, width, height


@pytest.mark.parametrize(
    ("mode", "ending"),
    [
        *((mode, ending) for mode in ("RGB", "L") for ending in ("jpg", "png", "bmp", "gif", "tif", "webp")),
        *(
            ("CMYK", "jpg"),
            ("RGBA", "png"),
            ("LA", "png"),
            ("P", "png"),
            ("1", "png"),
            ("RGBA", "webp"),
            ("RGB", "ppm"),
            ("RGB", "mpo"),
            ("RGB", "avif"),
            ("RGB", "jp2"),
            ("RGB", "tga"),
        ),
    ],
)
def test_every_kind_of_image_becomes_rgb(tmp_path, mode, ending):
    original = Image.fromarray(photo(40, 30))
    path = tmp_path / f"image.{ending}"
    original.convert(mode).save(path)
    pixels = read_image(path)
    assert (pixels.shape, pixels.dtype) == ((30, 40, 3), np.uint8)
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGB"))
    assert np.abs(pixels.astype(int) - expected).max() <= 1
    crop = read_crop(path, 16, whole)
    assert (crop.shape, crop.dtype) == ((3, 16, 16), torch.uint8)


def test_sixteen_bits_of_grey_keep_their_shades(tmp_path):
    Image.fromarray(np.array([[0, 257 * 10, 257 * 200, 65535]], np.uint16)).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png")[0, :, 0].tolist() == [0, 10, 200, 255]


def test_what_is_transparent_is_white(tmp_path):
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[0, 0] = 255, 0, 0, 255
    Image.fromarray(pixels).save(tmp_path / "icon.png")
    assert read_image(tmp_path / "icon.png")[0, :2].tolist() == [[255, 0, 0], [255, 255, 255]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_that_was_stored_lying_is_set_upright(tmp_path, orientation):
    """Pillow's own function for it, on the whole image, is the reference."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "photo.png", photo(40, 30), exif=exif)
    from PIL import ImageOps

    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
    assert (read_image(path) == np.asarray(upright)).all()
    expected = np.asarray(upright.crop(centre_box(*upright.size)).resize((12, 12), Image.Resampling.BILINEAR))
    assert np.abs(crop_of(path, 12, centre_box).astype(int) - expected).max() <= 1


def test_a_crop_is_the_box_scaled(tmp_path):
    path = save(tmp_path / "photo.png", photo(80, 60))
    crop = crop_of(path, 20, lambda width, height: (10, 5, 50, 45))
    expected = Image.fromarray(photo(80, 60)).crop((10, 5, 50, 45)).resize((20, 20), Image.Resampling.BILINEAR)
    assert np.abs(crop.astype(int) - np.asarray(expected)).max() <= 1
    mirrored = crop_of(path, 20, lambda width, height: (10, 5, 50, 45), mirror=True)
    assert (mirrored == crop[:, ::-1]).all()


@pytest.mark.parametrize(("side", "scale"), [(1791, 4), (1792, 8), (900, 4), (895, 2), (448, 2), (447, 1), (100, 1)])
def test_jpeg_is_decoded_at_the_smallest_scale_that_is_enough(tmp_path, monkeypatch, side, scale):
    path = save(tmp_path / "photo.jpg", photo(1800, 1800), quality=95)
    decoded = []
    cut = Image.Image.crop
    monkeypatch.setattr(Image.Image, "crop", lambda image, box: decoded.append(image.size) or cut(image, box))
    crop = crop_of(path, 224, lambda width, height: (0, 0, side, side))
    assert decoded == [(1800 // scale, 1800 // scale)]
    reference = Image.open(path).crop((0, 0, side, side)).resize((224, 224), Image.Resampling.BILINEAR)
    assert np.abs(crop.astype(int) - np.asarray(reference)).mean() < 2


def test_random_boxes_have_the_areas_and_shapes_they_should():
    draw = random.Random(0)
    boxes = np.array([random_box(500, 400, draw) for _ in range(4000)])
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    part, ratio = wide * high / (500 * 400), wide / high
    assert boxes.min() >= 0
    assert boxes[:, 2].max() <= 500
    assert boxes[:, 3].max() <= 400
    assert part.min() >= 0.08 - 1e-9
    assert 0.08 <= part.min() < 0.1
    assert part.max() > 0.95
    assert ratio.min() >= 3 / 4 - 1e-9
    assert ratio.max() <= 4 / 3 + 1e-9
    assert boxes[:, 0].mean() == pytest.approx(((500 - wide) / 2).mean(), rel=0.05)


def test_a_strip_falls_back_to_its_middle():
    assert random_box(1000, 10, random.Random(0)) == centre_box(1000, 10) == (495, 0, 505, 10)


def bomb():
    """A PNG of a few bytes that says it is 20,000 by 20,000."""
    header = struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def smaller_bomb():
    return bomb().replace(struct.pack(">II", 20000, 20000), struct.pack(">II", 10000, 10000))


def truncated(ending):
    file = io.BytesIO()
    Image.fromarray(photo(60, 60)).save(file, ending)
    return file.getvalue()[: len(file.getvalue()) // 2]


BROKEN = {
    "bomb.png": bomb(),
    "bomb2.png": smaller_bomb(),
    "half.jpg": truncated("JPEG"),
    "half.png": truncated("PNG"),
    "half.gif": truncated("GIF"),
    "half.webp": truncated("WEBP"),
    "empty.jpg": b"",
    "text.jpg": b"This is not an image.",
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize(
    "read", [read_image, check_image, lambda path: read_crop(path, 16, whole)], ids=["read", "check", "crop"]
)
def test_a_broken_image_names_its_file_in_one_line(tmp_path, name, read):
    (tmp_path / name).write_bytes(BROKEN[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=f"{name} is (refused: more than|not a readable image: .)") as error:
            read(tmp_path / name)
    assert "\n" not in str(error.value)
    assert str(error.value).count(name) == 1


def test_a_picture_starts_no_other_program(tmp_path, monkeypatch):
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    save(tmp_path / "x.jpg", photo(8, 8), format="EPS")
    for read in (read_image, check_image):
        with pytest.raises(DataError, match=r"x\.jpg is not a readable image: cannot identify"):
            read(tmp_path / "x.jpg")


def test_only_regular_files_are_opened(tmp_path, monkeypatch):
    """Opening a FIFO waits for somebody to write into it, which may be for ever."""
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("it was opened"))
    os.mkfifo(tmp_path / "x.png")
    for read in (read_image, check_image):
        with pytest.raises(DataError, match=r"x\.png is not a readable image: not a regular file$"):
            read(tmp_path / "x.png")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.jpg is not a readable image: .*No such file"):
        read_image(tmp_path / "gone.jpg")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_is_turned_once(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "photo.tif", photo(40, 30), exif=exif)
    upright = photo(40, 30)
    expected = {
        **{1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1]},
        **{5: upright.swapaxes(0, 1), 6: np.rot90(upright, -1), 8: np.rot90(upright)},
        7: np.rot90(upright, 2).swapaxes(0, 1),
    }[orientation]
    assert (read_image(path) == expected).all()


def test_a_transparent_colour_of_an_rgb_image_is_white_too(tmp_path):
    Image.new("RGB", (4, 4), (255, 0, 0)).save(tmp_path / "t.png", transparency=(255, 0, 0))
    assert (read_image(tmp_path / "t.png") == 255).all()


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_thirty_two_bits_of_grey_are_refused(tmp_path, dtype):
    Image.fromarray(np.full((4, 4), 200, dtype)).save(tmp_path / "deep.tif")
    for read in (read_image, check_image):
        with pytest.raises(DataError, match=r"deep\.tif is not a readable image: 32-bit grey"):
            read(tmp_path / "deep.tif")


def test_sixteen_bits_of_a_pgm_keep_their_shades(tmp_path):
    shades = np.array([[0, 257 * 100], [257 * 200, 65535]], dtype=">u2")
    (tmp_path / "deep.pgm").write_bytes(b"P5 2 2 65535\n" + shades.tobytes())
    assert read_image(tmp_path / "deep.pgm")[..., 0].tolist() == [[0, 100], [200, 255]]


@pytest.mark.parametrize("ending", ["png", "webp"])
def test_a_broken_tag_turns_nothing(tmp_path, ending):
    path = tmp_path / f"tagged.{ending}"
    Image.fromarray(photo(6, 4)).save(path, exif=b"Exif\0\0XX", lossless=True)
    assert read_image(path).shape == (4, 6, 3)
    check_image(path)
