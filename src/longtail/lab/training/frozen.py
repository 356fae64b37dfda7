"""A frozen backbone: its features, computed once, and the head that is trained on them."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.lab.config import RunConfig
from longtail.lab.data import ImageDataset
from longtail.lab.data.dataset import Images
from longtail.lab.data.loaders import reader_processes
from longtail.lab.data.views import ImageViews, ViewRequest
from longtail.lab.models import feature_size
from longtail.lab.models.features import (
    Extractor,
    FeatureStore,
    backbone_sha256,
    compute_features,
    feature_identity,
    store_features,
)
from longtail.lab.training.build import build_network
from longtail.lab.training.display import FeatureProgress
from longtail.lab.training.errors import Interrupted
from longtail.lab.training.processes import stop_signals

POLL_SECONDS = 0.2
MEASURED = 16
"""Images that the time of all is estimated from."""
STORES = 2
"""Stores that stay in memory: a worker process trains many runs on the same images."""
SMALL_PRODUCTS = 2**28
"""Multiplications of a step up to which a head is trained on one thread: 1280 features and 1,600 classes."""

_stores: dict[tuple[object, ...], FeatureStore] = {}


class RequestedViews(NamedTuple):
    """Views of some images, and which of them."""

    views: ImageViews
    requests: list[ViewRequest]


class FrozenBackbone:
    """The backbone of a run, whose features are computed once for each image and kept in the user's cache folder.

    Args:
        config: of the run.
        dataset: its images, as the backbone takes them.
        network: with its weights; by default it is built when it is first needed.

    Example:
        >>> from longtail.lab.training import open_data
        >>> dataset, _, config = open_data(config)  # doctest: +SKIP
        >>> FrozenBackbone(config, dataset).features(dataset.train).shape  # doctest: +SKIP
        torch.Size([6941, 1, 1280])
    """

    def __init__(self, config: RunConfig, dataset: ImageDataset, network: nn.Module | None = None) -> None:
        self.config, self.dataset, self._network = config, dataset, network
        self._views: dict[tuple[int, int], RequestedViews] = {}
        self.store = self._open_store()

    def _open_store(self) -> FeatureStore:
        transform = ImageViews(self.dataset, self.dataset.train).transform
        key = (self.config.model, self.config.precision, json.dumps(transform))
        if key not in _stores:
            identity = feature_identity(
                self.config.model.name, backbone_sha256(self.network), transform, self.config.precision
            )
            while len(_stores) >= STORES:
                del _stores[next(iter(_stores))]
            _stores[key] = FeatureStore(identity)
        return _stores[key]

    @property
    def network(self) -> nn.Module:
        """With its weights; built when it is first needed."""
        if self._network is None:
            self._network = build_network(self.config, self.dataset)
        return self._network

    def _requested(self, images: Images, views: int) -> RequestedViews:
        """Views of images; the images are looked at once."""
        if (id(images), views) not in self._views:
            reader = ImageViews(self.dataset, images)
            self._views[id(images), views] = RequestedViews(reader, reader.requests(views))
        return self._views[id(images), views]

    def features(self, images: Images, views: int = 0) -> Tensor:
        """Features of images that are in the cache, as the head sees them: shape (N, 1 + views, D)."""
        rows = self.store.take([request.key for request in self._requested(images, views).requests])
        if self.config.model.normalize_features:
            rows = F.normalize(rows)
        return rows.view(len(images), views + 1, -1)

    def splits(self) -> list[tuple[Images, int]]:
        """All images of the run, each with its number of augmented views."""
        validation = self.dataset.validation
        held_out: list[tuple[Images, int]] = [] if validation is None else [(validation, 0)]
        return [(self.dataset.train, self.config.data.views), (self.dataset.test, 0), *held_out]

    def missing(self, splits: Sequence[tuple[Images, int]] | None = None) -> list[RequestedViews]:
        """What is not in the cache, of all images of the run by default."""
        found = []
        for images, count in self.splits() if splits is None else splits:
            views, requests = self._requested(images, count)
            if chosen := self.store.missing([request.key for request in requests]):
                found.append(RequestedViews(views, [requests[position] for position in chosen]))
        return found

    @property
    def size(self) -> int:
        """Length of the features."""
        return feature_size(self.network) if self.store.size is None else self.store.size

    def extractor(self, views: ImageViews, device: torch.device) -> Extractor:
        """From the pixels of these views to features."""
        network = self.network if device.type == "cpu" else copy.deepcopy(self.network)  # that of a run is not moved
        return Extractor(network, views, self.config.precision, device)

    def seconds(self, workers: int | None = None) -> float:
        """How long what is not in the cache takes on this machine's cores, going by a few images on one of them."""
        missing = self.missing()
        if not missing:
            return 0.0
        views, requests = missing[0]
        extract, threads = self.extractor(views, torch.device("cpu")), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for _ in range(2):  # the first time is slower
                began, sample = time.perf_counter(), requests[:MEASURED]
                list(compute_features(extract, views, sample))
                seconds = (time.perf_counter() - began) / len(sample)
        finally:
            torch.set_num_threads(threads)
        return sum(len(part.requests) for part in missing) * seconds / max(1, reader_processes(workers))

    def compute(
        self,
        splits: Sequence[tuple[Images, int]] | None = None,
        *,
        device: torch.device = torch.device("cpu"),
        workers: int | None = None,
        console: Console | None = None,
    ) -> None:
        """Compute what is not in the cache; another process that does so is waited for.

        Raises:
            Interrupted: by SIGINT or SIGTERM; what was written stays.
        """
        if not self.missing(splits):
            return
        with self._locked(console):
            missing = self.missing(splits)
            progress = FeatureProgress(console, sum(len(part.requests) for part in missing), self.config.model.name)
            with progress, stop_signals(progress.interrupted) as stop:

                def show(done: int, before: int) -> None:
                    progress.show(before + done)
                    if stop.requested:  # but was not heard: Python drops what a signal raises in a finaliser
                        raise progress.interrupted()

                for views, requests in missing:
                    done = functools.partial(show, before=progress.done)
                    store_features(
                        self.store, self.extractor(views, device), views, requests, reader_processes(workers), done
                    )
        assert not self.missing(splits)  # and they are in memory

    @contextlib.contextmanager
    def _locked(self, console: Console | None) -> Iterator[None]:
        """While no other process computes these features."""
        lock, waits = self.store.lock(), False
        with stop_signals(lambda: Interrupted("interrupted; run the same command to resume")):
            while not lock.acquire(wait=False):
                if not waits and console:
                    console.print("another process computes these features; waiting for it", soft_wrap=True)
                waits = True
                time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            lock.release()


@contextlib.contextmanager
def head_threads(backbone: FrozenBackbone | None, device: torch.device) -> Iterator[None]:
    """On a CPU, one thread for a small head on the features of a backbone; nothing else changes.

    Its products are too small to share. Threads that do so wait for each other at every step, for milliseconds where
    other processes use the cores.
    """
    threads = torch.get_num_threads()
    if backbone is not None and device.type == "cpu":
        products = backbone.config.optimizer.batch_size * backbone.size * len(backbone.dataset.classes)
        torch.set_num_threads(1 if products <= SMALL_PRODUCTS else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
