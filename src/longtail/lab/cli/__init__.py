"""The command ``longtail``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import longtail

__all__ = ["main"]

DESCRIPTION = """Train classifiers on long-tailed data with the class-balanced loss.

First: longtail data show digits --imbalance 10

Exit codes: 0 done, 1 something that was run failed, 2 bad input, 130 interrupted.
--version tells the version; --debug, anywhere, shows the traceback of an error."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    if given == ["--version"]:
        sys.stdout.write(f"longtail {longtail.__version__}\n")
        return
    try:
        _run(given or ["--help"])
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read the output has seen enough; without this, Python complains once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as error:
        if debug:
            raise
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)


def _run(arguments: list[str]) -> None:
    try:
        from tyro.conf import DisallowNone, FlagCreatePairsOff

        from longtail.lab.cli.app import app
    except ModuleNotFoundError as missing:
        package = (missing.name or "").split(".")[0]
        if package == "longtail":
            raise
        raise ValueError(f"{package} is missing: pip install 'longtail[lab]'") from None
    app.cli(prog="longtail", description=DESCRIPTION, args=arguments, config=(DisallowNone, FlagCreatePairsOff))
