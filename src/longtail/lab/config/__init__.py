"""Configurations: what a run is, from its parts to its id."""

from longtail.lab.config.data import DataConfig
from longtail.lab.config.encoding import leaves, values_by_name, with_fields
from longtail.lab.config.errors import ConfigError, FileError, config_errors, shortest
from longtail.lab.config.loss import LOSS_KWARGS, WEIGHT_FIELDS, LossConfig
from longtail.lab.config.model import ModelConfig
from longtail.lab.config.optimizer import OptimizerConfig
from longtail.lab.config.run import RunConfig, RunOptions

__all__ = [
    "LOSS_KWARGS",
    "WEIGHT_FIELDS",
    "ConfigError",
    "DataConfig",
    "FileError",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "RunOptions",
    "config_errors",
    "leaves",
    "shortest",
    "values_by_name",
    "with_fields",
]
