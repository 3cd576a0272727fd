"""Tensor environments: the shipped tasks, the forms of simulators, what is refused, and what they are on the host."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.errors import EnvError, UsageError
from rlplat.rl.envs.check import check_env
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.tensors.contract import is_tensor_env
from rlplat.rl.envs.tensors.env import TensorEnvs
from rlplat.rl.envs.tensors.tasks import TensorCartPole, TensorPointMass
from rlplat.rl.run.agent_spaces import agent_spaces
from rlplat.rl.torch.tensor_rollouts import make_tensor_envs
from tests.rl.tensor_sims import IsaacLike, ManiSkillLike

SEED = np.random.SeedSequence(1)


def test_cart_pole_is_gymnasiums_over_a_thousand_steps() -> None:
    """From equal states with equal actions: observations, rewards and ends, and the limit of 500 steps."""
    B = 4
    own, others = TensorCartPole(B, device="cpu"), [gym.make("CartPole-v1") for _ in range(B)]
    rng, truncations, terminations = np.random.default_rng(1), 0, 0

    def start(b: int, state: Any) -> None:
        others[b].reset()
        others[b].unwrapped.state = state.double().numpy()  # type: ignore[attr-defined]

    obs, _ = own.reset(seed=1)
    for b in range(B):
        start(b, obs[b])
    for _ in range(1_000):
        actions = rng.integers(2, size=B)
        if B > 1:  # one that balances, so that the limit is met
            x, v, angle, spin = obs[0].tolist()
            actions[0] = int(angle + 0.3 * spin + 0.05 * x + 0.1 * v > 0)
        obs, rewards, terminated, truncated, info = own.step(torch.from_numpy(actions))
        for b, other in enumerate(others):
            expected, reward, ends, is_cut, _ = other.step(actions[b])
            np.testing.assert_allclose(info["final_obs"][b].numpy(), expected, rtol=1e-3, atol=1e-4)
            assert (rewards[b].item(), terminated[b].item(), truncated[b].item()) == (reward, ends, is_cut)
            truncations, terminations = truncations + is_cut, terminations + ends
            if ends or is_cut:
                start(b, obs[b])
                assert obs[b].abs().max() <= 0.05
            else:
                other.unwrapped.state = obs[b].double().numpy()  # type: ignore[attr-defined]
    assert truncations and terminations > 50


def test_a_point_mass_moves_as_it_is_pushed_and_is_cut_off() -> None:
    env = TensorPointMass(2, max_episode_steps=2, device="cpu")
    obs, _ = env.reset(seed=3)
    start = obs[:, :2].clone()
    obs, rewards, terminated, truncated, info = env.step(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    moved = start + torch.tensor([[0.01, 0.0], [0.0, -0.01]])
    torch.testing.assert_close(obs, torch.cat([moved, torch.tensor([[0.1, 0.0], [0.0, -0.1]])], dim=1))
    torch.testing.assert_close(rewards, (-moved.square().sum(1)).exp() - 0.01)
    assert not truncated.any()
    obs, _, terminated, truncated, info = env.step(torch.zeros(2, 2))
    assert truncated.all() and not terminated.any()
    torch.testing.assert_close(info["final_obs"][:, :2], moved + torch.tensor([[0.01, 0.0], [0.0, -0.01]]))
    assert (obs[:, 2:] == 0).all()


@pytest.mark.parametrize("task", [TensorCartPole, TensorPointMass])
def test_a_task_goes_on_from_its_state(task: Any) -> None:
    one = TensorEnvs(task(3, max_episode_steps=7, device="cpu"), "one")
    other = TensorEnvs(task(3, max_episode_steps=7, device="cpu"), "other")
    one.reset(SEED)
    actions = torch.ones(one.num_envs, *([2] if task is TensorPointMass else []))
    actions = actions.long() if task is TensorCartPole else actions
    for _ in range(5):
        step = one.step(actions)
    np.testing.assert_array_equal(other.set_state(one.get_state()), step.obs)
    for _ in range(10):
        np.testing.assert_array_equal(other.step(actions).obs, one.step(actions).obs)


def test_the_seed_decides_and_no_seed_draws_on() -> None:
    def first(seed: Any) -> Any:
        return make_tensor_envs("TensorCartPole", 5, {"device": "cpu"}).reset(seed)

    assert torch.equal(first(SEED), first(SEED)) and not torch.equal(first(SEED), first(np.random.SeedSequence(2)))
    task = TensorCartPole(2, device="cpu")
    assert not torch.equal(task.reset(seed=1)[0], task.reset()[0])


def test_isaac_lab_has_groups_of_observations_no_last_ones_and_a_log() -> None:
    envs = TensorEnvs(IsaacLike(4), "isaac")
    assert list(envs.spec.obs) == ["policy", "critic"] and envs.spec.device == "cpu"
    obs = envs.reset(SEED)
    assert {path: tuple(leaf.shape) for path, leaf in obs.items()} == {"policy": (4, 4), "critic": (4, 5)}
    for _ in range(IsaacLike.LIMIT):
        step = envs.step(torch.full((4, 1), 7.0))
    assert step.final_obs is None and step.truncated.all() and not step.terminated.any()
    assert envs.raw.taken.unique().tolist() == [7.0], "actions without bounds are not clipped"
    assert step.means["Episode_Reward/alive"].tolist() == [0.5, 1.0]


def test_within_gymnasiums_wrappers_it_is_the_same() -> None:
    """As `gymnasium.make` gives Isaac Lab's; these wrappers pass on no names."""
    wrapped = gym.wrappers.OrderEnforcing(IsaacLike(4))
    assert not hasattr(wrapped, "num_envs") and is_tensor_env(wrapped)
    envs = TensorEnvs(wrapped, "isaac")
    envs.reset(SEED)
    assert envs.step(torch.zeros(4, 1)).rewards.shape == (4,)
    assert agent_spaces(lambda: wrapped, {}).spec == envs.spec


