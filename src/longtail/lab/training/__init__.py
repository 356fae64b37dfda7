"""Training: the loop, run folders, and finished runs in use."""

from longtail.lab.training.build import identify, open_data
from longtail.lab.training.errors import Interrupted, RunInUse, TrainingError
from longtail.lab.training.evaluation import LoadedRun, adjust_run, evaluate_run, load_run, predict
from longtail.lab.training.loop import train
from longtail.lab.training.metrics import ClassifierMetrics, log_probabilities
from longtail.lab.training.run_folder import RunFolder
from longtail.lab.training.state import stop_signals

__all__ = [
    "ClassifierMetrics",
    "Interrupted",
    "LoadedRun",
    "RunFolder",
    "RunInUse",
    "TrainingError",
    "adjust_run",
    "evaluate_run",
    "identify",
    "load_run",
    "log_probabilities",
    "open_data",
    "predict",
    "stop_signals",
    "train",
]
