"""`rlplat.load`: what it acts on observations is what the evaluation does on them, whatever the spaces and networks."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rlplat
from rlplat.errors import BadObservation, CheckpointError, ConfigError, UsageError
from rlplat.rl.run.agent_spaces import agent_spaces
from tests.rl.fixture_envs import MaskEnv, TreeEnv

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
LOG: list[tuple[Any, Any, Any, bool]] = []
"""(observation, mask beside it, action taken, whether it is the first of an episode) of every step of a `Recorded`."""


class Numbers(gym.Env):
    """Observations far from mean 0 and deviation 1, episodes of 6 steps, any space of actions."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self._time += 1
        return self._obs(), 1.0, self._time == 6, False, {}

    def _obs(self) -> Any:
        return self.np_random.normal((5.0, -3.0, 0.0), (2.0, 0.1, 9.0)).astype(np.float32)


class Recorded(gym.Wrapper):
    def reset(self, **arguments: Any) -> Any:
        self._obs, info = self.env.reset(**arguments)
        self._mask, self._begins = info.get("action_mask"), True
        return self._obs, info

    def step(self, action: Any) -> Any:
        LOG.append((self._obs, self._mask, action, self._begins))
        self._obs, reward, terminated, truncated, info = self.env.step(action)
        self._mask, self._begins = info.get("action_mask"), False
        return self._obs, reward, terminated, truncated, info


SPACES = {
    "discrete": spaces.Discrete(3, start=-1, dtype=np.int8),
    "box": spaces.Box(-0.01, 0.01, (2, 2), np.float64),
    "multi": spaces.MultiDiscrete([2, 3], start=[1, 0]),
}


def make(kind: str) -> gym.Env:
    if kind == "tree":
        return Recorded(TreeEnv(length=6))
    if kind == "choices":
        env: gym.Env = TreeEnv(length=6)
        return Recorded(gym.wrappers.TransformAction(env, lambda gear: {**FIXED, "gear": gear}, GEAR))
    if kind in ("info", "dict"):
        return Recorded(MaskEnv(kind))
    return Recorded(Numbers(SPACES[kind]))


GEAR = TreeEnv.action_space["gear"]
FIXED = {"arm": (np.zeros((1, 2), np.float32), np.zeros(2, np.int64)), "lamps": np.zeros(2, np.int8)}

SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_length": 8, "num_envs_per_worker": 2, "minibatch_size": 8, "num_epochs": 1},
    "a3c": {"rollout_length": 64, "num_envs_per_worker": 2, "updates_per_report": 1},
    "pqn": {"rollout_length": 8, "num_envs_per_worker": 2, "minibatch_size": 8, "num_epochs": 1},
    "dqn": {"num_envs_per_worker": 2, "replay_capacity": 256, "learning_starts": 8, "batch_size": 4},
    "r2d2": {
        "num_envs_per_worker": 2,
        "replay_capacity": 256,
        "learning_starts": 8,
        "batch_size": 4,
        "unroll_length": 4,
        "burn_in": 0,
    },
    "sac": {"num_envs_per_worker": 2, "replay_capacity": 256, "learning_starts": 8, "batch_size": 4},
    "td3": {"num_envs_per_worker": 2, "replay_capacity": 256, "learning_starts": 8, "batch_size": 4},
    "crossq": {
        "num_envs_per_worker": 2,
        "replay_capacity": 256,
        "learning_starts": 8,
        "batch_size": 4,
        "policy": {"hidden_sizes": [8], "critic_hidden_sizes": [8]},
    },
    "tqc": {"num_envs_per_worker": 2, "replay_capacity": 256, "learning_starts": 8, "batch_size": 4},
    "mbpo": {
        "num_envs_per_worker": 2,
        "replay_capacity": 256,
        "learning_starts": 8,
        "batch_size": 4,
        "model_period": 20,
        "env_steps_per_update": 4,
        "model": {"hidden_sizes": [8], "max_epochs": 2},
    },
    "impala": {"rollout_length": 8, "num_envs_per_worker": 2, "updates_per_report": 1},
    "es": {"population_size": 2, "num_envs_per_worker": 2, "noise_table_size": 10_000},
}
NORMAL = {"normalize_observations": True}
LSTM = {"policy": {"core": "lstm", "core_size": 8, "hidden_sizes": [8]}}


