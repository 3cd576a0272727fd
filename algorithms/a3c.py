"""Asynchronous Advantage Actor-Critic (Mnih et al. 2016, arXiv:1602.01783).

    worker ──gradient──▶ parameter server ──fresh weights──▶ that worker only

Each worker rolls out `rollout_length` steps in its environments, computes the gradient itself, on the weights it has,
and sends it to the parameter server, which applies it at once under statistics that all workers share, whatever others
did meanwhile, and answers with fresh weights. Nobody waits for anybody; the driver moves no arrays and only asks the
server what has been reported. What differs from the paper, each with a switch where there is something to choose:

- workers are processes, the shared parameters an actor, so a gradient is as many versions old as others were applied
  meanwhile: measured, and dropped beyond `max_staleness`. In the paper threads write into shared memory without locks
  (Hogwild!), and staleness is unknown;
- a worker has `num_envs_per_worker` environments side by side, and its loss is the mean over their steps, not the sum;
  1, as in the paper, uses a CPU badly. A fragment goes on over the end of an episode, where the paper's ends with it;
- n-step returns bootstrap at the fragment's end (`gae_lambda` 1, the paper); less than 1 is GAE (Schulman et al. 2016);
- the gradient's global norm is clipped; RMSProp has shared statistics (its epsilon outside the root, or as in the paper
  inside: `epsilon_inside_root`), or Adam;
- the network is that of Mnih et al. 2015 for images, 64 x 64 tanh else (the paper's is of 2013), heads orthogonal.

What happens before and after this file, in rlplat/rl:

    run/training_loop.py            calls `step` until the run is over: metrics, evaluations, checkpoints
    run/algorithm.py                starts the actors, and ends them
    sampling/worker_group.py        starts workers, replaces those that die
    sampling/rollout_worker.py      `roll_out`: acts, steps environments and records: a `SampleBatch`
    sampling/returns.py             `gae`; `LearningRewards`
    sampling/rollout.py             what a `Minibatch` is
    torch/on_policy.py              calls the loss, and gives its gradients
    learning/parameter_server.py    applies gradients, drops those that are too old, merges statistics
    learning/numpy_learning.py      RMSProp, Adam, clipping

With `num_rollout_workers` 0 or 1 gradients are never stale: the synchronous A2C, and the same seed gives the same run.
With more, the order in which gradients arrive is the machine's own: runs are alike in distribution only (docs/a3c.md).
"""

from __future__ import annotations

import math
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from pydantic import Field

import rlplat
from rlplat.errors import ActorDied, EnvError, WorkerCrashed
from rlplat.rl.algorithm_config import RMSPropConfig
from rlplat.rl.interfaces import Result, UpdateReport, Weights
from rlplat.rl.learning.learner import non_finite_error
from rlplat.rl.learning.learner_group import usage_errors_as_they_are
from rlplat.rl.learning.numpy_learning import clip_by_global_norm, optimizer_of
from rlplat.rl.learning.parameter_server import ObsMoments, ParameterClient, ParameterServer
from rlplat.rl.learning.queue_ring import InFlight
from rlplat.rl.normalization import OBS_MEAN, ObsNormalizer
from rlplat.rl.policies.spec import PolicySpec, worker_threads
from rlplat.rl.run.algorithm import OnPolicy
from rlplat.rl.sampling.returns import LearningRewards, gae
from rlplat.rl.sampling.rollout import Rollout
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.schedules import EntropyCoef, LearningRate, config_at
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.spread import spread
from rlplat.rl.torch.on_policy import ActorCriticNet
from rlplat.rl.unused_settings import Unused
from rlplat.section import Count, CountOrZero, Share

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat import ActorHandle, ObjectRef
    from rlplat.rl.learning.backend import Computation
    from rlplat.rl.run.typed_settings import A3CSettings
    from rlplat.rl.sampling.rollout import Minibatch
    from rlplat.rl.sampling.sample_batch import SampleBatch


_ON_CPU = "a3c's workers compute gradients on the CPU; the learner of --algo ppo takes a GPU"


