"""Programs: every kind of trainable, turn by turn."""

from __future__ import annotations

import ast
import contextvars
import functools
import io
import math
import random
import re
import shutil
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import CheckpointError, ConfigError
from rlplat.tune.experiment import BadReport, values_in
from rlplat.tune.trial import Trial
from rlplat.tune.trials import StillRunning, TrialContext, plain_metrics, programs
from rlplat.tune.trials.programs import open_program, seeds_of
from rlplat.tune.trials.thread import TrialStopped
from rlplat.tune.trials.trainables import check_trainable


def context(directory: Path, **changes: Any) -> TrialContext:
    return TrialContext(**{"number": 3, "seed": 7, "directory": directory} | changes)


def counting(config: dict, report: Any) -> None:
    for index in range(config.get("n", 3)):
        report(index=index)


def state_of(position: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    return {"position": position, "rng": rng.bit_generator.state}


def walk(config: dict, report: Any) -> None:
    """A random walk that goes on bit for bit from its checkpoint."""
    rng = np.random.default_rng(report.seed)
    position = np.zeros(3)
    if report.checkpoint is not None:
        position, rng.bit_generator.state = report.checkpoint["position"], report.checkpoint["rng"]
    state = functools.partial(state_of, position, rng)  # what it holds, and made when it is called
    while True:
        position += rng.normal(size=3)
        report(step=report.step, x=position[0], checkpoint=state)


def walking(config: dict, report: Any) -> Any:
    rng = np.random.default_rng(report.seed)
    position = np.zeros(3)
    if report.checkpoint is not None:
        position, rng.bit_generator.state = report.checkpoint["position"], report.checkpoint["rng"]
    while True:
        position += rng.normal(size=3)
        yield {"step": report.step, "x": position[0]}, state_of(position, rng)


class Walk:
    def __init__(self, config: dict, context: TrialContext) -> None:
        self.rng, self.position, self.num_steps = np.random.default_rng(context.seed), np.zeros(3), 0

    def step(self) -> dict:
        self.position += self.rng.normal(size=3)
        self.num_steps += 1
        return {"step": self.num_steps - 1, "x": self.position[0]}

    def save(self) -> dict:
        return {"position": self.position, "rng": self.rng.bit_generator.state, "num_steps": self.num_steps}

    def load(self, state: dict) -> None:
        self.position, self.rng.bit_generator.state = state["position"], state["rng"]
        self.num_steps = state["num_steps"]


@pytest.mark.parametrize("trainable", [walk, walking, Walk])
def test_goes_on_from_a_checkpoint_bit_for_bit(trainable: Any, tmp_path: Path) -> None:
    whole = open_program(trainable, {}, context(tmp_path))
    expected = [whole.step() for _ in range(20)]
    whole.close()

    first = open_program(trainable, {}, context(tmp_path))
    seen = [first.step() for _ in range(8)]
    assert first.can_save
    name = first.save_to(tmp_path / "checkpoints")
    assert name == "step_8"
    assert first.step() == expected[8]  # saving did not disturb it
    first.close()
    second = open_program(trainable, {}, context(tmp_path))
    second.load_from(tmp_path / "checkpoints" / name)
    seen += [second.step() for _ in range(12)]
    second.close()
    assert seen == expected


class TorchTrial:
    """A small network with Adam on random data."""

    def __init__(self, config: dict, context: TrialContext) -> None:
        import torch

        self.generator = torch.Generator().manual_seed(context.seed)
        self.network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-2)

    def step(self) -> dict:
        import torch

        batch = torch.randn(16, 4, generator=self.generator)
        loss = (self.network(batch).squeeze(1) - batch.sum(1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}

    def save(self) -> dict:
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load(self, state: dict) -> None:
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])


def test_a_network_with_adam_goes_on_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    whole = open_program(TorchTrial, {}, context(tmp_path))
    expected = [whole.step() for _ in range(12)]
    first = open_program(TorchTrial, {}, context(tmp_path))
    for _ in range(5):
        first.step()
    name = first.save_to(tmp_path)
    second = open_program(TorchTrial, {}, context(tmp_path, seed=99))  # other weights, until it loads
    second.load_from(tmp_path / name)
    assert [second.step() for _ in range(7)] == expected[5:]


# ---------------------------------------------------------------- turns


