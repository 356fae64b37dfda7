"""``python -m longtail.lab`` is the command ``longtail``: what torchrun can start."""

from longtail.lab.cli import main

main()
