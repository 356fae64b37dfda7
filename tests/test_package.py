"""The package as a whole: what it exports, what it imports, what its wheel holds."""

import ast
import inspect
import json
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import longtail
import longtail.lab.data
import longtail.lab.experiments
import longtail.lab.report
import longtail.lab.training
from tests.loss_table import LOSSES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "longtail"

PUBLIC = {
    "longtail": """
        AsymmetricLoss BalancedSoftmaxLoss ClassBalanced ClassBalancedLoss FocalLoss FusedLinearLoss LDAMLoss
        LogitAdjustedCrossEntropy NormedLinear
        SigmoidCrossEntropy SoftmaxCrossEntropy SoftmaxFocalLoss adjust_logits beta_from_prototypes
        class_counts class_weight_dict class_weights effective_number functional imbalance_factor
        init_classifier_bias_ long_tailed_counts param_groups prototypes sample_weights samplers schedules theory
    """,
    "longtail.functional": """
        asymmetric_loss focal_loss ldam_loss linear_focal_loss linear_logit_adjusted_cross_entropy
        linear_sigmoid_cross_entropy linear_softmax_cross_entropy linear_softmax_focal_loss
        logit_adjusted_cross_entropy sigmoid_cross_entropy softmax_cross_entropy softmax_focal_loss
    """,
    "longtail.samplers": "ClassAwareSampler class_aware_order sampling_probabilities",
    "longtail.schedules": "DeferredReweighting",
    "longtail.prototypes": "PrototypeEstimate estimate_prototypes",
    "longtail.theory": "expected_volume marginal_contribution simulate_covering",
    "longtail.lab.data": """
        Batch CATALOG DataError FoldOptions GROUPS ImageDataset ImageFiles InMemoryImages InputSpec Loader
        LongTailedSubset
        ImageFolderOptions Shard SubsetOptions unreadable_images
        class_groups data_folder describe_groups evaluation_loader fetch_dataset fingerprint in_order long_tailed_subset
        open_dataset shuffled summarize training_loader
    """,
    "longtail.lab.models": """
        CIFAR_DEPTHS CIFAR_MODELS DEFAULT_BACKBONE IMAGENET CifarResNet build_model check_model classifier feature_size
        input_spec load_weights pooled_features pretrained_file replace_classifier sha256_of
    """,
    "longtail.lab.training": """
        ClassifierMetrics ExportedModel Interrupted LoadedRun RunFolder RunInUse TrainingError adjust_run evaluate_run
        export_run identify load_exported load_run log_probabilities open_data predict stop_signals train
    """,
    "longtail.lab.experiments": """
        SWEEPS Candidate ExecutorOptions Published SearchOptions SweepResult TuneResult beta_sweep estimate expand
        heatmap keep_records load_results losses published published_entries read_sweep rescaled run_sweep
        small_protocol table2 table3 training_curves tune estimate_tuning
    """,
    "longtail.lab.report": "FIGURES FORMATS Figure Inputs load_epochs make_page save spec write_page",
}

# Left to right: a room imports only rooms before it.
ROOMS = [
    "_checks",
    "_docstrings",
    "counts",
    "weights",
    "functional",
    "_modules",
    "losses",
    "heads",
    "schedules",
    "fused",
]
ROOMS += ["samplers", "_neighbours", "prototypes", "theory", "__init__"]
ROOMS += ["lab.__init__", "lab.files", "lab.locks", "lab.data", "lab.models", "lab.config", "lab.recipes"]
ROOMS += ["lab.training", "lab.experiments", "lab.report", "lab.cli", "lab.__main__"]


def run(*command, **options):
    finished = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_surface_is_what_it_was(module):
    exported = sys.modules[module].__all__
    losses = {"longtail": "module", "longtail.functional": "function"}.get(module)  # each loss is in both
    expected = {*PUBLIC[module].split(), *(getattr(loss, losses).__name__ for loss in LOSSES if losses)}
    assert sorted(exported) == sorted(expected)
    assert all(getattr(sys.modules[module], name).__doc__ for name in exported)


def test_every_public_function_and_class_has_an_example():
    names = [(module, name) for module in PUBLIC for name in sys.modules[module].__all__]
    objects = {name: getattr(sys.modules[module], name) for module, name in names}
    documented = {name: item for name, item in objects.items() if inspect.isfunction(item) or inspect.isclass(item)}
    assert [name for name, item in documented.items() if ">>>" not in item.__doc__] == []


def test_rooms_import_only_rooms_to_their_left():
    for path in SOURCE.rglob("*.py"):
        room = room_of(path.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            imported = [room_of(module.split(".")[1:]) for module in modules if module.split(".")[0] == "longtail"]
            for other in imported:
                assert other == room or ROOMS.index(other) < ROOMS.index(room), f"{path} imports {other}"


def room_of(parts):
    """The room of a module: a file or folder of the package, or of its lab."""
    if not parts:
        return "__init__"
    return f"lab.{parts[1]}" if parts[0] == "lab" and len(parts) > 1 else parts[0]


def test_importing_needs_torch_and_numpy_only():
    """In a fresh interpreter: what ``import longtail`` adds to ``import torch, numpy``."""
    program = """
import json, sys
import numpy, torch
before = set(sys.modules)
import longtail
print(json.dumps(sorted({name.split(".")[0] for name in set(sys.modules) - before})))
"""
    added = set(json.loads(run(sys.executable, "-c", program)))
    assert added - set(sys.stdlib_module_names) <= {"longtail", "numpy"}


@pytest.mark.slow
def test_the_wheel_alone_is_enough(tmp_path):
    """Build the wheel, install it in an empty environment with nothing but what it asks for, and use it there."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), cwd=ROOT)
    (wheel,) = tmp_path.glob("longtail-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    program = """
import importlib.metadata, importlib.resources, torch, longtail
assert importlib.resources.files("longtail").joinpath("py.typed").is_file()
assert importlib.metadata.version("longtail") == longtail.__version__
print(longtail.ClassBalancedLoss([30, 3])(torch.zeros(2, 2), torch.tensor([0, 1])).item())
"""
    assert float(run(python, "-c", program, cwd=tmp_path)) == pytest.approx(0.6931, abs=1e-4)


def test_versions_agree():
    assert f"version: {longtail.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{longtail.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_all_that_is_installed_runs_on_the_oldest_python():
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pinned = {Requirement(line).name for line in lines}
    for package in metadata.distributions():
        needed = package.metadata.get("Requires-Python")
        if needed and package.name.lower().replace("_", "-") in pinned:
            assert SpecifierSet(needed).contains(f"{oldest}.0"), f"{package.name} {package.version} needs {needed}"
