"""``python -m longtail.lab`` is the command ``longtail``: what torchrun can start."""

from longtail_command import main

main()
