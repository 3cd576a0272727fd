"""Optuna's samplers behind the `Suggests` of a search: tpe, gp and nsga2.

A sampler is asked about recorded trials and asked nothing else: it gets a study made for the one question, with the
history that it is to learn from, and what it answers is recorded by the experiment with the trial, once. So earlier
experiments can be part of the history and do not take part in this one's numbers, the history can be kept short, and
the sampler, made anew each time with a seed from (seed, trial number), can hold no state that a restart would lose.

Parameters that are drawn under the same condition (always, or with a certain option of a choice) are asked for
together, and their model learns from the trials that had them: a choice's options have models of their own.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from rlplat.errors import ConfigError, MissingExtra
from rlplat.tune.address import is_url, shown
from rlplat.tune.domains import Domain, Normal, Options, Range, Uniform
from rlplat.tune.searchers import History, LearningSearch, Outcome
from rlplat.tune.space import Choose, Space
from rlplat.tune.trial import Trial

try:
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.samplers import BaseSampler
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial, TrialState

    from rlplat.tune.journal import quietly
except ImportError:
    raise MissingExtra("optuna", "tune", "tuning") from None

if TYPE_CHECKING:
    from cmaes import CMA


GENERATION = "NSGAIISampler:generation"
"""Where nsga2 writes down to which generation a trial belongs."""

MakeSampler = Callable[[int], BaseSampler]
"""(seed) -> a new sampler."""


_DISTRIBUTIONS: WeakKeyDictionary[Space, dict[str, BaseDistribution]] = WeakKeyDictionary()


def distributions(space: Space, params: Iterable[str] | None = None) -> dict[str, BaseDistribution]:
    """Optuna's form of the domains of these parameters (None: of all), by name: what a trial is recorded with. For a
    space always the same objects."""
    if space not in _DISTRIBUTIONS:
        _DISTRIBUTIONS[space] = {name: distribution(domain) for name, domain in space.domains.items()}
    known = _DISTRIBUTIONS[space]
    return dict(known) if params is None else {name: known[name] for name in params if name in known}


def distribution(domain: Domain) -> BaseDistribution:
    """Optuna has closed ranges: `uniform` and `loguniform` are these but for their upper end."""
    if isinstance(domain, Options):
        return CategoricalDistribution(domain.labels)
    assert isinstance(domain, Range)
    if isinstance(domain, Normal):
        return FloatDistribution(domain.clip(domain.low), domain.top)  # a model is asked for its share
    if domain.is_integer:
        return IntDistribution(int(domain.low), int(domain.top), log=domain.is_log)
    if domain.q is not None and not domain.is_log:
        return FloatDistribution(domain.low, domain.top, step=domain.q)
    return FloatDistribution(domain.low, domain.top, log=domain.is_log)  # qloguniform: rounded by `clip`


def as_study(trials: Sequence[Trial], modes: Sequence[str], domains: Mapping[str, Domain]) -> optuna.Study:
    """For Optuna's pictures: in memory; what has values counts as complete."""
    with quietly():
        optuna.logging.disable_default_handler()
        study = optuna.create_study(directions=["maximize" if mode == "max" else "minimize" for mode in modes])
    sign = 1.0 if modes[0] == "max" else -1.0
    theirs = {name: distribution(domain) for name, domain in domains.items()}
    for trial in trials:
        known = [name for name in trial.params if name in theirs]
        has_values = len(trial.values) == len(modes)
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.COMPLETE if has_values else TrialState.RUNNING,
                values=trial.values if has_values else None,
                params={name: domains[name].clip(trial.params[name]) for name in known},  # PBT may leave a range
                distributions={name: theirs[name] for name in known},
                intermediate_values={round(progress): sign * score for progress, score in trial.history},
            )
        )
    return study


