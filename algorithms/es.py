"""Evolution strategies (Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement
Learning", arXiv:1703.03864), algorithm 2.

    noise table, put once ──▶ rollout workers and learner
    weights ref ──▶ rollout workers ──(noise indices, returns)──▶ learner: one update ──▶ parameter server ──▶ ...

An update draws n noise vectors e_i and plays episodes with theta + noise_std * e_i and with theta - noise_std * e_i
(mirrored sampling). The noise is in a table that every process maps, so one number says which e_i it was: an answer
has a few bytes per episode however large the network is, and the learner looks the same noise up again. The answers of
many workers come together in a tree of tasks.

A worker plays many perturbations side by side: slot b of its vector environment acts with the b-th of B networks in one
batched matrix product. Every episode of an update follows from (seed, number of the update, place in the population):
whichever process plays it, however many there are and however often they die, the returns are the same, and nothing but
weights, optimizer, observation statistics and counts is needed to go on with a run. No framework is imported:
`framework` changes nothing.

What the paper leaves open, or this does otherwise; each is a switch in `ESConfig`:

- returns are shaped into centred ranks (section 2.1), but equal returns get equal ranks: the paper's code ranks them by
  position, which makes noise of the ties that sparse rewards bring;
- both halves of a pair start from the same seeds (common random numbers): where the environment keeps a generator of
  its own per slot, they meet the same initial states;
- one learner updates and sends weights, the paper's workers each repeat the update from everybody's returns;
- the gradient is the estimate (1 / 2 n noise_std) sum (u_i+ - u_i-) e_i; the paper's code leaves noise_std out, so that
  its weight decay of 0.005 at noise_std 0.02 is 0.25 here;
- observations are normalised by statistics that workers gather in a share of their episodes (section 2.2 has virtual
  batch normalisation for Atari: not here, neither are convolutions);
- actions are the network's own, not binned;
- `linear_policy` without hidden layers (Mania et al. 2018, "Simple random search", arXiv:1803.07055).

What happens before and after this file, in rlplat/rl:

    run/training_loop.py               calls `step` until the run is over: metrics, evaluations, checkpoints
    run/algorithm.py                   starts the actors, and ends them
    sampling/worker_group.py           asks every rollout worker for its share; replaces those that die
    sampling/perturbed_episodes.py     plays the episodes of a share; `Returns`, and how those of many are joined
    policies/perturbed_mlp.py          the noise table, and many perturbed networks as one product of matrices
    learning/numpy_learning.py         Adam, SGD with momentum
    learning/parameter_server.py       the newest weights, for rollout workers and evaluations
"""

from __future__ import annotations

import math
import pickle
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from pydantic import Field

import rlplat
from rlplat.errors import ConfigError, NonFiniteError
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.envs import check
from rlplat.rl.interfaces import Array, Episode, Policy, Result, UpdateReport, Weights
from rlplat.rl.learning.learner import Learner
from rlplat.rl.learning.learner_group import LearnerGroup
from rlplat.rl.learning.numpy_learning import Adam, Momentum, Optimizer
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR, ObsStatistics
from rlplat.rl.policies.perturbed_mlp import MLPPolicy, MLPShape, NoiseTable, PerturbedMLPs, make_noise
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.sampling.perturbed_episodes import (
    EpisodeChance,
    ObsGatherer,
    PerturbedEpisodes,
    Returns,
    joined,
    joined_in_tasks,
    merge_gathered,
)
from rlplat.rl.sampling.rollout_worker import EnvWorker
from rlplat.rl.saved import Saved
from rlplat.rl.schedules import LearningRate
from rlplat.rl.seeding import seed_process
from rlplat.rl.spaces import ObsSpec, SpaceSpec, shown_obs
from rlplat.rl.spread import spread
from rlplat.rl.unused_settings import NO_SDE, Unused
from rlplat.section import Coefficient, Count, Epsilon, Share

if TYPE_CHECKING:
    from rlplat import ActorHandle
    from rlplat.rl.learning.backend import Computation
    from rlplat.rl.run.typed_settings import ESSettings


