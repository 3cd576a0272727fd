"""What is written is what runs: the losses of a copied file and of a subclass are those that train, in every process,
and what computes something else (numpy, TensorFlow) is not taken in their place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

pytest.importorskip("torch")

import rlplat
from rlplat.algorithms import (
    a3c,
    alphazero,
    apex,
    bc,
    cql,
    crossq,
    discrete_sac,
    dqn,
    es,
    impala,
    iql,
    mbpo,
    ppo,
    pqn,
    r2d2,
    sac,
    td3,
    td3_bc,
    tqc,
)
from rlplat.algorithms.other_frameworks import WRITTEN_FOR
from rlplat.errors import ConfigError, UsageError
from rlplat.rl.class_path import load_class
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.learning.backend import computation_of, fingerprint
from rlplat.rl.offline.dataset import DataWriter
from rlplat.rl.offline.recording import Track
from rlplat.rl.sampling.rollout_worker import RolloutWorker

ROOT = Path(__file__).resolve().parents[2] / "algorithms"
SMALL: dict[str, Any] = {
    "seed": 1,
    "num_rollout_workers": 0,
    "policy": {"hidden_sizes": [8]},
    "evaluation": {"episodes": 0},
    "stop": {"env_steps": 100},
}
DISCRETE = SMALL | {"env": "CartPole-v1", "num_envs_per_worker": 2, "rollout_length": 8}
REPLAY = DISCRETE | {
    "learning_starts": 8,
    "batch_size": 4,
    "env_steps_per_update": 4,
    "replay_capacity": 1000,
}
BOUNDED = REPLAY | {"env": "Pendulum-v1"}
OFFLINE = SMALL | {"updates_per_round": 1, "batch_size": 4}
MODEL = {"hidden_sizes": [8], "ensemble_size": 2, "num_elites": 1, "max_epochs": 1}
GAMES = SMALL | {
    "env": "TicTacToe",
    "env_kwargs": {"opponent_depth": 1},
    "num_simulations": 2,
    "num_envs_per_worker": 4,
    "learning_starts": 4,
    "env_steps_per_update": 8,
    "batch_size": 4,
}
WITH_CORE = {"policy": {"hidden_sizes": [8], "core": "gru", "core_size": 4}}
SEVERAL = {"env": "rlplat.rl.envs.diagnostic_multi_agent:Rendezvous"}

FILES: dict[str, tuple[Any, str, dict[str, str], dict[str, Any]]] = {
    "ppo": (ppo, "PPO", {"ppo_loss": "loss"}, DISCRETE),
    "ppo with a core": (ppo, "PPO", {"ppo_loss": "loss"}, DISCRETE | WITH_CORE),
    "ppo, several agents": (ppo, "PPO", {"ppo_loss": "loss"}, DISCRETE | SEVERAL),
    "a3c": (a3c, "A3C", {"a3c_loss": "loss"}, DISCRETE),
    "pqn": (pqn, "PQN", {"pqn_loss": "loss"}, DISCRETE),
    "dqn": (dqn, "DQN", {"td_losses": "loss"}, REPLAY),
    "dqn, c51": (dqn, "DQN", {"c51_projection": ""}, REPLAY | {"distributional": "c51"}),
    "dqn, qr": (dqn, "DQN", {"quantile_huber_losses": ""}, REPLAY | {"distributional": "qr"}),
    "r2d2": (r2d2, "R2D2", {"": "loss"}, REPLAY | WITH_CORE | {"burn_in": 1, "unroll_length": 2}),
    "dqn, several agents": (dqn, "DQN", {"td_losses": "loss"}, REPLAY | SEVERAL),
    "apex": (apex, "Apex", {"": "loss"}, REPLAY),
    "impala": (impala, "Impala", {"impala_loss": "loss"}, DISCRETE),
    "sac": (
        sac,
        "SAC",
        {"soft_targets": "soft_targets", "critic_loss": "critic_loss", "actor_loss": "actor_loss"},
        BOUNDED,
    ),
    "discrete sac": (
        discrete_sac,
        "DiscreteSAC",
        {each: each for each in ("soft_targets", "critic_loss", "actor_loss")},
        REPLAY,
    ),
    "td3": (
        td3,
        "TD3",
        {each: each for each in ("smoothed_actions", "clipped_targets", "critic_loss", "actor_loss")},
        BOUNDED | {"policy_delay": 1},
    ),
    "tqc": (
        tqc,
        "TQC",
        {"truncated_targets": "soft_targets", "quantile_loss": "critic_loss", "actor_loss": "actor_loss"},
        BOUNDED,
    ),
    "crossq": (
        crossq,
        "CrossQ",
        {"joint_values": "", "": "actor_loss"},
        BOUNDED | {"policy": {"hidden_sizes": [8], "critic_hidden_sizes": [8]}, "policy_delay": 1},
    ),
    "mbpo": (mbpo, "MBPO", {"": "actor_loss"}, BOUNDED | {"model": MODEL, "env_steps_per_update": 4}),
    "cql": (cql, "CQL", {"log_sum_exp_q": "log_sum_exp_q"}, OFFLINE),
    "td3_bc": (td3_bc, "TD3BC", {"actor_loss": "actor_loss"}, OFFLINE | {"policy_delay": 1}),
    "iql": (iql, "IQL", {each: each for each in ("expectile_loss", "advantage_weights")}, OFFLINE),
    "bc": (bc, "BC", {"cloning_loss": "loss"}, OFFLINE),
    "alphazero": (alphazero, "AlphaZero", {"losses": "loss"}, GAMES),
    "es": (
        es,
        "ES",
        {"shape_returns": "shape_returns", "gradient_estimate": "gradient_estimate"},
        SMALL | {"env": "CartPole-v1", "population_size": 2, "noise_table_size": 1000},
    ),
}
"""What trains a moment: (module, class, {function in the file: what a subclass calls it}, settings)."""
CASES = [(case, loss) for case, (_, _, losses, _) in FILES.items() for loss in losses]


class Ran(Exception):
    """The loss that was written has run."""


def ran(*args: Any, **named: Any) -> Any:
    raise Ran("mine ran")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("rlplat_file_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    path, rng = tmp_path_factory.mktemp("data") / "pendulum", np.random.default_rng(1)
    with (
        make_vector_env("Pendulum-v1", 1) as env,
        DataWriter(path, env="Pendulum-v1", spaces=env.spec) as writer,
    ):
        track, obs = Track(), np.array(env.reset(1))
        for _ in range(20):
            actions = rng.uniform(-2, 2, (1, 1)).astype(np.float32)
            step = env.step(actions)
            track.add(obs[0], actions[0], float(step.rewards[0]))
            obs = np.array(step.obs)
        writer.add(track.end(obs[0], is_terminated=False))
        writer.close()
    return str(path)


def copied(module: Any, *losses: str, text: str = 'raise RuntimeError("mine ran")') -> str:
    """A copy of the file, in which these functions do what the text says."""
    file = Path(module.__file__)
    lines = file.read_text().splitlines()
    functions = [node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.FunctionDef)]
    for node in sorted(functions, key=lambda node: -node.lineno):
        if node.name in losses:
            lines.insert(node.body[0].lineno - 1, f"    {text}")
    Path(f"my_{file.name}").write_text("\n".join(lines))
    return f"./my_{file.name}"


def step(algorithm: Any, settings: dict[str, Any], turns: int = 30) -> list[Any]:
    with algorithm(algorithm.config_class(**settings)) as running:
        return [running.step() for _ in range(turns)]


def settings_of(case: str, recorded: str) -> dict[str, Any]:
    settings = FILES[case][3]
    return settings | ({"data": recorded} if settings.keys() >= OFFLINE.keys() else {})


@pytest.mark.parametrize("case, loss", [(case, loss) for case, loss in CASES if loss])
def test_the_loss_of_a_copied_file_runs(case: str, loss: str, recorded: str) -> None:
    module, name, _, _ = FILES[case]
    algorithm = load_class(f"{copied(module, loss)}:{name}")
    with pytest.raises(Exception, match="mine ran"):
        step(algorithm, settings_of(case, recorded))


@pytest.mark.parametrize("case, loss", [(c, each) for c, each in CASES if FILES[c][2][each]])
def test_the_loss_of_a_subclass_runs(case: str, loss: str, recorded: str) -> None:
    module, name, losses, _ = FILES[case]
    algorithm = type(f"My{name}", (getattr(module, name),), {losses[loss]: staticmethod(ran)})
    with pytest.raises(Exception, match="mine ran"):
        step(algorithm, settings_of(case, recorded))


@pytest.mark.parametrize("name", sorted({each[0].__name__.rpartition(".")[2] for each in FILES.values()}))
def test_every_loss_of_a_file_is_among_these(name: str) -> None:
    text = (ROOT / f"{name}.py").read_text()
    found = {each for each in re.findall(r"^def (\w+)\(", text, re.M) if re.search(r"loss|target|projection", each)}
    known = {loss for case in FILES.values() if case[0].__name__.endswith(f".{name}") for loss in case[2]}
    assert found <= known
    [algorithm] = {getattr(module, cls) for module, cls, *_ in FILES.values() if module.__name__.endswith(f".{name}")}
    owner = algorithm.nets.get("torch", algorithm.learner_class)
    assert algorithm.losses and all(callable(getattr(owner, loss)) for loss in algorithm.losses)


def test_every_algorithm_is_among_these() -> None:
    files = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert files == {Path(each[0].__file__).stem for each in FILES.values()}


@pytest.mark.process
@pytest.mark.slow
def test_in_other_processes_too() -> None:
    rlplat.init(num_cpus=2, preload=("torch",))
    try:
        for case in ("ppo", "a3c", "impala"):
            module, name, losses, settings = FILES[case]
            algorithm = load_class(f"{copied(module, *losses)}:{name}")
            with pytest.raises(Exception, match="mine ran"):
                step(algorithm, settings | {"num_rollout_workers": 1})
        for case in ("apex", "ppo, several agents"):
            module, name, _, settings = FILES[case]
            algorithm = type(f"My{name}", (getattr(module, name),), {"loss": staticmethod(ran)})
            with pytest.raises(Exception, match="mine ran"):
                step(algorithm, settings | {"num_rollout_workers": 1})
    finally:
        rlplat.shutdown()


@pytest.mark.process
@pytest.mark.slow
def test_what_a_copy_says_arrives_in_another_process() -> None:
    """Settings of its own with checks of their own, network classes, losses."""
    made = [
        computation_of(load_class(f"{copied(module)}:{name}"))
        for module, name in {(each[0].__name__, each[1]): each[:2] for each in FILES.values()}.values()
    ]
    Path("made.pickle").write_bytes(cloudpickle.dumps(made))
    code = "import pickle; print(*(each.config_class.__name__ for each in pickle.load(open('made.pickle', 'rb'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == ([each.config_class.__name__ for each in made], "")


class SmoothConfig(ppo.PPOConfig):
    smooth_coef: float = 0.5
    """A setting of its own."""


class SmoothNet(ppo.TorchPPO):
    def loss(self, network: Any, minibatch: Any, config: Any) -> Any:
        raise Ran(f"mine ran with {config.smooth_coef}")


class Smooth(ppo.PPO):
    config_class = SmoothConfig
    nets = {"torch": SmoothNet}


def test_a_network_class_of_ones_own_has_the_settings_of_ones_own() -> None:
    with pytest.raises(Exception, match=r"mine ran with 0\.25"):
        step(Smooth, DISCRETE | {"smooth_coef": 0.25})
    with pytest.raises(ConfigError, match="Smooth computes with torch: omit framework=tf"):
        step(Smooth, DISCRETE | {"framework": "tf"})


@pytest.mark.parametrize("case", ["ppo", "dqn", "impala", "sac", "bc", "alphazero", "es"])
def test_a_learner_class_of_ones_own_makes_the_updates(case: str, recorded: str) -> None:
    module, name, _, _ = FILES[case]
    original = getattr(module, name)
    learner = type("OwnLearner", (original.learner_class,), {"update": ran})
    with pytest.raises(Exception, match="mine ran"):
        step(type("Own", (original,), {"learner_class": learner}), settings_of(case, recorded))


@pytest.mark.parametrize("case", [case for case in FILES if "," not in case and "core" not in case])
def test_settings_of_ones_own_train_and_are_evaluated(case: str, recorded: str) -> None:
    module, name, _, _ = FILES[case]
    original = getattr(module, name)
    members = {"__annotations__": {"extra": float}, "extra": 0.5, "__module__": __name__}
    config = type("OwnConfig", (original.config_class,), members)
    algorithm = type("Own", (original,), {"config_class": config})
    with algorithm(config(**settings_of(case, recorded), extra=0.25)) as running:
        running.step()
        assert len(running.evaluate(1)) == 1


class Mine(ppo.PPO):
    loss = staticmethod(ran)


class Same(ppo.PPO):
    loss = staticmethod(ppo.ppo_loss)


class Unchanged(ppo.PPO):
    name = "unchanged"


class Net(ppo.TorchPPO):
    pass


class MyNet(ppo.PPO):
    nets = {**ppo.PPO.nets, "torch": Net}


class MyTf(Mine):
    nets = {"torch": ppo.TorchPPO, "tf": Net}


def test_numpy_is_for_the_class_and_the_loss_that_it_was_written_for() -> None:
    note = "the learner computes with torch: "
    for algorithm, expected in (
        (ppo.PPO, "the learner computes with numpy"),
        (Unchanged, "the learner computes with numpy"),
        (Same, f"{note}Same.loss is a loss of your own"),
        (MyNet, f"{note}MyNet.nets has a class of your own for torch"),
        (load_class(f"{copied(ppo)}:PPO"), f"{note}PPO is a copy of rlplat's, whose loss may be another"),
    ):
        with algorithm(algorithm.config_class(**DISCRETE)) as running:
            assert running.notes == (expected,)


@pytest.mark.parametrize("given", [{"learner": {"backend": "numpy"}}, {"framework": "tf"}])
def test_what_would_compute_another_loss_is_refused_before_anything_starts(given: dict[str, Any]) -> None:
    for algorithm, whose in (
        (Mine, "Mine.loss is a loss of your own"),
        (load_class(f"{copied(ppo)}:PPO"), "PPO is a copy of rlplat's"),
    ):
        with pytest.raises(ConfigError, match=whose):
            algorithm(algorithm.config_class(**(DISCRETE | given)))


def test_a_class_for_another_framework_may_be_named_with_a_loss() -> None:
    assert computation_of(MyTf).framework(ppo.PPOConfig(env="x", framework="tf")) == "tf"


def test_a_method_without_an_object_is_refused() -> None:
    class Bound(ppo.PPO):
        def loss(self, *columns: Any, **arguments: Any) -> Any:
            return None

    class NoFunction(ppo.PPO):
        loss = 3

    with pytest.raises(ConfigError, match=r"Bound\.loss has no @staticmethod above it"):
        Bound(ppo.PPOConfig(**DISCRETE))
    with pytest.raises(ConfigError, match=r"NoFunction\.loss is to be a function"):
        NoFunction(ppo.PPOConfig(**DISCRETE))


class MyConfig(ppo.PPOConfig):
    num_epochs: int = 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"ppo_loss": staticmethod(lambda *columns: 0)},
            r"Sub\.ppo_loss is called by nothing; .* replaces are here: loss",
        ),
        ({"compute_loss": lambda self, batch: 0}, r"Sub\.compute_loss is called by nothing"),
        ({"losses": {"loss": len}}, r"Sub\.losses is .*a tuple of names"),
        (
            {"losses": ("my_loss",), "my_loss": staticmethod(len)},
            "names 'my_loss', but .*TorchPPO.* calls no loss of that",
        ),
        ({"config": MyConfig}, r"Sub\.config is read by nothing: its settings are `config_class = MyConfig`"),
    ],
)
def test_what_stands_under_a_name_that_nothing_reads_is_refused(body: dict[str, Any], said: str) -> None:
    """The loss or the settings that it was to replace trained, silently."""
    with pytest.raises(ConfigError, match=said):
        computation_of(type("Sub", (ppo.PPO,), body))


def test_helpers_of_a_loss_may_have_any_name() -> None:
    def loss(network: Any, minibatch: Any, config: Any) -> Any:
        return None

    def step(self: Any) -> Any:
        return [self.my_loss() for _ in range(2)]

    helper = staticmethod(lambda value: 0)
    computation_of(type("Sub", (ppo.PPO,), {"plot_losses": lambda self: 0}))
    computation_of(type("Sub", (ppo.PPO,), {"kl_loss": helper, "loss": staticmethod(loss)}))
    computation_of(type("Sub", (ppo.PPO,), {"my_loss": helper, "step": step}))
    computation_of(type("Sub", (ppo.PPO,), {"my_loss": helper, "nets": {"torch": ppo.TorchPPO}}))


def without_critic(network: Any, minibatch: Any, config: Any) -> Any:
    log_probs, _, _ = minibatch.evaluate(network)
    return -log_probs.mean(), {}


@pytest.mark.parametrize("case", ["ppo", "ppo with a core", "a3c", "impala"])
def test_a_loss_may_leave_the_critic_out(case: str) -> None:
    module, name, _, settings = FILES[case]
    algorithm = type(f"My{name}", (getattr(module, name),), {"loss": staticmethod(without_critic)})
    with algorithm(algorithm.config_class(**settings)) as running:
        before = rlplat.get(running.weights())[1]
        before = {name: np.array(array) for name, array in before.items()}
        result = running.step()
        after = rlplat.get(running.weights())[1]
    assert np.isfinite(result.metrics["learner/gradient_norm"])
    assert (after["actor_head.weight"] != before["actor_head.weight"]).any()
    np.testing.assert_array_equal(after["critic_head.weight"], before["critic_head.weight"])


def vector(network: Any, minibatch: Any, config: Any) -> Any:
    return minibatch.evaluate(network)[0], {}


def nan(network: Any, minibatch: Any, config: Any) -> Any:
    return minibatch.evaluate(network)[0].mean() * float("nan"), {}


def detached(network: Any, minibatch: Any, config: Any) -> Any:
    return minibatch.evaluate(network)[0].mean().detach(), {}


def alone(network: Any, minibatch: Any, config: Any) -> Any:
    return minibatch.evaluate(network)[0].mean()


def many(network: Any, minibatch: Any, config: Any) -> Any:
    log_probs, _, _ = minibatch.evaluate(network)
    return log_probs.mean(), {"mine": log_probs}


def typo(network: Any, minibatch: Any, config: Any) -> Any:
    return minibatch.reward.mean(), {}


def of_before(log_probs: Any, entropies: Any, values: Any, columns: Any, **arguments: Any) -> Any:
    return log_probs.mean(), {}


@pytest.mark.parametrize("key", ["target_kl", "desired_kl"])
def test_a_setting_that_looks_at_a_number_of_the_loss_wants_it_of_ones_own(key: str) -> None:
    with pytest.raises(UsageError, match=f"{key}=0.02 looks at 'approx_kl' .* without_critic gives none: return it"):
        step(type("Mine", (ppo.PPO,), {"loss": staticmethod(without_critic)}), DISCRETE | {key: 0.02})


@pytest.mark.parametrize("case", ["ppo", "ppo with a core", "a3c", "impala"])
@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (
            vector,
            r"vector: the loss is a tensor of shape \[5\], expected one number as a tensor: take .mean\(\)",
        ),
        (nan, "nan: the loss is nan on made-up rows, whose numbers are finite"),
        (detached, "detached: the loss has no gradient"),
        (alone, r"alone returned a tensor of shape \[\], expected \(loss, \{name: number\}\)"),
        (many, r"many: 'mine' is a tensor of shape \[5\]"),
        (
            typo,
            r"typo: loss\(network, minibatch, config\) raised AttributeError: .*'reward' \(.*test_what_is",
        ),
        (
            of_before,
            r"\.loss\(log_probs, .*, \*\*arguments\) is called as loss\(network, minibatch, config\): missing",
        ),
    ],
)
def test_a_loss_that_cannot_be_is_named_before_any_rollout(
    case: str, loss: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, _, settings = FILES[case]
    monkeypatch.setattr(RolloutWorker, "roll_out", ran)
    algorithm = type(f"My{name}", (getattr(module, name),), {"loss": staticmethod(loss)})
    with pytest.raises(UsageError, match=said):
        step(algorithm, settings)


def test_a_replaced_function_runs_in_this_process_and_is_refused_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, function, algorithm in (
        (ppo, "ppo_loss", ppo.PPO),
        (a3c, "a3c_loss", a3c.A3C),
        (sac, "actor_loss", sac.SAC),
        (sac, "critic_loss", mbpo.MBPO),
    ):
        settings = BOUNDED if issubclass(algorithm, sac.SAC | mbpo.MBPO) else DISCRETE
        monkeypatch.setattr(module, function, ran)
        with pytest.raises(Exception, match="mine ran"):
            step(algorithm, settings | ({"model": MODEL} if algorithm is mbpo.MBPO else {}))
        if algorithm is not mbpo.MBPO:
            with pytest.raises(ConfigError, match=f"{module.__name__}.{function} was replaced in this process"):
                algorithm(algorithm.config_class(**(settings | {"num_rollout_workers": 1})))
        monkeypatch.undo()


def test_a_replaced_method_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo.TorchPPO, "train", ran)
    with pytest.raises(Exception, match="mine ran"):
        step(ppo.PPO, DISCRETE)


def test_the_twins_were_written_for_what_the_files_say() -> None:
    """Where this fails, a torch class or a loss was edited: see that its twins compute the same (test_ppo_numpy.py,
    test_tf_ppo.py, ...), then write the new number into algorithms/other_frameworks/__init__.py."""
    found = {f"rlplat.algorithms.{m.__name__.rpartition('.')[2]}": m for m in (ppo, a3c, dqn, r2d2)}
    torch_classes = {"ppo": "TorchPPO", "a3c": "TorchA3C", "dqn": "TorchDQN", "r2d2": "TorchR2D2"}
    assert {
        name: fingerprint(getattr(module, torch_classes[name.rpartition(".")[2]])) for name, module in found.items()
    } == WRITTEN_FOR


def test_an_edit_where_the_file_lies_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone, in which algorithms/ppo.py was changed."""
    monkeypatch.setitem(WRITTEN_FOR, "rlplat.algorithms.ppo", "another")
    with ppo.PPO(ppo.PPOConfig(**DISCRETE)) as running:
        assert "torch: TorchPPO, or a function that it calls, is no longer as rlplat wrote it" in running.notes[0]
    assert rlplat.is_initialized() is False
