"""Model-based policy optimization (Janner et al. 2019, arXiv:1906.08253): SAC that learns from short rollouts in a
learnt model, so that few env steps are enough.

    rollout workers ──TransitionBatch refs──▶ learner ──weights──▶ parameter server ──▶ workers

    within the learner:   replay ──everything──▶ model ──k steps from states of the replay──▶ model replay
                             └────── 5 % ──────▶ SAC ◀─────────────── 95 % ───────────────────────┘

Every `model_period` env steps the model, an ensemble of probabilistic networks (rl/torch/ensemble.py), is
trained on all real transitions. Before each chunk of gradient steps the present policy makes rollouts of k steps in it,
from states drawn from the replay; k (`model_rollout_length`) may grow over the run, as the model gets better. Actor,
critics and temperature are SAC's (algorithms/sac.py).

Different from the paper:

- the end of an episode is learnt, as the probability of termination given state and action; the authors write a
  function for each environment;
- targets of the model are scaled too, not only its inputs;
- rollouts are made while SAC learns, by the newest policy; there it is once for each training of the model;
- the L2 coefficient is the same in every layer;
- target_entropy: auto is SAC's; the authors' code has a number for each environment (configs/mbpo/_mujoco.yaml).
"""

from __future__ import annotations

import shlex
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

import numpy as np
from pydantic import Field, model_validator

from rlplat.algorithms.sac import SAC, SACConfig, SACLearner
from rlplat.errors import UsageError
from rlplat.rl.algorithm_config import Width
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.learning.backend import Computation
from rlplat.rl.learning.learner import non_finite_error
from rlplat.rl.obs_tree import flat_features
from rlplat.rl.off_policy.model_rollouts import ModelReplay, branched_rollouts, mixed
from rlplat.rl.off_policy.ring import Require
from rlplat.rl.policies.bounded_actor import ActionScale
from rlplat.rl.replay.buffer import Minibatch, ReplayBuffer
from rlplat.rl.schedules import Schedule
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.spaces import ObsSpec
from rlplat.rl.unused_settings import Unused
from rlplat.section import Coefficient, Count, Section, Share, Within

if TYPE_CHECKING:
    from rlplat.rl.run.typed_settings import MBPOSettings


class ModelConfig(Section):
    """The ensemble of dynamics models. The defaults are those of the paper."""

    hidden_sizes: list[Width] = Field(default=[200, 200, 200, 200], min_length=1)
    """Widths of the layers of each network."""
    ensemble_size: int = Field(default=7, ge=1, le=1000)
    """Networks, each trained on its own bootstrap sample."""
    num_elites: int = Field(default=5, ge=1, le=1000)
    """Of these, how many predict: those of the least validation loss."""
    learning_rate: float = Field(default=1e-3, gt=0.0, le=10.0)
    """Adam's step size."""
    batch_size: Count = 256
    """Transitions per gradient step of each network."""
    weight_decay: Coefficient = 5e-5
    """L2 coefficient of the weights."""
    validation_share: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Share of the transitions that are held out at each training, 5,000 at most."""
    patience: Count = 5
    """Training ends after so many epochs in which no network has got better by 1 %."""
    max_epochs: Count = 200
    """It ends after so many epochs in any case."""

    @model_validator(mode="after")
    def _check_elites(self) -> Self:
        if self.num_elites > self.ensemble_size:
            raise ValueError(
                f"num_elites={self.num_elites} is more than there are networks (ensemble_size={self.ensemble_size})"
            )
        return self


class MBPOConfig(SACConfig):
    """MBPO's settings: SAC's, and these. The defaults are those of the paper for MuJoCo."""

    unused = {
        **SACConfig.unused,
        "n_step": Unused("transitions of the model are single steps", is_error=True),
        "policy.obs_groups": Unused("observations are one vector", is_error=True),
    }
    fixed_on_resume = (*SACConfig.fixed_on_resume, "model.hidden_sizes", "model.ensemble_size")

    rollout_length: Count = 10
    """T: steps of every environment per round; then come the gradient steps that are due."""
    env_steps_per_update: float = Field(default=0.05, gt=0.0, le=1e9)
    """Env steps for each gradient step of SAC; 0.05: twenty gradient steps per env step."""
    learning_starts: Count = 5_000
    """Env steps before the model and SAC are trained, with actions drawn uniformly between the bounds."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    model_period: Count = 250
    """Env steps between trainings of the model."""
    model_rollout_length: Annotated[Schedule, Within(1.0, 1000.0)] = 1
    """k: steps of each rollout in the model, rounded down."""
    model_rollouts_per_update: Count = 20
    """Rollouts in the model for each gradient step of SAC."""
    model_replay_capacity: Count = 400_000
    """Transitions of the model that are kept, the newest."""
    real_share: Share = 0.05
    """Of each minibatch, the share of real transitions; the others are the model's."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[MBPOSettings]) -> None: ...


def rollout_steps(length: float) -> int:
    """Of a schedule's value, which is a whole number but for rounding where it is meant to be one."""
    return int(length + 1e-9)


