"""What ``longtail tune`` says at its end."""

from pathlib import Path

from longtail.lab.cli.tune import _show
from longtail.lab.config import LossConfig, RunConfig, RunOptions
from longtail.lab.experiments import TuneResult
from longtail.lab.experiments.search import Candidate
from longtail.lab.report.tables import Table


def shown(capsys, *candidates):
    """Of losses with scores."""
    found = [Candidate(LossConfig(beta=beta), scores, state=state) for beta, scores, state in candidates]
    test = {"error": 10.0, "balanced_accuracy": 0.8, "many": 0.9, "medium": None, "few": None}
    winner = RunConfig(loss=found[0].loss)
    runs = sum(len(each.scores) for each in found)
    _show(TuneResult(Path("runs/tune/a"), found, winner, test, runs, 5 * len(found)), Table([], []), RunOptions())
    return capsys.readouterr().out, winner.run_id


def test_ties_with_the_best_loss_are_said(capsys):
    best, even = (0.9, [0.8, 0.9], "complete"), (0.99, [0.9, 0.8], "complete")
    printed, _ = shown(capsys, best, even, (0.999, [0.8, 0.8], "complete"), (0.9999, [0.8, 0.9], "pruned"))
    assert "1 more with the same balanced accuracy: these images cannot tell which is best" in printed
    assert "same balanced accuracy" not in shown(capsys, best, (0.99, [0.8, 0.8], "complete"))[0]


def test_the_winners_run_is_named(capsys):
    printed, run_id = shown(capsys, (0.9, [0.8, 0.9], "complete"))
    assert f"its model is in runs/{run_id}: longtail evaluate, predict, adjust and export take it" in printed
    assert "the search is in runs/tune/a" in printed
