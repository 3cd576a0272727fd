"""AlphaZero (Silver et al. 2017, arXiv:1712.01815): planning by tree search, learnt by playing against itself.

    self-play workers ──positions ref──▶ learner (with its replay) ──weights──▶ parameter server ──▶ self-play workers

A worker plays many games side by side. Each move follows from a tree search (rl/planning/mcts.py) that the network
guides; what the search thought of the moves, and how the game ended, is what the network learns to say at once:

    (z - v)^2 - pi^T log p + c ||theta||^2          z: outcome, pi: the search's visits as shares, (p, v): the network

A round is `rollout_length` moves in every game, then the gradient steps that are due. Same seed, same curve.

Different from the paper:

- self-play waits for the learner at the end of a round, instead of always taking the newest weights;
- every search begins with an empty tree; the paper's keeps what the last one has found out below the move taken;
- Q of a move never tried is 0, as in the paper's pseudocode; unlike there, the root's own evaluation counts as a visit;
- Adam instead of SGD with momentum; networks are small and have no batch normalisation; a game sees one position;
- `use_symmetries` draws positions mirrored and turned, as AlphaGo Zero did and AlphaZero did not.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

import numpy as np
from pydantic import Field

from rlplat.rl.algorithm_config import AlgorithmConfig, ClassPath, PolicyConfig
from rlplat.rl.envs import check
from rlplat.rl.interfaces import Episode, Policy, Result, UpdateReport, Weights
from rlplat.rl.learning.backend import Computation
from rlplat.rl.learning.learner import Learner
from rlplat.rl.planning.mcts import SearchSettings, draw, search
from rlplat.rl.planning.self_play import GamesInProgress, PositionReplay, Positions, board_game_of
from rlplat.rl.policies.framework_check import require_torch
from rlplat.rl.policies.spec import PolicySpec, policy_spec
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.saved import Saved
from rlplat.rl.schedules import LearningRate
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.spread import spread
from rlplat.rl.unused_settings import DISCRETE, NO_SDE, Unused
from rlplat.section import Coefficient, Count, CountOrZero, Epsilon, Norm

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat import ActorHandle
    from rlplat.rl.run.typed_settings import AlphaZeroSettings


class BoardPolicyConfig(PolicyConfig):
    """The network."""

    encoder: Literal["auto", "mlp", "nature_cnn", "small_cnn", "grid_cnn", "impala_cnn"] | ClassPath = "mlp"
    """What turns boards into features, or pkg.mod:Class."""
    share_encoder: Literal["auto"] | bool = True
    """One encoder for policy and value, as in the paper."""


class AlphaZeroConfig(AlgorithmConfig):
    """AlphaZero's settings. The defaults are for small games on a CPU."""

    unused = {
        "learner.backend": Unused("the learner computes with torch", is_error=True, harmless=("torch",)),
        "learner.num_learners": Unused("alphazero has one learner", is_error=True),
        "policy.core": Unused("a search evaluates positions on their own", is_error=True),
        "policy.use_sde": NO_SDE,
        "policy.obs_groups": Unused("positions are seen whole", is_error=True),
        "discount": Unused("a game counts by its outcome"),
        "random_start_steps": Unused("games begin at their beginning", is_error=True),
        "vectorization": Unused("games are played in numpy, many at a time"),
        **DISCRETE,
    }

    num_simulations: Count = 50
    """Simulations of each search: evaluations of the network for a move."""
    num_envs_per_worker: int = Field(default=64, ge=1, le=100_000)
    """Games that a self-play worker plays side by side."""
    rollout_length: Count = 16
    """Moves in every game per round; then come the gradient steps that are due."""
    sampling_moves: CountOrZero = 10
    """Moves of a game that are drawn in proportion to their visits; later ones are the most visited."""
    dirichlet_alpha: float = Field(default=1.0, gt=0.0, le=1000.0)
    """Of the noise at the root; the paper's is 10 / (legal moves, as they usually are)."""
    noise_share: float = Field(default=0.25, ge=0.0, lt=1.0)
    """epsilon: share of the noise in the root's priors, in self-play only."""
    c_init: float = Field(default=1.25, ge=0.0, le=1000.0)
    """How much the search explores."""
    play_simulations: Count | None = None
    """Simulations of a move in evaluations, `play` and `rlplat.load`; null: num_simulations."""

    learning_rate: LearningRate = 1e-3
    """Adam's step size."""
    batch_size: Count = 256
    """Positions per gradient step."""
    env_steps_per_update: float = Field(default=32.0, gt=0.0, le=1e9)
    """Moves played for each gradient step; a position is drawn batch_size / env_steps_per_update times."""
    learning_starts: Count = 2_000
    """Positions of finished games before the first gradient step."""
    replay_capacity: Count = 100_000
    """Positions that the replay holds."""
    use_symmetries: bool = True
    """Draw positions mirrored and turned, where the game is the same then."""
    weight_decay: Coefficient = 1e-4
    """c: what the squares of the weights count in the loss."""
    adam_epsilon: Epsilon = 1e-8
    """Adam's epsilon."""
    max_gradient_norm: Norm | None = None
    """Gradients are scaled down to this global norm; null: they are not."""

    policy: BoardPolicyConfig = Field(default_factory=BoardPolicyConfig)

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[AlphaZeroSettings]) -> None: ...


