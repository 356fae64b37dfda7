"""Training: the loop, run folders, and finished runs in use."""

from longtail.lab.training.build import identify, open_data
from longtail.lab.training.errors import Interrupted, RunInUse, TrainingError
from longtail.lab.training.evaluation import LoadedRun, adjust_run, evaluate_run, load_run
from longtail.lab.training.export import ExportedModel, export_run, load_exported
from longtail.lab.training.loop import train
from longtail.lab.training.metrics import ClassifierMetrics, log_probabilities
from longtail.lab.training.prediction import predict
from longtail.lab.training.processes import stop_signals
from longtail.lab.training.run_folder import RunFolder

__all__ = [
    "ClassifierMetrics",
    "ExportedModel",
    "Interrupted",
    "LoadedRun",
    "RunFolder",
    "RunInUse",
    "TrainingError",
    "adjust_run",
    "evaluate_run",
    "export_run",
    "identify",
    "load_exported",
    "load_run",
    "log_probabilities",
    "open_data",
    "predict",
    "stop_signals",
    "train",
]
