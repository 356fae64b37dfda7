"""How a training can end without a result."""

from __future__ import annotations

from longtail.lab.config import ConfigError

__all__ = ["Interrupted", "RunInUse", "TrainingError"]


class TrainingError(RuntimeError):
    """A training that went wrong; the message is one line.

    Example:
        >>> TrainingError("the loss became NaN").exit_code
        1
    """

    exit_code = 1


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A signal ended the training; started again, the run goes on from its checkpoint.

    Example:
        >>> Interrupted("interrupted in epoch 3").exit_code
        130
    """

    exit_code = 130


class RunInUse(ConfigError):  # noqa: N818 - another process trains it, which is no error
    """Another process has the run folder.

    Example:
        >>> RunInUse("runs/a is in use by another process").exit_code
        2
    """
