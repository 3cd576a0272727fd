"""Callbacks hear of every event in its order, may end a run and add metrics; what is wrong with one is named."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlplat.checkpoints import latest_valid
from rlplat.errors import ConfigError, RlplatError
from rlplat.rl.callbacks import Callback
from rlplat.rl.interfaces import Episode, Result
from rlplat.rl.run.training_loop import train, training_loop
from tests.rl.run.test_training_loop import ALGO, counting

HERE = f"{__name__}:"
heard: list[Any] = []


class Listener(Callback):
    """Writes down what it hears; ends the run after `most` steps."""

    def __init__(self, most: int = 100) -> None:
        self.most = most

    def on_start(self, algorithm: Any, directory: Path | None) -> None:
        heard.append(f"start in {directory.name}" if directory else "start")

    def on_result(self, algorithm: Any, result: Result) -> str | None:
        heard.append(result.env_steps)
        result.metrics["mine/steps"] = float(result.env_steps)
        return f"{self.most} steps" if result.iteration == self.most else None

    def on_evaluation(self, algorithm: Any, result: Result) -> None:
        heard.append(("evaluation", result.metrics["eval/return_mean"]))

    def on_checkpoint(self, algorithm: Any, path: Path) -> None:
        assert (path / "manifest.json").exists()
        heard.append(path.name)

    def on_end(self, algorithm: Any, result: Result | None) -> None:
        heard.append(("end", result and result.env_steps))


class Raises(Callback):
    def on_result(self, algorithm: Any, result: Result) -> None:
        raise KeyError("x")


class Exits(Callback):
    def on_result(self, algorithm: Any, result: Result) -> None:
        if result.iteration == 2:
            sys.exit(0)


class Measures(Callback):
    """Writes down a metric of each kind that somebody might have."""

    def __init__(self, what: str = "") -> None:
        self.what = what

    def on_result(self, algorithm: Any, result: Result) -> None:
        one: dict[str, Any] = {"array": np.ones((1, 1)), "int64": np.int64(3), "tensor": torch.tensor(1.5)}
        others: dict[str, Any] = {"": "a text", "arrays": np.ones(2), "set": {1}, "tensors": torch.ones(2)}
        result.metrics |= {f"mine/{key}": value for key, value in one.items()}
        result.metrics["mine/other"] = others[self.what]


class SaysYes(Callback):
    def on_result(self, algorithm: Any, result: Result) -> str:
        return True  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def nothing_heard() -> None:
    heard.clear()


def test_events_come_in_their_order_and_metrics_are_written(tmp_path: Path) -> None:
    evaluation = {"period": 20, "episodes": 2}
    train(
        ALGO,
        env="X",
        out=tmp_path / "run",
        stop={"env_steps": 30},
        evaluation=evaluation,
        checkpoint_period=20,
        callbacks=[HERE + "Listener"],
    )
    assert heard == [
        "start in run",
        10,
        ("evaluation", 2.5),
        20,
        "step_20",
        30,
        "step_30",
        ("evaluation", 3.5),
        ("end", 30),
    ]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["mine/steps"] for line in lines] == [10.0, 20.0, 30.0, 30.0]


@pytest.mark.parametrize("form", ["object", "arguments", "loop"])
def test_a_callback_ends_the_run_with_its_reason(form: str, tmp_path: Path) -> None:
    if form == "loop":
        assert len(list(training_loop(counting(), callbacks=[Listener(2)]))) == 2
    else:
        named = Listener(2) if form == "object" else {HERE + "Listener": {"most": 2}}
        run = train(ALGO, env="X", out=tmp_path / "run", callbacks=[named])
        assert run.num_iterations == 2
        assert "ended by Listener: 2 steps" in (tmp_path / "run" / "log.txt").read_text()
        assert ("most" in (tmp_path / "run" / "config.yaml").read_text()) == (form == "arguments")
    assert [heard[0], heard[-1]] == ["start" if form == "loop" else "start in run", ("end", 20)]


def test_a_resumed_run_has_the_callbacks_of_its_config(tmp_path: Path) -> None:
    train(ALGO, env="X", out=tmp_path / "run", stop={"env_steps": 10}, callbacks=[HERE + "Listener"])
    heard.clear()
    train(resume=tmp_path / "run", stop={"env_steps": 20})
    assert heard[:2] == ["start in run", 20]


def test_a_run_that_a_callback_breaks_is_saved_and_ended(tmp_path: Path) -> None:
    with pytest.raises(
        RlplatError,
        match=r"on_result\(\) of the callback Raises raised KeyError: 'x' \(at .*test_callbacks.py:\d+\)",
    ):
        train(ALGO, env="X", out=tmp_path / "run", callbacks=[Listener(), Raises()])
    assert heard == ["start in run", 10, ("end", 10)]
    # In its first step, nothing was learnt: the mended callback may have the same directory, and the log stays.
    assert train(ALGO, env="X", out=tmp_path / "run", stop={"env_steps": 10}).num_iterations == 1
    assert "KeyError: 'x'" in (tmp_path / "run" / "log.txt").read_text()
    assert latest_valid(tmp_path / "run")[0] is not None
    with pytest.raises(ConfigError, match="a run is already in"):
        train(ALGO, env="X", out=tmp_path / "run")


def test_a_callback_that_exits_ends_the_run_with_a_checkpoint_and_a_message(tmp_path: Path) -> None:
    with pytest.raises(RlplatError, match=r"on_result\(\) of the callback Exits raised SystemExit: 0"):
        train(ALGO, env="X", out=tmp_path / "run", callbacks=[Exits()])
    checkpoint, _ = latest_valid(tmp_path / "run")
    assert checkpoint is not None


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        ([HERE + "SaysYes"], "on_result() of the callback SaysYes returned True; it returns nothing, or a text"),
        ([HERE + "Listner"], "callbacks: 'tests.rl.run.test_callbacks:Listner': 'tests.rl.run.test_callbacks' has no"),
        ([{HERE + "Listener": {"least": 1}}], "(with {'least': 1}) raised TypeError"),
        ([HERE + "counting"], "callbacks: tests.rl.run.test_callbacks:counting made a CountingAlgorithm"),
        ([{HERE + "Raises": {}, HERE + "SaysYes": {}}], "neither pkg.module:Class or ./file.py:Class nor"),
        ([Listener], "Listener'> is not a callback; give an object of a subclass of rlplat.rl.callbacks.Callback"),
        ([print], "<built-in function print> is not a callback; give an object of"),
        (["Listener"], "must be a list of ./file.py:Class and {./file.py:Class: {argument: value}}"),
    ],
)  # fmt: skip
def test_what_is_no_callback_is_named(callbacks: list[Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        train(ALGO, env="X", out=tmp_path / "run", callbacks=callbacks)


def test_the_one_of_the_page_ends_a_run_that_gets_no_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "callbacks.md").read_text()
    program = next(block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "patience.py" in block)
    (tmp_path / "patience.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.cli.counting_algorithm.CountingAlgorithm.evaluate", lambda self, n: [Episode(5.0, 5)])
    patient = {"./patience.py:Patience": {"evaluations": 2}}
    run = train(ALGO, env="X", out="run", evaluation={"period": 10, "episodes": 1}, callbacks=[patient])
    assert run.num_iterations == 3
    assert "ended by Patience: no better than 5 in 2 evaluations" in (tmp_path / "run" / "log.txt").read_text()


def test_metrics_are_plain_numbers_in_files_and_checkpoints(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(ALGO, env="X", out=out, stop={"env_steps": 30}, callbacks=[HERE + "Measures"])
    record = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert [record[f"mine/{key}"] for key in ("array", "int64", "tensor", "other")] == [1.0, 3, 1.5, "a text"]
    assert latest_valid(out)[0] is not None


@pytest.mark.parametrize(("what", "kind"), [("arrays", "ndarray"), ("set", "set"), ("tensors", "Tensor")])
def test_what_is_no_number_is_named_with_its_callback(tmp_path: Path, what: str, kind: str) -> None:
    said = rf"on_result\(\) of the callback Measures wrote a {kind} as the metric 'mine/other'"
    with pytest.raises(ConfigError, match=said):
        train(ALGO, env="X", out=tmp_path / "run", callbacks=[{HERE + "Measures": {"what": what}}])