def test_maniskill_tells_the_last_observation_and_its_episodes() -> None:
    envs = TensorEnvs(ManiSkillLike(4), "maniskill")
    envs.reset(SEED)
    assert envs.step(torch.full((4, 1), 7.0)).final_obs is None
    assert envs.raw.taken.unique().tolist() == [1.0]
    for _ in range(ManiSkillLike.LIMIT - 1):
        step = envs.step(torch.zeros(4, 1))
    assert step.final_obs is not None and step.truncated.all()
    assert not torch.equal(step.final_obs, step.obs)
    assert step.means["success_once"].tolist() == [2.0, 4.0]


WITH_JAX = """
import numpy as np, torch
from rlplat.rl.envs.tensors.env import TensorEnvs
from tests.rl.tensor_sims import JaxCartPole

envs = TensorEnvs(JaxCartPole(3), "jax")
obs = envs.reset(np.random.SeedSequence(1))
assert isinstance(obs, torch.Tensor) and obs.data_ptr() == envs.raw.obs.unsafe_buffer_pointer()
step = envs.step(torch.zeros(3, dtype=torch.int64))
assert step.terminated.dtype == torch.bool and step.rewards.tolist() == [1.0] * 3
"""


@pytest.mark.process
def test_jax_arrays_come_in_by_dlpack_without_a_copy() -> None:
    """In a process of its own: JAX warns of every fork after it."""
    if find_spec("jax") is None:
        pytest.skip("could not import 'jax'")
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", WITH_JAX], cwd=root, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


class Wrong(TensorCartPole):
    """What it gives is replaced by `given`."""

    given: dict[str, Any] = {}

    def step(self, actions: Any) -> Any:
        names = ("obs", "rewards", "terminated", "truncated", "info")
        return tuple((dict(zip(names, super().step(actions), strict=True)) | self.given).values())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"obs": [1.0]}, r"observations are a list: give torch tensors, or arrays that speak DLPack"),
        ({"obs": torch.zeros(2, 3)}, r"observations have shape \[2, 3\], but 2 of its space have \[2, 4\]"),
        ({"obs": torch.zeros(2, 4, device="meta")}, r"observations are on meta, but the environment says device=cpu"),
        ({"rewards": torch.zeros(2, 1)}, r"rewards have shape \[2, 1\], expected \[2\]"),
        ({"info": {"final_obs": torch.zeros(3, 4)}}, r"final observations have shape \[3, 4\]"),
        ({"info": {"final_obs": np.array([None, None])}}, r"a ndarray of object, of which torch makes no tensor"),
        ({"info": [{}, {}]}, r"step\(\) returned the info a list of 2, expected one dict for all copies"),
        ({"more": 0}, r"step\(\) returned a tuple of 6, expected \(obs, rewards, terminated, truncated, info\)"),
    ],
)
def test_what_is_not_as_promised_is_said(given: Any, words: str) -> None:
    env = Wrong(2, device="cpu")
    env.given = given
    envs = TensorEnvs(env, "wrong")
    envs.reset(SEED)
    with pytest.raises(EnvError, match=words):
        envs.step(torch.zeros(2, dtype=torch.int64))
    if "final_obs" not in given.get("info", {}):  # on the host that of ended episodes is looked at
        assert not check_env(lambda: env, steps=2).is_sound


