"""The model card of a run: what it was trained on, how good it is, what it is for, and how to load it."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from longtail.lab.config import RunConfig
from longtail.lab.training.metrics import NORMAL_QUANTILE, balanced_accuracy_error, wilson_interval

WORST, FEW_IMAGES = 10, 10
"""How many classes the card lists, and fewer test images than which say little about one."""

SHARES = {
    "macro_f1": "macro-F1",
    "rarest_quarter": "recall, rarest quarter of the classes",
    "many": "recall, classes with more than 100 training images",
    "medium": "recall, classes with 20 to 100 training images",
    "few": "recall, classes with fewer than 20 training images",
    "calibration_error": "calibration error",
}


def model_card(config: RunConfig, data: dict[str, Any], final: dict[str, Any], versions: dict[str, str]) -> str:
    """The card as Markdown."""
    counts, classes = data["counts"], data["classes"]
    tested = np.zeros(len(classes))
    for label, _, images in final["confusion"]:
        tested[label] += images
    start = {None: "random", "imagenet": "ImageNet"}.get(config.model.weights, "those of another run or a file")
    trained = "the last layer, on a frozen backbone" if config.model.freeze else "all layers"
    facts = {
        "data": f"{_text(data['dataset'])}: {sum(counts):,} training images in {len(classes):,} classes, "
        f"{max(counts):,} in the largest and {min(counts):,} in the smallest; {int(tested.sum()):,} test images",
        "network": f"{_text(config.model.name)}; initial weights: {start}; trained: {trained}",
        "loss": config.title,
        "training": f"{config.optimizer.epochs} epochs, optimizer {config.optimizer.name}, seed {config.seed}",
        "versions": ", ".join(f"{name} {_text(version)}" for name, version in versions.items()),
    }
    thin = int((tested < FEW_IMAGES).sum())
    few = len(classes) <= WORST
    worst = "All classes, the lowest F1 first" if few else f"The {WORST} classes with the lowest F1 of {len(classes):,}"
    return f"""---
library_name: longtail
tags: [image-classification, long-tailed]
---
# {config.title} on {_text(data["dataset"])}

{_table(("", ""), list(facts.items()))}
## Metrics

On the test images, in %. 95% intervals are from the number of test images.

{_table(("metric", "value", "interval"), _metrics(final, tested))}
## Worst classes

{worst}, in %.

{_table(("class", "training images", "test images", "recall", "precision", "F1"), _worst(data, final, tested))}
## Intended use

For images like the training images, each showing one of the {len(classes):,} classes. Every image is assigned to one
of them, even an image that shows none. {_thin(thin)}Evaluate it on your own images before you rely on it
(`longtail evaluate`), and do not use it for decisions about people.

## How to load it

```python
from pathlib import Path
from longtail.lab.training import load_run, predict

run = load_run("runs/{config.run_id}")
print(list(predict(run, [Path("photo.jpg")], top=3)))
```

Or `longtail predict RUN photo.jpg`, and `longtail export RUN -o model.onnx` for ONNX Runtime.
"""


def _metrics(final: dict[str, Any], tested: np.ndarray[Any, Any]) -> list[tuple[str, str, str]]:
    images = tested.sum()
    right = images * (1 - final["error"] / 100)
    there = tested > 0
    recall = np.array(final["recall"], dtype=np.float64)[there]
    mean, radius = final["balanced_accuracy"], NORMAL_QUANTILE * balanced_accuracy_error(recall, tested[there])
    rows = [
        ("balanced accuracy (mean recall)", _percent(mean), _interval((max(mean - radius, 0), min(mean + radius, 1)))),
        ("accuracy", _percent(right / images), _interval(wilson_interval(np.array([right]), np.array([images]))[0])),
    ]
    rows += [(title, _percent(final[name]), "") for name, title in SHARES.items() if final.get(name) is not None]
    return rows


def _worst(data: dict[str, Any], final: dict[str, Any], tested: np.ndarray[Any, Any]) -> list[tuple[str, ...]]:
    order = sorted(np.flatnonzero(tested), key=lambda index: (final["f1"][index] or 0.0, data["counts"][index]))
    shares = ("recall", "precision")
    return [
        (
            _text(data["classes"][index]),
            f"{data['counts'][index]:,}",
            f"{int(tested[index]):,}",
            *(f"{_percent(final[name][index])} {_interval(final[f'{name}_interval'][index])}" for name in shares),
            _percent(final["f1"][index]),
        )
        for index in order[:WORST]
    ]


def _thin(classes: int) -> str:
    if not classes:
        return ""
    which = "1 class has" if classes == 1 else f"{classes:,} classes have"
    return f"{which} fewer than {FEW_IMAGES} test images: little is known about them. "


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _interval(limits: Any) -> str:
    return "" if limits is None else f"[{100 * limits[0]:.1f}, {100 * limits[1]:.1f}]"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _text(text: str) -> str:
    r"""Text from outside, which cannot be taken for Markdown or HTML.

    Example:
        >>> _text("a|b_c <i>")
        'a\\|b\\_c &lt;i&gt;'
    """
    return re.sub(r"([\\`*_\[\]|#!])", r"\\\1", html.escape(" ".join(text.split()), quote=False))