def test_nothing_of_the_function_runs_between_two_steps(tmp_path: Path) -> None:
    turns: list[str] = []

    def trial(config: dict, report: Any) -> None:
        for _ in range(300):
            turns.append("trial")
            report(a=1, checkpoint=lambda: turns.append("save") or {})
            turns.append("trial")

    program = open_program(trial, {}, context(tmp_path / "trial"))
    assert turns == []  # nor before the first
    for index in range(300):
        program.step()
        turns.append("host")
        if index % 50 == 0:
            program.save_to(tmp_path / "checkpoints")
            assert turns[-1] == "save"
            turns.append("host")
        assert [turns[0], turns[-1]] == ["trial", "host"]
        turns.clear()
    assert program.step() is None and turns == ["trial"]
    assert program.step() is None  # and stays at its end
    program.close()


def test_a_stop_strikes_at_the_report_and_finally_runs(tmp_path: Path) -> None:
    seen: list[str] = []

    def trial(config: dict, report: Any) -> None:
        try:
            while True:
                try:
                    report(a=1)
                    seen.append("went on")
                except Exception:
                    seen.append("swallowed")
        except TrialStopped:
            seen.append("told")
            raise
        finally:
            seen.append("cleaned up")

    program = open_program(trial, {}, context(tmp_path))
    program.step()
    program.step()
    program.close()
    assert seen == ["went on", "told", "cleaned up"]
    assert not [thread for thread in threading.enumerate() if thread.name == "trial-3"]


def test_a_trial_that_closed_stderr_and_raises_at_its_end_is_closed(tmp_path: Path) -> None:
    def function(config: dict, report: Any) -> None:
        try:
            report(a=1)
        finally:
            raise ValueError("at the end")

    class Stepped:
        def __init__(self, config: dict) -> None: ...

        def step(self) -> dict[str, int]:
            return {"a": 1}

        def close(self) -> None:
            raise ValueError("at the end")

    for trainable in (function, Stepped):
        program = open_program(trainable, {}, context(tmp_path))
        program.step()
        with pytest.MonkeyPatch.context() as patch:
            stderr = io.StringIO()
            stderr.close()
            patch.setattr(sys, "stderr", stderr)
            program.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "trial-3"]


def test_a_function_that_is_never_run_leaves_nothing(tmp_path: Path) -> None:
    open_program(counting, {}, context(tmp_path)).close()
    assert not list(tmp_path.iterdir())
    assert not [thread for thread in threading.enumerate() if thread.name == "trial-3"]


def test_a_function_that_catches_the_stop_and_reports_again_is_stopped_again(tmp_path: Path) -> None:
    def trial(config: dict, report: Any) -> None:
        for index in range(3):
            try:
                report(index=index)
            except TrialStopped:
                pass

    program = open_program(trial, {}, context(tmp_path))
    assert program.step() == {"index": 0}
    program.close()  # the other two reports raise at once, and it ends


def test_a_function_that_goes_on_regardless_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "GRACE_S", 0.05)
    gate = threading.Event()

    def obstinate(config: dict, report: Any) -> None:
        try:
            report(a=1)
        finally:
            gate.wait()

    program = open_program(obstinate, {}, context(tmp_path))
    program.step()
    with pytest.raises(StillRunning, match=r"(?s)trial-3 was told to end.*gate.wait"):
        program.close()
    with pytest.raises(StillRunning):
        program.close()
    gate.set()
    program.close()


def test_an_error_while_it_is_stopped_is_printed_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def trial(config: dict, report: Any) -> None:
        try:
            report(a=1)
        finally:
            raise OSError("disk full")

    program = open_program(trial, {}, context(tmp_path))
    program.step()
    program.close()
    assert "disk full" in capsys.readouterr().err


