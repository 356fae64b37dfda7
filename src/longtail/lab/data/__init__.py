"""Data sets, long-tailed subsets of them, and batches for training."""

from longtail.lab.data.batches import Shard, in_order, shuffled
from longtail.lab.data.catalog import CATALOG, data_folder, fetch_dataset, open_dataset
from longtail.lab.data.dataset import ImageDataset, ImageFiles, InMemoryImages, InputSpec
from longtail.lab.data.errors import DataError
from longtail.lab.data.file_cache import unreadable_images
from longtail.lab.data.folds import FoldOptions
from longtail.lab.data.image_folder import ImageFolderOptions, fingerprint
from longtail.lab.data.loaders import Batch, Loader, evaluation_loader, training_loader
from longtail.lab.data.subset import LongTailedSubset, SubsetOptions, long_tailed_subset
from longtail.lab.data.summary import GROUPS, class_groups, describe_groups, summarize

__all__ = [
    "CATALOG",
    "GROUPS",
    "Batch",
    "DataError",
    "FoldOptions",
    "ImageDataset",
    "ImageFiles",
    "ImageFolderOptions",
    "InMemoryImages",
    "InputSpec",
    "Loader",
    "LongTailedSubset",
    "Shard",
    "SubsetOptions",
    "class_groups",
    "data_folder",
    "describe_groups",
    "evaluation_loader",
    "fetch_dataset",
    "fingerprint",
    "in_order",
    "long_tailed_subset",
    "open_dataset",
    "shuffled",
    "summarize",
    "training_loader",
    "unreadable_images",
]
