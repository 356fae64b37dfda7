"""Features of a frozen backbone: computed once, and kept in shards in the user's cache folder."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn
from torch.utils.data import DataLoader

from longtail.lab.data import DataError
from longtail.lab.data.loaders import leave_signals_to_parent
from longtail.lab.data.views import ImageViews, ViewRequest
from longtail.lab.files import cache_folder, write_atomically
from longtail.lab.locks import Lock
from longtail.lab.models.backbones import classifier_name, pooled_features

SHARD_SIZE = 256
"""Images of a shard: what is lost at most when a process is killed."""
BATCH_SIZE = 32
PREFETCHED = 8
"""Batches of features that a worker may be ahead: one that is slow for a while does not stop the others."""
KEY_SIZE = 32
POLL_SECONDS = 0.2
MALLOC_TRIM_THRESHOLD, MALLOC_MMAP_THRESHOLD = -1, -3
"""In malloc.h of glibc."""
AUTOCAST = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def backbone_sha256(network: nn.Module) -> str:
    """SHA-256 of the weights and statistics of a network, its last layer aside."""
    digest, head = hashlib.sha256(), classifier_name(network) + "."
    for name, value in sorted(network.state_dict().items()):
        if not name.startswith(head):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def feature_identity(name: str, weights_sha256: str, transform: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """All that the features of an image depend on beside the image and the view of it."""
    return {
        "model": name,
        "weights_sha256": weights_sha256,
        "transform": dict(transform),
        "precision": precision,
        "memory_format": "channels_last",
        "torch": torch.__version__,
        "timm": metadata.version("timm"),
    }


class FeatureStore:
    """Features of images by their keys, in shards that are whole or not there; processes may share it.

    A shard is named by the SHA-256 of its content: one that was damaged is deleted, and its features are missing.
    Rows that were read stay in memory.
    """

    def __init__(self, identity: Mapping[str, Any]) -> None:
        self.identity = dict(identity)
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]
        readable = re.sub(r"[^\w.]+", "_", identity["model"])
        self.folder = cache_folder() / "features" / f"{readable}-{digest}"
        self._shard_of: dict[bytes, str] = {}
        self._row_of: dict[bytes, int] = {}
        self._listed: set[str] = set()
        self._table: Tensor | None = None

    @property
    def size(self) -> int | None:
        """Length of the features, once any were read."""
        return None if self._table is None else self._table.shape[1]

    def lock(self) -> Lock:
        """Held by the process that computes what is missing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return Lock(self.folder / ".lock")

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Positions of keys without features; of equal keys, the first one."""
        self._list_shards()
        while needed := {self._shard_of[key] for key in keys if key not in self._row_of and key in self._shard_of}:
            self._load_shards(sorted(needed))
        first = {key: position for position, key in reversed(list(enumerate(keys)))}
        return sorted(position for key, position in first.items() if key not in self._row_of)

    def take(self, keys: Sequence[bytes]) -> Tensor:
        """Features of keys of which none is missing, float32 of shape (N, D)."""
        assert self._table is not None, "nothing was loaded"
        return self._table.index_select(0, torch.tensor([self._row_of[key] for key in keys]))

    def add(self, keys: Sequence[bytes], features: Tensor) -> None:
        """Write a shard."""
        if not bool(features.isfinite().all()):
            raise DataError("the features are not finite numbers: the weights of the backbone are damaged or diverged")
        table = torch.from_numpy(np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_SIZE).copy())
        content = to_safetensors({"keys": table, "features": features.to(torch.float32).contiguous()})
        if not (self.folder / "about.json").exists():
            write_atomically(self.folder / "about.json", json.dumps(self.identity, indent=2) + "\n")
        write_atomically(self.folder / f"{_name_of(content)}.safetensors", content)

    def _list_shards(self) -> None:
        """Which keys are in which shard, without reading the features."""
        for path in self.folder.glob("*.safetensors"):
            if path.name in self._listed:
                continue
            try:
                with safe_open(path, framework="pt") as file:
                    keys = file.get_tensor("keys").numpy()
                if keys.dtype != np.uint8 or keys.shape[1:] != (KEY_SIZE,):
                    raise ValueError("it has unexpected keys")
            except FileNotFoundError:
                continue  # cleared meanwhile
            except (OSError, SafetensorError, ValueError):
                path.unlink(missing_ok=True)
                continue
            self._listed.add(path.name)
            self._shard_of.update(dict.fromkeys((row.tobytes() for row in keys), path.name))

    def _load_shards(self, names: Sequence[str]) -> None:
        """Read them, and forget those that are damaged or gone."""
        loaded = [] if self._table is None else [self._table]
        rows = sum(map(len, loaded))
        for name in names:
            path = self.folder / name
            try:
                content = path.read_bytes()
            except OSError:
                content = b""
            if _name_of(content) != path.stem:
                path.unlink(missing_ok=True)
                self._listed.discard(name)
                self._shard_of = {key: shard for key, shard in self._shard_of.items() if shard != name}
                continue
            shard = from_safetensors(content)
            for row, key in enumerate(shard["keys"].numpy(), start=rows):
                self._row_of.setdefault(key.tobytes(), row)
            rows += len(shard["features"])
            loaded.append(shard["features"])
        self._table = torch.cat(loaded) if loaded else None


def _name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


class Extractor:
    """From pixels to the features of a backbone; it can be sent to worker processes."""

    def __init__(
        self,
        network: nn.Module,
        views: ImageViews,
        precision: str = "32-true",
        device: torch.device = torch.device("cpu"),
    ) -> None:
        # With the channels of a pixel side by side, EfficientNet-Lite0 is twice as fast on a CPU.
        self.network = network.eval().requires_grad_(False).to(device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.normalise, self.dtype, self.device = views.normalise, AUTOCAST[precision], device

    @torch.inference_mode()
    def __call__(self, pixels: Tensor) -> Tensor:
        """float32 features of shape (N, D) on the CPU, of uint8 pixels of shape (N, channels, height, width)."""
        images = self.normalise(pixels.to(self.device, non_blocking=True))
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            features = pooled_features(self.network, images)
        return features.float().cpu().clone()


def _collate(views: ImageViews, extract: Extractor | None, items: Sequence[Tensor | DataError]) -> Any:
    """A batch of pixels, or of their features where workers compute them.

    Features are sent as an array. To take a tensor, a process connects to the worker, which complains in a traceback
    if an interrupt comes in between.
    """
    pixels = views.stack(items)
    return pixels if isinstance(pixels, DataError) or extract is None else extract(pixels).numpy()


def compute_features(
    extract: Extractor, views: ImageViews, requests: Sequence[ViewRequest], workers: int = 0
) -> Generator[Tensor]:
    """Features of views, batch by batch, in order.

    On a CPU each worker process reads images and computes their features on one thread, which is faster than all
    threads together on one batch; else workers read, and this process computes.
    """
    batches = math.ceil(len(requests) / BATCH_SIZE)
    workers = min(workers, batches) if batches > 1 else 0
    in_workers = workers > 0 and extract.device.type == "cpu"
    ended = multiprocessing.RawValue("b")  # an Event would wait for workers that have left already
    loader: DataLoader[Any] = DataLoader(
        views,
        BATCH_SIZE,
        sampler=requests,
        collate_fn=functools.partial(_collate, views, extract if in_workers else None),
        num_workers=workers,
        prefetch_factor=PREFETCHED if in_workers else 2 if workers else None,
        worker_init_fn=functools.partial(_enter_worker, ended),
        pin_memory=extract.device.type == "cuda",
        generator=torch.Generator(),
    )
    try:
        for loaded in loader:
            if isinstance(loaded, DataError):
                raise DataError(str(loaded))
            yield torch.from_numpy(loaded) if in_workers else extract(loaded)
    finally:
        ended.value = 1


def _enter_worker(ended: Any, worker: int) -> None:
    """Keep freed memory, and leave with the parent or at its word: a batch may take a minute."""
    leave_signals_to_parent(worker)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for which the parent raises an exception at once
    _keep_freed_memory()

    parent = os.getppid()

    def watch() -> None:
        while not ended.value and os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _keep_freed_memory() -> None:
    """Do not give each feature map back to the system: to get it again, page by page, took half of the time."""
    with contextlib.suppress(AttributeError, OSError):  # no glibc
        libc = ctypes.CDLL(None)
        for limit in (2**30, 2**25):  # the second one is the largest that an older glibc takes
            if libc.mallopt(MALLOC_MMAP_THRESHOLD, limit):
                libc.mallopt(MALLOC_TRIM_THRESHOLD, 2**31 - 1)
                break


def store_features(
    store: FeatureStore,
    extract: Extractor,
    views: ImageViews,
    requests: Sequence[ViewRequest],
    workers: int = 0,
    done: Callable[[int], object] = lambda count: None,
) -> None:
    """Compute features of views and write them, shard by shard; ``done`` may raise, and what was written stays."""
    batches: list[Tensor] = []
    written = 0

    def write() -> None:
        nonlocal batches, written
        if batches:
            shard = torch.cat(batches)
            store.add([request.key for request in requests[written : written + len(shard)]], shard)
            batches, written = [], written + len(shard)

    with contextlib.closing(compute_features(extract, views, requests, workers)) as computed:
        try:
            for features in computed:
                batches.append(features)
                done(written + sum(map(len, batches)))
                if sum(map(len, batches)) >= SHARD_SIZE:
                    write()
        finally:
            write()  # also what an interrupt leaves


def cached_features() -> list[dict[str, Any]]:
    """What the cache holds: for each backbone and transform its folder, identity, images (and views), and bytes."""
    found = []
    for folder in sorted((cache_folder() / "features").glob("*/")):
        images, size = 0, 0
        for path in folder.glob("*.safetensors"):
            with contextlib.suppress(OSError, SafetensorError), safe_open(path, framework="pt") as file:
                images += file.get_slice("keys").get_shape()[0]
                size += path.stat().st_size
        identity: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            identity = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        found.append({"folder": folder, "identity": identity, "images": images, "bytes": size})
    return found


def clear_features() -> tuple[int, list[Path]]:
    """Delete all features that no process computes just now, and return the bytes freed and the folders left."""
    freed, left = 0, []
    for entry in cached_features():
        lock = Lock(entry["folder"] / ".lock")
        if not lock.acquire(wait=False):
            left.append(entry["folder"])
            continue
        shutil.rmtree(entry["folder"], ignore_errors=True)
        lock.release()
        freed += entry["bytes"]
    return freed, left
