"""Population based training: bad trials go on as copies of good ones, with other hyper-parameters. So a population
finds not one best value but a schedule of values.

Jaderberg et al. 2017, "Population Based Training of Neural Networks", algorithm 1 and section 4.1.1: truncation
selection (exploit), perturb or resample (explore).

    every perturbation_period of its progress, a trial is ranked among the population by the scores at that progress
        in the lowest `quantile`:  it takes weights and hyper-parameters of one of the highest `quantile`, then explores
        elsewhere:                 it writes a checkpoint, so that there is something exact to copy, and goes on

What is copied is a checkpoint that belongs to the source's last ranked report or to a later one, never to an earlier
one. Everybody outside the lowest quantile writes it, not only the best: who is among the best is known only when
somebody else asks.

Fewer slots than trials: a trial pauses at its boundary as long as others wait for a slot; it is ranked when all have
begun and goes to the back of the queue, so all come round. `synch`: every trial pauses at its boundary and is ranked
when all have come as far, all by their scores at that boundary: no result depends on who was faster.

In `trial.notes` (JSON):
    boundary   [step, progress, score] at which the trial was ranked last
    resumed    the step of the boundary after whose pause it went on as it was
and what the experiment writes when a copy is made (exploits.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.section import Share
from rlplat.tune.schedulers import (
    Continue,
    Due,
    Exploit,
    Pause,
    Progress,
    Resume,
    TrialScheduler,
    Unit,
    Verdict,
    checked,
)
from rlplat.tune.trial import Trial, TrialState, reports_before_copy, step_of_copy

if TYPE_CHECKING:
    from rlplat.tune.domains import Domain


Explorer = Callable[[Any, np.random.Generator], Any]
"""function(value of the source, rng) -> the new value."""


@dataclass
class _Member:
    trial: Trial
    progress: float = 0.0
    score: float = -math.inf
    is_at_boundary: bool = False
    """Its last report was the first one in a new period."""


@dataclass(frozen=True)
class _Neighbours:
    """Options in an order that means something."""

    domain: Domain
    labels: tuple[Any, ...]


_Mutation = Any  # Domain | _Neighbours | Explorer


class PBT(TrialScheduler):
    name: ClassVar[str] = "pbt"
    needs_checkpoints = True

    @checked
    def __init__(
        self,
        perturbation_period: Progress | None = None,
        unit: Unit = "step",
        quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25,
        resample_probability: Share = 0.25,
        perturb_factors: Annotated[list[Progress], Field(min_length=1)] = [0.8, 1.2],  # noqa: B006  never changed
        mutations: Any = None,
        burn_in: Annotated[float, Field(ge=0)] = 0.0,
        synch: bool = False,
    ) -> None:
        """perturbation_period: progress between two rankings of a trial. quantile: share of the population that
        copies, and that is copied. resample_probability: of drawing a parameter anew instead of changing it a little.
        perturb_factors: a number is multiplied with one of these. mutations: which parameters change, a list of names
        or a mapping to how: a domain, a list of neighbours, or function(value, rng); None: every number and every
        choice among scalars (options that are lists or dicts may change the shape of what is copied, and keep the
        source's value). burn_in: progress before which nobody copies. synch: rank all together.
        """
        if perturbation_period is None:
            raise ConfigError(
                f"trial scheduler '{self.name}' needs perturbation_period: how much progress ({unit}) lies between "
                "two changes of a trial; a twentieth of a trial's length is a good start"
            )
        self.unit, self.perturbation_period, self.burn_in, self.synch = (
            unit,
            perturbation_period,
            burn_in,
            synch,
        )
        self.quantile, self.resample_probability = quantile, resample_probability
        self.perturb_factors = perturb_factors
        self.mutations: dict[str, _Mutation] = {}
        self._given_mutations = mutations
        self._space: Any = None
        self._seed = 0
        self._members: dict[int, _Member] = {}
        self._is_complete = False

    # ------------------------------------------------------------ what it is told

    def open(self, seed: int, space: Any) -> None:
        self._seed, self._space = seed, space
        self.mutations = mutations_of(self.name, self._given_mutations, space)

    def add(self, trial: Trial) -> None:
        self._members[trial.number] = _Member(trial)

    def record(self, trial: Trial, progress: float, score: float) -> None:
        member = self._members[trial.number]
        # Progress jumps where a trial goes on from a checkpoint: its own after a crash, or a copy.
        mark = trial.checkpoint.progress if trial.checkpoint else 0.0
        before = max((known for known in (member.progress, mark) if known < progress), default=0.0)
        member.is_at_boundary = self._level(progress) > self._level(before)
        member.progress, member.score = progress, score

    def end(self, trial: Trial) -> None:
        self._members[trial.number].is_at_boundary = False

    def no_more_trials(self) -> None:
        self._is_complete = True

    # ------------------------------------------------------------ what it says

    def judge(self, trial: Trial) -> Verdict:
        member = self._members[trial.number]
        if not member.is_at_boundary or trial.step in (step_of_copy(trial), trial.notes.get("resumed")):
            return Continue()
        trial.notes["boundary"] = [trial.step, member.progress, member.score]
        if self.synch or not self._is_complete or self._others_wait(trial):
            return Pause()
        return self._ranked(trial) or Pause()

    def due(self) -> list[tuple[int, Due]]:
        if not self._is_complete:
            return []
        paused = [m.trial for m in self._members.values() if m.trial.state is TrialState.PAUSED]
        ready = [trial for trial in paused if not self.synch or self._all_are_as_far_as(trial)]
        given: list[tuple[int, Due]] = []
        for trial in sorted(ready, key=lambda trial: (trial.progress, trial.number)):
            verdict = self._ranked(trial)
            if isinstance(verdict, Exploit):
                given.append((trial.number, verdict))
            elif verdict is not None:
                trial.notes["resumed"] = trial.step
                given.append((trial.number, Resume()))
        # Copies first: as long as one of them is not recorded, no source has gone on.
        return sorted(given, key=lambda one: not isinstance(one[1], Exploit))

    def explore(self, source: Trial, target: Trial, names: Sequence[str], rng: np.random.Generator) -> dict[str, Any]:
        """New values of these parameters for a copy of `source`; by name."""
        return {
            name: mutated(
                source.params[name],
                self.mutations[name],
                self._space.domains[name],
                self.perturb_factors,
                self.resample_probability,
                rng,
            )
            for name in names
        }

    # ------------------------------------------------------------ ranking

    def _ranked(self, trial: Trial) -> Continue | Exploit | None:
        """At its boundary: whether it copies, from whom, with what. None: the checkpoint to copy is being written."""
        if trial.progress < self.burn_in:
            return Continue()
        population = [member.trial for member in self._living() if "boundary" in member.trial.notes]
        population.sort(key=lambda other: (self._score_at(other, trial.progress), other.number))
        size = min(math.ceil(len(population) * self.quantile), len(population) // 2)
        if trial not in population[:size]:
            return Continue(save=True)
        best = population[-size:]
        sources = [other for other in best if _is_copyable(other)]
        if not sources:
            return None if any(_is_saving(other) for other in best) else Continue(save=True)
        rng = np.random.default_rng([self._seed % 2**64, trial.number, trial.step])
        source = sources[int(rng.integers(len(sources)))]
        known = [name for name in self.mutations if name in source.params]
        explored = self.explore(source, trial, known, rng)

        def choose(name: str, domain: Domain) -> Any:
            if name in explored:
                return explored[name]
            if name in source.params:
                return source.params[name]
            return domain.sample(rng)  # of an option that the source has not taken

        suggestion = self._space.draw(choose, rng)
        changes = ", ".join(
            f"{name} {_shown(source.params.get(name))} -> {_shown(value)}"
            for name, value in suggestion.params.items()
            if name in self.mutations
        )
        reason = (
            f"continues as a copy of trial {source.number} ({self._score(source):.6g}, itself {self._score(trial):.6g} "
            f"at {self.unit} {trial.progress:g}): {changes}"
        )
        return Exploit(source.number, suggestion.config, suggestion.params, reason)

    def _score(self, trial: Trial) -> float:
        """At its last boundary. A copy is worth what its source was, until it has its own; where all are ranked
        together, nobody is ranked between the two."""
        step, _, score = trial.notes["boundary"]
        return float(trial.notes["exploits"][-1]["score"] if step_of_copy(trial) == step and not self.synch else score)

    def _score_at(self, trial: Trial, progress: float) -> float:
        """At this progress, where it is further: who began late is not among the lowest for that. Else the newest."""
        reports = trial.history[reports_before_copy(trial) :]
        return next((score for at, score in reports if at >= progress), self._score(trial))

    def _living(self) -> list[_Member]:
        return [member for member in self._members.values() if not member.trial.state.has_ended]

    def _others_wait(self, trial: Trial) -> bool:
        waiting = (TrialState.WAITING, TrialState.PAUSED)
        return any(m.trial.state in waiting for m in self._living() if m.trial is not trial)

    def _all_are_as_far_as(self, trial: Trial) -> bool:
        """Whether every other one has a checkpoint of this boundary or a later one; then all scores are in, too. Or
        waits there though it could not be saved."""

        def safe(other: Trial) -> float:
            if other.state is TrialState.PAUSED:
                return other.progress
            return other.checkpoint.progress if other.checkpoint else -1.0

        level = self._level(trial.progress)
        return all(self._level(safe(member.trial)) >= level for member in self._living())

    def _level(self, progress: float) -> int:
        return math.floor(progress / self.perturbation_period + 1e-9)


# ---------------------------------------------------------------- explore


def mutations_of(scheduler: str, given: Mapping[str, Any] | Sequence[str] | None, space: Any) -> dict[str, _Mutation]:
    """What changes each parameter: a domain, neighbours, or a function. ConfigError: it is none of the space's."""
    from rlplat.tune.domains import Choice, Domain, Options
    from rlplat.tune.space import Space

    domains: dict[str, Domain] = space.domains
    if given is None:
        given = [name for name, domain in domains.items() if _is_plain(domain)]
        if not given:
            raise ConfigError(
                f"trial scheduler '{scheduler}' has nothing to change: the space has no uniform, loguniform, randint "
                "or choice among numbers or texts"
            )
    if isinstance(given, str):
        given = [given]
    hows = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given)
    mutations: dict[str, _Mutation] = {}
    for name, how in hows.items():
        if name not in domains:
            hint = closest(str(name), domains) or f"; it has {', '.join(domains)}"
            raise ConfigError(
                f"trial scheduler '{scheduler}': mutations name '{name}', which is no parameter of the space{hint}"
            )
        own = domains[name]
        if how is None:
            how = own
        elif isinstance(how, Mapping):
            how = Space.parse({name: how}).domains.get(name, how)
        if isinstance(how, list | tuple):
            how = Choice(tuple(how))
            how = _Neighbours(how, how.labels)
        elif isinstance(how, Options) and how.is_ordered:
            how = _Neighbours(how, tuple(sorted(how.labels)))
        domain = how.domain if isinstance(how, _Neighbours) else how
        if isinstance(domain, Domain):
            if problem := domain.problem():
                raise ConfigError(f"trial scheduler '{scheduler}': mutations of '{name}': {problem}")
            strangers = domain.labels if isinstance(domain, Options) else ()
            if isinstance(own, Options) and (
                not isinstance(domain, Options) or not all(own.contains(label) for label in strangers)
            ):
                raise ConfigError(
                    f"trial scheduler '{scheduler}': mutations of '{name}' must stay among {list(own.labels)}"
                )
        elif not callable(domain):
            raise ConfigError(
                f"trial scheduler '{scheduler}': mutations of '{name}' must be a domain, a list, or "
                f"function(value, rng), not {how!r}"
            )
        mutations[name] = how
    return mutations


