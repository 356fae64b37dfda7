"""The model card in the folder of each run."""

import json
import re

from longtail.lab.config import RunConfig, RunOptions
from longtail.lab.training import train
from longtail.lab.training.model_card import model_card
from tests.lab.training.runs import small_config

DATA = {"dataset": "pets", "classes": ["cat", "<script>", "a|b"], "counts": [90, 9, 1]}
FINAL = {
    "error": 25.0,
    "balanced_accuracy": 0.5,
    "macro_f1": 0.48,
    "many": None,
    "medium": 0.95,
    "few": 0.05,
    "rarest_quarter": None,
    "calibration_error": 0.1,
    "recall": [0.95, 0.0, 0.55],
    "precision": [0.9, None, 1.0],
    "f1": [0.92, 0.0, 0.7],
    "recall_interval": [[0.8, 0.99], [0.0, 0.49], [0.3, 0.8]],
    "precision_interval": [[0.7, 0.95], None, [0.5, 1.0]],
    "confusion": [[0, 0, 19], [0, 2, 1], [1, 0, 4], [2, 2, 11], [2, 0, 9]],
}


def test_a_finished_run_has_a_card_of_its_own_numbers(tmp_path):
    config = small_config(epochs=1)
    path = train(config, RunOptions(runs=tmp_path))
    card, final = (path / "README.md").read_text(), json.loads((path / "result.json").read_text())["final"]
    assert f"| balanced accuracy (mean recall) | {100 * final['balanced_accuracy']:.1f} |" in card
    assert f"| accuracy | {100 - final['error']:.1f} |" in card
    assert "class-balanced softmax, β 0.999" in card
    assert "500 test images" in card
    assert f'load_run("runs/{path.name}")' in card


def test_worst_classes_come_first_with_intervals_and_a_warning():
    card = model_card(RunConfig(), DATA, FINAL, {"torch": "2.13"})
    worst = re.search(r"## Worst classes.*?\n\n\|.*?\n\|.*?\n(.*?)\n\n", card, re.S)[1].splitlines()
    assert worst == [
        r"| &lt;script&gt; | 9 | 4 | 0.0 [0.0, 49.0] | –  | 0.0 |",
        r"| a\|b | 1 | 20 | 55.0 [30.0, 80.0] | 100.0 [50.0, 100.0] | 70.0 |",
        r"| cat | 90 | 20 | 95.0 [80.0, 99.0] | 90.0 [70.0, 95.0] | 92.0 |",
    ]
    assert "1 class has fewer than 10 test images" in card
    assert "| accuracy | 75.0 | [60.6, 85.4] |" in card  # Wilson: 33 of 44
    low, high = map(float, re.search(r"mean recall\) \| 50.0 \| \[([\d.]+), ([\d.]+)\]", card).groups())
    assert low < 50 < high
    assert "many" not in card
    assert "<script>" not in card
