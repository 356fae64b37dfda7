"""``longtail retrain`` and ``rebalance``: another last layer for a finished run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.table import Table
from tyro.conf import OmitArgPrefixes, arg

from longtail._checks import check_non_negative
from longtail.lab.cli.output import AsJson, DataDir, console, is_first_process, print_json, progress
from longtail.lab.cli.train import Run, starting_point
from longtail.lab.config import ConfigError, RunConfig, RunOptions, shortest
from longtail.lab.data import GROUPS
from longtail.lab.files import with_name
from longtail.lab.recipes import rebalanced, retrained

__all__ = ["rebalance_command", "retrain_command"]

EPOCHS = 10


def retrain_command(arguments: Sequence[str] | None) -> Callable[..., None]:
    """The command with the defaults that follow from the run that ``arguments`` name."""
    found = _named(arguments or ())
    base = retrained(_config(found), None, found.name) if found else retrained(RunConfig(), None)
    start = starting_point(["--epochs", str(EPOCHS), *(arguments or ())], base=base)

    def run(
        run: Run,
        config: Annotated[RunConfig, OmitArgPrefixes, arg(name="")] = start,
        running: Annotated[RunOptions, OmitArgPrefixes] = RunOptions(runs=found.parent if found else RunOptions.runs),
        devices: Annotated[
            int | None, arg(help="Processes, each with its GPU or its part of the CPU; by default one for each GPU.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """Train a new last layer for a finished run, on all classes alike, and nothing else of its network.

        The values shown are those of the run, but for its schedule, which is scaled to 10 epochs, the sampling and the
        loss, which is the plain one; name the run with --help to see them. The result is a run of its own beside it,
        which the same command goes on with if it was interrupted.

        Example: longtail retrain runs/digits-50-resnet8-softmax-s0-0123456789 --epochs 10
        """
        from longtail.lab.training import train

        _config(with_name(run))
        for name in ("head_of", "head_method"):
            if (value := getattr(config.head, name)) != getattr(start.head, name):
                raise ConfigError(f"{name} {value} would do nothing: longtail retrain says it all")
        path = train(config, running, progress() if is_first_process() else None, devices)
        if not is_first_process():
            return  # which speaks for all
        if as_json:
            print_json(_result(path))
        else:
            _compare(running.runs / str(config.head.head_of), {"retrain": path})

    return run


def rebalance_command(
    run: Run,
    method: Annotated[
        Literal["tau_norm", "logit_adjustment"] | None,
        arg(help="tau_norm divides the weights of a class by their norm to the τ; logit_adjustment subtracts τ log π."),
    ] = None,
    tau: Annotated[tuple[float, ...], arg(help="τ, one or several: the larger, the more rare classes gain.")] = (1.0,),
    data_dir: DataDir = None,
    accelerator: Annotated[str, arg(help="cpu, cuda, mps or auto.")] = "auto",
    workers: Annotated[int | None, arg(help="Processes that read image files.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change the last layer of a finished run in favour of rare classes, without training, and test it.

    Each τ makes a run of its own beside it. The τ that is best on the test images is chosen on them: choose it on a run
    of a fold, with the flags --folds and --fold of longtail train, and use it once on the run of all training images.

    Example: longtail rebalance runs/digits-50-resnet8-softmax-s0-0123456789 --method tau_norm --tau 0.5 0.7 1
    """
    from longtail.lab.training import train

    if method is None:
        raise ConfigError("which method? --method tau_norm or --method logit_adjustment")
    if not tau:
        raise ConfigError("which τ? --tau 1, or several")
    for each in tau:
        check_non_negative("tau", each)
    parent = with_name(run)
    options = RunOptions(runs=parent.parent, data_dir=data_dir, accelerator=accelerator, workers=workers)
    configs = [rebalanced(_config(parent), method, each, parent.name) for each in dict.fromkeys(tau)]
    made = {f"{method}, τ {shortest(config.head.head_tau)}": train(config, options) for config in configs}
    if as_json:
        print_json([_result(path) for path in made.values()])
    else:
        _compare(parent, made)


def _named(arguments: Sequence[str]) -> Path | None:
    """The run folder that the arguments name, if there is one: any word may also be the value of a flag."""
    found = [word for word in arguments if not word.startswith("-") and (Path(word) / "config.json").exists()]
    return with_name(Path(found[0])) if found else None


def _config(run: Path) -> RunConfig:
    from longtail.lab.training.run_folder import RunFolder

    folder = RunFolder(run)
    config = folder.config()
    folder.check_finished()
    return config


def _result(path: Path) -> dict[str, Any]:
    from longtail.lab.training import RunFolder

    result = RunFolder(path).result()
    assert result is not None
    return result


def _compare(parent: Path, made: dict[str, Path]) -> None:
    """Each new last layer beside the one that the run ended with."""
    finals = {"as it was": _result(parent)["final"], **{name: _result(path)["final"] for name, path in made.items()}}
    groups = [name for name in GROUPS if any(final[name] is not None for final in finals.values())]
    table = Table(box=None, pad_edge=False)
    for title in ("last layer", "error %", "recall %", *(f"{name} %" for name in groups)):
        table.add_column(title, justify="left" if title == "last layer" else "right")
    for name, final in finals.items():
        recalls = [final["balanced_accuracy"], *(final[group] for group in groups)]
        cells = [f"{final['error']:.2f}", *("-" if recall is None else f"{100 * recall:.1f}" for recall in recalls)]
        table.add_row(name, *cells)
    out = console()
    out.print(table)
    out.print()
    out.print(
        f"recall: mean of the classes; {', '.join(groups)}: of those with so many training images", soft_wrap=True
    )
    for path in made.values():
        out.print(f"the run is in {path}: longtail evaluate {path}", soft_wrap=True)
