"""Data sets that Minari wrote, copied by `rlplat record minari:ID`: every row, the environment, what cannot be read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlplat.algorithms.bc import BCConfig
from rlplat.cli import main
from rlplat.errors import MissingExtra, UsageError
from rlplat.rl.envs.gym_spaces import action_converter, space_spec
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.offline.dataset import read_episodes, read_manifest
from rlplat.rl.offline.minari import copy_minari, environment_of
from rlplat.rl.offline.ring import preflight

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning:minari"),  # it asks for an author, a link to code, ...
]
minari = pytest.importorskip("minari")
EpisodeBuffer: Any = pytest.importorskip("minari.data_collector").EpisodeBuffer

BOX, TWO = spaces.Box(-1.0, 1.0, (2,), np.float64), spaces.Discrete(2)
GOAL = spaces.Dict(
    {
        "observation": BOX,
        "achieved_goal": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "rest": spaces.Tuple((spaces.Discrete(4, start=-1), spaces.MultiBinary(3))),
    }
)
ARM = spaces.Dict(
    {"arm": spaces.Box(-2.0, 2.0, (1, 2), np.float32), "gear": spaces.MultiDiscrete([2, 3], start=[5, -1])}
)
IMAGE = spaces.Box(0, 255, (40, 32, 3), np.uint8)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


def samples(space: Any, count: int) -> Any:
    """`count` values of a space in its structure of arrays, as Minari's buffers hold them."""
    if isinstance(space, spaces.Dict):
        return {key: samples(part, count) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(samples(part, count) for part in space.spaces)
    return np.stack([space.sample() for _ in range(count)])


def buffer(length: int, obs: Any = BOX, action: Any = TWO, **columns: Any) -> Any:
    ends = [*[False] * (length - 1), True]
    filled = {
        "observations": samples(obs, length + 1),
        "actions": samples(action, length),
        "rewards": np.arange(length) / 2,
        "terminations": ends,
        "truncations": [False] * length,
    }
    return EpisodeBuffer(**filled | columns)


def write(name: str, episodes: list[Any], obs: Any = BOX, action: Any = TWO, **more: Any) -> None:
    minari.create_dataset_from_buffers(
        name, episodes, observation_space=obs, action_space=action, jpeg_encoding=False, **more
    )


def leaf(tree: Any, path: str) -> Any:
    for key in path.split("/") if path else ():
        tree = tree[int(key) if isinstance(tree, tuple) else key]
    return tree


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
@pytest.mark.parametrize(
    ("obs", "action"),
    [(BOX, spaces.Discrete(3, start=2)), (GOAL, ARM), (IMAGE, spaces.MultiBinary(2))],
    ids=["box", "goal", "image"],
)
def test_every_row_is_copied_whatever_the_spaces(data_format: str, obs: Any, action: Any) -> None:
    """Episodes of 1, 4 and 2 steps: terminated, cut off, and ended by neither, which is cut off as well."""
    neither = {"terminations": [False] * 2, "truncations": [False] * 2}
    cut = {"terminations": [False] * 4, "truncations": [False] * 3 + [True]}
    written = [buffer(1, obs, action), buffer(4, obs, action, **cut), buffer(2, obs, action, **neither)]
    write("own/all-v0", written, obs, action, data_format=data_format)
    manifest = copy_minari("own/all-v0", "data")
    copied = read_episodes("data")
    assert manifest.spec == space_spec(obs, action) and manifest.source["clipped_actions"] == 0
    assert copied.lengths.tolist() == [1, 4, 2] and copied.terminated.tolist() == [True, False, False]
    assert copied.rewards.tolist() == [0, 0, 0.5, 1, 1.5, 0, 0.5]
    leaves = copied.obs if isinstance(copied.obs, dict) else {"": copied.obs}
    for path, rows in leaves.items():
        start = 1 if path == "rest/0" else 0
        expected = np.concatenate([leaf(one.observations, path) for one in written]) + start
        np.testing.assert_array_equal(rows, expected)
    taken = action_converter(action)(copied.actions)
    for path in action.spaces if isinstance(action, spaces.Dict) else [""]:
        expected = np.concatenate([leaf(one.actions, path) for one in written])
        np.testing.assert_array_equal(leaf(taken, path), expected)


def test_a_part_of_it_is_copied_and_actions_are_clipped() -> None:
    """The first of two episodes; of three actions one is beyond its bounds by more than the rounding of float64."""
    actions = np.array([[0.5, 1.0 + 1e-9], [-1.5, 0.0], [1.0, -1.0]])
    write("a-v1", [buffer(3, BOX, BOX, actions=actions), buffer(2, BOX, BOX)], BOX, BOX)
    manifest = copy_minari("a-v1", "data", episodes=1)
    assert (manifest.episodes, manifest.env_steps, manifest.source["clipped_actions"]) == (1, 3, 1)
    assert read_episodes("data").actions.tolist() == [[0.5, 1.0], [-1.0, 0.0], [1.0, -1.0]]
    with pytest.raises(UsageError, match="minari:a-v1 has 2 episodes, not 3"):
        copy_minari("a-v1", "other", episodes=3)


def test_the_environment_is_the_one_for_evaluation_with_its_limit_and_wrappers() -> None:
    env = gymnasium.make("Pendulum-v1", g=9.0, render_mode="rgb_array", max_episode_steps=7)
    wrapped = gymnasium.wrappers.FrameStackObservation(env, stack_size=2)
    wrapped = gymnasium.wrappers.FlattenObservation(wrapped)
    episodes = [buffer(3, wrapped.observation_space, wrapped.action_space)]
    minari.create_dataset_from_buffers("p-v0", episodes, env=wrapped)
    manifest = copy_minari("p-v0", "data")
    stack, flatten = manifest.env_kwargs.pop("wrappers")
    assert stack["gymnasium.wrappers.stateful_observation:FrameStackObservation"]["stack_size"] == 2
    assert flatten == "gymnasium.wrappers.transform_observation:FlattenObservation"
    assert (manifest.env, manifest.env_kwargs) == ("Pendulum-v1", {"g": 9.0, "max_episode_steps": 7})
    with make_vector_env(manifest.env, 1, env_kwargs=read_manifest("data").env_kwargs) as made:
        assert made.spec == manifest.spec
    minari.create_dataset_from_buffers("p-v1", episodes, env=wrapped, eval_env="MountainCarContinuous-v0")
    assert copy_minari("p-v1", "other").env == "MountainCarContinuous-v0"
    for entry_point, name in (
        ("gymnasium_robotics.envs.pen:Pen", "gymnasium_robotics:Pen-v1"),
        ("ale_py:A", ""),
    ):
        spec = {"id": "Pen-v1", "entry_point": entry_point, "kwargs": {}, "max_episode_steps": None}
        assert environment_of({"env_spec": json.dumps(spec)}) == (name, {})


def test_the_command_copies_and_bc_learns(capsys: Any) -> None:
    pytest.importorskip("torch")
    cartpole = gymnasium.spec("CartPole-v1").make()
    obs = spaces.Box(-1, 1, (4,), np.float32)
    ours = [buffer(5, obs) for _ in range(3)]
    minari.create_dataset_from_buffers("cartpole/few-v0", ours, env=cartpole)
    write("cartpole/unnamed-v0", ours, obs, TWO)
    assert main(["record", "minari:cartpole/few-v0", "--out", "few"]) == 0
    assert "few: 3 episodes of CartPole-v1, 15 env steps, return 5 ± 0" in capsys.readouterr().out
    assert main(["record", "minari:cartpole/unnamed-v0", "--out", "unnamed", "--episodes", "2"]) == 0
    said = capsys.readouterr()
    assert "unnamed: 2 episodes of an unnamed environment" in said.out and "with --env NAME" in said.err
    learn = [
        "train",
        "--algo",
        "bc",
        "--stop.env-steps",
        "64",
        "--batch-size",
        "64",
        "--updates-per-round",
        "1",
    ]
    learn += ["--evaluation.episodes", "1", "--evaluation.max-episode-steps", "5"]
    assert main([*learn, "--data", "few", "--out", "run"]) == 0
    preflight(BCConfig(data="unnamed", env="CartPole-v1"), "bc")
    capsys.readouterr()
    for arguments, answer in (
        ([*learn, "--data", "unnamed"], "data=unnamed names no environment: set env (--env NAME)"),
        (
            [*learn, "--data", "unnamed", "--env", "Acrobot-v1"],
            "name an environment that has the spaces of the data",
        ),
        (
            [*learn, "--data", "minari:a-v0"],
            "rlplat record minari:a-v0 --out data/NAME, then --data data/NAME",
        ),
        (
            ["record", "minari:a-v0", "--out", "x", "--sampled"],
            "minari:a-v0 is copied as it is: omit --sampled",
        ),
        (
            ["record", "minari:cartpole/few", "--out", "x"],
            "'cartpole/few' is not the name of a Minari data set",
        ),
    ):
        assert main(arguments) == 2
        assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"observations": np.zeros((3, 2))},
            r"episode 1 of 3 steps: .* \(3, 2\) float64, .* \(4, 2\) .*, and its last",
        ),
        ({"terminations": [True, False, False]}, "episode 1 of 3 steps: it ends with step 1 and goes on"),
        ({"truncations": [False, True, False]}, "it ends with step 2 and goes on; write what follows"),
        ({"terminations": [False]}, r"episode 1 of 3 steps: terminations are \[1\], not one for each step"),
        ({"truncations": [False] * 4}, r"truncations are \[4\], not one for each step"),
        ({"rewards": np.array([0, np.nan, 0])}, "episode 1 of 3 steps: .* rewards: NaN or infinity in row 1"),
        ({"actions": np.array([0, 1])}, r"actions: int64\[2\], not int64\[3\]"),
        ({"actions": np.array([0, 1, 2])}, r"actions: row 2 is \[2.*\], which is not in Discrete\(2\)"),
        ({"actions": np.array([0, 1, 0.5])}, r"actions are not whole numbers, as Discrete\(2\) has them"),
        ({"observations": np.full((4, 2), np.inf)}, "observations: NaN or infinity in row 0"),
    ],
)
def test_an_episode_that_is_none_is_named(columns: dict[str, Any], says: str, tmp_path: Path) -> None:
    write("bad-v0", [buffer(2), buffer(3, **columns)])
    with pytest.raises(UsageError, match=says) as caught:
        copy_minari("bad-v0", "data")
    assert "minari:bad-v0" in str(caught.value) and [path.name for path in tmp_path.iterdir()] == ["store"]


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: os.truncate(data / "main_data.hdf5", 1000), "truncated file"),
        (lambda data: (data / "main_data.hdf5").unlink(), "No data found"),
        (lambda data: (data / "metadata.json").write_text("{"), "Expecting property name"),
        (lambda data: edit(data / "metadata.json", minari_version="9.0"), "does not support the dataset"),
        (lambda data: edit(data / "metadata.json", total_episodes=4), "episode_3"),
        (lambda data: edit(data / "metadata.json", total_steps=7), "counts 7 steps, its episodes have 6"),
    ],
)
def test_damage_is_answered_with_the_command(damage: Callable[[Path], object], says: str, store: Path) -> None:
    write("damaged-v0", [buffer(1), buffer(2), buffer(3)])
    damage(store / "damaged-v0" / "data")
    with pytest.raises(UsageError, match=says) as caught:
        copy_minari("damaged-v0", "data")
    assert "minari:damaged-v0 cannot be read" in str(caught.value)
    assert "minari download --force damaged-v0" in str(caught.value)
    assert not Path("data").exists()


def test_what_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    write("text-v0", [buffer(1, observations=["a", "b"])], spaces.Text(3))
    with pytest.raises(UsageError, match=r"minari:text-v0 cannot be learnt from: observation space Text"):
        copy_minari("text-v0", "data")

    def unreachable(name: str) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(minari, "download_dataset", unreachable)
    says = r"minari:D4RL/pen/human-v2 is not in the local store .*ConnectionError: no route to host.* minari download"
    with pytest.raises(UsageError, match=says):
        copy_minari("D4RL/pen/human-v2", "data")
    monkeypatch.setattr(minari, "download_dataset", lambda name: write(name, [buffer(2)]))
    assert copy_minari("D4RL/pen/human-v2", "data").env_steps == 2, "downloaded, then read"
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(MissingExtra, match="minari:a-v0 needs minari: "):
        copy_minari("a-v0", "data")