_MLPS = "es has MLPs only; use ppo, a3c or dqn for other networks"
_OF_LEARNER = tuple("learner." + key for key in ("backend", "num_gpus", "device", "precision", "num_threads"))


class ESConfig(AlgorithmConfig):
    """ES's settings."""

    unused = {
        "learner.num_learners": Unused("es has one learner; rollout workers share the population", is_error=True),
        **dict.fromkeys(("policy.core", "policy.custom"), Unused(_MLPS, is_error=True)),
        "policy.encoder": Unused(_MLPS, is_error=True, harmless=("mlp",)),
        "policy.layer_norm": Unused("es perturbs linear layers", is_error=True),
        "policy.use_sde": NO_SDE,
        "policy.obs_groups": Unused("es has no critic", is_error=True),
        "policy.critic_hidden_sizes": Unused("es has no critic", is_error=True),
        "discount": Unused("an episode counts by its undiscounted return"),
        **dict.fromkeys(("framework", "deterministic", *_OF_LEARNER), Unused("es computes with numpy")),
        **dict.fromkeys(
            ("policy.squash_actions", "policy.initial_log_std", "policy.rescale_actions"),
            Unused("actions are the network's own, in the environment's units"),
        ),
        "policy.orthogonal_init": Unused("es has an initialisation of its own"),
        "policy.share_encoder": Unused("es has no value network"),
        "random_start_steps": Unused("es plays whole episodes", is_error=True),
    }
    removed = {"sample_actions": False}
    fixed_on_resume = (*AlgorithmConfig.fixed_on_resume, "optimizer", "linear_policy")

    population_size: Count = 64
    """n: noise vectors per update; each is tried with both signs."""
    episodes_per_perturbation: Count = 1
    """Episodes whose mean return is one perturbation's."""
    noise_std: float = Field(default=0.05, gt=0.0, le=1000.0)
    """sigma: deviation of the perturbations, in the parameters' own units."""
    noise_table_size: Count = 25_000_000
    """Floats of noise, 4 bytes each, drawn once; a hundred times the parameters and more."""

    learning_rate: LearningRate = 0.02
    """Step size of the optimizer."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Adam, or SGD with momentum."""
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Of SGD."""
    adam_epsilon: Epsilon = 1e-8
    """Of Adam."""
    weight_decay: Coefficient = 0.0
    """L2: so much of the parameters is added to the descent direction, before the optimizer."""

    normalize_observations: bool = True
    """Subtract the mean, divide by the deviation of the observations gathered so far, clip to +-10."""
    obs_gathering_probability: Share = 0.1
    """Share of the episodes whose observations are gathered for that."""
    linear_policy: bool = False
    """No hidden layers, zeros to start from; policy.hidden_sizes is not used."""

    num_envs_per_worker: int = Field(default=32, ge=1, le=100_000)
    """Perturbations that a rollout worker plays side by side."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[ESSettings]) -> None: ...


def shape_returns(returns: Array) -> Array:
    """returns: float[n, 2] -> float32[n, 2], centred ranks (section 2.1): rank / (2n - 1) - 0.5, the mean rank where
    returns are equal."""
    _, inverse, counts = np.unique(returns, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts + 1) / 2.0
    ranks = mean_ranks[inverse.reshape(returns.shape)]
    return (ranks / (returns.size - 1) - 0.5).astype(np.float32)


def gradient_estimate(noise: NoiseTable, indices: Array, shaped: Array, noise_std: float, num_params: int) -> Array:
    """Of E[F(theta + noise_std * e)] in theta (section 2, with mirrored sampling), float32[num_params]:

        1 / (2 n noise_std) * sum_i (shaped[i, 0] - shaped[i, 1]) * e_i

    indices: uint32[n]; shaped: float32[n, 2], returns with +e_i and -e_i.
    """
    assert shaped.shape == (len(indices), 2), (shaped.shape, indices.shape)
    weights = (shaped[:, 0] - shaped[:, 1]) / np.float32(2.0 * len(indices) * noise_std)
    return noise.weighted_sum(indices, weights, num_params)


