"""The journal of a search: Optuna's study, which survives its processes and is shared by them."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from longtail.lab.config import ConfigError, LossConfig
from longtail.lab.experiments.search import Candidate, SearchOptions
from longtail.lab.locks import Lock
from longtail.losses import owners_of

if TYPE_CHECKING:
    import optuna

__all__ = ["Journal"]

# Of a candidate, and what Optuna calls it.
STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}


class Journal:
    """Which losses were tried, are being tried, and are next.

    Args:
        folder: where it is.
        search: what to try.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, Journal(Path(folder), SearchOptions(losses=("sigmoid",))) as journal:
        ...     journal.loss(journal.next()).name
        'sigmoid'
    """

    def __init__(self, folder: Path, search: SearchOptions) -> None:
        self.folder, self.search = folder, search
        self.space = {loss.slug: loss for loss in search.space()}

    def __enter__(self) -> Self:
        import optuna

        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = f"process-{os.getpid()}-{time.time_ns()}.lock"
        alone = not list(self._living())
        with contextlib.ExitStack() as life, warnings.catch_warnings():
            alive = Lock(self.folder / self.process)
            alive.acquire()
            life.callback(alive.release, delete=True)
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study = optuna.create_study(
                storage=self._storage(),
                study_name="tune",
                direction="maximize",
                pruner=self._pruner(),
                load_if_exists=True,
            )
            # Alike in every search, but not in several processes at once, which would all try the same.
            self.study.sampler = self._sampler(len(self.study.trials) if alone else os.getpid())
            self.life = life.pop_all()
        return self

    def _storage(self) -> optuna.storages.JournalStorage:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        file = self.folder / "journal.log"
        lock = Lock(self.folder / "journal.lock")
        _mend(file, lock)
        try:
            # Ours ends with the process that holds it, where Optuna's own would stay for ever.
            return JournalStorage(JournalFileBackend(str(file), lock_obj=cast(Any, lock)))
        except ValueError as error:
            hint = "without it, the search begins anew with the folds that there are"
            raise ConfigError(f"{file} is damaged: {error}: {hint}") from None

    def _pruner(self) -> optuna.pruners.BasePruner:
        import optuna

        if not self.search.prune:
            return optuna.pruners.NopPruner()
        return optuna.pruners.WilcoxonPruner(p_threshold=self.search.prune_threshold, n_startup_steps=2)

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        import optuna

        if self.search.search == "tpe":
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        sampler = optuna.samplers.GridSampler({"loss": list(self.space)}, seed=0)
        # At the end of the grid it would stop a loop of Optuna's own, and complain that there is none.
        sampler.after_trial = lambda *_: None  # type: ignore[method-assign]
        return sampler

    def __exit__(self, *_: object) -> None:
        self.life.close()

    def next(self) -> optuna.Trial | None:
        """The next loss to try, if there is one left."""
        self._give_up_dead_trials()
        trials = self.study.get_trials(deepcopy=False)
        # What failed in an earlier call is tried again, as a sweep does.
        mine = [trial for trial in trials if trial.user_attrs.get("process") == self.process]
        tried = [trial for trial in trials if trial.state.name != "FAIL"]
        tried += [trial for trial in mine if trial.state.name == "FAIL" and "error" in trial.user_attrs]
        if self.search.search == "tpe":
            return self._begun_by_tpe(tried) if len(tried) < (self.search.trials or 25) else None
        labels = {trial.params.get("loss") for trial in tried}
        missing = [label for label in self.space if label not in labels]
        if not missing:
            return None
        trial = self._begun()
        if trial.suggest_categorical("loss", list(self.space)) not in missing:
            # The sampler believes what a process that died had begun to be done.
            self.study.tell(trial, state=_state("FAIL"))
            self.study.enqueue_trial({"loss": missing[0]})
            trial = self._begun()
            trial.suggest_categorical("loss", list(self.space))
        return trial

    def _begun_by_tpe(self, tried: Sequence[optuna.trial.FrozenTrial]) -> optuna.Trial:
        """First each loss with one prototype, where it is the plain one: the others are compared with it."""
        plain = {trial.params.get("loss") for trial in tried if trial.params.get("prototypes") == 1}
        if missing := [kind for kind in self.search.losses if kind not in plain]:
            self.study.enqueue_trial({"loss": missing[0], "prototypes": 1.0})
        return self._begun()

    def _begun(self) -> optuna.Trial:
        with Lock(self.folder / "claim.lock"):  # nobody may take it for one of a dead process in between
            trial = self.study.ask()
            trial.set_user_attr("process", self.process)
        return trial

    def loss(self, trial: optuna.Trial) -> LossConfig:
        """The loss of a trial."""
        if self.search.search == "grid":
            return self.space[trial.suggest_categorical("loss", list(self.space))]
        kind = trial.suggest_categorical("loss", self.search.losses)
        prototypes = trial.suggest_float("prototypes", 1.0, 1e5, log=True)
        gamma = trial.suggest_float("gamma", 0.0, 3.0) if kind in owners_of("gamma") else None
        # As many digits as a training can tell apart, which are also those of its name: β = 0.9988, not 0.9987654321.
        beta = float(f"{1 - float(f'{1 / prototypes:.2g}'):.9g}") or None
        return LossConfig(name=kind, beta=beta, gamma=None if gamma is None else round(gamma, 2))

    def is_hopeless(self, trial: optuna.Trial, scores: list[float]) -> bool:
        """Whether to give it up, after one more fold."""
        trial.report(scores[-1], step=len(scores) - 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SciPy's about few pairs, and Optuna's about its experiments
            return trial.should_prune()

    def tell(self, trial: optuna.Trial, candidate: Candidate) -> None:
        """It is over."""
        trial.set_user_attr("scores", candidate.scores)
        if candidate.error:
            trial.set_user_attr("error", candidate.error)
        complete = candidate.state == "complete"
        self.study.tell(trial, candidate.mean if complete else None, state=_state(STATES[candidate.state]))

    def candidates(self) -> list[Candidate]:
        """All that were tried, best first."""
        found: dict[str, Candidate] = {}
        names, states = {state: name for name, state in STATES.items()}, list(STATES)
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state.name not in names or "scores" not in trial.user_attrs:
                continue
            loss = self.loss(_Fixed(trial.params))  # type: ignore[arg-type]
            candidate = Candidate(
                loss,
                scores=list(trial.user_attrs["scores"]),
                state=names[trial.state.name],
                error=trial.user_attrs.get("error", ""),
            )
            known = found.get(loss.slug)  # a search may draw a loss twice
            if known is None or states.index(candidate.state) < states.index(known.state):
                found[loss.slug] = candidate
        places = list(self.space)
        return sorted(
            found.values(),
            key=lambda each: (
                states.index(each.state),
                -each.mean if each.scores else 0.0,
                places.index(each.loss.slug) if each.loss.slug in places else 0,
            ),
        )

    def is_busy(self) -> bool:
        """Whether a process that is alive is at a trial."""
        self._give_up_dead_trials()
        return bool(self.study.get_trials(deepcopy=False, states=(_state("RUNNING"),)))

    def _give_up_dead_trials(self) -> None:
        """What a process that is gone had begun is begun anew; its folds are still there."""
        with Lock(self.folder / "claim.lock"):
            living = {self.process, *self._living()}
            for trial in self.study.get_trials(deepcopy=False, states=(_state("RUNNING"),)):
                if trial.user_attrs.get("process") not in living:
                    self.study.tell(trial.number, state=_state("FAIL"))

    def _living(self) -> Iterator[str]:
        """Processes that are at this search, by the locks that they hold."""
        for path in self.folder.glob("process-*.lock"):
            if path.name == self.process:
                continue
            lock = Lock(path)
            if not lock.acquire(wait=False):
                yield path.name
            else:
                lock.release(delete=True)


def _mend(file: Path, lock: Lock) -> None:
    """Cut off a last line that was not finished, by a disk that was full or lost its power; the next would join it."""
    with lock:
        if file.exists() and not (content := file.read_bytes()).endswith(b"\n"):
            os.truncate(file, content.rfind(b"\n") + 1)


class _Fixed:
    """The values of a trial that is over, asked for as they were."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def suggest_categorical(self, name: str, choices: object) -> Any:
        return self.values[name]

    def suggest_float(self, name: str, *limits: float, log: bool = False) -> float:
        return float(self.values[name])


def _state(name: str) -> optuna.trial.TrialState:
    import optuna

    return optuna.trial.TrialState[name]
