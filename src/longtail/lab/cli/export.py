"""``longtail export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from longtail.lab.cli.arguments import AsJson
from longtail.lab.cli.output import console
from longtail.lab.cli.plain import print_json
from longtail.lab.cli.train import Adjustment, Run

Output = Annotated[
    Path, arg(aliases=["-o"], metavar="FILE", help="The ONNX file to write; an existing file is replaced.")
]


def export_command(
    run: Run, output: Output = Path("model.onnx"), adjustment: Adjustment = None, as_json: AsJson = False
) -> None:
    """Write the network of a finished run as an ONNX file, checked against ONNX Runtime.

    Input shape, mean, std and class names are in its metadata; longtail predict takes the file instead of a run.
    Requires the extra export: pip install 'longtail[export]'.

    Example: longtail export runs/digits-50-resnet8-softmax-s0-0123456789 --output digits.onnx
    """
    from longtail.lab.training import export_run

    found = export_run(run, output, adjustment)
    if as_json:
        print_json({"run": str(run), "file": str(output), **found})
        return
    out, shape = console(), ", ".join(map(str, found["input_shape"]))
    size, classes = found["bytes"] / 2**20, len(found["class_names"])
    out.print(
        f"{output}: images (batch, {shape}), {classes:,} classes, {size:.1f} MB",
        f"largest difference from PyTorch: {found['difference']:.1e}",
        f"longtail predict {output} IMAGES",
    )
