"""The commands of a tutorial, run as a reader would, on a small sample of generated images."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PAGE = Path(__file__).parent.parent / "docs" / "tutorials" / "photographs.md"
SMALLER = {"longtail tune": " --losses softmax logit_adjusted --betas 0.99 --folds 2"}
"""Flags that make a search short: the default one tries 26 losses."""


def write_photos(folder):
    """Long-tailed classes of stripes, whose direction and colour tell them apart."""
    draw = np.random.default_rng(0)
    rows, columns = np.mgrid[0:240, 0:320]
    for label, images in enumerate((24, 12, 6)):
        (folder / f"class_{label}").mkdir(parents=True)
        for number in range(images):
            waves = np.sin((rows * np.cos(label) + columns * np.sin(label)) / 8 + draw.uniform(0, 6))
            colour = 60 * (np.arange(3) == label)
            pixels = 110 + colour + 50 * waves[..., None] + draw.normal(0, 10, (240, 320, 3))
            path = folder / f"class_{label}" / f"image_{number:04}1.jpg"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


def test_the_commands_for_photographs_run_to_the_report(tmp_path):
    write_photos(tmp_path / "photos")
    commands = re.findall(r"^longtail .*", "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S)), re.M)
    assert [line.split()[1] for line in commands] == [
        *("data", "train", "evaluate", "adjust", "tune", "predict", "results", "report")
    ]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    printed = {}
    for line in commands:
        flags = next((flags for start, flags in SMALLER.items() if line.startswith(start)), "")
        done = subprocess.run(
            ["bash", "-c", line + flags], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done.stderr)
        printed[line.split()[1]] = done.stdout
        if line.startswith("longtail train"):
            environment["RUN"] = str(next((tmp_path / "runs").iterdir()))
            assert float(re.search(r"balanced accuracy ([\d.]+)%", done.stdout)[1]) > 50  # chance is 33
    assert "42 images, 0 broken" in printed["data"]
    assert "balanced softmax" in printed["tune"]
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) > 42
    assert "</html>" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_notebook_of_photographs_runs_to_the_report(tmp_path):
    write_photos(tmp_path / "photos")
    notebook = json.loads((PAGE.parents[2] / "examples" / "photographs.ipynb").read_text(encoding="utf-8"))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    done = subprocess.run(
        [sys.executable, "-c", "\n\n".join(code)],
        cwd=tmp_path,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^class_\d → class_\d \d+%, class_\d \d+%$", done.stdout, re.M)) == 3
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and not cell["execution_count"]]