class ESWorker(EnvWorker):
    """An actor: plays its share of the population, the same in every update; keeps nothing from one to the next."""

    def __init__(self, computation: Computation, config: dict[str, Any], worker_index: int, noise: Array) -> None:
        self.config: ESConfig = computation.config_class.model_validate(config)
        self._noise = NoiseTable(noise)
        self._pairs = share_of_population(self.config, worker_index)
        seed_process(self.config.seed, "rollout", worker_index)
        num_episodes = len(self._pairs) * self.config.episodes_per_perturbation
        num_envs = min(self.config.num_envs_per_worker, num_episodes)
        self._env = self.make_envs(config, worker_index, num_envs, seeds_each=True)
        self._shape = mlp_shape(self.config, self._env.spec)
        self._mlps = PerturbedMLPs(self._shape, num_envs, self._noise)
        self._episodes = PerturbedEpisodes(self._env, self._mlps)

    def sample(self, latest: tuple[int, Weights]) -> Returns:
        """Plays the share with these (version, weights): alg. 2, lines 4 to 7."""
        (version, weights), config, pairs = latest, self.config, self._pairs
        self._mlps.set_weights(weights)
        # Line 5, "sample e_i ~ N(0, I)". All draw the population's indices and keep their share: the noise does not
        # depend on the number of workers.
        rng = np.random.default_rng(seed_of(config.seed, "indices", version))
        indices = self._noise.draw(rng, self._shape.num_params, config.population_size)
        # Line 6, "compute returns F_i = F(theta + sigma * e_i)". Before there are statistics of observations, those of
        # all episodes are gathered.
        reference = weights.get(OBS_MEAN, np.zeros(0))
        gathers_all = OBS_MEAN in weights and not reference.any() and bool((weights[OBS_VAR] == 1.0).all())
        E = config.episodes_per_perturbation
        places = range(pairs.start * E, pairs.stop * E)
        chances = [[self._chance(version, k, half, gathers_all) for k in places] for half in range(2)]
        share = indices[pairs.start : pairs.stop]
        return self._episodes.play_pairs(share, pairs, config.noise_std, chances, ObsGatherer(reference))

    def _chance(self, version: int, place: int, half: int, gathers_all: bool) -> EpisodeChance:
        """Of the episode at this place of the population; both halves of a pair meet the same environment."""
        env_seed, *of_halves = seed_of(self.config.seed, "episodes", version, place).spawn(3)
        drawn = np.random.default_rng(of_halves[half]).random()
        is_gathered = gathers_all or bool(drawn < self.config.obs_gathering_probability)
        return EpisodeChance(env_seed, is_gathered and self.config.normalize_observations)


def mlp_shape(config: ESConfig, spaces: SpaceSpec) -> MLPShape:
    hidden_sizes = [] if config.linear_policy else config.policy.hidden_sizes
    return MLPShape(spaces, hidden_sizes=hidden_sizes, activation=config.policy.activation)


