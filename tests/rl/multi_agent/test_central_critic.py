"""A central critic: what the state is at every moment, who sees it, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import rlplat
from rlplat.algorithms.dqn import DQNConfig
from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.errors import ConfigError, EnvError
from rlplat.rl.multi_agent.check import check_any_env
from rlplat.rl.multi_agent.policy_map import plan_multi_agent
from rlplat.rl.multi_agent.rollout_worker import MultiAgentRolloutWorker
from rlplat.rl.multi_agent.vector_env import make_multi_agent_vector_env
from rlplat.rl.names_elsewhere import switches_of
from tests.rl.multi_agent.fixture_games import Dying

HERE, GAMES = __name__, "tests.rl.multi_agent.fixture_games"
RENDEZVOUS = "rlplat.rl.envs.diagnostic_multi_agent:Rendezvous"
CENTRAL: dict[str, Any] = {"multi_agent": {"centralized_critic": True}}
SMALL: dict[str, Any] = {
    "seed": 1,
    "num_rollout_workers": 0,
    "num_envs_per_worker": 4,
    "rollout_length": 16,
    "policy": {"hidden_sizes": [8]},
    "evaluation": {"episodes": 2},
    "stop": {"env_steps": 200},
}


class Stated(Dying):
    """Its state is written into the same memory every time."""

    state_space = spaces.Box(0, 100, (2,), np.float32)

    def __init__(self) -> None:
        super().__init__()
        self.memory = np.zeros(2, np.float32)

    def state(self) -> Any:
        self.memory[:] = self.time, len(self.agents)
        return self.memory


class Misstated(Dying):
    """From step 2 on, or from the beginning, its state is not what `state_space` says."""

    state_space = spaces.Box(0, 100, (2,), np.float32)

    def __init__(self, last_right: int) -> None:
        super().__init__()
        self.last_right = last_right

    def state(self) -> Any:
        return np.zeros(2 if self.time <= self.last_right else 3, np.float32)


class Pictures(Dying):
    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 255, (8, 8, 1), np.uint8)

    def _obs(self, agents: list[str]) -> Any:
        return {agent: np.zeros((8, 8, 1), np.uint8) for agent in agents}


class Named(Dying):
    def observation_space(self, agent: str) -> Any:
        return spaces.Dict({"state": super().observation_space(agent)})


class Product(Dying):
    """Two agents see a sign each; both get the product of them, and the game is over."""

    possible_agents = ["a", "b"]
    rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (1,), np.float32)

    def _obs(self, agents: list[str]) -> Any:
        return dict(zip(agents, self.signs[:, None], strict=True))

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.signs = self.rng.choice(np.float32([-1, 1]), 2)
        self.agents = list(self.possible_agents)
        return self._obs(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        agents, self.agents = self.agents, []
        reward, done = float(self.signs.prod()), dict.fromkeys(agents, True)
        return self._obs(agents), dict.fromkeys(agents, reward), done, dict.fromkeys(agents, False), {}


def states_of(env: str, num_steps: int, **env_kwargs: Any) -> list[tuple[list[Any], list[Any]]]:
    """Of every moment: the state that each agent to act sees, and that of the agents that were cut off."""
    settings = PPOConfig(env=env, env_kwargs=env_kwargs, **SMALL, **CENTRAL).model_dump()
    plan = plan_multi_agent(settings)
    assert plan is not None
    games = make_multi_agent_vector_env(env, 1, plan, env_kwargs=env_kwargs)
    moments, turns = [], games.reset()
    for _ in range(num_steps + 1):
        each = turns["shared"]
        moments.append((each.obs["state"].tolist(), each.final_obs["state"][each.truncated].tolist()))
        turns = games.step({"shared": np.zeros(len(each.acting), np.int64)})
    games.close()
    return moments


def test_the_state_is_what_all_agents_observe_side_by_side() -> None:
    """In the order of possible_agents; of an agent that ends its last observation, then zeros."""
    moments = states_of(f"{GAMES}:Dying", 4)
    expected = [[1, 0, 2, 0, 3, 0], [1, 1, 2, 1, 3, 1], [1, 2, 2, 2, 3, 2], [1, 3, 2, 3, 0, 0], [1, 0, 2, 0, 3, 0]]
    assert [states for states, _ in moments] == [
        [state] * num for state, num in zip(expected, (3, 3, 2, 2, 3), strict=True)
    ]
    assert [cut for _, cut in moments] == [[], [], [], [], [[1, 4, 2, 4, 0, 0]]]


def test_an_agent_that_is_not_there_yet_is_zeros() -> None:
    [(first, _), (second, _)] = states_of(f"{GAMES}:Dying", 1, late=True)
    assert first == [[1, 0, 2, 0, 0, 0]] * 2 and second == [[1, 1, 2, 1, 3, 1]] * 3


def test_the_environments_own_state_is_taken_where_there_is_one() -> None:
    """Also of the last moment of a game, whose memory the next game has written into."""
    moments = states_of(f"{HERE}:Stated", 4)
    assert [states[0] for states, _ in moments] == [[0, 3], [1, 3], [2, 2], [3, 2], [0, 3]]
    assert moments[4][1] == [[4, 0]]


@pytest.mark.slow
def test_values_are_the_central_critics_of_the_moment_that_followed() -> None:
    """Also where b is cut off, in which step a terminates and c has been gone for long."""
    torch = pytest.importorskip("torch")
    from rlplat.rl.torch.networks import make_network
    from rlplat.rl.torch.weights import weights_of

    more = {"num_envs_per_worker": 1, "rollout_length": 4}
    settings = PPOConfig(env=f"{GAMES}:Dying", **SMALL | more, **CENTRAL).model_dump()
    plan = plan_multi_agent(settings)
    assert plan is not None
    network = make_network(plan.specs(settings)["shared"])
    worker = MultiAgentRolloutWorker(settings, plan, 0, 0, None, PPO.make_policy)
    batch = worker.sample((0, weights_of(network)))
    worker.close()

    def value(time: int) -> float:
        """V of b: a and b are there all the time, c up to its end in step 2."""
        c = [3, time] if time <= 2 else [0, 0]
        obs = {"obs": [[2, time]], "state": [[1, time, 2, time, *c]]}
        with torch.no_grad():
            return float(network({path: torch.tensor(leaf, dtype=torch.float32) for path, leaf in obs.items()})[1])

    np.testing.assert_allclose(batch.values[:, 1], [value(time) for time in range(4)], rtol=1e-5)
    np.testing.assert_allclose(batch.next_values[:, 1], [value(time) for time in range(1, 5)], rtol=1e-5)
    assert batch.truncated[:, 1].tolist() == [False] * 3 + [True] and not batch.terminated[:, 1].any()


def test_a_line_says_what_the_critic_sees() -> None:
    said = {}
    for env in (f"{GAMES}:Dying", f"{HERE}:Stated"):
        plan = plan_multi_agent(PPOConfig(env=env, **CENTRAL).model_dump())
        assert plan is not None
        said[env.partition(":")[2]] = plan.about_critic()
    assert said["Dying"] == (
        "the critic sees the observations of a, b, c side by side (Box(6) float32) beside what its agent observes; "
        "the actor does not"
    )
    assert "the critic sees state() (Box(2) float32) beside" in said["Stated"]
    plan = plan_multi_agent(PPOConfig(env=f"{GAMES}:Dying").model_dump())
    assert plan is not None and plan.about_critic() == "" and "state" not in str(plan)


@pytest.mark.parametrize(
    ("env", "settings", "match"),
    [
        (f"{GAMES}:Turns", {}, "wants an environment in which all agents act at once, and .*Turns is turn-based"),
        ("CartPole-v1", {}, "centralized_critic is for several agents, and 'CartPole-v1' has one"),
        (f"{HERE}:Pictures", {}, "observations have images .'obs'.* give the environment state"),
        (f"{HERE}:Named", {}, "'a' observes 'state', .* rename it"),
        (f"{GAMES}:Dying", {"policy": {"obs_groups": {"actor": ["obs", "state"]}}}, "obs_groups.actor names 'state'"),
        (
            f"{GAMES}:Dying",
            {"policy": {"core": "gru"}},
            "network of its own, and policy.core=gru one for both",
        ),
    ],
)
def test_what_cannot_have_one_is_named(env: str, settings: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        plan_multi_agent(PPOConfig(env=env, **settings, **CENTRAL).model_dump())


def test_a_state_of_another_shape_is_found_before_the_run() -> None:
    said = "state() has shape (3,), but its space says (2,)"
    for last_right in (-1, 2):
        report = check_any_env(f"{HERE}:Misstated", {"last_right": last_right}, steps=5)
        assert report.is_sound and f"centralized_critic would end: {said}" in str(report)
    assert "state()" not in str(check_any_env(f"{HERE}:Stated", steps=5))
    with pytest.raises(EnvError, match=f"asks for its state: {re.escape(said)}"):
        plan_multi_agent(PPOConfig(env=f"{HERE}:Misstated", env_kwargs={"last_right": -1}, **CENTRAL).model_dump())


def test_algorithms_without_a_critic_refuse_it() -> None:
    with pytest.raises(ValueError, match=r"centralized_critic=True has no effect: .* ppo has one"):
        DQNConfig(env=RENDEZVOUS, **CENTRAL)
    assert str(switches_of("MAPPO")) == "--algo ppo --set multi_agent.centralized_critic=true"


@pytest.mark.slow
@pytest.mark.parametrize("groups", [{}, {"critic": ["state"]}])
def test_a_saved_run_continues_with_its_critic(runtime: None, groups: Any) -> None:
    policy = SMALL["policy"] | {"obs_groups": groups}
    config = PPOConfig(env=RENDEZVOUS, **SMALL | {"policy": policy}, **CENTRAL, normalize_observations=True)
    with PPO(config) as one, PPO(config) as other:
        for _ in range(3):
            one.step()
        other.set_state(one.get_state())
        for (name, ours), theirs in zip(
            rlplat.get(one.weights())[1].items(), rlplat.get(other.weights())[1].values(), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
        assert ours.shape and np.isfinite(other.step().metrics["policy/shared/learner/value_loss"])


@pytest.mark.slow
def test_it_knows_returns_that_no_agent_alone_can_know(runtime: None) -> None:
    known = []
    for central in (False, True):
        more = {"multi_agent": {"centralized_critic": central}, "learning_rate": 1e-2, "num_envs_per_worker": 8}
        with PPO(PPOConfig(env=f"{HERE}:Product", **SMALL | {"policy": {"hidden_sizes": [16]}} | more)) as ppo:
            for _ in range(20):
                result = ppo.step()
        known.append(result.metrics["policy/shared/learner/explained_variance"])
    assert known[0] < 0.2 and known[1] > 0.9, known