def losses(
    logits: Tensor, values: Tensor, policies: Tensor, outcomes: Tensor, parameters: list[Tensor], decay: float
) -> tuple[Tensor, Tensor, Tensor]:
    """((z - v)^2, -pi^T log p, c ||theta||^2), means over N positions. logits: float32[N, A], of illegal moves very
    small; values: float32[N], before tanh; policies: float32[N, A], pi; outcomes: float32[N], z."""
    value_loss = (outcomes - values.tanh()).square().mean()
    policy_loss = -(policies * logits.log_softmax(dim=-1)).sum(dim=-1).mean()
    squares = sum((each.square().sum() for each in parameters), start=values.new_zeros(()))
    return value_loss, policy_loss, decay * squares


class SelfPlay(NamedTuple):
    """What travels from a worker."""

    games: list[Positions]
    """Those that have ended."""
    env_steps: int
    """Moves, also of games that go on."""
    seconds: float


class SelfPlayWorker(Saved):
    """An actor: plays games with itself. Those that have not ended at the end of a round go on in the next."""

    saved = {"env": "_games", "rng": "_rng"}

    def __init__(
        self,
        computation: Computation,
        settings: dict[str, Any],
        spec: PolicySpec,
        worker_index: int,
        incarnation: int,
    ) -> None:
        from rlplat.rl.planning.search_policy import NetworkEvaluator

        config: AlphaZeroConfig = computation.config_class.model_validate(settings)
        self.config = config
        self._game = board_game_of(config.env, config.env_kwargs, AlphaZero.name)
        self._evaluate = NetworkEvaluator(self._game, spec)
        self._search = SearchSettings(config.num_simulations, config.c_init, config.dirichlet_alpha, config.noise_share)
        seed, _ = seed_sequences(config.seed, "rollout", worker_index, incarnation)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._games = GamesInProgress(self._game, config.num_envs_per_worker)

    def sample(self, latest: tuple[int, Weights]) -> SelfPlay:
        """One round with these (version, weights)."""
        started = perf_counter()
        self._evaluate.set_weights(latest[1])
        ended = [game for _ in range(self.config.rollout_length) for game in self._move()]
        num_moves = self.config.rollout_length * len(self._games.lengths)
        return SelfPlay(ended, num_moves, perf_counter() - started)

    def _move(self) -> list[Positions]:
        """One move in every game -> those that it has ended."""
        found = search(self._game, self._games.boards, self._evaluate, self._search, self._rng)
        policies = found.shares()
        actions = found.visits.argmax(axis=1)
        is_drawn = self._games.lengths < self.config.sampling_moves
        actions = np.where(is_drawn, draw(policies, self._rng), actions)
        return self._games.play(actions, policies)

    def not_saved(self) -> str:
        return ""


