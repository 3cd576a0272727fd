"""Episodes in shares, the evaluator in this process and as an actor, weights pinned, one dead actor."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.cli import main
from rlplat.errors import ActorDied
from rlplat.metrics import read_records
from rlplat.rl.interfaces import CutEpisode, Episode, PolicyOutput, Step
from rlplat.rl.run import evaluation
from rlplat.rl.run.evaluation import (
    Evaluation,
    Evaluator,
    evaluation_metrics,
    play_episodes,
    raw_env_kwargs,
    what_was_cut,
)
from rlplat.rl.seeding import Purpose
from rlplat.rl.spaces import SpaceSpec


class CyclingEnv:
    """Environment b's episodes last b + 1 steps and give reward b + 1 each; NEXT_STEP autoreset, with its idle rows."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.lengths = np.arange(1, num_envs + 1)
        self.age = np.zeros(num_envs, np.int64)
        self.popped = 0
        self.ended_metrics: list[dict[str, float]] = [{} for _ in range(num_envs)]

    def reset(self, seed: int) -> np.ndarray:
        self.age[:] = 0
        return np.zeros((self.num_envs, 1), np.float32)

    def step(self, actions: np.ndarray) -> Step:
        valid = self.age < self.lengths
        self.age = np.where(valid, self.age + 1, 0)
        ended = valid & (self.age == self.lengths)
        rewards = np.where(valid, self.lengths, 0.0).astype(np.float32)  # a row that only resets earns nothing
        obs = np.zeros((self.num_envs, 1), np.float32)
        return Step(obs, rewards, ended, np.zeros_like(ended), valid, obs if ended.any() else None)

    def pop_episodes(self) -> list[Episode]:
        self.popped += 1
        return []


class CountingCore:
    """Remembers how many steps it has acted since its core was reset."""

    def __init__(self) -> None:
        self.memory: Any = None
        self.seen: list[list[int]] = []

    def act(self, obs: np.ndarray, *, deterministic: bool = False) -> PolicyOutput:
        assert deterministic
        if self.memory is None:
            self.memory = np.zeros(len(obs), np.int64)
        self.seen.append(self.memory.tolist())
        self.memory = self.memory + 1
        zeros = np.zeros(len(obs), np.float32)
        return PolicyOutput(zeros.astype(np.int64), zeros, zeros)

    def reset_core(self, ended: np.ndarray) -> None:
        self.memory = np.where(ended, 0, self.memory)


def play(env: Any, episodes: int, **options: Any) -> list[Episode]:
    return play_episodes(CountingCore(), env, episodes, seed=0, **options)  # type: ignore[arg-type]


def test_every_environment_plays_its_share_however_long_its_episodes_are() -> None:
    # 3 + 2 + 2: the first to finish would have been environment 0 nearly always.
    assert play(CyclingEnv(3), 7) == [Episode(1.0, 1)] * 3 + [Episode(4.0, 2)] * 2 + [Episode(9.0, 3)] * 2


def test_fewer_episodes_than_environments() -> None:
    assert play(CyclingEnv(3), 2) == [Episode(1.0, 1), Episode(4.0, 2)]


def test_a_core_forgets_where_an_episode_ends_and_in_the_step_that_only_resets() -> None:
    policy = CountingCore()
    play_episodes(policy, CyclingEnv(2), 4, seed=0)  # type: ignore[arg-type]
    # Lengths 1 and 2; each episode is followed by one idle step, whose memory the next one does not inherit.
    assert [seen[0] for seen in policy.seen] == [0, 0, 0, 0, 0]
    assert [seen[1] for seen in policy.seen] == [0, 1, 0, 0, 1]


def test_a_limit_of_steps_leaves_out_what_has_not_ended_and_each_end_is_told() -> None:
    told: list[Episode] = []
    assert play(CyclingEnv(3), 3, max_steps=2, on_episode=told.append) == [Episode(1.0, 1), Episode(4.0, 2)]
    assert told == [Episode(1.0, 1), Episode(4.0, 2)]