def test_only_the_trials_own_thread_reports(tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def trial(config: dict, report: Any) -> None:
        def helper() -> None:
            try:
                report(a=1)
            except RuntimeError as error:
                caught.append(error)

        thread = threading.Thread(target=helper)
        thread.start()
        thread.join()
        report(a=2)

    program = open_program(trial, {}, context(tmp_path))
    assert program.step() == {"a": 2}
    program.close()
    assert "in the thread in which the trial's function runs" in str(caught[0])


def test_ten_thousand_reports_and_a_huge_one(tmp_path: Path) -> None:
    def trial(config: dict, report: Any) -> None:
        for index in range(10_000):
            report(index=index)
        report({f"m{index}": float(index) for index in range(10_000)})

    program = open_program(trial, {}, context(tmp_path))
    assert [program.step() for _ in range(10_000)] == [{"index": index} for index in range(10_000)]
    assert len(program.step() or {}) == 10_000
    assert program.step() is None


def test_what_report_knows(tmp_path: Path) -> None:
    seen = []

    def trial(config: dict, report: Any) -> None:
        seen.append((report.number, report.seed, report.attempt, report.step, report.checkpoint))
        (report.directory / "mine.txt").write_text("kept")
        report(a=1)
        seen.append(report.step)

    program = open_program(trial, {}, context(tmp_path / "trial", attempt=2))
    while program.step():
        pass
    assert seen == [(3, 7, 2, 0, None), 1]
    assert (tmp_path / "trial" / "mine.txt").read_text() == "kept"


def test_report_does_not_travel(tmp_path: Path) -> None:
    import cloudpickle

    def trial(config: dict, report: Any) -> None:
        cloudpickle.dumps(report)

    with pytest.raises(TypeError, match="report what tasks and actors return"):
        open_program(trial, {}, context(tmp_path)).step()


verbosity: contextvars.ContextVar[int] = contextvars.ContextVar("verbosity", default=0)


def test_the_function_has_the_callers_context_variables(tmp_path: Path) -> None:
    verbosity.set(5)
    program = open_program(lambda config, report: {"verbosity": verbosity.get()}, {}, context(tmp_path))
    assert program.step() == {"verbosity": 5}
    verbosity.set(0)


def test_tasks_and_actors_inside_a_trial(backend: str, tmp_path: Path) -> None:
    def trial(config: dict, report: Any) -> None:
        double = rlplat.remote(lambda x: 2 * x)
        for index in range(3):
            report(doubled=sum(rlplat.get([double.remote(index) for _ in range(4)])))

    @rlplat.remote(num_cpus=0)
    class Host:
        def run(self) -> list[Any]:
            program = open_program(trial, {}, context(tmp_path))
            return [program.step() for _ in range(4)]

    assert rlplat.get(Host.remote().run.remote()) == [{"doubled": 0}, {"doubled": 8}, {"doubled": 16}, None]


# ---------------------------------------------------------------- errors


def failing(config: dict, report: Any) -> None:
    report(a=1)
    {}["missing"]


def failing_generator(config: dict) -> Any:
    yield {"a": 1}
    {}["missing"]


class Failing:
    def __init__(self, config: dict) -> None:
        self.num_steps = 0

    def step(self) -> dict:
        self.num_steps += 1
        return {"a": 1} if self.num_steps == 1 else {}["missing"]

    def close(self) -> None:
        raise OSError("and not even this")


@pytest.mark.parametrize("trainable", [failing, failing_generator, Failing])
def test_errors_keep_their_type_and_their_traceback(trainable: Any, tmp_path: Path) -> None:
    program = open_program(trainable, {}, context(tmp_path))
    assert program.step() == {"a": 1}
    with pytest.raises(KeyError) as caught:
        program.step()
    assert '{}["missing"]' in "".join(traceback.format_exception(caught.value))
    assert len(traceback.extract_tb(caught.tb)) <= 6  # the trial's frame and few of ours
    program.close()


def test_an_error_in_close_is_printed_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    program = open_program(Failing, {}, context(tmp_path))
    program.step()
    program.close()
    assert "and not even this" in capsys.readouterr().err


def exiting(config: dict, report: Any) -> None:
    raise SystemExit(3)


def exiting_generator(config: dict) -> Any:
    raise SystemExit(3)
    yield


class Exiting(Failing):
    def step(self) -> dict:
        raise SystemExit(3)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("trainable", [exiting, exiting_generator, Exiting])
def test_sys_exit_fails_the_trial_and_not_the_process(trainable: Any, tmp_path: Path) -> None:
    program = open_program(trainable, {}, context(tmp_path))
    with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
        program.step()
    program.close()


class ExitsInSave(Failing):
    def save(self) -> Any:
        raise SystemExit(4)

    def load(self, state: Any) -> None:
        raise SystemExit(5)

    def close(self) -> None:
        raise SystemExit(6)


def exits_in_save(config: dict, report: Any) -> None:
    report(a=1, checkpoint=ExitsInSave({}).save)
    report(a=1, checkpoint={})


def exits_in_save_and_yields(config: dict) -> Any:
    yield {"a": 1}, ExitsInSave({}).save


@pytest.mark.parametrize("trainable", [ExitsInSave, exits_in_save, exits_in_save_and_yields])
def test_sys_exit_in_save_load_and_close_is_an_error_too(
    trainable: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    program = open_program(trainable, {}, context(tmp_path))
    program.step()
    with pytest.raises(RuntimeError, match=r"SystemExit\(4\)"):
        program.save_to(tmp_path)
    program.close()
    if trainable is ExitsInSave:
        assert "SystemExit(6)" in capsys.readouterr().err
        kept = open_program(exits_in_save, {}, context(tmp_path))
        kept.step(), kept.step()
        name = kept.save_to(tmp_path)
        kept.close()
        with pytest.raises(RuntimeError, match=r"SystemExit\(5\)"):
            open_program(ExitsInSave, {}, context(tmp_path)).load_from(tmp_path / name)


# ---------------------------------------------------------------- ends


def reporting_then(value: Any) -> Any:
    def trial(config: dict, report: Any) -> Any:
        report(a=1)
        return value

    return trial


def yielding_then(value: Any) -> Any:
    def trial(config: dict) -> Any:
        yield {"a": 1}
        return value

    return trial


@pytest.mark.parametrize("made", [reporting_then, yielding_then])
def test_what_a_trial_returns_is_its_last_report(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def all_of(trainable: Any) -> list[Any]:
        program = open_program(trainable, {}, context(tmp_path, metric="loss"))
        reports = []
        while (metrics := program.step()) is not None:
            reports.append(metrics)
        return reports

    assert all_of(made(None)) == [{"a": 1}]
    assert all_of(made({"a": 2})) == [{"a": 1}, {"a": 2}]
    assert all_of(made(np.float32(0.5))) == [{"a": 1}, {"loss": 0.5}]
    assert capsys.readouterr().err == ""
    assert all_of(made(object())) == [{"a": 1}]  # hours of training are not lost over it
    assert "its return value is not used" in capsys.readouterr().err


def test_functions_that_only_return(tmp_path: Path) -> None:
    for trainable, expected in [
        (lambda config: config["x"] ** 2, {"loss": 9}),
        (lambda config: {"b": 2.0}, {"b": 2.0}),
    ]:
        program = open_program(trainable, {"x": 3}, context(tmp_path, metric="loss"))
        assert program.step() == expected and not program.can_save
        assert program.step() is None


@pytest.mark.parametrize("trainable", [lambda config: None, lambda config, report: None, yielding_then])
def test_a_trial_that_returns_nothing_and_reports_nothing(trainable: Any, tmp_path: Path) -> None:
    if trainable is yielding_then:
        trainable = type("Endless", (Failing,), {"step": lambda self: None, "close": lambda self: None})
    with pytest.raises(ConfigError, match="returned nothing, and reported nothing"):
        open_program(trainable, {}, context(tmp_path)).step()


@pytest.mark.parametrize("is_generator", [False, True])
def test_one_that_was_saved_at_its_last_report_ends_at_once(is_generator: bool, tmp_path: Path) -> None:
    def reporting(config: dict, report: Any) -> None:
        for step in range(report.step, 2):
            report(step=step, checkpoint={"step": step})

    def yielding(config: dict, report: Any) -> Any:
        for step in range(report.step, 2):
            yield {"step": step}, {"step": step}

    trainable = yielding if is_generator else reporting
    program = open_program(trainable, {}, context(tmp_path))
    program.step(), program.step()
    name = program.save_to(tmp_path / "checkpoints")
    program.close()
    again = open_program(trainable, {}, context(tmp_path))
    again.load_from(tmp_path / "checkpoints" / name)
    assert again.step() is None


def test_a_generator_is_closed_at_its_yield(tmp_path: Path) -> None:
    seen = []

    def trial(config: dict) -> Any:
        try:
            while True:
                yield 1.0
        finally:
            seen.append("closed")

    program = open_program(trial, {}, context(tmp_path, metric="m"))
    assert [program.step(), program.step()] == [{"m": 1.0}, {"m": 1.0}]
    program.close()
    assert seen == ["closed"] and program.step() is None


def test_a_class_ends_with_none_or_stop_iteration(tmp_path: Path) -> None:
    class Short:
        def __init__(self, config: dict) -> None:
            self.values = iter([{"a": 1}])

        def step(self) -> Any:
            return next(self.values)

    class Shorter(Short):
        def step(self) -> Any:
            return next(self.values, None)

    for trainable in (Short, Shorter):
        program = open_program(trainable, {}, context(tmp_path))
        assert [program.step(), program.step(), program.step()] == [{"a": 1}, None, None]


# ---------------------------------------------------------------- metrics


class Half:
    def __float__(self) -> float:
        return 0.5


def test_an_integer_beyond_all_floats_is_infinite_and_fails_its_trial() -> None:
    large = {"large": 10**400, "small": -(10**400), "exact": 2**1000 + 1, "float": Half()}
    found = plain_metrics(large, "large")
    assert found == {"large": math.inf, "small": -math.inf, "exact": 2**1000 + 1, "float": 0.5}
    with pytest.raises(BadReport, match="it reported large = inf in its report 0"):
        values_in(found, ["large"], Trial(0, {}, {}, 0))


def test_metrics_become_plain(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    reported = {
        "float32": np.float32(0.5),
        "zero_d": np.array(3),
        "one": np.array([2.0]),
        "tensor": torch.tensor(1.5, requires_grad=True),
        "bool": np.bool_(True),
        "half": Half(),
        "nan": float("nan"),
        "text": "sgd",
        "not yet": None,
        "eval": {"return": 3, "by": {"level": 1.0}},
    }
    metrics = open_program(lambda config: reported, {}, context(tmp_path)).step()
    assert metrics is not None and math.isnan(metrics.pop("nan"))
    assert metrics == {
        "float32": 0.5, "zero_d": 3, "one": 2.0, "tensor": 1.5, "bool": True, "half": 0.5, "text": "sgd",
        "not yet": None,
        "eval/return": 3, "eval/by/level": 1.0,
    }  # fmt: skip
    assert {type(value) for value in metrics.values()} == {float, int, bool, str, type(None)}


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        ({}, "an empty report"),
        ({"a": np.zeros(3)}, r"'a' is a ndarray of shape \(3,\)"),
        ({"a": [1, 2]}, "'a' is a list"),
        ({"a": 1j}, "'a' is a complex"),
        ({"a": {"b": object()}}, "'a/b' is a object"),
        ({1: 2.0}, "a metric's name is a text, not 1"),
    ],
)
def test_what_is_no_report_says_so_where_it_was_made(reported: Any, message: str, tmp_path: Path) -> None:
    def trial(config: dict, report: Any) -> None:
        try:
            report(reported)
        except (TypeError, ValueError) as error:
            report(caught=str(error))

    program = open_program(trial, {}, context(tmp_path))
    assert re.search(message, (program.step() or {})["caught"])
    program.close()


# ---------------------------------------------------------------- checkpoints


def saved_and_loaded(state: Any, directory: Path) -> Any:
    """What comes back of a state that a function gave with its report."""
    program = open_program(lambda config, report: report(a=1, checkpoint=state), {}, context(directory / "trial"))
    program.step()
    name = program.save_to(directory / "trial" / "checkpoints")
    program.close()
    loaded: list[Any] = []

    def again(config: dict, report: Any) -> None:
        loaded.append(report.checkpoint)
        report(a=1)

    program = open_program(again, {}, context(directory / "trial"))
    program.load_from(directory / "trial" / "checkpoints" / name)
    program.step()
    program.close()
    return loaded[0]


def test_states_come_back_as_they_were(tmp_path: Path) -> None:
    state = {
        "tuple": (1, (2.5, "x"), [None, True]),
        3: {("a", 1): "any key"},
        "big": 2**127,
        "$tensor": ["not", "ours"],
        "$path": 0,
        "$escaped": {"$tensor": 1},
        "scalar": np.float32(0.1),
    }
    assert saved_and_loaded(state, tmp_path) == state
    for array in (np.arange(6, dtype=np.uint8).reshape(2, 3), np.zeros((0, 3)), np.array(2.5, np.float16)):
        loaded = saved_and_loaded(array, tmp_path)
        assert loaded.dtype == array.dtype and loaded.shape == array.shape and loaded.tobytes() == array.tobytes()
        assert loaded.flags.writeable
    assert saved_and_loaded([1, 2], tmp_path) == [1, 2]


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensors = [
        torch.randn(3, 4).T,  # not contiguous
        torch.randn(5).to(torch.bfloat16),
        torch.randn(2, 2, dtype=torch.complex64),
        torch.nn.Parameter(torch.randn(3)),
        torch.tensor(7),
        torch.zeros(0, 2),
        torch.tensor([True, False]),
        torch.randn(4).to(torch.float8_e4m3fn),
    ]
    for tensor, loaded in zip(tensors, saved_and_loaded({"t": tensors}, tmp_path)["t"], strict=True):
        assert loaded.dtype == tensor.dtype and loaded.shape == tensor.shape and not loaded.requires_grad
        assert bytes(loaded.reshape(-1).view(torch.uint8).tolist() if loaded.numel() else b"") == bytes(
            tensor.detach().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else b""
        )


def test_files_and_directories_are_copied(tmp_path: Path) -> None:
    model, folder = tmp_path / "model.bin", tmp_path / "folder"
    (folder / "inner" / "empty").mkdir(parents=True)
    (folder / "inner" / "x.txt").write_text("x")
    model.write_bytes(bytes(3_000_000))
    loaded = saved_and_loaded({"model": model, "all": [folder]}, tmp_path)
    assert loaded["model"].read_bytes() == model.read_bytes() and loaded["model"] != model
    assert loaded["model"].name == "model.bin"
    copied = loaded["all"][0]
    assert (copied / "inner" / "x.txt").read_text() == "x" and (copied / "inner" / "empty").is_dir()
    assert saved_and_loaded(model, tmp_path).read_bytes() == model.read_bytes()


def test_a_checkpoint_with_damaged_files_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model.bin"
    model.write_bytes(b"weights")
    saved_and_loaded(model, tmp_path)
    checkpoints = tmp_path / "trial" / "checkpoints"
    (kept,) = checkpoints.glob("step_*/files/0/model.bin")
    kept.write_bytes(b"Weights")
    program = open_program(counting, {}, context(tmp_path / "trial"))
    with pytest.raises(CheckpointError, match=r"model.bin was altered"):
        program.load_from(checkpoints / "step_1")
    (checkpoints / "step_1" / "state" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state.json"):
        program.load_from(checkpoints / "step_1")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"f": object()}, "trial 3: 'state.f' is a builtins.object"),
        (Path("/nowhere/model.pt"), "/nowhere/model.pt, which is not there"),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused_whole(state: Any, message: str, tmp_path: Path) -> None:
    program = open_program(lambda config, report: report(a=1, checkpoint=state), {}, context(tmp_path))
    program.step()
    with pytest.raises(CheckpointError, match=message):
        program.save_to(tmp_path / "checkpoints")
    assert not [path for path in tmp_path.glob("checkpoints/*") if path.name != "latest"]
    program.close()


def test_a_checkpoint_is_made_only_when_it_is_wanted_and_its_errors_reach_the_caller(tmp_path: Path) -> None:
    calls = []

    def make() -> Any:
        calls.append(threading.current_thread().name)
        if len(calls) == 2:
            raise OSError("no")
        return {"n": len(calls)}

    def trial(config: dict, report: Any) -> None:
        for _ in range(4):
            report(a=1, checkpoint=make)
        report(a=2)

    program = open_program(trial, {}, context(tmp_path))
    program.step()
    program.step()
    program.save_to(tmp_path)
    with pytest.raises(OSError, match="no"):
        program.save_to(tmp_path)
    assert calls == ["trial-3", "trial-3"] and program.step() == {"a": 1}  # it goes on
    program.step()
    program.step()
    assert not program.can_save
    with pytest.raises(CheckpointError, match="brought no checkpoint"):
        program.save_to(tmp_path)
    program.close()


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != "latest")


