"""BC: its loss by hand, that it clones a known controller, resumes where it was, and what it refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import rlplat
from rlplat.algorithms.bc import BC, BCConfig, TorchBC
from rlplat.errors import CheckpointError, ConfigError, UsageError
from rlplat.metrics import read_records
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR
from rlplat.rl.offline.dataset import DataWriter, read_episodes
from rlplat.rl.offline.recording import Track, record
from rlplat.rl.offline.ring import Epochs
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from tests.rl.run.test_trained_agent import trained
from tests.states import assert_resumes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CartPole, balanced by a controller that is known to reach 500: the sign of a weighted sum."""
    path = tmp_path_factory.mktemp("data") / "cartpole"
    with (
        make_vector_env("CartPole-v1", 10) as env,
        DataWriter(path, env="CartPole-v1", spaces=env.spec) as writer,
    ):
        tracks, obs = [Track() for _ in range(10)], np.array(env.reset(1))
        for _ in range(500):
            actions = (obs @ [0.1, 0.3, 2.0, 0.6] > 0).astype(np.int64)
            step = env.step(actions)
            for b, track in enumerate(tracks):
                track.add(obs[b], actions[b], float(step.rewards[b]))
            obs = np.array(step.obs)
        assert step.truncated.all() and step.final_obs is not None
        for b, track in enumerate(tracks):
            writer.add(track.end(step.final_obs[b], is_terminated=False))
        assert writer.close().return_mean == 500.0
    return path


def test_clones_cartpole(balanced: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "data": str(balanced),
        "seed": 1,
        "learning_rate": 1e-3,
        "batch_size": 64,
        "evaluation": {"episodes": 10},
        "stop": {"env_steps": 64_000},
    }
    run = rlplat.train("bc", out=tmp_path / "bc", **settings)
    assert run.config.env == "CartPole-v1", "that of the data"
    assert run.result is not None and run.result.env_steps == 64_000 and run.num_iterations == 10
    assert run.result.metrics["learner/epochs"] == 64_000 / 5_000
    assert run.evaluation["eval/return_mean"] >= 475
    agent = rlplat.load(tmp_path / "bc")
    assert agent.act(np.array([0, 0, 0.2, 1], np.float32)) == 1
    after = rlplat.train(
        "ppo",
        env="CartPole-v1",
        init_from=tmp_path / "bc",
        out=tmp_path / "ppo",
        num_rollout_workers=0,
        stop={"env_steps": 1},
        learning_rate=1e-6,
        evaluation={"episodes": 5},
    )
    assert after.evaluation["eval/return_mean"] >= 475, "another algorithm goes on from a cloned policy"


SPACES = {
    "discrete": ActionSpec("discrete", n=3),
    "box": ActionSpec("box", shape=(2,), dtype="float32", low=(-9.0,) * 2, high=(9.0,) * 2),
}


