"""Training: the loop, run folders, and finished runs in use."""

from longtail.lab.training.loop import train
from longtail.lab.training.metrics import ClassifierMetrics, log_probabilities
from longtail.lab.training.run_folder import RunFolder
from longtail.lab.training.state import Interrupted, TrainingError
from longtail.lab.training.use import LoadedRun, evaluate_run, load_run, predict

__all__ = [
    "ClassifierMetrics",
    "Interrupted",
    "LoadedRun",
    "RunFolder",
    "TrainingError",
    "evaluate_run",
    "load_run",
    "log_probabilities",
    "predict",
    "train",
]
