"""``longtail data``: which data sets there are, what is in them, and how to get them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from rich import filesize
from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, arg

from longtail.lab.cli.arguments import AsJson, Switch
from longtail.lab.cli.output import DataDir, console, progress
from longtail.lab.cli.plain import class_rows, cut, print_json
from longtail.lab.data import (
    CATALOG,
    DataError,
    ImageFiles,
    ImageFolderOptions,
    SubsetOptions,
    data_folder,
    describe_groups,
    fetch_dataset,
    open_dataset,
    summarize,
    unreadable_images,
)
from longtail.lab.data.catalog import OnError
from longtail.lab.files import cache_folder
from longtail.lab.report.tables import text_table

Data = Positional[
    Annotated[str, arg(metavar="DATA", help="A name of longtail data list, or a folder or list of your own images.")]
]
Name = Positional[Annotated[str, arg(metavar="NAME", help="A name of longtail data list.")]]
OrSkip = Annotated[OnError, arg(help="skip reads every image first, reports the broken ones, and leaves them out.")]
OrCount = Annotated[OnError, arg(help="stop ends with an error if there are any; skip only counts them.")]
Manifest = Annotated[Path | None, arg(metavar="FILE", help="Write which images were chosen, and the class index.")]
Mirror = Annotated[str | None, arg(metavar="URL", help="A folder with the same archives, to download from instead.")]
Files = Annotated[ImageFolderOptions, OmitArgPrefixes]

BAR = 24

MOST_CLASSES = 24
"""Lines of the table; of more classes, the largest and the rarest."""

WIDEST = 32
"""Columns of a class name beside bars and numbers; the rest is cut off."""


def list_datasets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the named data sets, and which of them are found here.

    Example: longtail data list
    """
    folder = data_folder(data_dir)
    found = {name: entry.is_in(folder) for name, entry in CATALOG.items()}
    if as_json:
        rows = [{"name": name, "about": CATALOG[name].about, "found": there} for name, there in found.items()]
        print_json({"folder": str(folder), "datasets": rows})
        return
    lines = [(name, "found" if there else "-", CATALOG[name].about) for name, there in found.items()]
    out = console()
    out.print(f"Data sets in {folder}")
    out.print(text_table(("name", "", "what it is"), lines).to_rich())
    out.print()
    out.print("longtail data fetch NAME gets one; a folder of your own images needs no name.")


def show(
    data: Data,
    subset: Annotated[SubsetOptions, OmitArgPrefixes] = SubsetOptions(),
    data_dir: DataDir = None,
    files: Files = ImageFolderOptions(),
    on_error: OrSkip = "stop",
    manifest: Manifest = None,
    as_json: AsJson = False,
) -> None:
    """Show the images, effective number and class weight of each class.

    Example: longtail data show cifar10 --imbalance 100
    """
    dataset = open_dataset(data, data_dir, files=files, on_error=on_error, console=progress())
    for note in dataset.notes:
        progress().print(note)
    dataset, chosen = subset.choose(dataset)
    if manifest:
        images = dataset.train
        paths = {"paths": [os.fsdecode(path) for path in images.paths]} if isinstance(images, ImageFiles) else {}
        chosen.save(manifest, dataset.name, dataset.classes, **paths)
    summary = summarize(dataset, chosen if subset.imbalance or subset.max_count else None)
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)


def check(
    data: Data,
    data_dir: DataDir = None,
    files: Files = ImageFolderOptions(),
    on_error: OrCount = "stop",
) -> None:
    """Read every image, and name those that are broken.

    Example: longtail data check photos/
    """
    dataset = open_dataset(data, data_dir, files=files)
    images, broken = 0, []
    for split in (dataset.train, dataset.test):
        images += len(split)
        if isinstance(split, ImageFiles):
            broken += list(unreadable_images(split, progress()).values())
    if broken and on_error == "stop":
        for line in broken[:-1]:
            progress().print(f"error: {line}")
        raise DataError(broken[-1])
    out = console()
    if broken:
        out.print(*broken)
    groups = sum(found["groups"] for split in (dataset.train, dataset.test) if (found := describe_groups(split)))
    counted = f" of {_number(groups, 'group', 's')}" if groups else ""
    out.print(f"{images:,} images{counted}, {len(broken):,} broken")


def fetch(name: Name, data_dir: DataDir = None, mirror: Mirror = None) -> None:
    """Download a data set from its official site, verify it, and unpack it; a broken download is resumed.

    Example: longtail data fetch cifar10
    """
    folder = fetch_dataset(name, data_dir, mirror=mirror, console=progress())
    console().print(f"{name} is in {folder}")