def importances(trials: Sequence[Trial], modes: Sequence[str], domains: Mapping[str, Domain]) -> dict[str, float]:
    """How much each parameter matters for the first metric, as optuna-dashboard says it (PED-ANOVA, Watanabe et al.
    2023): shares, the largest first. A parameter that only some trials have is judged by those."""
    normal = {name: domain for name, domain in domains.items() if isinstance(domain, Normal)}  # by their shares
    shares = [
        replace(
            trial, params=trial.params | {n: d.share(trial.params[n]) for n, d in normal.items() if n in trial.params}
        )
        for trial in trials
    ]
    study = as_study(shares, modes, {**domains, **dict.fromkeys(normal, Uniform(0, 1))})
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    sign = 1.0 if modes[0] == "min" else -1.0
    tried = [name for name in domains if any(name in trial.params for trial in trials)]
    with quietly():
        found = {
            name: evaluator.evaluate(study, [name], target=lambda trial: sign * trial.values[0])[name] for name in tried
        }
    total = sum(found.values()) or 1.0
    return {name: value / total for name, value in sorted(found.items(), key=lambda item: -item[1])}


def make_sampler(name: str, options: Mapping[str, Any]) -> MakeSampler:
    """name: tpe, gp or nsga2. options: those of Optuna's sampler."""
    if name == "gp":
        for package in ("torch", "scipy"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtra(package, "torch" if package == "torch" else "tune", "searcher gp")

    def make(seed: int) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "experimental"
            if name == "tpe":
                return optuna.samplers.TPESampler(seed=seed, **{"multivariate": True, "constant_liar": True, **options})
            if name == "gp":
                return optuna.samplers.GPSampler(seed=seed, **options)
            return optuna.samplers.NSGAIISampler(seed=seed, **options)

    try:
        make(0)
    except ValueError as error:
        raise ConfigError(f"searcher {name}: {error}") from None
    return make


class ModelSearch(LearningSearch):
    """One of Optuna's samplers; what the sampler cannot say yet is drawn at random."""

    def __init__(
        self, space: Space, seed: int, num_trials: int, maximize: Sequence[bool], make: MakeSampler, *,
        max_history: int, earlier: Sequence[Outcome] = (), conditional: bool = True, jointly: bool = True,
        notes_of_others: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """conditional: whether the sampler is also asked for what only some trials have. jointly: for several
        parameters at once. notes_of_others: of trials that this searcher has not suggested."""
        super().__init__(space, seed, num_trials, maximize)
        if not conditional and (left_out := [n for n, c in space.conditions.items() if c and n not in space.grid_axes]):
            self.notice = f"draws {', '.join(left_out)} at random"
        self._make, self._frozen = make, Frozen(space, maximize)
        self._groups = _groups(space, conditional, jointly)
        self._group_of = {name: group for group in self._groups for name in group}
        self._history = History(max_history)
        self._study_attrs: dict[str, Any] = {}
        self._notes_of_others = dict(notes_of_others or {})
        for outcome in earlier:
            self._learn(outcome)

    def ways(self, number: int, rng: np.random.Generator, notes: dict[str, Any]) -> Choose:
        ended, running = self.read()
        for outcome in ended:
            self._learn(outcome)
        for outcome in [*ended, *running]:
            self._study_attrs.update(outcome.notes.get("study", {}))
        shown = [*self._history.outcomes, *running]
        answers: dict[tuple[str, ...], dict[str, Any]] = {}

        def choose(name: str, domain: Domain) -> Any:
            group = self._group_of.get(name, ())
            if group and group not in answers:
                answers[group] = self._ask(group, number, shown, notes)
            if not group or name not in answers[group]:
                return domain.sample(rng)
            answer = answers[group][name]
            return domain.at(answer) if isinstance(domain, Normal) else domain.clip(answer)

        return choose

    def _learn(self, outcome: Outcome) -> None:
        outcome.notes = outcome.notes or self._notes_of_others
        self._history.add(outcome)

    def _ask(self, group: tuple[str, ...], number: int, shown: list[Outcome], notes: dict[str, Any]) -> dict[str, Any]:
        """What the sampler says for these parameters; empty: it knows too little yet."""
        usable = [outcome for outcome in shown if all(name in outcome.params for name in group)]
        trial = self._frozen.of(Outcome(number, {}, "running"))
        trials = [*(self._frozen.of(outcome) for outcome in usable), trial]
        storage = _OneQuestion(trials, self._frozen.directions, self._study_attrs)
        (sampler_seed,) = np.random.SeedSequence((self._seed, number, self._groups.index(group))).generate_state(1)
        sampler = self._make(int(sampler_seed))
        study = optuna.load_study(study_name="history", storage=storage, sampler=sampler)
        asked = {name: self._frozen.distributions[name] for name in group}
        with quietly():
            answer = sampler.sample_relative(study, trial, asked)
        if storage.trial_attrs:
            notes.setdefault("trial", {}).update(storage.trial_attrs)
        if storage.new_study_attrs:  # nsga2 begins a generation, and says who its parents are
            notes.setdefault("study", {}).update(storage.new_study_attrs)
            self._study_attrs = dict(storage.new_study_attrs)
            parents = {number for numbers in storage.new_study_attrs.values() for number in numbers}
            # Until one of the new generation is complete, the sampler counts whether the one before it was.
            generation = storage.trial_attrs[GENERATION]
            self._history.keep(lambda one: one.number in parents or one.notes["trial"][GENERATION] >= generation - 1)
        return answer


class Frozen:
    """Outcomes as Optuna's trials. Optuna knows no normal distribution: its models see the share of the value, which is
    uniform."""

    def __init__(self, space: Space, maximize: Sequence[bool]) -> None:
        self._normal = {name: one for name, one in space.domains.items() if isinstance(one, Normal)}
        self.distributions = distributions(space) | dict.fromkeys(self._normal, FloatDistribution(0.0, 1.0))
        self._signs = [1.0 if up else -1.0 for up in maximize]
        self.directions = [StudyDirection.MAXIMIZE if up else StudyDirection.MINIMIZE for up in maximize]
        self._when = datetime(2000, 1, 1)

    def of(self, outcome: Outcome) -> FrozenTrial:
        if outcome.frozen is None:
            outcome.frozen = self._make(outcome)
        return outcome.frozen

    def _make(self, outcome: Outcome) -> FrozenTrial:
        values = [sign * score for sign, score in zip(self._signs, outcome.scores, strict=False)]
        is_stopped = outcome.state == "stopped"
        return FrozenTrial(
            number=outcome.number,
            trial_id=outcome.number,
            state=_STATES[outcome.state],
            value=None,
            values=values or None,
            datetime_start=self._when,
            datetime_complete=None if outcome.state == "running" else self._when,
            params={
                name: self._normal[name].share(value) if name in self._normal else value
                for name, value in outcome.params.items()
            },
            distributions={name: self.distributions[name] for name in outcome.params},
            user_attrs={},
            system_attrs=outcome.notes.get("trial", {}),
            intermediate_values={outcome.step: values[0]} if is_stopped else {},
        )


_STATES = {"complete": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "running": TrialState.RUNNING}


class _OneQuestion(optuna.storages.InMemoryStorage):
    """A storage that has these trials, and hears what the sampler wants to remember."""

    def __init__(
        self, trials: list[FrozenTrial], directions: list[StudyDirection], study_attrs: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._shown, self._directions = trials, directions
        self._known_attrs = study_attrs
        self.trial_attrs: dict[str, Any] = {}
        self.new_study_attrs: dict[str, Any] = {}

    def get_study_id_from_name(self, study_name: str) -> int:
        return 0

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._directions

    def get_all_trials(self, study_id: int, deepcopy: bool = True, states: Any = None) -> list[FrozenTrial]:
        if states is None:
            return list(self._shown)
        return [trial for trial in self._shown if trial.state in states]

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return {**self._known_attrs, **self.new_study_attrs}

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self.new_study_attrs[key] = value

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        if "relative_params" not in key:  # there, for others, until the parameters are recorded: here they are at once
            self.trial_attrs[key] = value


def _groups(space: Space, conditional: bool, jointly: bool) -> list[tuple[str, ...]]:
    """Names of the parameters that are drawn under the same condition; without grids, and without those that have
    one value only."""
    groups: dict[Any, list[str]] = {}
    names = distributions(space)
    for name, conditions in space.conditions.items():
        if name not in space.grid_axes and not names[name].single() and (conditional or not conditions):
            groups.setdefault(conditions if jointly else name, []).append(name)
    return [tuple(group) for group in groups.values()]


def earlier_outcomes(place: str, space: Space, maximize: Sequence[bool]) -> tuple[list[Outcome], int]:
    """The trials of an earlier experiment that fit this space: they have all the parameters that each trial has, and
    within their domains. place: the experiment's directory, its study.journal, or postgresql://user@host/database#name.
    Returns them, oldest first, and how many had ended in all."""
    from rlplat.tune.study import stored_study

    url, _, name = place.partition("#") if is_url(place) else (place, "", "")
    if shown(url) != url:
        raise ConfigError(
            "warm_start: leave the password out of the address, which is written into the experiment's files, and give "
            "it in PGPASSWORD or ~/.pgpass"
        )
    path = Path(place) / "study.journal" if Path(place).is_dir() else Path(place)
    try:
        directions, trials = stored_study(url if is_url(place) else path, name or None)
    except ConfigError as error:
        raise ConfigError(f"warm_start: {error}") from None
    if [direction is StudyDirection.MAXIMIZE for direction in directions] != list(maximize):
        theirs = " and ".join(direction.name.lower() for direction in directions)
        raise ConfigError(f"warm_start: {place} has {theirs} for its metric, and this experiment has not")
    signs = [1.0 if up else -1.0 for up in maximize]
    ended = [outcome for trial in trials if (outcome := _earlier_outcome(trial, signs)) is not None]
    return [outcome for outcome in ended if _fits(outcome, space)], len(ended)


def _earlier_outcome(trial: FrozenTrial, signs: Sequence[float]) -> Outcome | None:
    """None: it has no value to learn from."""
    if trial.state not in (TrialState.COMPLETE, TrialState.PRUNED):
        return None
    step = max(trial.intermediate_values, default=0)
    values = trial.values or ([trial.intermediate_values[step]] if step and len(signs) == 1 else [])
    if not values or any(value != value for value in values):
        return None
    state = "complete" if trial.state is TrialState.COMPLETE else "stopped"
    scores = tuple(sign * value for sign, value in zip(signs, values, strict=True))
    return Outcome(trial.number, dict(trial.params), state, scores, step)


def _fits(outcome: Outcome, space: Space) -> bool:
    """Leaves the parameters that this space knows."""
    outcome.params = {
        name: space.domains[name].clip(value)
        for name, value in outcome.params.items()
        if name in space.domains and space.domains[name].contains(value)
    }
    return all(name in outcome.params for name, conditions in space.conditions.items() if not conditions)


class EvolutionSearch(LearningSearch):
    """CMA-ES: a normal distribution over the numbers of the space that moves to where the better trials are.

    Hansen, The CMA Evolution Strategy: A Tutorial (arXiv 1604.00772). Trials come in generations; when a generation's
    population has ended, its ranking moves the distribution, and the next trial is the first of the next generation.
    Until then more trials are drawn from the distribution as it is, so that no slot waits.

    The state is what the recorded trials say it is: a trial's notes have its generation, and the first of a generation
    has the numbers of the trials that moved the distribution there; a searcher made anew goes through them again.

    What is no number (choices), and what is drawn in some trials only, is drawn at random.

    population_size: trials of a generation (4 + 3 ln d). sigma: the first standard deviation, as a share of each
    range. The first mean is the middle, or, with earlier trials, fitted to the best tenth of them (WS-CMA-ES, Nomura
    et al. 2021, arXiv 2012.06932).
    """

    def __init__(
        self, space: Space, seed: int, num_trials: int, maximize: Sequence[bool], *,
        population_size: int | None = None, sigma: float = 1 / 6, earlier: Sequence[Outcome] = (),
    ) -> None:  # fmt: skip
        super().__init__(space, seed, num_trials, maximize)
        conditions, domains = space.conditions, space.domains
        self._axes = {n: one for n, one in domains.items() if isinstance(one, Range) and not conditions[n]}
        if not self._axes:
            raise ConfigError("searcher cmaes needs a number to search: uniform, loguniform, randint, ...")
        if others := [name for name in domains if name not in self._axes and name not in space.grid_axes]:
            self.notice = f"draws {', '.join(others)} at random"
        self._cma = self._open(population_size, sigma, earlier)
        self._population: dict[int, Outcome] = {}
        """Those that have ended, of the generation that is being made, by number."""

    def ways(self, number: int, rng: np.random.Generator, notes: dict[str, Any]) -> Choose:
        self._catch_up(*self.read())
        if len(self._population) >= self._cma.population_size:
            notes["told"] = sorted(self._population)[: self._cma.population_size]
            self._tell([self._population[told] for told in notes["told"]])
            self._population = {}
        notes["generation"] = self._cma.generation
        self._cma.reseed_rng(int(rng.integers(2**31)))
        shares = dict(zip(self._axes, self._cma.ask().tolist(), strict=True))
        return lambda name, domain: domain.at(min(shares[name], 1 - 1e-12)) if name in shares else domain.sample(rng)

    def _open(self, population_size: int | None, sigma: float, earlier: Sequence[Outcome]) -> CMA:
        try:
            from cmaes import CMA, get_warm_start_mgd
        except ImportError:
            raise MissingExtra("cmaes", "tune", "searcher cmaes") from None
        dim = len(self._axes)
        mean, cov = np.full(dim, 0.5), None
        known = [outcome for outcome in earlier if all(name in outcome.params for name in self._axes)]
        if known:
            ranked = sorted(known, key=lambda outcome: outcome.rank)
            solutions = [(self._shares(outcome), float(rank)) for rank, outcome in enumerate(ranked)]
            mean, sigma, cov = get_warm_start_mgd(solutions, gamma=max(0.1, 1 / len(solutions)))
            mean = np.clip(mean, 0.0, 1.0)
        bounds = np.array([[0.0, 1.0]] * dim)
        return CMA(
            mean=mean, sigma=sigma, cov=cov, bounds=bounds, population_size=population_size, seed=0,
            n_max_resampling=10 * dim,
        )  # fmt: skip

    def _catch_up(self, ended: list[Outcome], running: list[Outcome]) -> None:
        """The generations that an earlier life of this tuner has begun."""
        by_number = self._population | {outcome.number: outcome for outcome in ended}
        steps = sorted(
            (outcome.notes["generation"], outcome.notes["told"])
            for outcome in [*ended, *running]
            if "told" in outcome.notes
        )
        for generation, told in steps:
            if generation == self._cma.generation + 1:
                self._tell([by_number[number] for number in told])
        self._population = {
            number: outcome for number, outcome in by_number.items()
            if outcome.state != "failed" and outcome.notes.get("generation", 0) == self._cma.generation
        }  # fmt: skip

    def _tell(self, population: list[Outcome]) -> None:
        ranked = sorted(population, key=lambda outcome: outcome.rank)  # only the order counts
        self._cma.tell([(self._shares(outcome), float(rank)) for rank, outcome in enumerate(ranked)])

    def _shares(self, outcome: Outcome) -> np.ndarray:
        return np.array([domain.share(outcome.params[name]) for name, domain in self._axes.items()])