def test_an_episode_without_an_end_is_cut_off_and_the_rest_of_its_share_left_out() -> None:
    env = CyclingEnv(3)
    env.lengths[0] = 1_000_000
    played = play(env, 7, max_episode_steps=50)
    assert [each[:2] for each in played] == [(50 * 1_000_000.0, 50), (4.0, 2), (4.0, 2), (9.0, 3), (9.0, 3)]
    assert [type(episode) for episode in played] == [CutEpisode, *[Episode] * 4]
    figures = evaluation_metrics(played)
    assert figures["eval/return_mean"] == 6.5 and figures["eval/length_mean"] == 2.5
    assert (figures["eval/episodes"], figures["eval/cut_episodes"]) == (4, 1)
    assert what_was_cut(played, 7, 50) == (
        "1 of 7 episodes had not ended after 50 steps and were cut off (evaluation.max_episode_steps); 2 more, which "
        "their environments had still to play, were left out: they are not in the mean"
    )
    assert evaluation_metrics(played[:1]) == {"eval/episodes": 0, "eval/cut_episodes": 1}
    assert what_was_cut(played[1:], 4, 50) == ""


def test_who_waits_is_told_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "TELL_PERIOD_S", 0.0)
    told: list[tuple[int, int]] = []
    play(CyclingEnv(2), 2, tell=lambda num_ended, longest: told.append((num_ended, longest)))
    assert told == [(0, 0), (1, 1)]


