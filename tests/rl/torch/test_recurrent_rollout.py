"""A rollout worker whose policy has a core, against a loop over one environment at a time that begins anew with each
episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rlplat.algorithms.ppo import PPOConfig  # noqa: E402
from rlplat.rl.interfaces import Array, Step  # noqa: E402
from rlplat.rl.obs_tree import map_obs, take_obs  # noqa: E402
from rlplat.rl.policies.spec import PolicySpec, policy_spec  # noqa: E402
from rlplat.rl.sampling import rollout_worker as rollout_worker_module  # noqa: E402
from rlplat.rl.sampling.rollout_worker import RolloutWorker  # noqa: E402
from rlplat.rl.sampling.sample_batch import SampleBatch, episode_starts  # noqa: E402
from rlplat.rl.torch.networks import ActorCritic, make_network  # noqa: E402
from rlplat.rl.torch.weights import weights_of  # noqa: E402
from tests.rl.specimens import RandomEnv, make_spec, policy_settings  # noqa: E402

T, B = 9, 4


class Diary(RandomEnv):
    """Keeps what it showed and what came of it, step by step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.steps: list[tuple[Any, Array, Step]] = []

    def step(self, actions: Array) -> Step:
        before = map_obs(np.array, self._obs)
        taken = super().step(actions)
        self.steps.append((before, actions, taken))
        return taken


def make_worker(
    monkeypatch: pytest.MonkeyPatch, spec: PolicySpec, *, next_step: bool
) -> tuple[RolloutWorker, ActorCritic, Diary]:
    env = Diary(spec, B, next_step=next_step)
    monkeypatch.setattr(rollout_worker_module, "make_vector_env", lambda *_, **__: env)
    config = {
        "env": "made up",
        "env_kwargs": {},
        "vectorization": "auto",
        "seed": 0,
        "framework": "torch",
        "deterministic": False,
        "num_envs_per_worker": B,
        "num_rollout_workers": 1,
        "rollout_length": T,
        "learner": {"precision": "float32", "num_threads": 1},
        "policy": policy_settings(core=spec.core),
    }
    worker = RolloutWorker(config, 0, 0)
    torch.manual_seed(0)
    network = ActorCritic(spec)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    worker.set_weights(1, weights_of(network))
    return worker, network, env


def replay(network: ActorCritic, env: Diary) -> dict[str, Array]:
    """The columns that the diary should have led to, one environment and one step at a time: [num steps, B]."""
    num_steps = len(env.steps)
    columns = {name: np.zeros((num_steps, B), np.float32) for name in ("values", "log_probs", "cut_values")}
    states = np.zeros((num_steps, B, network.state_size), np.float32)
    for b in range(B):
        state = torch.zeros(1, network.state_size)
        for t, (obs, actions, taken) in enumerate(env.steps):
            states[t, b] = state[0]
            row = torch.from_numpy(obs[b : b + 1])
            distribution, value, state = network(row, state)
            columns["values"][t, b] = float(value)
            columns["log_probs"][t, b] = float(distribution.log_prob(torch.from_numpy(actions[b : b + 1])))
            if taken.truncated[b]:
                assert taken.final_obs is not None
                last = torch.from_numpy(np.asarray(take_obs(taken.final_obs, slice(b, b + 1))))
                columns["cut_values"][t, b] = float(network(last, state)[1])
            if taken.terminated[b] or taken.truncated[b] or not taken.valid[b]:
                state = torch.zeros(1, network.state_size)
    return columns | {"states": states}