def trained(algo: str, kind: str, out: Path, **settings: Any) -> Path:
    rlplat.train(
        algo,
        env=f"{__name__}:make",
        env_kwargs={"kind": kind},
        out=out,
        num_rollout_workers=0,
        # A3C normalises from 1,000 observations on.
        stop={"env_steps": 1_100 if algo == "a3c" and settings.get("normalize_observations") else 40},
        seed=3,
        **{"evaluation": {"episodes": 1, "num_envs": 1}, **SMALL[algo], **settings},
    )
    return out


def played(agent: Any) -> list[tuple[Any, Any, Any, bool]]:
    """Two episodes of the evaluation path, one after the other in one environment."""
    LOG.clear()
    agent.evaluate(2)
    steps = LOG[:]
    assert sum(begins for *_, begins in steps) >= 2
    return steps


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other) and np.asarray(one).dtype == np.asarray(other).dtype


CASES = [
    ("ppo", "discrete", NORMAL),
    ("ppo", "box", NORMAL),
    ("ppo", "box", {"policy": {"squash_actions": True}}),
    ("ppo", "box", {"policy": {"rescale_actions": True}}),
    ("ppo", "multi", {}),
    ("ppo", "info", {}),
    ("ppo", "tree", LSTM),
    ("a3c", "discrete", NORMAL),
    ("a3c", "info", LSTM),
    ("dqn", "discrete", NORMAL),
    ("dqn", "choices", {}),
    ("dqn", "dict", {}),
    ("pqn", "info", NORMAL),
    ("r2d2", "discrete", LSTM),
    ("es", "discrete", NORMAL),
    ("es", "box", {"normalize_observations": False}),
    ("sac", "box", NORMAL),
    ("crossq", "box", {}),
    ("tqc", "box", {}),
    ("impala", "dict", {}),
]