NO_ROLLOUTS = {"learner/model_dropped": 0.0, "time/model_train_s": 0.0, "time/model_rollout_s": 0.0}
"""Metrics of a round before anything was done with the model."""


class MBPOLearner(SACLearner):
    """An actor: the replay, the model, the model's replay, and SAC that learns from both."""

    saved = {"model": "model", "fitted_at": "_fitted_at", "model_figures": "_model_figures"}
    config: MBPOConfig

    def __init__(self, computation: Computation, *arguments: Any) -> None:
        from rlplat.rl.torch.ensemble import DynamicsEnsemble

        super().__init__(computation, *arguments)
        config, spec = self.config, self.spec
        assert isinstance(spec.obs, ObsSpec)
        num_obs, num_actions = spec.obs.flat_size, spec.action.flat_size
        seed = self.network_seed.spawn(1)[0]
        self.model = DynamicsEnsemble(config.model, num_obs, num_actions, self.trainee.device, seed)
        self._scale = ActionScale(spec)
        self._obs_shape = spec.obs.shape
        self._num_real = round(config.real_share * config.batch_size)  # of each minibatch
        self._imagined = ModelReplay(
            config.model_replay_capacity,
            num_obs,
            num_actions,
            config.discount,
            seed_sequences(config.seed, "learner", index=1)[0],  # 0: networks, and the replay
        )
        self._fitted_at: int | None = None
        """Env steps at which the model was trained last."""
        self._model_figures: dict[str, float] = {}
        self._round = dict(NO_ROLLOUTS)

    def learn(self, num_updates: int) -> list[dict[str, float]]:
        """Train the model where that is due, then make the gradient steps of a round."""
        self._round = dict(NO_ROLLOUTS)
        last, period = self._fitted_at, self.config.model_period
        is_old = last is None or self.env_steps - last >= period
        if num_updates and is_old and self._num_real < self.config.batch_size:
            self._fit_model()
        return super().learn(num_updates)

    def draw(self, size: int) -> Minibatch:
        """Of the replay and, after rollouts of the present policy, of the model's."""
        config, num_batches = self.config, size // self.config.batch_size
        if self._num_real == config.batch_size or self._fitted_at is None:  # no finite row to train the model on
            return super().draw(size)
        started = perf_counter()
        starts = super().draw(num_batches * config.model_rollouts_per_update)
        steps = rollout_steps(self.value(config.model_rollout_length))
        imagined, num_dropped = branched_rollouts(self.model.predict, self._act, _flat(starts.obs), steps)
        self._imagined.add(imagined)
        self._round["learner/model_dropped"] += num_dropped
        self._round["time/model_rollout_s"] += perf_counter() - started
        if not len(self._imagined):
            return super().draw(size)
        drawn = self._imagined.sample(size - num_batches * self._num_real)
        drawn.obs, drawn.next_obs = self._shaped(drawn.obs), self._shaped(drawn.next_obs)
        if not self._num_real:
            return drawn
        return mixed(super().draw(num_batches * self._num_real), drawn, num_batches)

    def _fit_model(self) -> None:
        """On everything that is in the replay."""
        started = perf_counter()
        assert self.replay is not None and isinstance(self.replay.buffer, ReplayBuffer)
        data = self.replay.buffer.everything()
        columns = {
            "obs": _flat(data.obs),
            "actions": data.actions.reshape(len(data.rows), -1),
            "rewards": data.returns[:, None],
            "next_obs": _flat(data.next_obs),
            "terminated": data.discounts[:, None] == 0.0,
        }
        if self.config.non_finite == "skip":
            is_finite = np.all([np.isfinite(column).all(axis=1) for column in columns.values()], axis=0)
            if not is_finite.any():
                return
            columns = {name: column[is_finite] for name, column in columns.items()}
        obs, actions, rewards, next_obs, terminated = columns.values()
        figures = self.model.fit(obs, actions, rewards[:, 0], next_obs, terminated[:, 0])
        if figures["skipped_minibatches"] and self.config.non_finite == "stop":
            raise non_finite_error(
                columns=columns,
                losses={"model": figures["loss"]},
                gradients=["dynamics model"],
                place=f"at {self.env_steps} env steps, in the training of the dynamics model",
                version=self.version,
                scaling="scale the rewards in the environment",
            )
        self._fitted_at = self.env_steps
        self._model_figures = {f"learner/model_{name}": value for name, value in figures.items()}
        self._round["time/model_train_s"] = perf_counter() - started

    def _act(self, obs: Array) -> Array:
        """obs: float32[N, D] -> actions of the present policy, sampled, in the environment's units, float32[N, A]."""
        import torch

        from rlplat.rl.torch.continuous_control import squashed_sample
        from rlplat.rl.torch.tensor_rows import tensor_on

        nets, normalized = self.trainee, self.obs_statistics.normalize(self._shaped(obs))
        with torch.no_grad():
            outputs = nets.actor(tensor_on(nets.device, flat_features(normalized, self.spec.obs)))
            actions, _ = squashed_sample(outputs, nets.noise(outputs.chunk(2, dim=-1)[0]))
        return self._scale.to_environment(actions.cpu().numpy())

    def _shaped(self, obs: Obs) -> Array:
        """[N, D] -> as the environment gives them."""
        assert isinstance(obs, np.ndarray)
        return obs.reshape(len(obs), *self._obs_shape)

    def metrics(self, trained: list[dict[str, float]]) -> dict[str, float]:
        """With those of the model: of its last training, and of this round."""
        steps = rollout_steps(self.value(self.config.model_rollout_length))
        return (
            super().metrics(trained)
            | self._model_figures
            | self._round
            | {
                "learner/model_rollout_length": steps,
                "learner/model_replay_size": len(self._imagined),
            }
        )

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"model_replay": self._imagined.get_state() if self.config.save_replay else None}

    def set_state(self, state: dict[str, Any]) -> None:
        if self.config.save_replay and state["model_replay"] is not None:
            self._imagined.set_state(state["model_replay"])
        super().set_state(state)


def _flat(obs: Obs) -> Array:
    """[N, ...] -> float32[N, D]"""
    assert isinstance(obs, np.ndarray)
    return obs.reshape(len(obs), -1).astype(np.float32, copy=False)


class MBPO(SAC):
    """SAC's ring, with another learner.

    with MBPO(MBPOConfig(env="Pendulum-v1", seed=1)) as mbpo:
        while (result := mbpo.step()).env_steps < 3_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name, config_class, learner_class = "mbpo", MBPOConfig, MBPOLearner

    def preflight(self, require: Require) -> Any:
        spaces, env = super().preflight(require), self.config.env
        if not isinstance(spaces.obs, ObsSpec) or spaces.obs.kind != "vector":
            raise UsageError(
                f"MBPO predicts observations that are one vector (Box), but {env} has {_listed(spaces.obs)}; use SAC: "
                f"rlplat train --algo sac --env {shlex.quote(env)}"
            )
        return spaces


def _listed(obs: ObsSpec | dict[str, ObsSpec]) -> str:
    return str(obs) if isinstance(obs, ObsSpec) else str({path: str(leaf) for path, leaf in obs.items()})