def test_the_newest_two_stay(tmp_path: Path) -> None:
    program = open_program(walk, {}, context(tmp_path / "t"))
    for _ in range(12):
        program.step()
        program.save_to(tmp_path / "c")
    program.close()
    assert names_in(tmp_path / "c") == ["step_11", "step_12"]


def test_what_an_attempt_wrote_that_did_not_live_to_tell_goes(tmp_path: Path) -> None:
    """The study knows of step_2. The attempt that wrote step_3 died; its heir writes, and nobody hears of that either:
    step_2 is still there."""
    first = open_program(walk, {}, context(tmp_path / "t"))
    for _ in range(3):
        first.step()
        first.save_to(tmp_path / "c")
    first.close()
    assert names_in(tmp_path / "c") == ["step_2", "step_3"]
    second = open_program(walk, {}, context(tmp_path / "t"))
    second.load_from(tmp_path / "c" / "step_2")
    second.step()
    assert second.save_to(tmp_path / "c") == "step_4"  # a name that was never there
    second.close()
    assert names_in(tmp_path / "c") == ["step_2", "step_4"]


def test_copies_of_other_trials_checkpoints_do_not_pile_up(tmp_path: Path) -> None:
    source = open_program(walk, {}, context(tmp_path / "t"))
    source.step()
    source.save_to(tmp_path / "source")
    source.close()
    mine = tmp_path / "mine"
    for index in (1, 2, 3):
        copy = f"exploit_{index}_from_8_step_1"
        shutil.copytree(tmp_path / "source" / "step_1", mine / copy)
        program = open_program(walk, {}, context(tmp_path / "t"))
        program.load_from(mine / copy)
        program.step()
        name = program.save_to(mine)
        assert names_in(mine) == [copy, name]
        program.close()