@pytest.mark.parametrize("next_step", [False, True], ids=["same-step", "next-step"])
@pytest.mark.parametrize("core", ["none", "lstm", "gru", "attention"])
def test_fragments_are_what_the_network_says_episode_by_episode(
    monkeypatch: pytest.MonkeyPatch, core: str, next_step: bool
) -> None:
    worker, network, env = make_worker(monkeypatch, make_spec(core=core), next_step=next_step)
    fragments = [worker.roll_out() for _ in range(3)]
    worker.roll_out()  # the diary knows what follows the third
    with torch.no_grad():
        expected = replay(network, env)
    for number, batch in enumerate(fragments):
        rows = slice(number * T, (number + 1) * T)
        valid = batch.valid
        np.testing.assert_allclose(batch.values[valid], expected["values"][rows][valid], atol=1e-5)
        np.testing.assert_allclose(batch.log_probs[valid], expected["log_probs"][rows][valid], atol=1e-5)
        following = expected["values"][number * T + 1 : (number + 1) * T + 1]
        next_values = np.where(batch.truncated, expected["cut_values"][rows], following)
        bootstraps = valid & ~batch.terminated
        np.testing.assert_allclose(batch.next_values[bootstraps], next_values[bootstraps], atol=1e-5)
        if core != "none":
            np.testing.assert_allclose(batch.core_state, expected["states"][number * T], atol=1e-5)
    ends = np.concatenate([batch.terminated | batch.truncated for batch in fragments])
    assert ends[T - 1].any() or ends[2 * T - 1].any(), "no fragment ended with an episode: choose another seed"
    assert any(batch.truncated.any() for batch in fragments)
    assert all(batch.valid.all() for batch in fragments) == (not next_step)


@pytest.mark.parametrize("core", ["lstm", "gru", "attention"])
def test_the_learners_pass_over_a_fragment_gives_what_acting_gave(monkeypatch: pytest.MonkeyPatch, core: str) -> None:
    worker, network, _ = make_worker(monkeypatch, make_spec(core=core), next_step=True)
    batch: SampleBatch | None = None
    for _ in range(3):
        batch = worker.roll_out()
        starts = torch.from_numpy(episode_starts(batch))
        with torch.no_grad():
            log_probs, _, values = network.evaluate_actions(
                torch.from_numpy(np.asarray(batch.flat_obs())),
                torch.from_numpy(batch.flat("actions")),
                torch.from_numpy(batch.core_state),
                starts,
            )
        np.testing.assert_allclose(log_probs.numpy().reshape(T, B), batch.log_probs, atol=1e-5)
        np.testing.assert_allclose(values.numpy().reshape(T, B), batch.values, atol=1e-5)
    assert batch is not None and batch.core_state.any(), "the last fragment began within an episode"


@pytest.mark.parametrize("episodic_life", [False, True])
def test_memory_is_kept_over_lost_lives_where_these_end_no_episode(episodic_life: bool) -> None:
    pytest.importorskip("ale_py")
    settings = {"env": "Breakout", "rollout_length": 70, "num_envs_per_worker": 1, "num_rollout_workers": 0}
    kwargs = {"episodic_life": episodic_life, "fire_after_lost_life": True}
    policy = {"core": "lstm", "core_size": 4, "encoder": "small_cnn"}
    config = PPOConfig(**settings, env_kwargs=kwargs, policy=policy, learner={"precision": "float32"})
    worker = RolloutWorker(config.model_dump(), 0, 0)
    spec = policy_spec(config.policy.model_dump(), worker._env.spec)
    torch.manual_seed(0)
    network = make_network(spec)
    worker.set_weights(0, weights_of(network))
    states: list[np.ndarray] = []
    act = worker._policy.act

    def spy(obs: Any, **options: Any) -> Any:
        states.append(np.array(worker._policy.core_state))
        options["deterministic"] = True  # the game is lost soon
        return act(obs, **options)

    worker._policy.act = spy  # type: ignore[method-assign]
    batch = worker.roll_out()
    worker.close()
    (fires, *_) = np.flatnonzero(~batch.valid[:, 0])
    assert batch.forced is not None and batch.forced[fires, 0] and bool(batch.terminated[fires - 1, 0]) == episodic_life
    assert states[fires + 1].any()  # after the row in which FIRE was pressed
    assert states[fires].any() != episodic_life
    with torch.no_grad():
        _, values, _ = network(
            torch.from_numpy(np.asarray(batch.flat_obs())),
            torch.from_numpy(batch.core_state),
            torch.from_numpy(episode_starts(batch)),
        )
    np.testing.assert_allclose(values.numpy().reshape(batch.shape), batch.values, atol=1e-4)


def test_without_a_core_there_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, _, _ = make_worker(monkeypatch, make_spec(), next_step=False)
    assert worker.roll_out().core_state.size == 0
