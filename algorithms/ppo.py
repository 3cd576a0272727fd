"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347), synchronous actor-learner form.

    rollout workers ──SampleBatch[T, B] refs──▶ learner ──weights, version + 1──▶ parameter server ──▶ rollout workers

Every round all rollout workers roll out `rollout_length` steps with the newest weights, and the learner (or a group of
them, `learner.num_learners`) makes `num_epochs` passes of minibatch Adam over them. A minibatch is a set of rows; with
a recurrent core it is a set of whole fragments, unrolled from the core's state at their start.

What the paper leaves open, or common practice does otherwise, follows Huang et al. 2022 ("The 37 Implementation
Details of Proximal Policy Optimization"; numbers below are theirs: c core, a Atari, m continuous actions), and each is
a switch in `PPOConfig`:

- policy and value network share an encoder for images only (c13, a: the paper's Atari network), orthogonal init (c2);
- Adam with epsilon 1e-5 (c3), learning rate and clip range may anneal (c4), gradients clipped by global norm (c11);
- advantages are generalised (c5, Schulman et al. 2016) and normalised in each minibatch (c7), not over the batch;
- the value loss may be clipped like the policy's (c9); off by default: no benefit was found for it;
- a cut-off episode bootstraps from its last observation; the paper's code took it for a termination (`time_limits`);
- rewards by sign (a6) or scaled by the deviation of the return (m: 8, 9), observations normalised (m: 6, 7), in all
  algorithms of this kind (`OnPolicyConfig`);
- an update may stop early when the policy has moved too far (`target_kl`), or change the learning rate so that it
  moves as far as it should (`desired_kl`); approx_kl is Schulman's k3 estimator;
- `overlap_sampling` rolls out the next round during the update, with weights that are one version behind (where the
  learner has a GPU).

What happens before and after this file, in rlplat/rl:

    run/training_loop.py         calls `step` until the run is over: metrics, evaluations, checkpoints
    run/algorithm.py             starts the actors, and ends them
    sampling/worker_group.py     asks every rollout worker for a batch; replaces those that die
    sampling/rollout_worker.py   acts, steps environments and records: a `SampleBatch`
    learning/learner.py          joins batches, scales rewards, normalises observations; publishes the weights
    sampling/returns.py          `gae`
    sampling/rollout.py          cuts the round into minibatches; what a `Minibatch` is
    torch/on_policy.py           takes them on the device, calls the loss
    torch/trainee.py             gradients, of a group of learners their sum, clipping, Adam
    torch/tensor_rollouts.py     in the place of rollout workers, where the environment is one of tensors
    learning/parameter_server.py the newest weights, for rollout workers and evaluations

Measured with `benchmarks/train.py`; `configs/ppo/` holds the tuned runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from pydantic import Field, model_validator

from rlplat.rl.algorithm_config import AdamWConfig, OnPolicyConfig
from rlplat.rl.interfaces import Result, UpdateReport, Weights
from rlplat.rl.learning.learner import OnPolicyLearner
from rlplat.rl.multi_agent.policy_map import MultiAgentConfig
from rlplat.rl.normalization import PopArt, require_value_head
from rlplat.rl.run.algorithm import OnPolicy
from rlplat.rl.sampling.returns import gae
from rlplat.rl.schedules import ClipRange, EntropyCoef, LearningRate, adapted_rate
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.torch.on_policy import ActorCriticNet
from rlplat.section import Coefficient, Count, Epsilon, Norm, Share

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import PPOSettings
    from rlplat.rl.sampling.rollout import Minibatch
    from rlplat.rl.sampling.sample_batch import SampleBatch


class PPOConfig(OnPolicyConfig, AdamWConfig):
    """PPO's settings. The defaults suit small environments: the rounds of Huang et al. for Atari (8 environments x 128
    steps, 4 epochs, 4 minibatches), a constant learning rate of 3e-4 and clip range of 0.2 (Schulman et al. 2017 for
    MuJoCo), no entropy bonus, nothing normalised or clipped. For Atari, MuJoCo: configs/ppo/_atari.yaml, _mujoco.yaml.
    """

    rollout_length: Count = 128
    """T: steps of every environment per round."""
    num_epochs: Count = 4
    """Passes over each round's samples."""
    minibatch_size: Count = 256
    """Samples per gradient step; a round is cut into equal parts of about this size."""
    gae_lambda: Share = 0.95
    """lambda of generalised advantage estimation (c5): 0 trusts the critic alone, 1 the rewards alone."""
    time_limits: Literal["bootstrap", "end"] = "bootstrap"
    """Where an episode is cut off, bootstrap: by the value of its last observation; end: nothing follows, as in CleanRL
    and MAPPO's code, for short limits that belong to the task: what lies beyond them the critic has never learnt."""

    clip_range: ClipRange = 0.2
    """epsilon: how far the probability ratio may move from 1 before its gradient is cut."""
    clip_value_loss: bool = False
    """Clip the value's move by `clip_range` as well (c9)."""
    entropy_coef: EntropyCoef = 0.0
    """Weight of the entropy bonus (c10)."""
    normalize_value: bool = False
    """The critic learns returns less their running mean, divided by their running deviation (PopArt, van Hasselt et al.
    2016), so that their scale does not matter; values that policies give stay in units of the rewards."""
    normalize_advantages: bool = True
    """Mean 0 and deviation 1 within each minibatch (c7)."""
    adam_epsilon: Epsilon = 1e-5
    """Adam's epsilon (c3; torch's own default is 1e-8)."""
    critic_learning_rate: LearningRate | None = None
    """Adam's step size for the critic's own parameters, its head and its encoder; null: learning_rate."""
    target_kl: Norm | None = None
    """End a round's update after the epoch in which approx_kl exceeds this (c12); null: never."""
    desired_kl: Norm | None = None
    """Adapt the learning rate to it after each epoch: / 1.5 where approx_kl is more than twice this, * 1.5 where it is
    less than half, from 1e-5 to 1e-2 (rsl_rl, RL-games); null: as scheduled."""
    dual_clip: float | None = Field(default=None, gt=1.0, le=1e6)
    """c of the dual clip (Ye et al. 2020): no sample of negative advantage A counts more than c * A; null: as it is."""
    exploration_bonus: Literal["rnd"] | None = None
    """rnd: also a reward for what is not like anything seen before (random network distillation, Burda et al. 2018),
    where the environment's are too rare to be found by chance (docs/ppo.md); null: none."""
    bonus_coef: Coefficient = 1.0
    """Of exploration_bonus: what its advantages count beside those of the rewards; 0.5 in the paper, whose rewards are
    clipped to +-1."""
    bonus_discount: Share = 0.99
    """Of exploration_bonus: gamma of the bonuses, which do not end with an episode."""

    overlap_sampling: Literal["auto"] | bool = "auto"
    """Sample the next round while the learner updates: weights are one version behind. Worth it where the learner
    leaves CPUs to the rollout workers: it is on a GPU (`auto`: there only), or the network is an MLP."""

    multi_agent: MultiAgentConfig = Field(default_factory=MultiAgentConfig)
    """Which policy decides for which agent, where there are several (docs/multi-agent.md)."""

    fixed_on_resume = (*OnPolicyConfig.fixed_on_resume, "normalize_value", "exploration_bonus")
    needs_figures = {"target_kl": "approx_kl", "desired_kl": "approx_kl"}

    @model_validator(mode="after")
    def _require_one_wish(self) -> Self:
        if self.desired_kl is not None and not isinstance(self.learning_rate, float):
            raise ValueError("desired_kl adapts the learning rate: give learning_rate the number to begin with")
        if self.overlap_sampling is True and self.deterministic:
            raise ValueError(
                "overlap_sampling takes whatever weights are there, deterministic wants the same ones every time: set "
                "one of them to false"
            )
        return self

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[PPOSettings]) -> None: ...


def ppo_loss(network: Any, minibatch: Minibatch, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one minibatch (Schulman et al. 2017, eq. 7 and 9, signs turned): (loss, numbers about it).

    ratio       = pi(a|s) / pi_old(a|s)
    policy_loss = -mean(min(ratio * A, clip(ratio, 1 - clip_range, 1 + clip_range) * A))
                  where A < 0 not below dual_clip * A (Ye et al. 2020, eq. 5)
    value_loss  = mean((V - R)^2) / 2
    loss        = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)
    """
    import torch

    log_probs, entropies, values = minibatch.evaluate(network)
    advantages, returns, epsilon = minibatch.advantages, minibatch.returns, config.clip_range

    log_ratios = log_probs - minibatch.log_probs
    ratios = log_ratios.exp()
    clipped_ratios = ratios.clamp(1.0 - epsilon, 1.0 + epsilon)
    gains = torch.min(ratios * advantages, clipped_ratios * advantages)
    if (dual_clip := getattr(config, "dual_clip", None)) is not None:
        gains = torch.where(advantages < 0.0, torch.max(gains, dual_clip * advantages), gains)
    policy_loss = -gains.mean()

    value_errors = (values - returns).square()
    if config.clip_value_loss:
        moves = (values - minibatch.values).clamp(-epsilon, epsilon)
        value_errors = torch.max(value_errors, (minibatch.values + moves - returns).square())
    value_loss = 0.5 * value_errors.mean()

    entropy = entropies.mean()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        # k3 = (r - 1) - log r: unbiased like -log r, but never negative and of less variance
        # (Schulman, "Approximating KL divergence", 2020).
        "approx_kl": (ratios - 1.0 - log_ratios).mean(),
        "clip_fraction": ((ratios - 1.0).abs() > epsilon).float().mean(),
    }


class TorchPPO(ActorCriticNet):
    """Network and optimizer on torch; `TfPPO` is the same on TensorFlow, `NumpyPPO` for MLPs in plain numpy."""

    def loss(self, network: Any, minibatch: Minibatch, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return ppo_loss(network, minibatch, config)


class PPOLearner(OnPolicyLearner[PPOConfig]):
    """An actor: algorithm 1 of the paper from its line 4 on. Knows no framework: `self.net` does the arithmetic."""

    saved = {"adapted": "adapted", "popart": "popart", "rnd": "rnd"}
    popart: PopArt | None = None
    rnd: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.adapted: dict[str, float] = {}
        """Settings that the learning has moved (`desired_kl`), by name."""
        super().__init__(*arguments)
        if self.config.normalize_value:
            require_value_head(self.trainee.weights())
            self.popart = PopArt()
        if self.config.exploration_bonus is not None:
            from rlplat.rl.torch.rnd import RND

            self.rnd = RND(self.config, arguments[2], seed_sequences(self.config.seed, "learner")[0].spawn(1)[0])

    def settings_now(self) -> Any:
        return super().settings_now().model_copy(update=self.adapted)

    def set_state(self, state: dict[str, Any]) -> None:
        given = {"popart": PopArt().get_state()} if self.popart and "acts_from_start" in state else {}
        super().set_state({"adapted": {}, "popart": None, "rnd": None} | state | given)  # earlier versions kept none

    def beside(self) -> Weights:
        own = {} if self.popart is None else self.popart.in_rewards(self.trainee.weights())
        return super().beside() | own

    def update(self, *batches: SampleBatch) -> UpdateReport:
        # Alg. 1, lines 2, 3: the N actors have run pi_old in their environments for T timesteps.
        rollout, config = self.rollout_of(batches), self.settings_now()
        if rollout.batch.weights_version < self.first_measured:
            return self.publish_learnt(rollout)

        # Line 4: "compute advantage estimates A_1 .. A_T".
        steps = rollout.steps
        if config.time_limits == "end":
            steps["terminated"] = steps["terminated"] | steps["truncated"]
        rollout.advantages, rollout.returns = gae(**steps, discount=config.discount, gae_lambda=config.gae_lambda)
        bonus_figures: dict[str, float] = {}
        if self.rnd is not None:
            advantages, bonus_figures = self.rnd.learn(rollout.batch, config)
            rollout.advantages = rollout.advantages + config.bonus_coef * advantages
        if self.popart is not None:
            valid = rollout.batch.valid
            self.trainee.set_weights(self.popart.update(rollout.returns[valid], self.trainee.weights()))
            rollout.returns, values = map(self.popart.normalize, (rollout.returns, rollout.batch.values))
            rollout.batch = replace(rollout.batch, values=values)
        self.net.load(rollout)
        rollout.lap("prepare")

        # Line 6: "optimize surrogate L wrt theta, with K epochs and minibatch size M <= NT".
        trained: list[Any] = []
        epochs = 0
        while epochs < config.num_epochs:
            first, epochs = len(trained), epochs + 1
            for rows in rollout.minibatches(
                config.minibatch_size,
                self._rng,
                normalize=config.normalize_advantages,  # c7
                learner=self.rank,
                num_learners=self.num_learners,
            ):
                trained.append(self.net.train(rows, config))
            if config.target_kl is None and config.desired_kl is None:
                continue
            kl = self.means(trained[first:], rollout).get("learner/approx_kl", 0.0)
            if config.desired_kl is not None:
                self.adapted["learning_rate"] = adapted_rate(config.learning_rate, kl, config.desired_kl)
                config = self.settings_now()
            if config.target_kl is not None and kl > config.target_kl:  # c12
                break

        # Line 7: "theta_old <- theta".
        metrics = self.means(trained, rollout) | {
            "learner/epochs": epochs,
            "learner/explained_variance": rollout.explained_variance(),
            "learner/learning_rate": config.learning_rate,
            "learner/clip_range": config.clip_range,
            "learner/entropy_coef": config.entropy_coef,
        }
        return self.publish_learnt(rollout, metrics | bonus_figures)


class PPO(OnPolicy[PPOConfig]):
    """The ring, and `step()`, which turns it once.

    with PPO(PPOConfig(env="CartPole-v1", seed=1)) as ppo:
        while (result := ppo.step()).env_steps < 100_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name = "ppo"
    config_class: type[PPOConfig] = PPOConfig
    learner_class = PPOLearner
    nets = {
        "torch": TorchPPO,
        "tf": "rlplat.algorithms.other_frameworks.ppo_tf:TfPPO",
        "numpy": "rlplat.algorithms.other_frameworks.ppo_numpy:NumpyPPO",
    }
    losses = ("loss",)
    can_sample_in_learner = True

    def setup(self) -> None:
        """Parameter server, learners, rollout workers; returns when the first weights are published."""
        self._overlaps = self.settings["overlap_sampling"] = self.overlaps()
        if self.samples_in_learner:
            self.learners = self.start_sampling_learner()
            return
        self.learners = self.start_policies()
        self.workers = self.start_rollout_workers()
        self.learners.wait_until_ready()

    def step(self) -> Result:
        """One round: sample, update, publish."""
        self.require_open()
        if self.samples_in_learner:
            return self.update_alone()
        batches = self.workers.sample(*self.learners.latest(), ahead=self._overlaps)
        report = self.workers.deliver(batches, self.learners.update)
        return self.result(report, self.workers.metrics())

    def overlaps(self) -> bool:
        """What `overlap_sampling` comes to on this cluster."""
        config = self.config
        if config.overlap_sampling != "auto":
            return config.overlap_sampling
        return self.learns_on_gpu and config.num_rollout_workers > 0 and not config.deterministic