# ---------------------------------------------------------------- seeds


def drawing(config: dict, report: Any) -> None:
    for _ in range(config.get("n", 4)):
        report(a=random.random(), b=np.random.rand(), checkpoint={})


class Drawing:
    def __init__(self, config: dict) -> None:
        pass

    def step(self) -> dict:
        return {"a": random.random(), "b": np.random.rand()}


@pytest.mark.parametrize("trainable", [drawing, Drawing, lambda config: {"a": random.random(), "b": np.random.rand()}])
def test_global_generators_are_seeded(trainable: Any, tmp_path: Path) -> None:
    def first(seed: int) -> Any:
        random.seed(seed + 1)
        program = open_program(trainable, {}, context(tmp_path, seed=seed))
        metrics = program.step()
        program.close()
        return metrics

    assert first(1) == first(1) != first(2)


TORCH_INSIDE = """
from pathlib import Path
from rlplat.tune.trials import TrialContext
from rlplat.tune.trials.programs import open_program

def trial(config):
    import importlib.util
    assert importlib.util.find_spec("torch") is not None
    import torch
    return {"drawn": torch.rand(()), "seeded": torch.initial_seed()}

print([open_program(trial, {}, TrialContext(0, 7, Path())).step() for _ in range(2)])
"""


@pytest.mark.process
def test_torch_is_seeded_also_when_the_trial_imports_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = subprocess.run([sys.executable, "-c", TORCH_INSIDE], capture_output=True, text=True, check=True).stdout
    first, second = ast.literal_eval(text)
    assert first == second and first["seeded"] == 7


