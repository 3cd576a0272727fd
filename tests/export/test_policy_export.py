"""A run as a file: what it gives is what the run's agent gives, and what is wrong is said in one message."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import torch

import rlplat
from rlplat.cli import main
from rlplat.errors import BadObservation, CheckpointError, ConfigError, MissingExtra, UsageError
from rlplat.export import onnx_writing, sealing
from rlplat.export.examples import ExampleRows
from rlplat.export.exported_policy import ExportedPolicy
from rlplat.export.model_file import ExportedModel
from rlplat.export.policy_export import contract_of, to_onnx
from rlplat.export.policy_module import PolicyModule, choice_outputs, run_module
from rlplat.export.verification import verify
from tests.rl.run.test_trained_agent import LSTM, NORMAL, make, rows, trained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PPO with a normaliser and actions with bounds; its run is beside the file."""
    folder = tmp_path_factory.mktemp("box")
    return to_onnx(trained("ppo", "box", folder / "run", **NORMAL), folder / "policy.onnx")


@pytest.fixture(scope="module")
def masked_lstm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lstm")
    return to_onnx(trained("a3c", "info", folder / "run", **LSTM), folder / "policy.onnx")


def agent_of(file: Path) -> Any:
    return rlplat.load(file.parent / "run")


def close(one: Any, other: Any) -> bool:
    return np.asarray(one).dtype == np.asarray(other).dtype and np.allclose(one, other, atol=1e-5)


