"""Speed of the data room: ``python -m benchmarks.data``.

Loaders are compared with the pipeline that most training scripts have: a data set that opens, crops and normalises one
image at a time with Pillow, under PyTorch's DataLoader. All take turns; a turn is many batches, so that what workers
have read ahead hardly counts.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from benchmarks.measure import circumstances, described, interleaved_times
from longtail.lab.data import ImageDataset, ImageFiles, InMemoryImages, evaluation_loader, open_dataset, training_loader
from longtail.lab.data.decode import random_box
from longtail.lab.models import build_model

WORKERS = os.cpu_count() or 1
BATCH = 128

Result = dict[str, Any]


def main() -> None:
    """Measure, then write ``data.json`` and ``data.md``."""
    parser = argparse.ArgumentParser(description="Speed of loaders and of opening data sets.")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="folder of data.json and data.md")
    parser.add_argument("--quick", action="store_true", help="small and short, to try it out")
    options = parser.parse_args()
    results: Result = {"settings": circumstances("pillow") | {"batch_size": BATCH, "workers": WORKERS}}
    with tempfile.TemporaryDirectory() as folder:
        # Listings and the like go to a cache of this run's own.
        os.environ["XDG_CACHE_HOME"] = folder
        for name, measure in (("cifar", cifar), ("jpeg", jpeg), ("opening", opening)):
            print(f"measuring {name}", file=sys.stderr)
            results[name] = measure(Path(folder), options.quick)
    text = report(results)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "data.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    (options.output / "data.md").write_text(text)
    print(text, end="")


def cifar(folder: Path, quick: bool) -> Result:
    """Batches of 128 with padding, crop, flip and normalisation, and a step of ResNet-32 on one."""
    count = 5_000 if quick else 50_000
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    both = InMemoryImages(images, np.arange(count) % 10)
    dataset = ImageDataset(
        name="cifar", classes=tuple("0123456789"), train=both, test=both, mean=(128.0,) * 3, std=(128.0,) * 3, pad=4
    )
    plain = PlainCifar(images)
    network = build_model("resnet32", 10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    batch = next(training_loader(dataset, BATCH).epoch(0))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(batch.images), batch.labels).backward()
        optimizer.step()

    several = 4 if quick else 40
    calls = {
        "longtail": (take(endless(training_loader(dataset, BATCH).epoch), 10 * several), 10 * several),
        "Pillow, in this process": (take(endless(plain_epochs(plain, 0)), several), several),
        f"Pillow, {WORKERS} workers": (take(endless(plain_epochs(plain, WORKERS)), several), several),
        "a step of ResNet-32": (step, 1),
    }
    return per_call(calls, 0 if quick else 60, 1 if quick else 12, "longtail")


def jpeg(folder: Path, quick: bool) -> Result:
    """Photographs with a longer side of 500 pixels to crops of 224."""
    paths = write_photographs(folder / "photographs", 48)
    paths = paths * (1 if quick else 8)
    files = ImageFiles(folder / "photographs", paths, np.zeros(len(paths), dtype=np.int64))
    dataset = ImageDataset(name="photographs", classes=("a",), train=files, test=files)
    rows: Result = {}
    for split, ours in (
        ("training", training_loader(dataset, 32, workers=WORKERS).epoch),
        ("evaluation", evaluation_loader(dataset, 32, workers=WORKERS).epoch),
    ):
        plain = plain_epochs(PlainPhotographs(files, split == "training"), WORKERS, 32)
        calls = {
            "longtail": (lambda ours=ours: all(batch.labels.sum() == 0 for batch in ours(0)), len(files) / BATCH),
            "Pillow": (lambda plain=plain: all(labels.sum() == 0 for _, labels in plain(0)), len(files) / BATCH),
        }
        rows[split] = per_call(calls, 0 if quick else 40, 1 if quick else 8, "longtail")
    return rows


def opening(folder: Path, quick: bool) -> Result:
    """CIFAR-100, and a folder of many files, beside ``os.walk``."""
    classes, each = (20, 20) if quick else (1000, 100)
    write_cifar100(folder / "data", 500 if quick else 50_000)
    photos = folder / "many"
    for name in range(classes):
        for split in ("train", "test"):
            (photos / split / f"class_{name:04d}").mkdir(parents=True)
        (photos / "test" / f"class_{name:04d}" / "0.jpg").touch()
        for place in range(each - 1):
            (photos / "train" / f"class_{name:04d}" / f"{place:05d}.jpg").touch()
    calls = {
        "CIFAR-100": (lambda: open_dataset("cifar100", folder / "data"), 1),
        f"a folder of {classes * each:,} images": (lambda: open_dataset(photos), 1),
        "os.walk over the same folder": (lambda: sum(len(names) for _, _, names in os.walk(photos)), 1),
    }
    return per_call(calls, 0, 5, "CIFAR-100")


def per_call(calls: dict[str, tuple[Callable[[], object], float]], seconds: float, least: int, base: str) -> Result:
    """Milliseconds of each call, and how many times those of ``base``."""
    for call, _ in calls.values():
        call()
    times = interleaved_times({name: call for name, (call, _) in calls.items()}, lambda: None, seconds, least)
    rows = {
        name: {
            "median_ms": statistics.median(times[name]) * 1e3 / repeats,
            "minimum_ms": min(times[name]) * 1e3 / repeats,
            "rounds": len(times[name]),
        }
        for name, (_, repeats) in calls.items()
    }
    for row in rows.values():
        for kind in ("median", "minimum"):
            row[f"ratio_of_{kind}s"] = row[f"{kind}_ms"] / rows[base][f"{kind}_ms"]
    return rows


def endless(epoch: Callable[[int], Iterator[Any]]) -> Iterator[Any]:
    return itertools.chain.from_iterable(map(epoch, itertools.count()))


def take(batches: Iterator[Any], count: int) -> Callable[[], None]:
    def call() -> None:
        for _ in range(count):
            next(batches)

    return call


def plain_epochs(dataset: Dataset[Any], workers: int, batch_size: int = BATCH) -> Callable[[int], Iterator[Any]]:
    loader = DataLoader(
        dataset, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda epoch: iter(loader)


class PlainCifar(Dataset[tuple[Tensor, int]]):
    def __init__(self, images: Tensor) -> None:
        self.images = images.permute(0, 2, 3, 1).contiguous().numpy()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = ImageOps.expand(Image.fromarray(self.images[index]), 4)
        left, top = random.randint(0, 8), random.randint(0, 8)
        image = image.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 128 - 1, index % 10


class PlainPhotographs(Dataset[tuple[Tensor, int]]):
    def __init__(self, files: ImageFiles, train: bool) -> None:
        self.files, self.train = files, train
        self.mean, self.std = (
            torch.tensor(values)[:, None, None] for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.files.path(index)) as opened:
            image = opened.convert("RGB")
        if self.train:
            box = tuple(map(round, random_box(*image.size, random)))  # type: ignore[arg-type]
            image = image.crop(box).resize((224, 224), Image.Resampling.BILINEAR)
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            scale = 256 / min(image.size)
            image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
            left, top = (image.width - 224) // 2, (image.height - 224) // 2
            image = image.crop((left, top, left + 224, top + 224))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels - self.mean) / self.std, 0


@functools.cache
def photographs() -> list[Image.Image]:
    return [Image.fromarray(pixels) for pixels in load_sample_images().images]


def write_photographs(folder: Path, count: int) -> list[str]:
    """Parts of scikit-learn's two photographs, 500 pixels on the longer side, at common qualities."""
    folder.mkdir()
    draw = random.Random(0)
    names = []
    for number in range(count):
        photo = photographs()[number % 2]
        left, top = draw.randint(0, 60), draw.randint(0, 40)
        photo = photo.crop((left, top, left + 560, top + 373 + 14 * (number % 3)))
        photo = photo.rotate(90, expand=True) if number % 4 == 3 else photo
        photo.thumbnail((500, 500), Image.Resampling.LANCZOS)
        names.append(f"{number}.jpg")
        photo.save(folder / names[-1], quality=(80, 90, 95)[number % 3])
    return names