def test_several_seeds_report_their_means(tmp_path: Path) -> None:
    def trial(config: dict, report: Any) -> None:
        report(seed=report.seed % 1000, text="x", flag=True)

    program = open_program(trial, {}, context(tmp_path, num_seeds=3))
    metrics = program.step()
    assert metrics is not None
    seeds = [seed % 1000 for seed in seeds_of(7, 3)]
    assert seeds[0] == 7 and len(set(seeds)) == 3
    assert metrics["seed"] == pytest.approx(np.mean(seeds)) and metrics["text"] == "x" and metrics["flag"] == 1
    assert metrics["seed_std"] == pytest.approx(np.std(seeds, ddof=1))
    assert program.step() is None
    program.close()


@pytest.mark.parametrize("trainable", [drawing, Drawing])
def test_each_seed_draws_as_it_would_alone(trainable: Any, tmp_path: Path) -> None:
    together = open_program(trainable, {}, context(tmp_path, num_seeds=2))
    alone = [open_program(trainable, {}, context(tmp_path, seed=seed)) for seed in seeds_of(7, 2)]
    expected = [[one.step() for _ in range(3)] for one in alone[:1]] + [[alone[1].step() for _ in range(3)]]
    for index in range(3):
        metrics = together.step()
        assert metrics is not None
        assert metrics["a"] == pytest.approx((expected[0][index]["a"] + expected[1][index]["a"]) / 2)
    for program in (together, *alone):
        program.close()


