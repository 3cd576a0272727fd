"""`open_agent`: a run's trained agent, to play with in this process: no actors, nothing that training needs.

agent = open_agent(Path("runs/demo"), "best")
episodes = agent.play(20)
with VideoWriter(Path("play.mp4")) as film:
    episodes = agent.film(1, film)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.checkpoints import BEST, WEIGHTS, Checkpoint, latest_valid, load, load_best
from rlplat.config import layer_from_flags
from rlplat.errors import CheckpointError, ConfigError
from rlplat.rl.evaluation import Evaluator
from rlplat.rl.interfaces import Episode, Policy, Weights
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.training_loop import restore
from rlplat.rl.training_plan import TrainingPlan, plan_from_file
from rlplat.rl.video import Film


@dataclass
class TrainedAgent:
    directory: Path
    """The run's."""
    plan: TrainingPlan
    checkpoint: Checkpoint
    warnings: list[str] = field(default_factory=list)
    """About checkpoints that were passed over."""

    def play(self, episodes: int) -> list[Episode]:
        """Episodes on raw rewards, many side by side."""
        if not self._acts_alone():
            with self.plan.algorithm_class(self.plan.config) as algorithm:
                restore(algorithm, self.checkpoint)
                played: list[Episode] = algorithm.evaluate(episodes)
                return played
        with self._evaluator() as evaluator:
            return evaluator.run((0, self.weights()), episodes).episodes

    def film(
        self, episodes: int, film: Film, *, on_episode: Callable[[Episode], None] | None = None
    ) -> list[Episode]:
        """One episode after another in front of the camera."""
        if not self._acts_alone():
            raise ConfigError(
                f"'{self.plan.algo}' cannot be filmed: {self.plan.algorithm_class.__name__} has no make_policy() and "
                "policy_weights(), by which it would act without its actors (see interfaces.Algorithm)"
            )
        with self._evaluator() as evaluator:
            return evaluator.film((0, self.weights()), episodes, film, on_episode=on_episode)

    def weights(self) -> Weights:
        """What acting needs, normaliser statistics included."""
        if self.checkpoint.has_weights_only:
            weights: Weights = self.checkpoint.state[WEIGHTS]
        else:
            weights = self.plan.algorithm_class.policy_weights(self.checkpoint.state["algorithm"])
        return weights

    def _acts_alone(self) -> bool:
        return all(hasattr(self.plan.algorithm_class, name) for name in ("make_policy", "policy_weights"))

    def _evaluator(self) -> Evaluator:
        saved, algorithm_class = self.checkpoint.info, self.plan.algorithm_class
        if saved.algorithm != algorithm_class.name:
            raise CheckpointError(
                f"{self.checkpoint.path} cannot be loaded: its algorithm is {saved.algorithm!r}, that of the run "
                f"{algorithm_class.name!r}"
            )

        def make_policy(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Policy:
            # Of several policies, `MultiAgentPlan` lists the spaces one after another.
            if not any(
                each == str(spaces) or each.endswith(f": {spaces}") for each in saved.spaces.split("; ")
            ):
                raise CheckpointError(
                    f"{self.checkpoint.path} cannot be loaded: its spaces are {saved.spaces}, those of "
                    f"{settings['env']} are now {spaces}"
                )
            policy: Policy = algorithm_class.make_policy(settings, spaces, seed)
            return policy

        return Evaluator(self.plan.config.model_dump(), make_policy)


def open_agent(run: Path, which: str | None = None, seed: int | None = None) -> TrainedAgent:
    """run: a run directory, or one of its checkpoints; which: latest (the default), best, or step_N of a run;
    seed: another one than the run's, for other episodes."""
    warnings: list[str] = []
    if run.parent.name == "checkpoints":
        if which is not None:
            raise ConfigError(f"{run} is a checkpoint already; leave --checkpoint {which} away")
        directory, checkpoint = run.parent.parent, load(run)
    else:
        directory, checkpoint = run, _find(run, which or "latest", warnings)
    # One process is enough for algorithms that act with their actors: nothing is trained.
    flags = [("num_rollout_workers", "0")]
    if seed is not None:
        flags.append(("seed", str(seed)))
    plan = plan_from_file(directory / "config.yaml", [layer_from_flags(flags)])
    return TrainedAgent(directory, plan, checkpoint, warnings)


def _find(directory: Path, which: str, warnings: list[str]) -> Checkpoint:
    if not (directory / "config.yaml").exists():
        raise ConfigError(f"no run in {directory}: it has no config.yaml; `rlplat runs` lists the runs")
    if which == "latest":
        found, refused = latest_valid(directory)
        if found is None:
            raise CheckpointError("\n".join([*refused, f"no valid checkpoint in {directory}"]))
        warnings += refused
        return found
    if which == BEST:
        best = load_best(directory)
        if best is None:
            raise CheckpointError(
                f"{directory} has no best checkpoint yet: it comes with the first evaluation (evaluation.period); "
                "--checkpoint latest is the newest one"
            )
        return best
    there = sorted((path.name for path in (directory / "checkpoints").glob("step_*")), key=_env_steps)
    if which not in there:
        raise CheckpointError(
            f"{directory} has no checkpoint '{which}'; there are: {', '.join(['latest', BEST, *there])}"
        )
    return load(directory / "checkpoints" / which)


def _env_steps(name: str) -> int:
    number = name.removeprefix("step_")
    return int(number) if number.isdigit() else -1
