"""`DataRing`: an algorithm that learns from recorded episodes, and everything of it but the learning.

    data set ──episodes──▶ learner ──weights──▶ parameter server ──▶ evaluation

A round: `updates_per_round` gradient steps. The learner reads the data set itself, where it runs.

Recorded transitions in the place of a replay are what CQL and TD3+BC put before SAC's and TD3's classes:

    class CQLConfig(RecordedConfig, SACConfig)
    class CQLLearner(RecordedLearner, SACLearner)
    class CQL(RecordedControl[CQLConfig])
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import perf_counter
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from rlplat.errors import ConfigError
from rlplat.paths import user_path
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.envs import check
from rlplat.rl.interfaces import Array, Result, UpdateReport
from rlplat.rl.learning.backend import Computation
from rlplat.rl.learning.learner import Learner
from rlplat.rl.normalization import require_normalizable
from rlplat.rl.obs_tree import take_obs
from rlplat.rl.off_policy.learner import ContinuousConfig, ContinuousLearner, ContinuousPolicyConfig
from rlplat.rl.offline.dataset import Manifest, read_episodes, read_manifest
from rlplat.rl.offline.episodes import RecordedTransitions
from rlplat.rl.policies.bounded_actor import require_bounded
from rlplat.rl.policies.framework_check import require_torch
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.replay.buffer import Minibatch
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.unused_settings import NO_SDE, Unused
from rlplat.rl.user_code import find_code
from rlplat.section import Count

_NO_ENV = "no environment is stepped to learn"
NOT_SAMPLED: Mapping[str, Unused] = {
    "learner.backend": Unused("the learner computes with torch", is_error=True, harmless=("torch",)),
    "learner.num_learners": Unused("there is one learner", is_error=True),
    "policy.use_sde": NO_SDE,
    "policy.obs_groups": Unused("the network sees all that was recorded", is_error=True),
    "policy.core": Unused("recorded steps are learnt from one by one", is_error=True),
    "stop.episode_return_mean": Unused("no episodes are played to learn: use stop.env_steps", is_error=True),
    "vectorization": Unused(_NO_ENV),
    "num_envs_per_worker": Unused(_NO_ENV),
    "random_start_steps": Unused(_NO_ENV),
    "max_worker_restarts": Unused(_NO_ENV),
    "on_env_error": Unused(_NO_ENV),
}
"""Of `AlgorithmConfig.unused`: what has no meaning without rollout workers."""


class DataConfig(AlgorithmConfig):
    """Common to algorithms that learn from recorded episodes. An env step is a recorded one that was learnt from, each
    time that it is: `batch_size` for a gradient step. `stop.env_steps`, schedules and evaluations count these."""

    unused: ClassVar[Mapping[str, Unused]] = NOT_SAMPLED

    data: Annotated[str, AfterValidator(lambda data: str(user_path(data)) if data else data)] = Field(min_length=1)
    """Directory of the recorded episodes (rlplat record); env may be omitted, and is then that of the data."""
    num_rollout_workers: int = Field(default=0, ge=0, le=10_000)
    """No environment is stepped to learn. 0: everything in this process; 1: the learner in one of its own, so that it
    goes on during evaluations."""
    updates_per_round: Count = 100
    """Gradient steps before metrics are written and weights published."""

    @model_validator(mode="before")
    @classmethod
    def _env_of_data(cls, values: Any) -> Any:
        if isinstance(values, dict) and "env" not in values and isinstance(values.get("data"), str):
            manifest = read_manifest(values["data"])
            if not manifest.env:
                raise ConfigError(f"data={values['data']} names no environment: set env (--env NAME)")
            named = {"env": manifest.env, "env_kwargs": manifest.env_kwargs}
            found, notes = find_code(named, manifest.source.get("code", {}), user_path(values["data"]))
            for note in notes:
                logging.getLogger("rlplat.code").warning("warning: %s", note)
            return {**found, **values}
        return values


RingConfig = TypeVar("RingConfig", bound=DataConfig)


class DataRing(Algorithm[RingConfig]):
    """A subclass writes `name`, `config_class`, `learner_class`, `make_policy`, and what else `Algorithm` asks for."""

    learner_class: type[Learner[Any]]
    """Made with (computation, settings, spec, parameter_server); its `update()` takes no batches."""
    spaces: SpaceSpec

    def setup(self) -> None:
        """Parameter server and learner; returns when the data is read and the first weights are published."""
        config, settings = self.config, self.config.model_dump()
        self.spaces, manifest = preflight(config, self.name)
        self.check_spaces()
        self.notes = (f"{config.data}: {manifest}",)
        spec = policy_spec(settings["policy"], self.spaces)
        self.learners = self.start_learners(settings, spec)
        self.learners.wait_until_ready()

    def check_spaces(self) -> None:
        """Raises UsageError where this algorithm cannot take `self.spaces`."""

    def step(self) -> Result:
        """One round: update, publish."""
        self.require_open()
        return self.result(self.learners.update([]), {})


def preflight(config: DataConfig, algo: str) -> tuple[SpaceSpec, Manifest]:
    """In the driver, before any actor starts: the environment is sound, and the data was recorded in such a one."""
    require_torch(config.framework, algo)
    manifest = read_manifest(config.data)
    spaces = check.preflight(config)
    if manifest.spec != spaces:
        fix = f"omit env, or record episodes of {config.env} (rlplat record RUN --out DIR)"
        if manifest.env in (
            "",
            config.env,
        ):  # Minari's: made by another version of it, or with wrappers of its own
            fix = "name an environment that has the spaces of the data (--env ./file.py:make_env)"
        recorded_in = f" in {manifest.env}" if manifest.env else ""
        raise ConfigError(
            f"data={config.data} was recorded{recorded_in} with {manifest.spec}, but {config.env} has {spaces}: {fix}"
        )
    return spaces, manifest


class Epochs:
    """N rows in random order, all of them before any comes again: which come at a place is known from the place alone,
    so that a resumed run goes on where it was.

    rows = epochs.rows(env_steps, batch_size)
    """

    def __init__(self, num_rows: int, seed: np.random.SeedSequence) -> None:
        self._num_rows, self._seed = num_rows, seed
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def rows(self, place: int, count: int) -> Array:
        """int64[count]"""
        parts = []
        while count > 0:
            epoch, start = divmod(place, self._num_rows)
            if epoch != self._epoch:
                entropy = np.random.SeedSequence(self._seed.entropy, spawn_key=(*self._seed.spawn_key, epoch))
                self._epoch = epoch
                self._order = np.random.Generator(np.random.PCG64(entropy)).permutation(self._num_rows)
            parts.append(self._order[start : start + count])
            place, count = place + len(parts[-1]), count - len(parts[-1])
        return np.concatenate(parts)


class RecordedConfig(DataConfig, ContinuousConfig):
    """The settings that have to do with learning, and where the data is."""

    unused = {
        **ContinuousConfig.unused,
        **NOT_SAMPLED,
        **{
            name: Unused("transitions are recorded ones")
            for name in (
                "rollout_length",
                "learning_starts",
                "env_steps_per_update",
                "replay_capacity",
                "save_replay",
            )
        },
        "n_step": Unused("recorded steps are learnt from one by one", is_error=True),
        "hindsight.goal_selection_strategy": Unused("recorded steps keep their goals", is_error=True),
    }

    shapes_replay = ()

    policy: ContinuousPolicyConfig = Field(default_factory=ContinuousPolicyConfig)


class RecordedLearner(ContinuousLearner[Any]):
    """An actor: reads the data, makes `updates_per_round` gradient steps at a time, publishes the weights. Networks,
    optimizers and gradient steps are those of the class behind it."""

    acts_from_start = True

    def __init__(self, computation: Computation, *arguments: Any) -> None:
        super().__init__(computation, *arguments)
        episodes = read_episodes(self.config.data)
        self._data = RecordedTransitions(episodes, self.config.discount)
        self._epochs = Epochs(len(self._data), self.seeds[1])
        self._num_drawn = 0
        if self.config.normalize_observations:
            obs = take_obs(episodes.obs, episodes.obs_rows())
            self.obs_statistics.update(obs, np.ones(len(self._data), np.bool_))

    def update(self, *batches: Any) -> UpdateReport:
        """One round; publishes version + 1."""
        started, self._num_drawn = perf_counter(), self.env_steps
        trained = self.learn(self.config.updates_per_round)
        env_steps = self.config.updates_per_round * self.config.batch_size
        self.env_steps += env_steps
        learnt = perf_counter()
        self.publish_next()
        metrics = self.metrics(trained) | {
            "learner/epochs": self.env_steps / len(self._data),
            "time/train_s": learnt - started,
            "time/publish_s": perf_counter() - learnt,
        }
        return UpdateReport(env_steps, [], metrics)

    def draw(self, size: int) -> Minibatch:
        """Of the data, in the order of the epochs."""
        rows = self._epochs.rows(self._num_drawn, size)
        self._num_drawn += size
        return self._data.take(rows)


AnyConfig = TypeVar("AnyConfig", bound=RecordedConfig)


class RecordedControl(DataRing[AnyConfig]):
    """The ring; a subclass writes `name`, `config_class`, `learner_class`, `losses` and `make_policy`."""

    def check_spaces(self) -> None:
        require_bounded(self.spaces, self.config.env, self.name, "iql")
        if self.config.normalize_observations:
            require_normalizable(self.spaces.obs)