class OfRslRl(TensorCartPole):
    """dones in the place of terminated and truncated; observations alone."""

    resets_alone = False

    def reset(self, **arguments: Any) -> Any:
        return super().reset(**arguments)[0] if self.resets_alone else super().reset(**arguments)

    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, truncated, _ = super().step(actions)
        return obs, rewards, terminated | truncated, {"time_outs": truncated}


def test_the_form_of_rsl_rl_is_named_with_the_cure() -> None:
    assert "split `dones` into terminated" in str(check_env(lambda num_envs: OfRslRl(num_envs), steps=2))
    envs = TensorEnvs(OfRslRl(2, device="cpu"), "rsl")
    envs.reset(SEED)
    with pytest.raises(EnvError, match=r"rsl: step\(\) returned 4 values.*time_outs"):
        envs.step(torch.zeros(2, dtype=torch.int64))
    envs.raw.resets_alone = True
    with pytest.raises(EnvError, match=r"rsl: reset\(\) returned a Tensor, expected \(obs, info\)"):
        envs.reset(SEED)


class InPlace(TensorPointMass):
    """As Isaac Lab: one tensor holds the observations for ever, and none is told of an episode's end."""

    def reset(self, **arguments: Any) -> Any:
        self.held = super().reset(**arguments)[0]
        return self.held, {}

    def step(self, actions: Any) -> Any:
        obs, *rows, _ = super().step(actions)
        self.held.copy_(obs)
        return self.held, *rows, {}


def test_on_the_host_an_episodes_last_observation_is_no_later_one() -> None:
    with make_vector_env(lambda num_envs: InPlace(num_envs, max_episode_steps=3, device="cpu"), 2) as env:
        seen = [env.reset().copy()]
        for _ in range(3):
            step = env.step(np.full((2, 2), 0.5, np.float32))
            seen.append(step.obs.copy())
        assert step.truncated.all()
        np.testing.assert_array_equal(step.final_obs, seen[2])


def test_an_error_of_the_simulator_names_the_step() -> None:
    envs = make_tensor_envs("TensorCartPole", 2, {"device": "cpu"})
    envs.reset(SEED)
    with pytest.raises(EnvError, match=r"TensorCartPole: step\(\) after 1 steps raised RuntimeError"):
        envs.step(torch.zeros(3, dtype=torch.int64))


def test_episodes_that_would_go_on_after_their_end_are_refused() -> None:
    with pytest.raises(EnvError, match=r"wrap it in ManiSkillVectorEnv\(env\), with auto_reset"):
        TensorEnvs(ManiSkillLike(2, auto_reset=False), "maniskill")
    with pytest.raises(UsageError, match="of 3, and num_envs_per_worker is 2"):
        make_tensor_envs(lambda: TensorCartPole(3), 2, {})
    env = TensorCartPole(2)
    env.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # type: ignore[attr-defined]
    assert not is_tensor_env(env) and not is_tensor_env(gym.make_vec("CartPole-v1", 2))


@pytest.mark.parametrize("make", [TensorCartPole, TensorPointMass, IsaacLike, ManiSkillLike])
def test_on_the_host_it_is_a_vector_environment_of_arrays(make: Any) -> None:
    """For the algorithms that know no tensors, and for evaluations."""
    with make_vector_env(lambda num_envs: make(num_envs), 3) as env:
        obs = env.reset()
        dtype = np.int64 if make is TensorCartPole else np.float32
        actions = np.zeros((3, *env.spec.action.shape), dtype)
        ended = 0
        for _ in range(600):
            before, step = obs, env.step(actions)
            obs = step.obs
            if step.final_obs is not None:
                ended += 1
                if make is IsaacLike:
                    np.testing.assert_array_equal(step.final_obs["policy"], before["policy"])
        assert ended and env.pop_episodes()
    report = check_env(lambda num_envs=2: make(num_envs), steps=30)
    assert report.is_sound and report.spaces is not None and report.spaces.device == "cpu"
    assert "its tensors are on cpu" in str(report) and "mask" not in str(report)


def test_masks_in_the_infos_are_told_to_be_unread() -> None:
    class Masking(TensorCartPole):
        def reset(self, **given: Any) -> Any:
            return super().reset(**given)[0], {"action_mask": torch.ones(self.num_envs, 2, dtype=torch.bool)}

    [finding] = [each for each in check_env(Masking, steps=2).findings if each.severity == "warning"]
    assert finding.is_told and "the action mask is not read" in finding.text