def write_cifar100(folder: Path, count: int) -> None:
    target = folder / "cifar-100-binary"
    target.mkdir(parents=True)
    random_bytes = np.random.default_rng(0)
    for split, images in (("train", count), ("test", count // 5)):
        records = random_bytes.integers(0, 256, (images, 3074), dtype=np.uint8)
        records[:, 1] = np.arange(images) % 100
        records[:, 0] = records[:, 1] // 5
        (target / f"{split}.bin").write_bytes(records.tobytes())
    for kind, classes in (("fine", 100), ("coarse", 20)):
        (target / f"{kind}_label_names.txt").write_text("\n".join(f"{kind}_{name}" for name in range(classes)))


def report(results: Result) -> str:
    """The results for people."""
    cifar_rows, opened = results["cifar"], results["opening"]
    share = cifar_rows["longtail"]["median_ms"] / cifar_rows["a step of ResNet-32"]["median_ms"]
    parts = [
        "# Data: speed of loading and opening\n",
        f"On {described(results['settings'])}. Medians; minima in brackets; ratios are to longtail.\n",
        f"## CIFAR: batches of {BATCH}, padded, cropped, mirrored, normalised\n",
        table(cifar_rows, "ms per batch"),
        f"The loader takes {share:.2%} of the time of a training step of ResNet-32.\n",
    ]
    for split, rows in results["jpeg"].items():
        parts += [
            f"## JPEG of 500 pixels to 224 × 224, {split}, {WORKERS} workers\n",
            table(rows, f"ms per {BATCH} images"),
        ]
    parts += ["## Opening\n", "| | seconds |\n|---|---:|"]
    parts += [f"| {name} | {row['median_ms'] / 1e3:.3f} |" for name, row in opened.items()]
    return "\n".join(parts) + "\n"


def table(rows: Result, unit: str) -> str:
    lines = [f"| | {unit} | ratio |", "|---|---:|---:|"]
    for name, row in rows.items():
        times = f"{row['median_ms']:.3g} ({row['minimum_ms']:.3g})"
        lines.append(f"| {name} | {times} | {row['ratio_of_medians']:.3g}× ({row['ratio_of_minimums']:.3g}×) |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
