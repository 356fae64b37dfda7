"""The command ``longtail``, outside the package: it handles signals before PyTorch is imported, which takes seconds."""

from __future__ import annotations

import os
import signal

__all__ = ["main"]


def main() -> None:
    """Run one command; SIGINT and SIGTERM end it with exit code 130 from the start."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    import longtail.lab.cli

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    longtail.lab.cli.main()


def _leave(number: int, frame: object) -> None:
    """At once: an exception could be lost in the modules that are being imported."""
    os.write(2, b"interrupted\n")
    os._exit(130)
