"""`TfPPO` beside `TorchPPO`: equal numbers from equal weights, one graph for all minibatches, states exchanged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parity is with torch")
pytest.importorskip("tensorflow", reason="needs the extra: pip install 'rlplat[tf]'")

import rlplat  # noqa: E402
from rlplat.algorithms.other_frameworks.ppo_tf import STATS, TfPPO, tf_ppo_loss  # noqa: E402
from rlplat.algorithms.ppo import PPO, PPOConfig, PPOLearner, TorchPPO, ppo_loss  # noqa: E402
from rlplat.errors import ConfigError, MissingExtra, NonFiniteError  # noqa: E402
from rlplat.rl.learning.backend import computation_of  # noqa: E402
from rlplat.rl.learning.parameter_server import ParameterServer  # noqa: E402
from rlplat.rl.sampling.rollout import Rollout, Rows  # noqa: E402
from rlplat.rl.sampling.sample_batch import SampleBatch  # noqa: E402
from rlplat.rl.tf import tf  # noqa: E402
from rlplat.rl.tf.tensors import named_variables  # noqa: E402
from tests.algorithms.losses import loss_of  # noqa: E402
from tests.rl.tf.twins import SPECS, perturbed, random_batch  # noqa: E402

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "env": "made up",
    "seed": 1,
    "minibatch_size": 8,
    "num_epochs": 2,
    "learning_rate": 1e-3,
    "entropy_coef": 0.01,
    "learner": {"precision": "float32", "device": "cpu", "num_threads": 1},
    "stop": {"env_steps": 1000},
}
LOSS = {"clip_range": 0.2, "value_coef": 0.5, "entropy_coef": 0.01, "clip_value_loss": False}


@pytest.mark.parametrize("clip_value_loss", [False, True])
def test_the_loss_and_its_gradients_are_torchs(clip_value_loss: bool) -> None:
    rng, size = np.random.default_rng(0), 64
    old, values = rng.normal(-1.0, 0.3, size), rng.normal(size=size)
    columns = {
        "log_probs": old,
        "values": values,
        "advantages": rng.normal(1, 2, size),
        "returns": rng.normal(size=size),
    }
    new = [old + rng.normal(0, 0.3, size), rng.uniform(0.1, 0.7, size), values + rng.normal(0, 0.5, size)]
    switches = LOSS | {"clip_value_loss": clip_value_loss}
    theirs = [torch.tensor(each, dtype=torch.float32, requires_grad=True) for each in new]
    ours = [tf.constant(each, tf.float32) for each in new]
    tensors = {k: torch.tensor(c, dtype=torch.float32) for k, c in columns.items()}
    expected, expected_stats = loss_of(ppo_loss, theirs, tensors, **switches)
    expected.backward()
    with tf.GradientTape() as tape:
        tape.watch(ours)
        minibatch = SimpleNamespace(**{k: tf.constant(c, tf.float32) for k, c in columns.items()})
        loss, stats = tf_ppo_loss(*ours, minibatch, SimpleNamespace(**switches))
    assert float(loss) == pytest.approx(float(expected.detach()), abs=1e-6)
    np.testing.assert_allclose(stats.numpy(), [expected_stats[name] for name in STATS], atol=1e-6)
    for gradient, tensor in zip(tape.gradient(loss, ours), theirs, strict=True):
        np.testing.assert_allclose(gradient.numpy(), tensor.grad.numpy(), atol=1e-7)


def load_round(net: Any, batch: SampleBatch) -> None:
    advantages, returns = np.random.default_rng(9).normal(size=(2, *batch.shape)).astype(np.float32)
    net.load(Rollout(batch, batch.rewards, batch.flat_obs(), advantages, returns))


def minibatches(batch: SampleBatch, count: int) -> list[Rows]:
    rollout = Rollout(batch, batch.rewards, batch.flat_obs())
    size = batch.rewards.size if batch.core_state.size else batch.env_steps
    rows = list(rollout.minibatches(max(1, size // count), np.random.default_rng(3)))
    return [each._replace(mean=0.1, scale=1.3) for each in rows]


@pytest.mark.parametrize("name", ["mlp", "squashed", "composite mask", "nature", "lstm", "attention"])
def test_minibatch_steps_are_torchs(name: str) -> None:
    """Statistics, gradients, gradient norm, and the weights after Adam; from one trace of the graph."""
    spec, config = SPECS[name](), PPOConfig(**SETTINGS)
    theirs, ours = (
        TorchPPO(config, spec, np.random.SeedSequence(1)),
        TfPPO(config, spec, np.random.SeedSequence(2)),
    )
    state = theirs.trainee.get_state()
    theirs.trainee.set_state(state | {"weights": perturbed(state["weights"], np.random.default_rng(0))})
    ours.trainee.set_state(theirs.trainee.get_state())
    batch = random_batch(spec, getattr(ours.network, "state_size", 0), seed=4)
    for net in (theirs, ours):
        load_round(net, batch)
    for step, rows in enumerate(minibatches(batch, 3)):
        indices = rows.rows if rows.envs is None else rows.rows.reshape(-1, len(rows.envs))
        scalars = {key: np.float32(value) for key, value in LOSS.items() if key != "clip_value_loss"}
        scalars |= {"mean": np.float32(rows.mean), "scale": np.float32(rows.scale)}
        if step == 0:
            gradients = dict(
                zip(
                    named_variables(ours.network),
                    ours.gradients(ours._round, indices, scalars)[1],
                    strict=True,
                )
            )
        [expected], [found] = (net.read([net.train(rows, config)]) for net in (theirs, ours))
        expected_norm = expected.pop("gradient_norm")
        assert found.pop("gradient_norm") == pytest.approx(expected_norm, rel=1e-4)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
        if step == 0:
            scale = max(1.0, expected_norm / config.max_gradient_norm)  # torch's Adam has scaled them in place
            for key, parameter in theirs.network.named_parameters():
                unscaled = parameter.grad.numpy() * scale
                np.testing.assert_allclose(gradients[key].numpy(), unscaled, rtol=1e-4, atol=1e-5, err_msg=key)
    for key, weight in theirs.trainee.weights().items():
        np.testing.assert_allclose(ours.trainee.weights()[key], weight, rtol=1e-5, atol=1e-5, err_msg=key)
    assert ours._step.experimental_get_tracing_count() == 1


def test_no_minibatch_size_and_no_schedule_traces_the_graph_again() -> None:
    spec = SPECS["mlp"]()
    net = TfPPO(PPOConfig(**SETTINGS), spec, np.random.SeedSequence(1))
    for num_envs in (4, 9):
        batch = random_batch(spec, 0, seed=0, num_envs=num_envs)
        load_round(net, batch)
        for size, clip_range in ((1, 0.2), (5, 0.1), (20, 0.0)):
            config = PPOConfig(**SETTINGS | {"clip_range": clip_range, "learning_rate": 1e-3 * clip_range})
            net.train(Rows(batch.valid_rows()[:size]), config)
    assert net._step.experimental_get_tracing_count() == 1


@pytest.fixture
def parameter_server() -> Iterator[Any]:
    rlplat.init(backend="inproc")
    yield rlplat.remote(ParameterServer).remote()
    rlplat.shutdown()


def make_learner(parameter_server: Any, framework: str, spec: Any, **settings: Any) -> PPOLearner:
    config = PPOConfig(**(SETTINGS | {"framework": framework} | settings))
    return PPOLearner(computation_of(PPO), config.model_dump(), spec, parameter_server)


@pytest.mark.parametrize("first, second, name", [("torch", "tf", "mlp"), ("tf", "torch", "lstm")])
def test_a_checkpoint_of_one_framework_goes_on_under_the_other(
    parameter_server: Any, first: str, second: str, name: str
) -> None:
    spec, size = SPECS[name](), 16 if name == "lstm" else 0
    one = make_learner(parameter_server, first, spec)
    one.update(random_batch(spec, size, seed=0))
    state = one.get_state()
    other = make_learner(rlplat.remote(ParameterServer).remote(), second, spec, seed=5)
    other.set_state(state)
    for name, weight in other.get_state()["weights"].items():
        np.testing.assert_array_equal(weight, state["weights"][name])
    reports = [learner.update(random_batch(spec, size, seed=1)) for learner in (one, other)]
    for stat in (*STATS, "gradient_norm"):
        expected = reports[0].metrics[f"learner/{stat}"]
        assert reports[1].metrics[f"learner/{stat}"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for name, weight in one.get_state()["weights"].items():
        np.testing.assert_allclose(other.get_state()["weights"][name], weight, atol=2e-5)


def test_a_restored_learner_goes_on_bit_by_bit(parameter_server: Any) -> None:
    spec = SPECS["mlp"]()
    one = make_learner(parameter_server, "tf", spec)
    one.update(random_batch(spec, 0, seed=0))
    other = make_learner(rlplat.remote(ParameterServer).remote(), "tf", spec, seed=5)
    other.set_state(one.get_state())
    for learner in (one, other):
        learner.update(random_batch(spec, 0, seed=1))
    first, second = one.get_state(), other.get_state()
    for name in first["weights"]:
        np.testing.assert_array_equal(first["weights"][name], second["weights"][name])


def test_a_minibatch_that_is_not_finite_changes_nothing_and_is_named(parameter_server: Any) -> None:
    spec = SPECS["mlp"]()
    learner = make_learner(parameter_server, "tf", spec, num_epochs=1, minibatch_size=1000)
    batch = random_batch(spec, 0, seed=0)
    batch.obs[0, 0] = np.nan  # type: ignore[index]
    before = learner.get_state()
    with pytest.raises(NonFiniteError, match=r"batch columns \['obs'\] at 0 env steps"):
        learner.update(batch)
    after = learner.get_state()
    for part in ("weights", "optimizer"):
        for name, kept in before[part].items():
            np.testing.assert_equal(after[part][name], kept)
    assert "actor_encoder.layers.0.weight" in learner.net.trainee.non_finite_gradients()


def test_several_learners_are_refused() -> None:
    config = PPOConfig(**(SETTINGS | {"learner": {"num_learners": 2}}))
    with pytest.raises(ConfigError, match=r"num_learners=2 needs framework=torch.*set it to 1"):
        TfPPO(config, SPECS["mlp"](), np.random.SeedSequence(1))


@pytest.mark.process
def test_a_process_of_its_own_says_nothing_repeats_itself_and_has_no_torch() -> None:
    """What only a fresh process shows: no log lines, `deterministic: true`, and no other framework."""
    code = (
        "import sys, hashlib, numpy as np\n"
        "from rlplat.algorithms.ppo import PPO, PPOConfig\n"
        "from rlplat.rl.learning.backend import computation_of\n"
        "from rlplat.rl.policies.make import make_policy\n"
        "from rlplat.rl.sampling.rollout import Rollout, Rows\n"
        "from tests.rl.tf.twins import SPECS, random_batch\n"
        "spec = SPECS['nature']()\n"
        "config = PPOConfig(env='x', framework='tf', deterministic=True, learner={'device': 'cpu'})\n"
        "def run():\n"
        "    net = computation_of(PPO).net('tf', config, spec, np.random.SeedSequence(1))\n"
        "    batch = random_batch(spec, 0, seed=0, num_envs=8)\n"
        "    net.load(Rollout(batch, batch.rewards, batch.flat_obs(), batch.rewards, batch.rewards))\n"
        "    for _ in range(3):\n"
        "        net.train(Rows(batch.valid_rows()), config)\n"
        "    policy = make_policy(spec, np.random.SeedSequence(2), framework='tf')\n"
        "    policy.set_weights(net.trainee.weights())\n"
        "    acted = policy.act(batch.obs[0]).actions\n"
        "    arrays = [*net.trainee.weights().values(), acted]\n"
        "    return hashlib.sha256(b''.join(array.tobytes() for array in arrays)).hexdigest()\n"
        "first, second = run(), run()\n"
        "assert first == second\n"
        "print('torch' in sys.modules, 'tensorflow' in sys.modules)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    # (Of an older CPU TensorFlow says at times what it lacks.)
    said = [line for line in done.stderr.splitlines() if "oneDNN supports DT_UINT8 only on" not in line]
    assert (done.returncode, said, done.stdout) == (0, [], "False True\n")


@pytest.mark.process
def test_without_tensorflow_one_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from rlplat.errors import MissingExtra\n"
        "try:\n    import rlplat.rl.tf.policy\nexcept MissingExtra as error:\n    print(error)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout == f"{MissingExtra('tensorflow', 'tf', 'framework=tf')}\n", done.stderr
