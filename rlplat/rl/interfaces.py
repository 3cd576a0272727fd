"""The roles of the RL floor, in one file: who calls whom, with what.

    algorithm ──sample()──▶ rollout worker ──act()──▶ policy          (the worker steps a `VectorEnv`)
        │                        │ SampleBatch[T, B] (a ref)
        └──update(refs)──▶ learner ──set_weights(version + 1)──▶ parameter server ──latest()──▶ rollout workers

Shapes: T = time steps of a rollout fragment, B = environments side by side, N = T*B flattened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np

from rlplat.rl.spaces import SpaceSpec

Array = np.ndarray
Obs = Array | dict[str, Array]
"""Observations [B, ...]: an array, or for Dict and Tuple spaces a dict of such by path (`"robot/joints"`). The leaf
`"action_mask"` is bool[B, L], True where an action is legal."""
Weights = dict[str, np.ndarray]
"""Parameters and normaliser statistics by dotted name, e.g. `actor.0.weight`; plain numpy, so that
they travel without a framework and both frameworks can load them."""

Activation = Literal["tanh", "relu", "leaky_relu", "elu", "selu", "silu", "gelu", "mish"]
"""Of MLPs: in numpy (policies/numpy_policies.py), on torch and on TensorFlow (their encoders.py)."""


class Step(NamedTuple):
    """What `VectorEnv.step` returns, the same whatever the environment's autoreset mode is."""

    obs: Obs
    """[B, ...] observation to act on next."""
    rewards: Array
    """float32[B], raw: never clipped, never scaled; 0 where the environment only reset itself."""
    terminated: Array
    """bool[B]: the episode ended for good; its last state has no future, the bootstrap value is 0."""
    truncated: Array
    """bool[B]: the episode was cut off (time limit); bootstrap from `final_obs`. Never true where `terminated` is."""
    valid: Array
    """bool[B]: False where the environment only reset itself in this step (NEXT_STEP autoreset), or where FIRE was
    pressed for the agent (Atari's fire_after_lost_life): the row holds no decision of the agent, must not be trained on
    and does not count as an env step."""
    final_obs: Obs | None
    """[B, ...] last observation of the episodes that ended in this step (rows of others: undefined), or None
    when none ended."""
    forced: Array | None = None
    """bool[B], or None where it is nowhere: of the rows that are not valid those in which FIRE was pressed. The episode
    goes on there, and with it what a core remembers."""

    @property
    def forgets(self) -> Array:
        """bool[B]: where a core begins anew: after an episode's end, and after a step that only reset."""
        forgets = self.terminated | self.truncated | ~self.valid
        return forgets if self.forced is None else forgets & ~self.forced


class Episode(NamedTuple):
    """A finished episode: the raw, undiscounted return and the length in env steps."""

    episode_return: float
    length: int
    metrics: Mapping[str, float] = {}
    """What its infos told (`info_metrics`), by name."""


class CutEpisode(Episode):
    """One of an evaluation that had not ended after `evaluation.max_episode_steps` steps: its return is what it had got
    until then (NaN where that is not known), and counts for no mean."""


class PolicyOutput(NamedTuple):
    actions: Array
    """Discrete: int64[B]; MultiDiscrete, MultiBinary: int64[B, K]; Box: float32[B, A], unbounded (the env adapter
    clips to the bounds); Dict and Tuple of them: float32[B, columns], each part in its own columns."""
    log_probs: Array
    """float32[B]: log pi(actions | obs)."""
    values: Array
    """float32[B]: V(obs); of a policy that acts by Q-values, the largest Q(obs, .) of a legal action."""
    q_taken: Array | None = None
    """float32[B]: Q(obs, actions), of a policy that acts by Q-values."""


class Closing:
    """Closed at the end of a `with`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Policy(Protocol):
    """Acts. One lives in each rollout worker and evaluator; it owns its random generator.

    policy.set_weights(weights)
    for _ in range(T):
        output = policy.act(obs)
        step = vector_env.step(output.actions)
        policy.reset_core(step.forgets)
        obs = step.obs
    bootstrap = policy.values(obs)

    A policy with a core (LSTM, GRU, attention) carries a state from one `act` to the next; one without carries none.
    """

    core_state: Array
    """float32[B, S] with which the next `act` begins, S = 0 without a core; zeros where an episode begins."""

    def set_weights(self, weights: Weights) -> None: ...

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """obs: [B, ...]. `deterministic` takes the mode of the distribution. Advances the core's state."""
        ...

    def values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B]; the core's state is used and left as it is."""
        ...

    def reset_core(self, ended: Array) -> None:
        """ended: bool[B]; in these environments the next `act` begins an episode."""
        ...

    def seed(self, seed: np.random.SeedSequence) -> None:
        """Draw from here as a new policy with this seed would."""
        ...

    def get_state(self) -> dict[str, Any]:
        """The random generator's and the core's state (weights are not part of it)."""
        ...

    def set_state(self, state: dict[str, Any]) -> None: ...


class UpdateReport(NamedTuple):
    """What comes home from a learner's `update`: never arrays."""

    env_steps: int
    """Agent decisions in the batches that were learnt from: what the run counts."""
    episodes: list[Episode]
    """Episodes that finished in these batches."""
    metrics: dict[str, float]
    """Grouped names: `learner/...`, `rollout/...`, `time/...`."""
    num_unlisted: int = 0
    """Episodes that finished before `episodes` in these batches: of thousands only the last ones come home."""


@dataclass
class Result:
    """What one `Algorithm.step()` brought; `training_loop` yields it and writes it to the run directory."""

    iteration: int
    env_steps: int
    """Agent decisions so far, over all environments."""
    episodes: int
    """Episodes finished so far."""
    episode_return_mean: float | None
    """Mean raw return of the last 100 finished episodes; None until one has finished."""
    episode_length_mean: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    """Grouped names: `learner/...`, `rollout/...`, `time/...`, `eval/...`."""


MakePolicy = Callable[[dict[str, Any], SpaceSpec, np.random.SeedSequence], Policy]
"""(the config as a dict, spaces, seed) -> a policy that has no weights yet; `make_policy` of an algorithm class."""


TELL_PERIOD_S = 10.0