def uneven(config: dict, report: Any) -> Any:
    """The first seed ends after 2 reports, the others after 4."""
    rng = np.random.default_rng(report.seed)
    if report.checkpoint:
        rng.bit_generator.state = report.checkpoint
    for _ in range(report.step, 2 if report.seed == 7 else 4):
        yield {"x": rng.normal()}, rng.bit_generator.state


def test_several_seeds_go_on_from_a_checkpoint_and_one_that_ended_counts_on(tmp_path: Path) -> None:
    def all_of(program: Any) -> list[Any]:
        reports = []
        while (metrics := program.step()) is not None:
            reports.append(metrics)
        return reports

    expected = all_of(open_program(uneven, {}, context(tmp_path / "t", num_seeds=3)))
    assert len(expected) == 4
    for cut in (1, 3):
        first = open_program(uneven, {}, context(tmp_path / "t", num_seeds=3))
        begun = [first.step() for _ in range(cut)]
        name = first.save_to(tmp_path / "c")
        first.close()
        second = open_program(uneven, {}, context(tmp_path / "t", num_seeds=3))
        second.load_from(tmp_path / "c" / name)
        assert begun + all_of(second) == expected
        second.close()


# ---------------------------------------------------------------- what a trainable is


def test_kinds(tmp_path: Path) -> None:
    def by_keyword(config: dict, *, report: Any) -> None: ...

    assert check_trainable(lambda config: 1.0).form == "function"
    assert check_trainable(lambda config, scale=2: 1.0).form == "function"
    assert check_trainable(counting).form == "reporting function"
    assert check_trainable(by_keyword).form == "reporting function"
    assert check_trainable(functools.partial(counting, report=None)).form == "reporting function"
    assert check_trainable(walking).form == "generator" and check_trainable(walking).can_save is None
    assert check_trainable(Walk).can_save is True and check_trainable(Failing).can_save is False
    assert check_trainable("ppo").form == "algorithm"
    from rlplat.algorithms.ppo import PPO

    assert (check_trainable(PPO).form, check_trainable(PPO).name) == ("algorithm", "ppo")