class AlphaZeroLearner(Learner[AlphaZeroConfig]):
    """An actor: the replay, the network and its optimizer."""

    saved = {"**": "trainee", "replay": "_replay", "credit": "_credit", "updates": "_updates"}

    def __init__(
        self,
        computation: Computation,
        settings: dict[str, Any],
        spec: PolicySpec,
        parameter_server: ActorHandle,
    ) -> None:
        from rlplat.rl.torch.trainee import actor_critic_trainee

        config: AlphaZeroConfig = computation.config_class.model_validate(settings)
        super().__init__(config, parameter_server)
        computation.replace_losses(self)
        network_seed, replay_seed = seed_sequences(config.seed, "learner")
        self._game = board_game_of(config.env, config.env_kwargs, AlphaZero.name)
        self.trainee = actor_critic_trainee(config, spec, network_seed)
        self._replay = PositionReplay(
            self._game, config.replay_capacity, replay_seed, use_symmetries=config.use_symmetries
        )
        self._credit, self._updates = 0.0, 0
        self.publish()

    def loss(
        self,
        logits: Tensor,
        values: Tensor,
        policies: Tensor,
        outcomes: Tensor,
        parameters: list[Tensor],
        decay: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`losses`; a subclass may write others, with `self.trainee.network` and `self.config` at hand."""
        return losses(logits, values, policies, outcomes, parameters, decay)

    def update(self, *rounds: SelfPlay) -> UpdateReport:
        """One round into the replay, the gradient steps that are due for it, publish version + 1."""
        started = perf_counter()
        config = self.config
        games = [game for each in rounds for game in each.games]
        for game in games:
            self._replay.add(game)
        env_steps = sum(each.env_steps for each in rounds)
        self.env_steps += env_steps
        trained: list[dict[str, float]] = []
        if len(self._replay) >= min(config.learning_starts, config.replay_capacity):
            self._credit += env_steps
            while self._credit >= config.env_steps_per_update:
                self._credit -= config.env_steps_per_update
                trained.append(self._train(self._replay.sample(config.batch_size)))
        learnt = perf_counter()
        self.publish_next()
        metrics = self.step_metrics(trained) | {
            "learner/updates": self._updates,
            "learner/replay_size": len(self._replay),
            "rollout/sample_s": max(each.seconds for each in rounds),
            "time/train_s": learnt - started,
            "time/publish_s": perf_counter() - learnt,
        }
        # The first position's outcome is that of the player who begins.
        episodes = [Episode(float(game.outcomes[0]), len(game.outcomes)) for game in games]
        return UpdateReport(env_steps, episodes, metrics)

    def _train(self, drawn: Positions) -> dict[str, float]:
        """One gradient step."""
        from rlplat.rl.planning.search_policy import tensors_of
        from rlplat.rl.torch.tensor_rows import tensor_on

        device = self.trainee.device
        obs = tensors_of(self._game, drawn.boards, device)
        policies, outcomes = (tensor_on(device, each) for each in drawn[1:])
        distribution, values, _ = self.trainee.network(obs)
        parameters = list(self.trainee.network.parameters())
        terms = self.loss(distribution.params, values, policies, outcomes, parameters, self.config.weight_decay)
        norm = self.trainee.descend(sum(terms[1:], start=terms[0]), self.value(self.config.learning_rate))
        names = ("value_loss", "policy_loss", "weight_loss")
        figures = {name: float(term.detach()) for name, term in zip(names, terms, strict=True)}
        if not math.isfinite(norm) and self.config.non_finite == "stop":
            columns = {"policies": drawn.policies, "outcomes": drawn.outcomes}
            raise self.non_finite(figures, columns, "or set max_gradient_norm")
        self._updates += 1
        return figures | {"gradient_norm": norm}


class AlphaZero(Algorithm[AlphaZeroConfig]):
    """The ring, which `step()` turns once.

    with AlphaZero(AlphaZeroConfig(env="TicTacToe", seed=1)) as alphazero:
        while (result := alphazero.step()).env_steps < 100_000:
            print(result.env_steps, result.metrics["learner/policy_loss"])
    """

    name, config_class, learner_class = "alphazero", AlphaZeroConfig, AlphaZeroLearner
    losses = ("loss",)

    def setup(self) -> None:
        """Pre-flight, parameter server, learner, self-play workers; returns when the first weights are published."""
        config, settings = self.config, self.config.model_dump()
        require_torch(config.framework, self.name)
        spaces = self.spaces = check.preflight(config)
        board_game_of(config.env, config.env_kwargs, self.name)
        spec = policy_spec(settings["policy"], spaces)
        worker = spread(SelfPlayWorker, settings)
        self.learners = self.start_learners(settings, spec)
        self.workers = self.start_workers(lambda *which: worker.remote(self.computation, settings, spec, *which))
        self.learners.wait_until_ready()

    def step(self) -> Result:
        """One round: play, update, publish."""
        self.require_open()
        played = self.workers.sample(*self.learners.latest())
        report = self.workers.deliver(played, self.learners.update)
        return self.result(report, self.workers.metrics())

    @property
    def not_saved(self) -> tuple[str, ...]:
        return self.workers.not_saved()

    @staticmethod
    def make_policy(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Policy:
        """Searches before every move; settings: the config as a dict."""
        from rlplat.rl.planning.search_policy import SearchPolicy

        config = AlphaZeroConfig.among(settings)
        game = board_game_of(config.env, config.env_kwargs, AlphaZero.name)
        search_settings = SearchSettings(config.play_simulations or config.num_simulations, config.c_init)
        return SearchPolicy(game, policy_spec(settings["policy"], spaces), search_settings, seed)