def mutated(
    value: Any,
    mutation: _Mutation,
    own: Domain,
    factors: Sequence[float],
    resample_probability: float,
    rng: np.random.Generator,
) -> Any:
    """`value` times one of the factors, within the bounds; a neighbour of it; or, with `resample_probability`, drawn
    anew. own: the parameter's domain in the space, in which what a function returns must be."""
    from rlplat.tune.domains import Options, Range

    if isinstance(mutation, _Neighbours):
        labels = mutation.labels
        if rng.random() < resample_probability or value not in labels:
            return labels[int(rng.integers(len(labels)))]
        index = labels.index(value)
        near = [labels[i] for i in (index - 1, index + 1) if 0 <= i < len(labels)]
        return near[int(rng.integers(len(near)))] if near else value
    if isinstance(mutation, Options):  # no order: to change it is to draw it
        return mutation.sample(rng) if rng.random() < resample_probability else value
    if isinstance(mutation, Range):
        if rng.random() < resample_probability or value == 0:
            return mutation.sample(rng)
        factor = factors[int(rng.integers(len(factors)))]
        changed = mutation.clip(value * factor)
        if changed == value and (mutation.is_integer or mutation.q):  # too small a change for its steps
            up = (factor > 1) == (value > 0)
            changed = mutation.clip(value + (mutation.q or 1) * (1 if up else -1))
        return changed
    try:
        return own.clip(mutation(value, rng))
    except TypeError as error:
        raise ConfigError(f"a function in mutations returned what its parameter cannot be: {error}") from error


def _is_plain(domain: Domain) -> bool:
    options = getattr(domain, "options", ())
    return not any(isinstance(option, Mapping | list | tuple) for option in options)


def _is_copyable(trial: Trial) -> bool:
    """Whether its checkpoint is of its last boundary or later, and its params are tried."""
    step, progress, _ = trial.notes["boundary"]
    mark = trial.checkpoint
    return mark is not None and mark.progress >= progress and step_of_copy(trial) != step


def _is_saving(trial: Trial) -> bool:
    """Whether it has been told to write a checkpoint at its last report; its next one comes after that."""
    step, progress, _ = trial.notes["boundary"]
    is_older = trial.checkpoint is None or trial.checkpoint.progress < progress
    return trial.state is TrialState.RUNNING and trial.step == step and is_older


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