class A3CConfig(RMSPropConfig):
    """A3C's settings. Of the defaults, t_max, RMSProp's decay and the entropy bonus are the paper's for Atari; rewards
    are not clipped, the learning rate is constant. For Atari: configs/a3c/_atari.yaml."""

    unused = {
        "learner.num_learners": Unused(
            "every rollout worker computes gradients; raise num_rollout_workers", is_error=True
        ),
        "learner.device": Unused(_ON_CPU, is_error=True, harmless=("cpu",)),
        "learner.num_gpus": Unused(_ON_CPU, is_error=True, harmless=(0,)),
    }

    removed = {"num_parameter_servers": None}

    num_rollout_workers: int = Field(default=2, ge=0, le=10_000)
    """Processes that roll out and compute gradients; 0 (all in this process) and 1 are the synchronous A2C."""
    rollout_length: Count = 5
    """t_max: steps of every environment per gradient."""
    gae_lambda: Share = 1.0
    """1: n-step returns up to the fragment's end (the paper); less: generalised advantage estimation."""

    max_staleness: CountOrZero = 100
    """A gradient on weights more than this many versions old is dropped; its worker gets fresh weights."""
    updates_per_report: Count = 20
    """Gradients of a worker between two words with the driver."""

    learning_rate: LearningRate = 7e-4
    """Step size; the paper draws it from 1e-4 to 1e-2 (log-uniform) and anneals it to 0."""
    entropy_coef: EntropyCoef = 0.01
    """beta: weight of the entropy bonus."""
    normalize_advantages: bool = False
    """Mean 0 and deviation 1 within each fragment, so that the scale of rewards does not matter to the policy; not in
    the paper."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[A3CSettings]) -> None: ...


def a3c_loss(network: Any, minibatch: Minibatch, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss whose gradient is that of the paper (section 4.3; signs turned): (loss, numbers about it).

    policy_loss = -mean(log pi(a|s) * A)
    value_loss  = mean((V - R)^2) / 2
    loss        = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)
    """
    log_probs, entropies, values = minibatch.evaluate(network)
    policy_loss = -(log_probs * minibatch.advantages).mean()
    value_loss = 0.5 * (values - minibatch.returns).square().mean()
    entropy = entropies.mean()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}


