"""The command ``longtail``, outside the package: it handles signals before PyTorch is imported, which takes seconds."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run one command; SIGINT and SIGTERM end it with exit code 130 from the start."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    import longtail.lab.cli

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        longtail.lab.cli.main()
    except SystemExit as end:
        if end.code == 130:  # what is still being started, such as Ray, is not waited for, and ends with this process
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)
        raise


def _leave(number: int, frame: object) -> None:
    """At once: an exception could be lost in the modules that are being imported."""
    os.write(2, b"interrupted\n")
    os._exit(130)