@pytest.mark.parametrize("kind", SPACES)
def test_a_gradient_step_descends_the_likelihood_of_the_rows(kind: str) -> None:
    """The loss in plain numpy, its gradient by finite differences of that; Adam's first step is its sign."""
    spaces = SpaceSpec(ObsSpec("vector", (3,), "float32"), SPACES[kind])
    config = BCConfig(env="X", data="x", policy={"hidden_sizes": [4], "initial_log_std": 0.3})
    rng, spec = np.random.default_rng(1), policy_spec(config.policy.model_dump(), spaces)
    obs = rng.normal(size=(6, 3)).astype(np.float32)
    actions = rng.integers(3, size=6) if kind == "discrete" else rng.normal(size=(6, 2)).astype(np.float32)
    bc = TorchBC(config, spec, np.random.SeedSequence(1), obs, actions)
    before = copy.deepcopy(bc.trainee.weights())
    rows = np.array([4, 0, 5])

    def by_hand(weights: dict[str, Any]) -> float:
        w = {name: array.astype(np.float64) for name, array in weights.items()}
        hidden = np.tanh(obs[rows] @ w["actor_encoder.layers.0.weight"].T + w["actor_encoder.layers.0.bias"])
        out = hidden @ w["actor_head.weight"].T + w["actor_head.bias"]
        if kind == "discrete":
            log_probs = (out - np.log(np.exp(out).sum(1, keepdims=True)))[np.arange(3), actions[rows]]
        else:
            std = np.exp(w["log_std"])
            densities = np.exp(-(((actions[rows] - out) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
            log_probs = np.log(densities).sum(1)
        return float(-log_probs.mean())

    loss, norm = bc.train(rows, 1e-3)
    assert loss == pytest.approx(by_hand(before), rel=1e-5)
    squares = 0.0
    for name, array in bc.trainee.weights().items():
        gradient = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            if name.startswith("critic"):
                break
            there = []
            for shift in (1e-4, -1e-4):
                moved = {key: np.array(value, np.float64) for key, value in before.items()}
                moved[name][index] += shift
                there.append(by_hand(moved))
            gradient[index] = (there[0] - there[1]) / 2e-4
        squares += float((gradient**2).sum())
        clear = np.abs(gradient) > 1e-4
        np.testing.assert_allclose((before[name] - array)[clear], 1e-3 * np.sign(gradient)[clear], rtol=0.02)
        assert not name.startswith("critic") or np.array_equal(before[name], array)
    assert norm == pytest.approx(np.sqrt(squares), rel=1e-3)


def test_weights_that_were_trained_with_other_statistics_are_refused() -> None:
    """A network sees other numbers where observations are normalised otherwise."""
    mean, var, network = np.ones(2, np.float32), np.full(2, 4, np.float32), np.zeros(3, np.float32)
    state = {"learner": {"weights": {"w": network}, "beside": {OBS_MEAN: mean, OBS_VAR: var}}}
    given = {"w": network + 1, OBS_MEAN: mean, OBS_VAR: var}
    assert BC.with_weights(state, given)["learner"]["weights"]["w"].tolist() == [1, 1, 1]
    with pytest.raises(CheckpointError, match=r"its obs_norm.mean is not .*normalize_observations=false"):
        BC.with_weights(state, given | {OBS_MEAN: mean - 100})
    plain = {"learner": {"weights": {"w": network}, "beside": {}}}
    assert BC.with_weights(plain, {"w": network})["learner"]["beside"] == {}


def test_resumes_bit_by_bit(balanced: Path) -> None:
    config = BCConfig(data=str(balanced), seed=2, batch_size=48, updates_per_round=7, normalize_observations=True)
    assert_resumes(BC, config, before=20, after=2)  # 6,720 steps of 5,000: into the second epoch
    with BC(config) as bc:
        mean = bc.policy_weights(bc.get_state())["obs_norm.mean"]
    np.testing.assert_allclose(mean, read_episodes(balanced).obs[:-1].mean(0), atol=0.01)


@pytest.mark.parametrize("kind", ["box", "tree", "info"])
def test_every_kind_of_spaces_is_cloned(kind: str, tmp_path: Path) -> None:
    teacher = rlplat.load(trained("ppo", kind, tmp_path / "run", policy={"hidden_sizes": [16]}))
    manifest = record(teacher, 3, tmp_path / "data")
    run = rlplat.train(
        "bc",
        data=str(tmp_path / "data"),
        out=tmp_path / "bc",
        updates_per_round=6,
        batch_size=8,
        stop={"env_steps": 144},
        evaluation={"episodes": 2, "num_envs": 1},
    )
    assert run.config.env_kwargs == {"kind": kind} == manifest.env_kwargs
    losses = [row["learner/loss"] for row in read_records(tmp_path / "bc" / "metrics.jsonl")]
    assert losses[2] < losses[0]


def test_rows_of_an_epoch_come_once_wherever_it_is_cut() -> None:
    for num_rows in (1, 2, 7):
        sequence = np.random.SeedSequence(3).spawn(2)[1]
        whole = Epochs(num_rows, sequence).rows(0, 4 * num_rows)
        for epoch in np.split(whole, 4):
            assert sorted(epoch.tolist()) == list(range(num_rows))
        for size in {1, num_rows - 1, num_rows, num_rows + 1, 3 * num_rows} - {0}:
            epochs = Epochs(num_rows, sequence)
            parts = [epochs.rows(place, size) for place in range(0, 3 * num_rows, size)]
            cut = np.concatenate(parts)[: 3 * num_rows]
            np.testing.assert_array_equal(cut, whole[: len(cut)])
            np.testing.assert_array_equal(Epochs(num_rows, sequence).rows(num_rows, size), whole[num_rows:][:size])
    orders = {tuple(Epochs(7, np.random.SeedSequence(3)).rows(7 * epoch, 7).tolist()) for epoch in range(4)}
    assert len(orders) > 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"data": "nowhere"}, "no data set in nowhere .*: rlplat record RUN --out nowhere makes one"),
        (
            {"env": "Acrobot-v1"},
            r"was recorded in CartPole-v1 with Box\(4\).*, but Acrobot-v1 has .*: omit env, or",
        ),
        ({"framework": "tf"}, "bc computes with torch: omit framework=tf"),
        (
            {"policy": {"core": "lstm"}},
            "policy.core=lstm has no effect: recorded steps are learnt from one by one",
        ),
        ({"stop": {"episode_return_mean": 475}}, "no episodes are played to learn: use stop.env_steps"),
    ],
)
def test_bad_input_is_answered(balanced: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=says):
        BC(BCConfig(**{"data": str(balanced)} | settings))


def test_nothing_finite_is_said(balanced: Path) -> None:
    with BC(BCConfig(data=str(balanced), learning_rate=10.0, updates_per_round=1)) as bc:
        state = bc.get_state()
        weights = state["learner"]["weights"]
        weights["actor_head.bias"] = np.full_like(weights["actor_head.bias"], np.inf)
        bc.set_state(state)
        with pytest.raises(rlplat.errors.NonFiniteError, match="Lower learning_rate"):
            bc.step()