@pytest.mark.parametrize(("algo", "kind", "settings"), CASES, ids=lambda part: str(part)[:40])
def test_acts_as_the_evaluation_does(algo: str, kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    agent = rlplat.load(trained(algo, kind, tmp_path / "run", **settings))
    steps = played(agent)
    state = agent.initial_state()
    for obs, mask, action, begins in steps:
        if begins:
            agent.reset()
            state = agent.initial_state()
        assert agent.spaces.action_space.contains(action)
        assert same(agent.act(obs, mask=mask), action)
        passed, state = agent.act(obs, mask=mask, state=state)
        assert same(passed, action)
    assert (agent.state_size > 0) == ("policy" in settings and "core" in settings["policy"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that several tests look at."""
    root = tmp_path_factory.mktemp("runs")
    cases: dict[str, tuple[str, str, dict[str, Any]]] = {
        "box": ("ppo", "box", NORMAL),
        "lstm": ("ppo", "discrete", LSTM),
        "tree": ("ppo", "tree", {}),
        "info": ("a3c", "info", {}),
        "dqn": ("dqn", "discrete", {"evaluation": {"episodes": 1, "period": 16}}),
        "es": ("es", "discrete", {"normalize_observations": True}),
    }
    return {name: trained(algo, kind, root / name, **given) for name, (algo, kind, given) in cases.items()}


def stacked(observations: list[Any]) -> Any:
    first = observations[0]
    if isinstance(first, dict):
        return {key: stacked([obs[key] for obs in observations]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked([obs[i] for obs in observations]) for i in range(len(first)))
    return np.stack(observations)


def rows(kind: str, num: int) -> tuple[Any, Any]:
    """(many observations as one, their masks or None)."""
    env = make(kind)
    seen = [env.reset(seed=seed) for seed in range(num)]
    masks = [info["action_mask"] for _, info in seen if "action_mask" in info]
    return stacked([obs for obs, _ in seen]), np.stack(masks) if masks else None


@pytest.mark.parametrize(("name", "kind"), [("box", "box"), ("tree", "tree"), ("info", "info"), ("dqn", "discrete")])
def test_many_observations_are_acted_on_at_once(name: str, kind: str, runs: dict[str, Path]) -> None:
    agent = rlplat.load(runs[name])
    many, masks = rows(kind, 5)
    actions = agent.act(many, mask=masks)
    env = make(kind)
    for row in range(5):
        obs, info = env.reset(seed=row)
        action = agent.act(obs, mask=info.get("action_mask"))
        parts = actions
        if isinstance(actions, dict):
            action, parts = action["arm"][0], actions["arm"][0]
        assert np.allclose(parts[row], action, rtol=1e-5)


def test_sampled_actions_come_from_the_seed_that_is_given(runs: dict[str, Path]) -> None:
    for name, kind in (("box", "box"), ("tree", "tree"), ("dqn", "discrete")):
        agent, (many, _) = rlplat.load(runs[name]), rows(kind, 64)
        greedy = agent.act(many)
        one, other = (agent.act(many, greedy=False, rng=seed) for seed in (1, 2))
        assert same(agent.act(many, greedy=False, rng=1), one) and not same(one, other)
        assert not same(agent.act(many, greedy=False), agent.act(many, greedy=False))
        drawn = [agent.act(many, greedy=False, rng=np.random.default_rng(5)) for _ in range(2)]
        assert same(*drawn) and same(agent.act(many), greedy)
    again = [rlplat.load(runs["box"], seed=9).act(rows("box", 8)[0], greedy=False) for _ in range(2)]
    assert same(*again)


def test_a_recurrent_agent_remembers_until_it_is_reset(runs: dict[str, Path]) -> None:
    agent, module = rlplat.load(runs["lstm"]), rlplat.load(runs["lstm"]).torch_module()
    many = rows("discrete", 3)[0]
    state = agent.initial_state(3)
    states = []
    for _ in range(4):
        agent.act(many)
        _, state = agent.act(many, state=state)
        states.append(agent.policy.core_state)
        assert np.array_equal(state, states[-1])
    agent.reset(np.array([True, False, True]))
    agent.act(many)
    after = agent.policy.core_state
    assert np.allclose(after[[0, 2]], states[0][[0, 2]], atol=1e-6) and not np.allclose(after[1], states[0][1])
    with pytest.raises(BadObservation, match=r"2 observations, but this recurrent agent remembers 3: call agent.reset"):
        agent.act(many[:2])
    with pytest.raises(BadObservation, match=r"ended has shape \(2,\).*expected bool\[3\]"):
        agent.reset([True, False])
    with pytest.raises(BadObservation, match=r"state has shape \(4,\); expected \(3, 16\): begin with agent.init"):
        agent.act(many, state=np.zeros(4))
    agent.reset()
    agent.act(many[:2])
    outputs, following = module(module_input(agent, many))
    assert outputs.shape == (3, 3) and np.allclose(following.detach().numpy(), states[0], atol=1e-6)


def module_input(agent: Any, obs: Any, mask: Any = None) -> Any:
    import torch

    read = agent.spaces.read(obs, mask)[0]
    if isinstance(read, dict):
        return {path: torch.as_tensor(leaf) for path, leaf in read.items()}
    return torch.as_tensor(read)


def test_the_torch_module_gives_what_greedy_actions_are_chosen_by(runs: dict[str, Path]) -> None:
    import torch

    with torch.no_grad():
        for name, kind in (("dqn", "discrete"), ("es", "discrete"), ("info", "info")):
            agent, (many, masks) = rlplat.load(runs[name]), rows(kind, 32)
            start = agent.spaces.action_space.start
            outputs = agent.torch_module()(module_input(agent, many, masks))
            assert np.array_equal(outputs.argmax(dim=1).numpy() + start, agent.act(many, mask=masks))
        agent, (many, _) = rlplat.load(runs["box"]), rows("box", 32)
        module = agent.torch_module()
        low, high = agent.spaces.action_space.low, agent.spaces.action_space.high
        means = np.clip(module(torch.as_tensor(many)).numpy().reshape(-1, 2, 2), low, high)
        assert np.allclose(means, agent.act(many), atol=1e-6) and module.log_std.shape == (4,)
        agent, (many, _) = rlplat.load(runs["tree"]), rows("tree", 8)
        params = agent.torch_module()(module_input(agent, many))
        assert np.array_equal(params[:, 7:10].argmax(dim=1).numpy() - 1, agent.act(many)["gear"])


OBS = np.zeros(3, np.float32)
TREE = TreeEnv(length=6).reset(seed=0)[0]


@pytest.mark.parametrize(
    ("name", "obs", "mask", "said"),
    [
        (
            "box",
            np.zeros(4, np.float32),
            None,
            r"shape \(4,\); expected float32\[3\] for one.*float32\[N, 3\] for N",
        ),
        ("box", np.zeros((2, 2, 3)), None, r"shape \(2, 2, 3\)"),
        ("box", np.zeros((0, 3)), None, "holds no observation at all"),
        ("box", ["a", "b", "c"], None, "has dtype <U1; expected float32"),
        ("box", np.zeros(3, complex), None, "has dtype complex128"),
        ("box", [[1.0], [1.0, 2.0]], None, "which is no array"),
        ("box", np.array([0, np.nan, 0]), None, "NaN or infinity in observation at index"),
        ("box", OBS, np.ones(4, bool), "trained without action masks"),
        ("tree", OBS, None, r"has no 'camera'; expected: observation\['camera'\] uint8\["),
        (
            "tree",
            {**TREE, "camera": TREE["camera"] / 255},
            None,
            r"\['camera'\] has dtype float64; expected uint8",
        ),
        (
            "tree",
            {**TREE, "level": 7},
            None,
            r"\['level'\] is 7, which is not in its space: from 2 to 6",
        ),
        (
            "tree",
            {**TREE, "level": [2, 3]},
            None,
            r"\['level'\] has shape \(2,\), but .*all parts are of one",
        ),
        ("tree", {**TREE, "robot": (TREE["robot"][0],)}, None, r"has no 1; expected: "),
        ("info", np.zeros(1), None, r"mask is missing.*pass mask=, bool\[5\] for one.*bool\[N, 5\]"),
        ("info", np.zeros(1), np.ones(4), r"the action mask has shape \(4,\).*expected bool\[5\]"),
        ("info", np.zeros((3, 1)), np.ones((2, 5)), r"the action mask has shape \(2, 5\).*here N = 3"),
        ("info", np.zeros(1), np.zeros(5), "has no legal action"),
    ],
)
def test_what_does_not_fit_is_named_with_what_would(
    name: str, obs: Any, mask: Any, said: str, runs: dict[str, Path]
) -> None:
    with pytest.raises(BadObservation, match=said) as caught:
        rlplat.load(runs[name]).act(obs, mask=mask)
    assert isinstance(caught.value, ValueError)


def test_lists_and_wider_floats_will_do(runs: dict[str, Path]) -> None:
    agent = rlplat.load(runs["box"])
    expected = agent.act(np.array([1, 2, 3], np.float32))
    assert same(agent.act([1, 2, 3]), expected) and same(agent.act(np.array([1.0, 2.0, 3.0])), expected)


def test_a_run_a_checkpoint_and_the_best_one_can_be_loaded(runs: dict[str, Path]) -> None:
    run = runs["dqn"]
    (step,) = (run / "checkpoints").glob("step_*")
    newest = [rlplat.load(each).checkpoint.path for each in (run, str(step), run / "checkpoints/latest")]
    assert newest == [step] * 3
    best = rlplat.load(run, "best")
    assert best.checkpoint.has_weights_only and best.act(OBS) in best.spaces.action_space
    assert best.weights().keys() == rlplat.load(run).weights().keys()
    assert len(best.evaluate(2)) == 2
    with pytest.raises(CheckpointError, match=f"no checkpoint 'step_7'; there are: latest, best, {step.name}"):
        rlplat.load(run, "step_7")
    with pytest.raises(ConfigError, match=r"no run in .*nowhere"):
        rlplat.load(run / "nowhere")
    with pytest.raises(ConfigError, match=rf"checkpoints is of the run .*{run.name}: give that directory"):
        rlplat.load(run / "checkpoints")
    with pytest.raises(ConfigError, match="is a checkpoint already"):
        rlplat.load(step, "best")


def test_a_checkpoint_is_found_from_wherever_it_is_named(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, name in ((".", "."), ("checkpoints", "best"), (".", "checkpoints/best")):
        monkeypatch.chdir(runs["dqn"] / place)
        assert rlplat.load(name).plan.algo == "dqn"


@pytest.mark.parametrize("source", ["dict", "info", "method"])
def test_a_mask_is_known_wherever_it_comes_from(source: str) -> None:
    spaces_of = agent_spaces("tests.rl.fixture_envs:MaskEnv", {"source": source})
    assert spaces_of.has_mask and spaces_of.spec.action.mask_size == 5
    with pytest.raises(BadObservation, match=r"the action mask is missing|has no 'numbers'"):
        spaces_of.read(np.zeros(1, np.float32))


def test_what_has_no_form_in_torch_says_so(runs: dict[str, Path]) -> None:
    from rlplat.rl.torch.agent_module import agent_module

    agent = rlplat.load(runs["box"])
    with pytest.raises(UsageError, match=r"acts by object, which has no form in torch: use agent.act"):
        agent_module(object(), {}, "torch")  # type: ignore[arg-type]
    agent.policy.spec = dataclasses.replace(agent.policy.spec, custom="mine:Net")
    with pytest.raises(UsageError, match=r"mine:Net is a TensorFlow network"):
        agent_module(agent.policy, agent.weights(), "tf")


def test_another_environment_of_equal_spaces_may_be_given_and_no_other(runs: dict[str, Path]) -> None:
    assert rlplat.load(runs["dqn"], env=lambda kind: make(kind)).act(OBS) is not None
    with pytest.raises(CheckpointError, match=r"its spaces are .* are now Box"):
        rlplat.load(runs["dqn"], env=lambda kind: make("box")).act(OBS)


@pytest.mark.process
def test_plain_mlps_act_without_torch(runs: dict[str, Path]) -> None:
    code = (
        "import sys, numpy, rlplat\n"
        "for run in sys.argv[1:]:\n"
        "    assert rlplat.load(run).act(numpy.zeros(3)) is not None\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules)"
    )
    arguments = [str(runs[name]) for name in ("box", "dqn", "es")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_algorithm_without_a_policy_says_so(tmp_path: Path) -> None:
    rlplat.train(
        "tests.cli.counting_algorithm:CountingAlgorithm",
        env="CartPole-v1",
        out=tmp_path / "run",
        stop={"env_steps": 10},
    )
    agent = rlplat.load(tmp_path / "run")
    assert agent.evaluate(1)
    with pytest.raises(UsageError, match=r"cannot act: CountingAlgorithm has no make_policy"):
        agent.act(np.zeros(4))


def test_of_several_policies_one_is_to_be_named(tmp_path: Path) -> None:
    rlplat.train(
        "ppo",
        env="rlplat.rl.envs.diagnostic_multi_agent:Nim",
        out=tmp_path / "run",
        num_rollout_workers=0,
        stop={"env_steps": 40},
        evaluation={"episodes": 1},
        multi_agent={
            "policies": {"main": {}, "other": {}},
            "mapping": {"first": "main", "second": "other"},
        },
        **SMALL["ppo"],
    )
    agent = rlplat.load(tmp_path / "run")
    with pytest.raises(UsageError, match=r"several policies \(main, other\).*rlplat.load\(RUN, policy='main'\)"):
        agent.act(None)
    with pytest.raises(ConfigError, match=r"no policy 'mian'; did you mean 'main'\?"):
        rlplat.load(tmp_path / "run", policy="mian").act(None)
    assert agent.evaluate(1)
    main = rlplat.load(tmp_path / "run", policy="main")
    obs = {**main.spaces.observation_space.sample(), "action_mask": np.array([0, 1, 0])}
    assert main.act(obs) == 1
    with pytest.raises(BadObservation, match="the action mask has no legal action"):
        main.act({**obs, "action_mask": np.zeros(3)})
    assert set(agent.weights()) == {f"{name}/{key}" for name in ("main", "other") for key in main.weights()}
    module = main.torch_module()
    assert module(module_input(main, obs)).argmax().item() == 1