def test_a_file_acts_as_its_run(box: Path) -> None:
    agent, policy = agent_of(box), rlplat.export.load(box)
    many, _ = rows("box", 32)
    assert close(agent.act(many), policy.act(many)) and policy.act(many).dtype == np.float64
    for row in range(4):
        assert close(agent.act(many[row]), policy.act(many[row]))
    drawn = [policy.act(many, greedy=False, rng=seed) for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    assert np.abs(drawn[0]).max() <= 0.01, "within the bounds of the space"
    assert policy.check() < 1e-5


def test_a_recurrent_file_acts_as_its_run_over_500_steps(masked_lstm: Path) -> None:
    agent, policy = agent_of(masked_lstm), rlplat.export.load(masked_lstm)
    many, masks = rows("info", 6)
    state = policy.initial_state(6)
    rng = np.random.default_rng(0)
    for step in range(500):
        seen = many + rng.normal(size=many.shape).astype(many.dtype)
        wanted = agent.act(seen, mask=masks)
        assert np.array_equal(wanted, policy.act(seen, mask=masks))
        passed, state = policy.act(seen, mask=masks, state=state)
        assert np.array_equal(wanted, passed)
        if step % 7 == 0:
            ended = np.arange(6) == step % 6
            agent.reset(ended)
            policy.reset(ended)
            state[ended] = 0.0
        assert np.abs(state - agent.policy.core_state).max() < 1e-4


def test_where_an_episode_starts_the_state_is_not_read(masked_lstm: Path) -> None:
    policy = rlplat.export.load(masked_lstm)
    feeds, _ = policy.read(*rows("info", 2))
    feeds |= {
        "noise": np.zeros((2, policy.contract.noise_size), np.float32),
        "starts": np.array([True, False]),
    }
    old, fresh = np.full((2, policy.state_size), np.nan, np.float32), policy.initial_state(2)
    outputs = policy.run({**feeds, "state_in": old}), policy.run({**feeds, "state_in": fresh})
    assert np.array_equal(outputs[0]["state_out"][0], outputs[1]["state_out"][0])
    assert np.isnan(outputs[0]["state_out"][1]).all()


class ModuleFile(ExportedPolicy):
    """The torch module in the place of the file that it would become: much sooner there."""

    def __init__(self, module: PolicyModule) -> None:
        self.module, self.contract = module, module.contract
        self._state = self.initial_state(0)

    def run(self, feeds: Any) -> Any:
        assert list(feeds) and set(feeds) == set(self.contract.input_names)
        return run_module(self.module, feeds)

    def check(self) -> float:
        return 0.0


CORE = {"core_size": 8, "hidden_sizes": [8]}
CASES = [  # others: tests/outsiders/test_onnx_tools.py, which writes files of them
    ("ppo", "box", {"policy": {"squash_actions": True}}),
    ("ppo", "multi", {}),
    ("dqn", "choices", {"noisy": True, "dueling": True, "distributional": "qr"}),
    ("r2d2", "discrete", {"policy": {"core": "lstm", **CORE}, "normalize_observations": True}),
    ("pqn", "info", {}),
    ("impala", "dict", {"policy": {"core": "lstm", **CORE}}),
    ("es", "box", {}),
    ("mbpo", "box", {}),
    ("crossq", "box", {}),
    ("td3", "box", {"exploration_noise": 0.5, "normalize_observations": True}),
]


@pytest.mark.parametrize(("algo", "kind", "settings"), CASES, ids=lambda part: str(part)[:40])
def test_every_space_and_algorithm(algo: str, kind: str, settings: Any, tmp_path: Path) -> None:
    file = as_exported(rlplat.load(trained(algo, kind, tmp_path / "run", **settings)))
    draws_actions_of(file, kind)


class ByLen(torch.nn.Module):
    """An encoder that counts rows by `len`, which only torch's reading of its bytecode follows."""

    num_features = 8

    def __init__(self, spec: Any, compute_dtype: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(spec.obs.flat_size + 1, 8)

    def forward(self, obs: Any) -> Any:
        return self.layer(torch.cat([obs.flatten(1).float(), torch.ones(len(obs), 1)], dim=1))


def test_rows_may_be_counted_by_len(tmp_path: Path) -> None:
    """It ended with "torch.* op returned non-Tensor", which was about our own lines."""
    run = trained("ppo", "box", tmp_path / "run", policy={"encoder": f"{__name__}:ByLen"})
    many, _ = rows("box", 7)
    assert close(rlplat.load(run).act(many), rlplat.export.load(to_onnx(run, tmp_path / "p.onnx")).act(many))


def as_exported(agent: Any) -> ModuleFile:
    """Verified as a file is."""
    module = agent.torch_module()
    contract = contract_of(agent.spaces, module.state_size, *choice_outputs(module, agent.policy))
    policy_module = PolicyModule(module, agent.policy, contract, agent.spaces.spec).eval()
    file = ModuleFile(policy_module)
    verify(file, policy_module, agent, ExampleRows(contract, agent.spaces.observation_space, seed=0))
    return file


def draws_actions_of(file: Any, kind: str) -> None:
    env = make(kind)
    obs, info = env.reset(seed=1)
    mask = info.get("action_mask")
    for rng in range(20):
        file.reset()
        assert env.action_space.contains(file.act(obs, mask=mask, greedy=False, rng=rng))


def test_every_policy_of_a_run_has_a_file(tmp_path: Path, capsys: Any) -> None:
    agents = {"policies": {"one": {}, "other": {}}, "mapping": {"first": "one", "second": "other"}}
    rlplat.train(
        "ppo",
        env="rlplat.rl.envs.diagnostic_multi_agent:Nim",
        out=tmp_path / "run",
        num_rollout_workers=0,
        rollout_length=8,
        stop={"env_steps": 40},
        evaluation={"episodes": 1},
        policy={"hidden_sizes": [8]},
        multi_agent=agents,
    )
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "my nim.onnx")]) == 0
    assert f"rlplat export --check '{tmp_path}/my nim.one.onnx'\n" in capsys.readouterr().out
    for name in ("one", "other"):
        agent = rlplat.load(tmp_path / "run", policy=name)
        file = rlplat.export.load(tmp_path / f"my nim.{name}.onnx")
        obs = agent.spaces.observation_space.sample()
        obs["action_mask"][:] = 1
        assert file.act(obs) == agent.act(obs)
    capsys.readouterr()
    assert main(["serve", str(tmp_path / "run"), "--port", "0"]) == 2
    assert "has several policies (one, other): say which" in capsys.readouterr().err


def test_actions_are_drawn_as_the_distribution_says(tmp_path: Path) -> None:
    agent = rlplat.load(trained("dqn", "discrete", tmp_path / "run"))
    module = agent.torch_module()
    agent.policy.exploration.epsilon = 0.3
    contract = contract_of(agent.spaces, module.state_size, *choice_outputs(module, agent.policy))
    file = ModuleFile(PolicyModule(module, agent.policy, contract, agent.spaces.spec))
    obs = np.repeat(rows("discrete", 1)[0], 20_000, axis=0)
    drawn = file.act(obs, greedy=False, rng=0) + 1
    expected = np.full(3, 0.1)
    expected[file.act(obs[0]) + 1] += 0.7
    assert np.abs(np.bincount(drawn, minlength=3) / len(obs) - expected).max() < 0.015

    params = torch.tensor([[0.0, 1.0, 2.0]]).expand(20_000, 3)
    from rlplat.rl.torch.action_distributions import normal_to_gumbel

    noise = torch.from_numpy(np.random.default_rng(1).standard_normal((20_000, 3), np.float32))
    shares = torch.bincount((params + normal_to_gumbel(noise)).argmax(1), minlength=3) / 20_000
    assert (shares - params[0].softmax(0)).abs().max() < 0.015