class TorchA3C(ActorCriticNet):
    """The network on torch; `TfA3C` is the same on TensorFlow, `NumpyA3C` for MLPs in plain numpy."""

    def __init__(self, config: A3CConfig, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        super().__init__(config, spec, seed, device="cpu", num_threads=worker_threads(config, spec))

    def loss(self, network: Any, minibatch: Minibatch, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return a3c_loss(network, minibatch, config)


class A3CWorker(RolloutWorker):
    """An actor: rolls out, computes gradients, exchanges them for fresh weights; talks to the server directly."""

    def __init__(
        self,
        computation: Computation,
        config: dict[str, Any],
        worker_index: int,
        incarnation: int,
        spec: PolicySpec,
        parameter_server: ActorHandle,
    ) -> None:
        self.config: A3CConfig = computation.config_class.model_validate(config)
        network_seed, _ = seed_sequences(self.config.seed, "learner")
        backend = computation.backend(self.config, spec)
        self._net = computation.net(backend, self.config, spec, network_seed)
        super().__init__(config, worker_index, incarnation)
        self._shapes = {name: array.shape for name, array in self._net.trainee.weights().items()}
        self._server = ParameterClient(parameter_server, self._shapes)
        self._normalize_obs = ObsNormalizer(spec.obs)
        self._learning_rewards = LearningRewards(self.config)
        self._exchange_s = 0.0

    def publish(self) -> dict[str, tuple[int, ...]]:
        """Give the server this worker's initial weights, as version 0; returns the parameters' shapes."""
        self._server.set_weights(0, self._net.trainee.weights())
        return self._shapes

    def learn(self, num_updates: int, env_steps: int) -> None:
        """Algorithm S3 of the paper, `num_updates` times. env_steps: how far the run is, for the schedules.

        Everything worth telling goes to the server with the gradient: when this process dies, what was applied has been
        counted.
        """
        config: Any = config_at(self.config, env_steps, self.config.stop.env_steps)
        if self._version < 0:
            self._use(*self._server.latest())
        for _ in range(num_updates):
            # "repeat perform a_t ... until terminal s_t or t - t_start == t_max"
            batch = self.roll_out()
            began = perf_counter()
            # "accumulate gradients wrt theta'"
            gradients, metrics = self._gradients(batch, config)
            computed = perf_counter()
            metrics |= {f"rollout/{name}": seconds for name, seconds in batch.timing.items()} | {
                "learner/learning_rate": config.learning_rate,
                "time/gradient_s": computed - began,
                "time/exchange_s": self._exchange_s,  # of the one before: this one's is not known yet
            }
            beside: dict[str, Any] = {"learning_rate": config.learning_rate}
            beside["report"] = UpdateReport(batch.env_steps, batch.episodes, metrics)
            if config.normalize_observations and batch.env_steps:
                beside["obs_moments"] = ObsMoments.of(batch.obs, batch.valid, self._normalize_obs)
            # "perform asynchronous update of theta using d theta"; "synchronize parameters theta' = theta"
            self._use(*self._server.apply_gradients(gradients, self._version, **beside))
            self._exchange_s = perf_counter() - computed

    def _gradients(self, batch: SampleBatch, config: Any) -> tuple[Weights | None, dict[str, float]]:
        """The clipped gradient of one fragment, or None where it is not finite and shall be skipped, or where the
        fragment was acted in before there were statistics of observations; metrics."""
        rewards = self._learning_rewards(batch)
        if not self._is_measured:
            return None, {}
        rollout = Rollout(batch, rewards, self._normalize_obs(batch.flat_obs()))
        # "for i in {t - 1, ..., t_start}: R <- r_i + gamma R", where gae_lambda is 1
        rollout.advantages, rollout.returns = gae(
            **rollout.steps, discount=config.discount, gae_lambda=config.gae_lambda
        )
        self._net.load(rollout)
        gradients, stats = self._net.gradients(rollout.whole(normalize=config.normalize_advantages), config)
        norm = clip_by_global_norm(gradients, config.max_gradient_norm or math.inf)
        if not math.isfinite(norm) and config.non_finite == "skip":
            return None, {}
        if not math.isfinite(norm):
            bad = [name for name, gradient in gradients.items() if not np.isfinite(gradient).all()]
            place = f"of rollout worker {self.worker_index}"
            raise non_finite_error(rollout.columns, stats, bad, place=place, version=self._version)
        explained = rollout.explained_variance()
        if math.isfinite(explained):
            stats["explained_variance"] = explained
        stats["gradient_norm"] = norm
        return gradients, {f"learner/{name}": number for name, number in stats.items()}

    def _use(self, version: int, weights: Weights) -> None:
        """For acting and for the next gradient the same weights and statistics."""
        self._net.trainee.set_weights(weights)
        self.set_weights(version, weights)
        self._normalize_obs.set_weights(weights)
        self._is_measured = OBS_MEAN in weights or not self.config.normalize_observations

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"reward_normalizer": self._learning_rewards.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there, with the weights that the server has when it learns next."""
        super().set_state(state)
        self._learning_rewards.set_state(state["reward_normalizer"])
        self._version = -1

    def scale_rewards_as(self, reward_normalizer: dict[str, Any]) -> None:
        """With another worker's statistics, without its episodes."""
        self._learning_rewards.set_state(reward_normalizer | {"workers": {}})


class A3C(OnPolicy[A3CConfig]):
    """The ring, and `step()`, which looks at what has come of it."""

    name = "a3c"
    config_class: type[A3CConfig] = A3CConfig
    learner_class = A3CWorker
    nets = {
        "torch": TorchA3C,
        "tf": "rlplat.algorithms.other_frameworks.a3c_tf:TfA3C",
        "numpy": "rlplat.algorithms.other_frameworks.a3c_numpy:NumpyA3C",
    }
    losses = ("loss",)

    def setup(self) -> None:
        """The parameter server, then workers; returns when the first weights are published."""
        config, (spec,) = self.config, self.look()
        self.in_flight = self.add(InFlight())
        self._learning: set[int] = set()  # slots of the workers that have a call
        server = self.start(ParameterServer, optimizer_of(config), config.max_staleness)
        worker = spread(self.learner_class, self.settings)
        self.workers = self.start_workers(
            lambda *place: worker.remote(self.computation, self.settings, *place, spec, server)
        )
        with usage_errors_as_they_are():
            shapes = rlplat.get(self.workers.handles[0].publish.remote())
        self.learners = self.saved["learner"] = ParameterClient(server, shapes)
        self._not_saved = self.workers.not_saved()  # asked now: later they are busy

    @property
    def not_saved(self) -> tuple[str, ...]:
        return self._not_saved

    def step(self) -> Result:
        """What was learnt since the last step: returns when some worker has made its updates; the others go on."""
        self.require_open()
        started = perf_counter()
        report = UpdateReport(0, [], {})
        while not report.env_steps:
            self._keep_learning()
            self.in_flight.next()
            report = self.learners.take_report()
        if self.config.num_rollout_workers > 1:
            self._keep_learning()  # while the driver writes its metrics; a worker alone stays in step with it
        restarts, step_s = self.workers.restarts, perf_counter() - started
        return self.result(report, {"rollout/worker_restarts": restarts, "time/step_s": step_s})

    def _keep_learning(self) -> None:
        """A call for every worker that has none."""
        for slot, worker in enumerate(self.workers.handles):
            if slot not in self._learning:
                self._learning.add(slot)
                self.workers.asked(slot)
                call = worker.learn.remote(self.config.updates_per_report, self.tally.env_steps)
                self.in_flight.ask(call, then=partial(self._on_learnt, slot))

    def _on_learnt(self, slot: int, call: ObjectRef) -> None:
        """Its updates are made; a worker that died in them is replaced, and only its fragment is lost."""
        self._learning.discard(slot)
        try:
            rlplat.get(call)
        except (ActorDied, WorkerCrashed, EnvError) as loss:
            self.learners.require_alive()
            self.workers.replace(slot, loss)

    def get_state(self) -> dict[str, Any]:
        """Waits until every worker has made its updates; what they reported is counted by the next step."""
        self.in_flight.finish()
        return super().get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        saved, handles = state["rollout_workers"]["workers"], self.workers.handles
        if len(saved) != len(handles):
            # Another number of workers begin anew, but the critic has learnt the saved ones' scale of rewards.
            known = [worker["reward_normalizer"] for worker in saved if worker is not None] * len(handles)
            pairs = zip(handles, known, strict=False)
            rlplat.get([handle.scale_rewards_as.remote(one) for handle, one in pairs])

    def wants_statistics(self, weights: Weights) -> bool:
        """A run of few observations has none yet (parameter_server.MIN_OBS); neither will this one."""
        return super().wants_statistics(weights) and OBS_MEAN in weights
