"""``longtail retrain`` and ``longtail adjust``: another head for a finished run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from longtail.lab.cli.arguments import (
    AsJson,
    DryRun,
    RunningArguments,
    Set,
    ShowConfig,
    Switch,
    resolve,
    run_options,
)
from longtail.lab.cli.output import DataDir, console
from longtail.lab.cli.plain import print_json
from longtail.lab.cli.train import Run, run_training
from longtail.lab.config import ConfigError, RunOptions
from longtail.lab.files import with_name
from longtail.lab.recipes import retrained


@dataclass(frozen=True, kw_only=True)
class RetrainArguments:
    """How to train the new head; by default as the run was trained, with its schedule scaled to 10 epochs."""

    data: Annotated[str | None, arg(help="New path of the images, if they were moved.", metavar="PATH")] = None
    epochs: Annotated[int, arg(help="Number of training epochs.")] = 10
    batch_size: Annotated[int | None, arg(help="Images per step; the learning rate scales with it.")] = None
    lr: Annotated[float | None, arg(help="Learning rate.")] = None
    seed: Annotated[int | None, arg(help="Seed of the new head and of the image order.")] = None
    set: Set = ()


def retrain_command(
    run: Run,
    training: Annotated[RetrainArguments, OmitArgPrefixes] = RetrainArguments(),
    running: Annotated[RunningArguments, OmitArgPrefixes] = RunningArguments(),
    show_config: ShowConfig = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Retrain the classifier of a finished run (cRT): a new head, class-balanced sampling, the backbone frozen.

    Short for longtail train --pretrained RUN --freeze --sampling class_balanced with the settings of the run. The
    result is a new run beside it.

    Example: longtail retrain runs/digits-50-resnet8-softmax-s0-0123456789
    """
    from longtail.lab.training import RunFolder

    parent = with_name(run)
    folder = RunFolder(parent)
    base = retrained(folder.config(), str(parent), None)
    folder.finished_result()
    config, options = resolve(training, base=base), run_options(training, **vars(running))
    if options.runs == RunOptions.runs:
        options = replace(options, runs=parent.parent)
    run_training(config, options, show_config=show_config, dry_run=dry_run, as_json=as_json)


def adjust_command(
    run: Run,
    method: Annotated[
        str | None,
        arg(
            help="tau_norm: divide class weight vectors by their norm^τ. logit_adjustment: subtract τ log prior.",
            metavar="NAME",
        ),
    ] = None,
    tau: Annotated[
        tuple[float, ...] | None,
        arg(help="τ of the method, one or more; larger favours rare classes. 1 by default.", metavar="τ [τ ...]"),
    ] = None,
    prior: Annotated[
        str | None,
        arg(help="Class prior to expect; FILE is CSV: a class and its share per row.", metavar="uniform|train|FILE"),
    ] = None,
    calibrate: Annotated[Switch, arg(help="Fit a temperature on the validation images of the run.")] = False,
    data: Annotated[str | None, arg(help="New path of the images, if they were moved.", metavar="PATH")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Adjust a finished run without training: for rare classes, for a class prior, for its probabilities.

    --prior uniform is --method logit_adjustment with τ 1. Adjustments are kept in RUN/adjustments/; evaluate, predict
    and export take them with --adjustment. Choose τ on a validation fold, not on the test images.

    Example: longtail adjust runs/digits-50-resnet8-softmax-s0-0123456789 --method tau_norm --tau 0.5 1
    """
    from longtail.lab.report.tables import comparison
    from longtail.lab.training import RunFolder, adjust_run

    if method is None and prior is None and not calibrate:
        raise ConfigError("--method is missing: tau_norm or logit_adjustment; or --prior, or --calibrate")
    if tau == ():
        raise ConfigError("--tau is missing: 1, or several")
    if tau and method is None:
        raise ConfigError("--tau requires --method")
    parent = with_name(run)
    values = dict.fromkeys(tau or (1.0,))
    files = [adjust_run(parent, method, each, data_dir, data, prior=prior, calibrate=calibrate) for each in values]
    folder = RunFolder(parent)
    adjustments = {file.stem: folder.adjustment(file.stem) for file in files}
    if as_json:
        print_json(adjustments)
        return
    finals: dict[str, Any] = {"as trained": folder.finished_result()["final"]}
    finals |= {slug: found["final"] for slug, found in adjustments.items()}
    out = console()
    out.print(comparison("last layer", finals).to_rich(out.width))
    for found in adjustments.values():
        if found["temperature"] is not None:
            before, after = (found["calibration"]["validation"][when] for when in ("before", "after"))
            out.print(
                f"temperature {found['temperature']:.3f}: on the validation images, calibration error "
                f"{before['calibration_error']:.1%} before and {after['calibration_error']:.1%} after, negative log "
                f"likelihood {before['nll']:.4f} and {after['nll']:.4f}",
            )
    for file in files:
        out.print(f"{file}: longtail evaluate {parent} --adjustment {file.stem}")