def test_a_wrong_module_is_not_written(box: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The run's own agent is asked: a normaliser that was left out would be seen."""
    from rlplat.rl.torch.agent_module import AgentModule

    monkeypatch.setattr(AgentModule, "prepare", lambda self, obs: obs)
    agent, file = agent_of(box), ExportedPolicy(box)
    module = PolicyModule(agent.torch_module(), agent.policy, file.contract, agent.spaces.spec)
    examples = ExampleRows(file.contract, agent.spaces.observation_space, seed=0)
    with pytest.raises(UsageError, match=r"was not exported: in onnxruntime the output '.*action' differs"):
        verify(ModuleFile(module), module, agent, examples)


def test_neither_torch_nor_the_runtime_is_imported_by_a_reader(masked_lstm: Path) -> None:
    program = f"""
import sys, numpy as np, rlplat.export
policy = rlplat.export.load({str(masked_lstm)!r})
policy.check()
print(policy.act(np.zeros({policy_obs(masked_lstm)}, np.float32), mask=np.array([True] * {mask_size(masked_lstm)})))
heavy = "torch onnx onnxscript gymnasium zmq msgspec pydantic rlplat.runtime rlplat.rl".split()
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def policy_obs(file: Path) -> Any:
    return ExportedPolicy(file).inputs["obs"][0]


def mask_size(file: Path) -> int:
    return sum(ExportedPolicy(file).contract.mask_groups)


WRONG: list[tuple[Any, Any, str]] = [
    (
        np.zeros(4, np.float32),
        None,
        r"has shape \(4,\); expected float32\[3\] for one .* float32\[N, 3\] for N",
    ),
    (np.zeros((0, 3), np.float32), None, "holds no observation at all"),
    (np.zeros(3, np.complex64), None, "has dtype complex64"),
    (np.array([0.0, np.nan, 0.0], np.float32), None, "NaN or infinity in observation"),
    ([[1.0], [2.0, 3.0]], None, "is no array"),
    (np.zeros(3, np.float32), np.array([True]), "trained without action masks; omit it"),
]


@pytest.mark.parametrize(("obs", "mask", "message"), WRONG, ids=range(len(WRONG)))
def test_what_does_not_fit_is_named(obs: Any, mask: Any, message: str, box: Path) -> None:
    with pytest.raises(BadObservation, match=message):
        ExportedPolicy(box).act(obs, mask=mask)


def test_wrong_masks_states_and_inputs_are_named(masked_lstm: Path) -> None:
    policy = ExportedPolicy(masked_lstm)
    many, masks = rows("info", 3)
    for arguments, message in [
        ({}, "the action mask is missing"),
        ({"mask": masks[:, :-1]}, "the action mask has shape"),
        ({"mask": np.zeros_like(masks)}, "the action mask of row 0 has no legal action"),
        ({"mask": masks, "state": policy.initial_state(2)}, r"state has shape \(2, 16\); expected \(3, 16\)"),
    ]:
        with pytest.raises(BadObservation, match=message):
            policy.act(many, **arguments)
    policy.act(many, mask=masks)
    with pytest.raises(BadObservation, match="2 observations, but this recurrent policy remembers 3"):
        policy.act(many[:2], mask=masks[:2])
    with pytest.raises(BadObservation, match=r"ended has shape \(2,\), but the policy acts for 3"):
        policy.reset(np.zeros(2, bool))
    feeds, _ = policy.read(many, masks)
    with pytest.raises(BadObservation, match="has the inputs obs, action_mask, state_in, starts, noise, but given are"):
        policy.run(feeds)
    feeds |= {"noise": np.zeros((3, policy.contract.noise_size), np.float32), "starts": np.zeros(3, bool)}
    with pytest.raises(BadObservation, match=r"input 'state_in' is float64\[3, 16\]; expected float32\[N, 16\]"):
        policy.run({**feeds, "state_in": np.zeros((3, 16))})
    with pytest.raises(BadObservation, match="input 'state_in' has 2 rows; expected 3"):
        policy.run({**feeds, "state_in": policy.initial_state(2)})


def test_damaged_and_foreign_files_are_refused_by_the_command(box: Path, tmp_path: Path, capsys: Any) -> None:
    data, file = box.read_bytes(), tmp_path / "p.onnx"
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N"]) for name in "xy")
    foreign = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [x], [y]),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
        ir_version=8,
    )
    model = onnx.load(box)
    later, drifted = ({p.key: p.value for p in model.metadata_props} for _ in range(2))
    later["rlplat.contract"] = later["rlplat.contract"].replace('"version": 1', '"version": 9')
    for tensor in model.graph.initializer:
        if "actor_head.bias" in tensor.name:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) + 1, tensor.name))
    for content, message in [
        (bytes(flipped), "is damaged: its checksum"),
        (data[:-1000], "is damaged, or no ONNX model"),
        (b"", "is damaged, or no ONNX model"),
        (foreign.SerializeToString(), "is an ONNX model without rlplat's contract"),
        (onnx_writing.to_bytes(model, later), "has contract version 9, and this rlplat reads version 1"),
        (onnx_writing.to_bytes(model, drifted), "of its golden rows differs by"),
    ]:
        file.write_bytes(content)
        assert main(["export", "--check", str(file)]) == 2, message
        error = capsys.readouterr().err
        assert message in error and str(file) in error and error.count("\n") == 1, error
    assert main(["export", "--check", str(tmp_path / "none.onnx")]) == 2
    assert "none.onnx cannot be read: No such file" in capsys.readouterr().err
    assert main(["export", "--check", str(box)]) == 0
    assert "golden rows within" in capsys.readouterr().out
    assert sealing.is_sealed(data) and not sealing.is_sealed(data[:-1])


def test_wrong_commands_say_what_is_missing(box: Path, tmp_path: Path, capsys: Any) -> None:
    run = str(box.parent / "run")
    for arguments, message in [
        ([run], "say which run and where to"),
        ([run, "--out", str(tmp_path)], "is a folder: name the file, such as"),
        ([run, "--out", str(tmp_path / "no" / "p.onnx")], "there is no folder"),
        ([str(tmp_path), "--out", str(tmp_path / "p.onnx")], "config.yaml"),
        ([run, "--out", str(tmp_path / "p.onnx"), "--policy", "x"], "has no policy 'x'"),
        ([run, "--out", str(tmp_path / "p.onnx"), "--checkpoint", "step_7"], "has no checkpoint 'step_7'"),
        ([run, "--check", str(box)], "--check looks at a file and writes none"),
    ]:
        assert main(["export", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error, error
    assert list(tmp_path.iterdir()) == []


def test_diverged_weights_are_refused(box: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from rlplat.rl.run.trained_agent import Agent

    weights = agent_of(box).weights()
    weights["actor_head.bias"][0] = np.nan
    monkeypatch.setattr(Agent, "weights", lambda self: weights)
    with pytest.raises(CheckpointError, match=r"NaN or infinite numbers in 'actor_head\.bias'.*--checkpoint best"):
        to_onnx(box.parent / "run", tmp_path / "p.onnx")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / "p.onnx"
    with onnx_writing.new_file(out, b"old"):
        pass

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"p\.onnx cannot be written: No space left on device; the file"):
        with onnx_writing.new_file(out, b"new"):
            pass
    monkeypatch.undo()
    with pytest.raises(UsageError), onnx_writing.new_file(out, b"new"):
        raise UsageError("it is another policy")
    assert out.read_bytes() == b"old" and list(tmp_path.iterdir()) == [out]


def test_a_missing_package_is_named(box: Path, tmp_path: Path, monkeypatch: Any) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "onnxscript" else find(name, *a))
    with pytest.raises(MissingExtra, match=r"needs onnxscript: .*export"):
        to_onnx(box.parent / "run", tmp_path / "p.onnx")


class Undecided(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            return x
        return -x


def test_a_module_of_ones_own_is_written_or_its_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Undecided cannot be .*test_policy_export\.py:\d+: `if x\.sum\(\) > 0:`"):
        rlplat.export.torch_module(Undecided(), torch.zeros(2, 3), tmp_path / "m.onnx")
    linear = torch.nn.Linear(3, 2)
    with pytest.raises(UsageError, match=r"needs two rows or more in every input.*input \[1, 3\]"):
        rlplat.export.torch_module(linear, torch.zeros(1, 3), tmp_path / "m.onnx")
    path = rlplat.export.torch_module(linear, torch.randn(4, 3), tmp_path / "m.onnx", output_names=("scores",))
    model = ExportedModel(path)
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    assert np.allclose(model.run({"input": x})["scores"], linear(torch.from_numpy(x)).detach().numpy(), atol=1e-6)
    assert model.check() < 1e-5 and linear.training
    with pytest.raises(CheckpointError, match="holds a torch module, not a policy"):
        rlplat.export.load(path)