def test_training_ends_where_no_episode_of_its_evaluation_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "train",
        "--algo",
        "ppo",
        "--env",
        "tests.rl.unruly_envs:UnrulyEnv",
        "--env-kwargs.length",
        "0",
    ]
    command += ["--num-rollout-workers", "0", "--stop.env-steps", "500"]
    limit = ["--evaluation.max-episode-steps", "40"]
    assert main([*command, *limit, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "8 of 20 episodes had not ended after 40 steps and were cut off" in said.err
    assert "evaluation" not in said.out.splitlines()[0]
    assert read_records(tmp_path / "run/metrics.jsonl")[-1]["eval/cut_episodes"] == 8
    assert main(["evaluate", str(tmp_path / "run")]) == 1
    assert "no episode ended" in capsys.readouterr().out
    assert main([*command, "--evaluation.episodes", "0", "--out", str(tmp_path / "other")]) == 0
    assert "eval/episodes" not in read_records(tmp_path / "other/metrics.jsonl")[-1]


def test_evaluation_metrics() -> None:
    assert evaluation_metrics([Episode(1.0, 10), Episode(3.0, 30)]) == {
        "eval/return_mean": 2.0,
        "eval/return_std": 1.0,
        "eval/return_min": 1.0,
        "eval/return_max": 3.0,
        "eval/length_mean": 20.0,
        "eval/episodes": 2,
    }
    assert evaluation_metrics([]) == {}


def test_evaluation_is_of_whole_games_with_raw_rewards() -> None:
    kwargs = {"episodic_life": True, "reward_clipping": True, "frameskip": 2}
    assert raw_env_kwargs({"env": "Pong", "env_kwargs": kwargs}) == {"frameskip": 2}
    assert raw_env_kwargs({"env": "./mine.py:Env", "env_kwargs": kwargs}) == kwargs


SETTINGS: dict[str, Any] = {
    "env": "tests.rl.fixture_envs:SeededEnv",
    "env_kwargs": {},
    "vectorization": "auto",
    "seed": 3,
    "num_rollout_workers": 0,
    "num_envs_per_worker": 1,
    "evaluation": {"num_envs": 2, "deterministic": True, "max_episode_steps": 30_000},
}


class WeightPolicy:
    """Its action is its weight, so that the returns of SeededEnv are 5 steps times that weight."""

    core_state = np.zeros((0, 0), np.float32)

    def set_weights(self, weights: dict[str, np.ndarray]) -> None:
        self.action = float(weights["action"][0])
        flag = Path(os.environ.get("RLPLAT_TEST_DIE_ONCE", "/nowhere"))
        if flag.exists():
            flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def act(self, obs: np.ndarray, *, deterministic: bool = False) -> PolicyOutput:
        actions = np.tile(np.array([self.action, 0.0], np.float32), (len(obs), 1))
        return PolicyOutput(actions, np.zeros(len(obs), np.float32), np.zeros(len(obs), np.float32))

    def reset_core(self, ended: np.ndarray) -> None:
        pass


def make_weight_policy(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Any:
    assert spaces.action.kind == "box"
    return WeightPolicy()


def pinned(version: int, action: float) -> tuple[int, dict[str, np.ndarray]]:
    return version, {"action": np.array([action], np.float32)}


def test_an_evaluator_plays_in_this_process_and_closes_its_environments() -> None:
    with Evaluator(SETTINGS, make_weight_policy) as evaluator:
        evaluated = evaluator.run(pinned(7, 0.5), 3)
        assert evaluator.run(pinned(7, 0.5), 3) == evaluated  # same seeds every time
    assert evaluated.weights_version == 7 and evaluated.no_video == ""
    assert evaluated.episodes == [Episode(2.5, 5)] * 3


def test_each_purpose_has_episodes_of_its_own() -> None:
    """The same at every call, and others than those by which the best weights are chosen."""
    purposes: list[Purpose] = ["choice", "final", "report"]
    played = []
    for _ in range(2):
        with Evaluator(SETTINGS | {"env": "CartPole-v1"}, lambda *_: Steady()) as evaluator:  # type: ignore[arg-type, return-value]
            played.append([evaluator.run(pinned(0, 0.0), 20, purpose=each).episodes for each in purposes])
    choice, final, report = played[0]
    assert played[1] == played[0] and choice != final != report != choice


class Steady(WeightPolicy):
    """Always the first action."""

    def act(self, obs: np.ndarray, *, deterministic: bool = False) -> PolicyOutput:
        numbers = np.zeros(len(obs), np.float32)
        return PolicyOutput(numbers.astype(np.int64), numbers, numbers)


@pytest.mark.process
@pytest.mark.parametrize(
    ("vectorization", "taken"),
    [("sync", "sync"), ("async", "async"), ("auto", "native"), ("envpool", "native")],
)
def test_environments_are_stepped_as_in_training(vectorization: str, taken: str) -> None:
    settings = {**SETTINGS, "env": "CartPole-v1", "vectorization": vectorization}

    with Evaluator(settings, lambda *_: Steady()) as evaluator:  # type: ignore[arg-type, return-value]
        evaluator.run(pinned(0, 0.0), 2)
        facts = [env.facts()["vectorization"] for env in evaluator._envs.values()]
    assert facts == [taken]


def test_the_weights_are_those_of_the_ref_and_starting_does_not_wait(backend: str) -> None:
    evaluation = Evaluation(SETTINGS, make_weight_policy)
    outcomes = [evaluation.start(rlplat.put(pinned(version, version / 8)), 2) for version in (1, 2)]
    assert [rlplat.get(outcome)[:2] for outcome in outcomes] == [
        (1, [Episode(0.625, 5)] * 2),
        (2, [Episode(1.25, 5)] * 2),
    ]
    assert evaluation.run(rlplat.put(pinned(3, 1.0)), 1) == [Episode(5.0, 5)]
    evaluation.close()
    evaluation.close()


def thread_settings(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Any:
    raise AssertionError(f"threads: {os.environ['OMP_NUM_THREADS']}")


@pytest.mark.process
def test_the_actor_keeps_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    rlplat.init(num_cpus=2, num_gpus=0)
    evaluation = Evaluation(SETTINGS, thread_settings)
    with pytest.raises(AssertionError, match="threads: 1"):
        evaluation.run(rlplat.put(pinned(0, 1.0)), 1)
    rlplat.shutdown()
    with Evaluator(SETTINGS, thread_settings) as evaluator, pytest.raises(AssertionError, match="threads: 7"):
        evaluator.run(pinned(0, 1.0), 1)  # in the user's own process nothing is changed


@pytest.mark.process
def test_a_dead_actor_is_replaced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "die"
    flag.touch()
    monkeypatch.setenv("RLPLAT_TEST_DIE_ONCE", str(flag))
    rlplat.init(num_cpus=2, num_gpus=0)
    evaluation = Evaluation(SETTINGS, make_weight_policy)
    assert evaluation.run(rlplat.put(pinned(3, 1.0)), 1) == [Episode(5.0, 5)]
    assert not flag.exists()
    flag.touch()
    with pytest.raises(ActorDied):
        rlplat.get(evaluation.start(rlplat.put(pinned(3, 1.0)), 1))
    rlplat.shutdown()
