"""Configurations: what a run is, from its parts to its id."""

from longtail.lab.config.errors import ConfigError, config_errors, shortest
from longtail.lab.config.parts import OF_WEIGHTS, OWN_OPTIONS, DataConfig, HeadConfig, LossConfig, OptimizerConfig
from longtail.lab.config.run import RunConfig, RunOptions, Setting, field_places, with_values

__all__ = [
    "OF_WEIGHTS",
    "OWN_OPTIONS",
    "ConfigError",
    "DataConfig",
    "HeadConfig",
    "LossConfig",
    "OptimizerConfig",
    "RunConfig",
    "RunOptions",
    "Setting",
    "config_errors",
    "field_places",
    "shortest",
    "with_values",
]