class NoStep:
    def __init__(self, config: dict) -> None: ...


class SavesOnly(Failing):
    def save(self) -> dict:
        return {}


class AsyncStep(Failing):
    async def step(self) -> dict:  # type: ignore[override]
        return {}


class TooMuch(Failing):
    def __init__(self, config: dict, context: Any, more: Any) -> None: ...


async def asynchronous(config: dict) -> None: ...


lock = threading.Lock()


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        (lambda: 1, r"takes \(\), and a trial calls f\(config\) or f\(config, report\)"),
        (lambda a, b, c: 1, r"takes \(a, b, c\)"),
        (lambda config, report, more: 1, r"takes \(config, report, more\)"),
        (asynchronous, "asynchronous is `async def`"),
        (NoStep, r"class NoStep has no step\(self\)"),
        (SavesOnly, "class SavesOnly has save and no load"),
        (AsyncStep, "AsyncStep.step returns one report"),
        (TooMuch, r"TooMuch takes \(config: 'dict', context: 'Any', more: 'Any'\)"),
        (Failing({}), "an instance of Failing: give the class itself"),
        (17, "17 is no trainable"),
        ("ppoo", "unknown algorithm 'ppoo'"),
        ("./nowhere.py:train", "there is no file nowhere.py"),
    ],
)
def test_what_is_no_trainable(trainable: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_trainable(trainable)


def test_a_trainable_that_cannot_travel() -> None:
    held = threading.Lock()

    def trial(config: dict) -> float:
        with held:
            return 1.0

    with pytest.raises(ConfigError, match=r"(?s)trial cannot be sent to the processes of its trials: .*lock"):
        check_trainable(trial)


def test_by_name_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import threading\nlock = threading.Lock()\ndef train(config, report):\n    report(x=config['x'])\n"
    )
    assert check_trainable("./mine.py:train").form == "reporting function"
    program = open_program("./mine.py:train", {"x": 4}, context(tmp_path))
    assert program.step() == {"x": 4}
    program.close()
    with pytest.raises(ConfigError, match="has no 'trian'"):
        check_trainable("./mine.py:trian")
