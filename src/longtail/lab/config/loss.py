"""The loss, how it weights classes, and from when on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from longtail import functional
from longtail._checks import check_choice, check_in_unit_interval, check_loss_option
from longtail.lab.config.errors import ConfigError, config_errors, shortest
from longtail.losses import DEFAULT_BETA, LOSSES, find_loss, owners_of
from longtail.weights import NORMALIZATIONS, SCHEMES

LOSS_KWARGS = tuple(dict.fromkeys(name for kind in LOSSES.values() for name in kind.options))
"""Options that some of the losses take beside class weights: γ, τ, margins and so on."""

WEIGHT_FIELDS = ("weighting", "beta", "betas", "normalize", "defer_reweighting")
"""Fields that say how classes are weighted, and from when on."""

TITLES = {name: kind.title for name, kind in LOSSES.items()}
SYMBOLS = {"gamma": "γ", "tau": "τ", "gamma_negative": "γ₋", "gamma_positive": "γ₊", "gamma_scaling": "γ"}
SYMBOLS |= {"max_margin": "margin"}
Config = TypeVar("Config")

WEIGHTINGS = {"inverse": "1/n weights", "inverse_sqrt": "1/√n weights"}


def _with_loss_options(cls: type[Config]) -> type[Config]:
    """Add a field to a dataclass for each option of a loss; None is the default of the loss, filled in later."""
    for name in LOSS_KWARGS:
        cls.__annotations__[name] = "float | None"
        setattr(cls, name, None)
    return cls


@dataclass(frozen=True, kw_only=True)
@_with_loss_options
class LossConfig:
    """The loss, how it weights classes, and from when on.

    Without a weighting the loss is plain; β makes it class-balanced. Beside the fields below there is one for each
    option of a loss, such as ``gamma``, ``tau`` and ``scale``: those of :mod:`longtail.functional`.

    Example:
        >>> LossConfig().title, LossConfig(name="focal", beta=0.999).title
        ('softmax', 'class-balanced focal, β 0.999, γ 0.5')
    """

    name: str = "softmax"
    """One of the losses of :class:`longtail.ClassBalancedLoss`; logit_adjusted is also known as balanced_softmax."""
    weighting: str | None = None
    """Class weights: effective (class-balanced), inverse, inverse_sqrt or uniform; effective if β is given."""
    beta: float | None = None
    """β of effective weights in [0, 1], 0.999 by default: 0 means no weights, 1 inverse frequency."""
    betas: tuple[float, ...] = ()
    """β of each class, instead of one for all."""
    normalize: str = "classes"
    """Whether class weights average 1 over classes or over samples."""
    defer_reweighting: float | None = None
    """Fraction of training after which class weights start (deferred re-weighting); from the start by default."""

    if TYPE_CHECKING:  # a field for each option of a loss, which type checkers cannot know

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, option: str) -> float | None: ...

    @config_errors()
    def __post_init__(self) -> None:
        object.__setattr__(self, "name", find_loss(self.name))
        if self.weighting is None:
            has_beta = self.beta is not None or bool(self.betas)
            object.__setattr__(self, "weighting", "effective" if has_beta else "uniform")
        check_choice("weighting", self.weighting, SCHEMES)
        check_choice("normalize", self.normalize, NORMALIZATIONS)
        for beta in self.betas:
            check_in_unit_interval("betas", beta)
        if self.beta is not None and self.betas:
            raise ConfigError("beta and betas exclude each other: betas has one for each class")
        if self.betas and self.weighting != "effective":
            raise ConfigError('betas requires weighting "effective"')
        default = DEFAULT_BETA if self.weighting == "effective" and not self.betas else None
        self._fill("beta", default, 'weighting "effective"')
        if self.beta is not None:
            check_in_unit_interval("beta", self.beta)
        for name in LOSS_KWARGS:
            owners = " or ".join(f'"{owner}"' for owner in owners_of(name))
            self._fill(name, LOSSES[self.name].options.get(name), f"loss {owners}")
            if getattr(self, name) is not None:
                check_loss_option(name, getattr(self, name))
        if self.defer_reweighting is not None:
            check_in_unit_interval("defer_reweighting", self.defer_reweighting)
            if self.defer_reweighting in (0, 1):
                raise ConfigError(f"defer_reweighting must be between 0 and 1, got {self.defer_reweighting:g}")
            if self.is_plain:
                raise ConfigError("defer_reweighting requires class weights: give a β")

    def _fill(self, name: str, default: float | None, required: str) -> None:
        """A value that was not given is the default; one that this loss cannot have is refused."""
        if getattr(self, name) is None:
            object.__setattr__(self, name, default)
        elif default is None:
            raise ConfigError(f"{name} requires {required}")

    @property
    def loss_kwargs(self) -> dict[str, float]:
        """Options of this loss beside class weights.

        Example:
            >>> LossConfig(name="ldam", scale=20).loss_kwargs
            {'max_margin': 0.5, 'scale': 20}
        """
        return {name: getattr(self, name) for name in LOSSES[self.name].options}

    @property
    def is_sigmoid(self) -> bool:
        """Whether each class has its sigmoid: the last bias then starts at the class prior."""
        return LOSSES[self.name].is_sigmoid

    @property
    def is_fusible(self) -> bool:
        """Whether the loss can be fused with the last layer.

        Example:
            >>> LossConfig(name="focal").is_fusible, LossConfig(name="ldam").is_fusible
            (True, False)
        """
        return hasattr(functional, f"linear_{LOSSES[self.name].function.__name__}")

    @property
    def is_plain(self) -> bool:
        """Whether all classes weigh the same."""
        return self.weighting == "uniform" or not any(self.betas or (self.beta != 0,))

    @property
    def cosine_scale(self) -> float | None:
        """Scale of a cosine classifier, if the loss needs one as the last layer."""
        return self.scale if self.name == "ldam" else None

    @property
    def slug(self) -> str:
        """For folder names: ``focal_0.5_0.999`` has γ 0.5 and β 0.999, ``softmax_0.9999_drw0.8`` deferred weights."""
        weighting = {"effective": self.beta, "uniform": None}.get(str(self.weighting), self.weighting)
        changed = {name: value for name, value in self._changed().items() if name != "gamma"}
        parts = [self.name, self.gamma, *(f"{name}{shortest(float(value))}" for name, value in changed.items())]
        parts += ["betas" if self.betas else weighting]
        parts += [] if self.defer_reweighting is None else [f"drw{shortest(self.defer_reweighting)}"]
        return "_".join(shortest(part) for part in parts if part is not None)

    @property
    def title(self) -> str:
        """For people: tables, figures and messages all use this name.

        Example:
            >>> LossConfig(name="logit_adjusted").title, LossConfig(beta=0.9999, defer_reweighting=0.8).title
            ('balanced softmax', 'class-balanced softmax, β 0.9999, deferred to 0.8')
            >>> LossConfig(weighting="inverse_sqrt").title, LossConfig(name="ldam", scale=20).title
            ('softmax, 1/√n weights', 'LDAM, scale 20')
        """
        name = TITLES[self.name]
        if self.name == "logit_adjusted" and self.tau == 1:
            name = "balanced softmax"
        shown = {"gamma": self.gamma} if self.gamma is not None else {}
        shown |= self._changed()
        options = [f"{SYMBOLS.get(option, option)} {shortest(value)}" for option, value in shown.items()]
        if self.weighting == "uniform":
            return ", ".join([name, *options])
        name = f"class-balanced {name}" if self.weighting == "effective" else name
        weights, *details = self._weights()
        return ", ".join([name, weights, *options, *details])

    def _weights(self) -> list[str]:
        """How classes are weighted, then how the weights are normalised and deferred, if they are."""
        beta = "β per class" if self.betas else f"β {shortest(self.beta)}"
        parts = [WEIGHTINGS.get(str(self.weighting), beta)]
        parts += ["normalised over samples"] if self.normalize == "samples" and not self.is_plain else []
        parts += [] if self.defer_reweighting is None else [f"deferred to {shortest(self.defer_reweighting)}"]
        return parts

    def _changed(self) -> dict[str, float]:
        defaults = LOSSES[self.name].options
        return {name: value for name, value in self.loss_kwargs.items() if value != defaults[name]}