def share_of_population(config: ESConfig, worker_index: int) -> range:
    """The pairs that a worker plays: neighbours, in the order of the workers."""
    n, num_workers = config.population_size, max(1, config.num_rollout_workers)
    return range(n * worker_index // num_workers, n * (worker_index + 1) // num_workers)


def seed_of(
    run_seed: int,
    purpose: Literal["noise", "initial", "indices", "episodes"],
    version: int = 0,
    place: int = 0,
) -> np.random.SeedSequence:
    """ES's own branch of the run's tree: no state to be saved, the number of the update says what comes next.

    place: of an episode in the population.
    """
    purposes = ("noise", "initial", "indices", "episodes")
    return np.random.SeedSequence(run_seed, spawn_key=(3, purposes.index(purpose), version, place))


class ESLearner(Learner[ESConfig]):
    """An actor: shapes the returns, estimates the gradient, makes one step of the optimizer, publishes the weights."""

    saved = {"optimizer": "_optimizer", "obs_statistics": "_obs_statistics"}

    def __init__(
        self,
        computation: Computation,
        config: dict[str, Any],
        spaces: SpaceSpec,
        noise: Array,
        parameter_server: ActorHandle,
    ) -> None:
        super().__init__(computation.config_class.model_validate(config), parameter_server)
        computation.replace_losses(self)
        self._noise = NoiseTable(noise)
        self._shape = mlp_shape(self.config, spaces)
        self._theta = self._shape.initial(seed_of(self.config.seed, "initial"))
        is_adam = self.config.optimizer == "adam"
        self._optimizer: Optimizer = (
            Adam(epsilon=self.config.adam_epsilon) if is_adam else Momentum(self.config.momentum)
        )
        self._obs_statistics = ObsStatistics(spaces.obs if self.config.normalize_observations else None)
        self.publish()

    def shape_returns(self, returns: Array) -> Array:
        """`shape_returns`; a subclass may write another."""
        return shape_returns(returns)

    def gradient_estimate(self, *estimated_from: Any) -> Array:
        """`gradient_estimate`; a subclass may write another."""
        return gradient_estimate(*estimated_from)

    def update(self, *answers: Returns) -> UpdateReport:
        """Alg. 2, lines 8 to 12, from all of the population, in its order; publishes version + 1."""
        started, config, num_params = perf_counter(), self.config, self._shape.num_params
        answer_bytes = sum(len(pickle.dumps(answer, protocol=5)) for answer in answers)
        # Line 8: "send all scalar returns".
        played = joined(answers)
        returns, indices = played.returns.mean(axis=2, dtype=np.float64), played.indices
        finite = np.isfinite(returns).all(axis=1)
        if not finite.all() and (config.non_finite == "stop" or not finite.any()):
            raise NonFiniteError(_non_finite_report(config, returns, indices, self.env_steps))
        returns, indices = returns[finite], indices[finite]

        # Lines 10, 11: "reconstruct all perturbations e_j", "theta <- theta + alpha * 1 / (n sigma) * sum F_j e_j".
        shaped = self.shape_returns(returns)
        gradient = self.gradient_estimate(self._noise, indices, shaped, config.noise_std, num_params)
        norm = float(np.linalg.norm(gradient))
        if not math.isfinite(norm):
            raise NonFiniteError(
                f"the gradient estimate at {self.env_steps} env steps is not finite: of returns up to "
                f"{np.abs(returns).max():g}, shaped to {np.abs(shaped).max():g}"
            )
        learning_rate, before = self.value(config.learning_rate), self._theta.copy()
        descent = np.float32(config.weight_decay) * before - gradient
        # Raw observations saturate: the first population only measures them.
        if not self._obs_statistics.is_empty:
            self._optimizer.step({"theta": self._theta}, {"theta": descent}, learning_rate)
        merge_gathered(self._obs_statistics.running, played.obs_sums)
        env_steps = int(played.lengths.sum())
        self.env_steps += env_steps
        self.publish_next()

        weights_bytes = sum(array.nbytes for array in self.weights().values())
        theta_norm = float(np.linalg.norm(self._theta))
        metrics: dict[str, float] = {
            "es/return_std": float(returns.std()),
            "es/return_max": float(returns.max()),
            "es/wire_bytes": answer_bytes + weights_bytes * max(1, config.num_rollout_workers),
            "es/answer_bytes": answer_bytes,
            "learner/gradient_norm": norm,
            "learner/weights_norm": theta_norm,
            "learner/update_ratio": float(np.linalg.norm(self._theta - before)) / max(theta_norm, 1e-12),
            "learner/learning_rate": learning_rate,
            "learner/skipped_pairs": int((~finite).sum()),
            "learner/weights_version": self.version,
            "time/train_s": perf_counter() - started,
        }
        seconds = zip(("env_s", "act_s", "sample_s"), played.seconds.tolist(), strict=True)
        metrics |= {f"rollout/{name}": each for name, each in seconds}
        return UpdateReport(env_steps, [Episode(*each) for each in played.episodes(finite)], metrics)

    def weights(self) -> Weights:
        """theta by layer, and the statistics that observations are normalised with."""
        return self._shape.named(self._theta) | self._obs_statistics.weights()

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"weights": self.weights()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called, under the same version: it says which noise comes next."""
        self._theta = self._shape.flat(state["weights"])
        Saved.set_state(self, state)
        nothing = {"optimizer": None, "obs_statistics": None, "ledger": None}
        published = {"version": self.version, "weights": self.weights()}
        rlplat.get(self._parameter_server.set_state.remote(nothing | published))


def _non_finite_report(config: ESConfig, returns: Array, indices: Array, env_steps: int) -> str:
    pair, half = (int(i) for i in np.argwhere(~np.isfinite(returns))[0])
    workers = range(max(1, config.num_rollout_workers))
    worker = next(w for w in workers if pair in share_of_population(config, w))
    return (
        f"return {returns[pair, half]} from {config.env}: pair {pair} of the population, {'+-'[half]} the noise at "
        f"{indices[pair]}, played by rollout worker {worker} after {env_steps} env steps; the weights are unharmed. "
        "Fix the environment's rewards, or leave such pairs out: --set non_finite=skip"
    )


class ES(Algorithm[ESConfig]):
    """The ring, and `step()`, which turns it once."""

    name = "es"
    config_class: type[ESConfig] = ESConfig
    learner_class = ESLearner
    losses = ("shape_returns", "gradient_estimate")

    def setup(self) -> None:
        """Noise, parameter server, learner, rollout workers; returns when the first weights are published."""
        config, settings = self.config, self.config.model_dump()
        spaces = self.spaces = preflight(config)
        noise = rlplat.put(make_noise(config.noise_table_size, seed_of(config.seed, "noise")))
        server, learner = self.start(ParameterServer), spread(self.learner_class, settings)
        learners = LearnerGroup(server, lambda _rank: learner.remote(self.computation, settings, spaces, noise, server))
        self.learners = self.add(learners, saved_as="learner")
        worker = spread(ESWorker, settings)
        # No state of theirs is saved: every episode follows from its place in the population.
        self.workers = self.start_workers(
            lambda index, _incarnation: worker.remote(self.computation, settings, index, noise), saved_as=""
        )
        self.learners.wait_until_ready()

    def step(self) -> Result:
        """One update: play the population, estimate, step, publish."""
        self.require_open()
        answers = self.workers.sample(*self.learners.latest())
        report = self.workers.deliver(answers, lambda parts: self.learners.update(joined_in_tasks(parts)))
        return self.result(report, self.workers.metrics())

    @staticmethod
    def make_policy(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Policy:
        """Acts with unperturbed weights."""
        return MLPPolicy(mlp_shape(ESConfig.among(settings), spaces), seed)


def preflight(config: ESConfig) -> SpaceSpec:
    """In the driver, before any actor starts: the environment is sound, and ES can act in it."""
    spaces = check.preflight(config)
    if not isinstance(spaces.obs, ObsSpec) or spaces.obs.kind != "vector":
        raise ConfigError(f"es acts on vectors of numbers, but {config.env} has observations {shown_obs(spaces.obs)}")
    if spaces.action.kind not in ("discrete", "box"):
        raise ConfigError(f"es gives Discrete or Box actions, but {config.env} has {spaces.action}")
    if max(1, config.num_rollout_workers) > config.population_size:
        raise ConfigError(
            f"num_rollout_workers={config.num_rollout_workers} is more than population_size={config.population_size}: "
            "some would have nothing to play"
        )
    num_params = mlp_shape(config, spaces).num_params
    if config.noise_table_size < num_params:
        raise ConfigError(
            f"noise_table_size={config.noise_table_size:,} is smaller than the policy's {num_params:,} parameters; "
            "raise it, to a hundred times as many and more"
        )
    return spaces
