"""How a training can end without a result."""

from __future__ import annotations

from pathlib import Path

from longtail.lab.config import ConfigError


class TrainingError(RuntimeError):
    """A training that went wrong; the message is one line.

    Example:
        >>> TrainingError("the loss became NaN").exit_code
        1
    """

    exit_code = 1


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A signal ended the training; started again, the run resumes from its checkpoint.

    Example:
        >>> Interrupted("interrupted in epoch 3").exit_code
        130
    """

    exit_code = 130


class NotFinished(ConfigError):  # noqa: N818 - it may become so
    """A run that is not complete yet."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not finished: resume its training first")
        self.path = path


class RunInUse(ConfigError):  # noqa: N818 - another process trains it, which is no error
    """Another process has the run folder.

    Example:
        >>> RunInUse("runs/a is in use by another process").exit_code
        2
    """
