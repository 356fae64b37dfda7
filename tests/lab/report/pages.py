"""Run folders that are written by hand, with names that a page could stumble over."""

import json

import numpy as np

from longtail.lab.config import LossConfig
from tests.lab.experiments.test_results import FOCAL, PLAIN, PLAIN_FOCAL, run_of, write_run

EVIL = "<script>document.title='run'</script>"
NAMES = [EVIL, 'O"Neill & sons', "it's", "</script><b>", "été", "a, b", "{{ 7*7 }}", "plain", "x" * 80, "__proto__"]
COUNTS = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
"""Of Chromium, which then shows no window and asks nothing of the network."""
LOSSES = (PLAIN, LossConfig(beta=0.9), LossConfig(beta=0.999), PLAIN_FOCAL, FOCAL)


def write_runs(folder, seeds=3, epochs=4):
    """Five losses on one data set, and a run of each kind that does not count."""
    generator = np.random.default_rng(0)
    for loss in LOSSES:
        for seed in range(seeds):
            recall = generator.uniform(size=10).round(3).tolist()
            error = float(generator.uniform(20, 40))
            bins = [[10, 0.03 + place / 15, 0.02 + place / 16] if place else [0, None, None] for place in range(15)]
            values = {"error": error, "few": 0.3, "recall": recall, "calibration": bins}
            path = write_run(folder, run_of(loss, seed), **values)
            write_data(path)
            lines = [{"epoch": epoch, "error": 90 - epoch * 5.0} for epoch in range(1, epochs + 1)]
            (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_run(folder, run_of(seed=7), done=False)
    failed = write_run(folder, run_of(seed=8), done=False)
    (failed / "error.json").write_text(json.dumps({"error": f"CUDA {EVIL} out of memory"}))
    damaged = write_run(folder, run_of(seed=9), name="<img src=x onerror=alert(1)>")
    (damaged / "result.json").write_text("{")
    return folder


def write_data(path, names=NAMES, counts=COUNTS):
    data = {"classes": list(names), "train_counts": list(counts), "image_shape": None}
    data |= {"mean": [0.0] * 3, "std": [1.0] * 3}
    (path / "data.json").write_text(json.dumps(data))