def cache(
    clear: Annotated[
        Switch, arg(help="Delete the cached features; they are computed again when they are needed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the cached features of frozen backbones, or delete them.

    Example: longtail data cache
    """
    from longtail.lab.models.features import cached_features, clear_features

    folder, out = cache_folder() / "features", console()
    if clear:
        freed, left = clear_features()
        for path in left:
            progress().print(f"{path} is in use by another process, and was not deleted")
        out.print(f"freed {filesize.decimal(freed)} in {folder}")
        return
    entries = cached_features()
    if as_json:
        print_json({"folder": str(folder), "entries": [entry | {"folder": str(entry["folder"])} for entry in entries]})
        return
    headers, rows = ("backbone", "weights", "pixels", "precision", "images and views", "size"), []
    for entry in entries:
        about = entry["identity"]
        pixels = about.get("transform", {}).get("input_size") or "as they are"
        row = (about.get("model", "unknown"), about.get("weights_sha256", "")[:10], str(pixels))
        rows.append((*row, about.get("precision", ""), f"{entry['images']:,}", filesize.decimal(entry["bytes"])))
    if entries:
        out.print(text_table(headers, rows, numeric=headers[2:]).to_rich())
    total = sum(entry["bytes"] for entry in entries)
    out.print(f"{filesize.decimal(total)} in {folder}; longtail data cache --clear deletes them")


COMMANDS = {"list": list_datasets, "show": show, "check": check, "fetch": fetch, "cache": cache}


def _print_summary(summary: dict[str, Any]) -> None:
    out = console()
    subset = summary["subset"]
    how = f" at imbalance {subset['imbalance']:g} ({subset['profile']}, seed {subset['seed']})" if subset else ""
    lines = [
        f"{summary['name']}{how}: {summary['train_images']:,} training images, {summary['test_images']:,} test images, "
        f"{_number(summary['classes'], 'class', 'es')}",
        f"largest class over smallest: {summary['imbalance']:.4g}{_why(summary)}",
        "; ".join(
            f"{name} ({size}): {_number(group['classes'], 'class', 'es')}, {_number(group['images'], 'image', 's')}"
            for (name, group), size in zip(summary["groups"].items(), ("> 100", "20-100", "< 20"), strict=True)
        ),
    ]
    lines += [
        f"{split} images: {_number(found['groups'], 'group', 's')}, the largest ({found['largest']}) of "
        f"{_number(found['largest_images'], 'image', 's')}"
        for split, found in summary["image_groups"].items()
        if found
    ]
    out.print(*lines)
    out.print()
    _print_classes(summary, out)
    out.print()
    out.print("E: effective number of n images, (1-βⁿ)/(1-β)")
    if subset:
        out.print(f"sha256 of the chosen images: {subset['sha256']}")


def _why(summary: dict[str, Any]) -> str:
    """Whole images cannot have every imbalance."""
    subset, imbalance = summary["subset"], f"{summary['imbalance']:.4g}"
    if not subset or subset["imbalance"] == 1 or f"{subset['imbalance']:.4g}" == imbalance:
        return ""
    sizes = [row["train"] for row in summary["per_class"]]
    asked, most = subset["imbalance"], max(sizes)
    return (
        f", not {asked:g}: the smallest class has {_number(min(sizes), 'image', 's')}, "
        f"{most:,} / {asked:g} = {most / asked:.4g} rounded down"
    )


def _number(count: int, noun: str, plural: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def _print_classes(summary: dict[str, Any], out: Console) -> None:
    """Counts first: a narrow terminal gets shorter bars and fewer effective numbers."""
    classes, width = summary["per_class"], out.width
    bar = "█" if out.encoding.lower().startswith("utf") else "#"
    bar_length, betas = (BAR, 4) if width >= 100 else (BAR // 2, 2) if width >= 75 else (BAR // 2, 0)
    shown = list(classes[0]["effective"])[4 - betas :]
    most = max(row["train"] for row in classes)
    headers = ("class", "images", "", "test", *(f"E(β={beta})" for beta in shown))

    def cells(row: dict[str, Any]) -> list[str]:
        effective = (f"{row['effective'][beta]:,.1f}" for beta in shown)
        length = max(1, round(bar_length * row["train"] / most))
        return [cut(row["name"], WIDEST), f"{row['train']:,}", bar * length, f"{row['test']:,}", *effective]

    rows, left_out = class_rows(classes, cells, "train", MOST_CLASSES)
    out.print(text_table(headers, rows, numeric=[name for name in headers[1:] if name]).to_rich())
    if left_out:
        out.print(left_out)
