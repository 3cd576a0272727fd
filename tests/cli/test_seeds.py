"""`rlplat train --seeds`: a run per seed; a seed that fails is named, the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlplat.cli import main, seeds
from rlplat.cli.seeds import parse_seeds
from rlplat.errors import ConfigError
from tests.cli.conftest import write_run


@pytest.mark.parametrize(("text", "found"), [("1-3,7", [1, 2, 3, 7]), ("5", [5]), (" 2 - 3 ,1", [2, 3, 1])])
def test_lists_of_seeds(text: str, found: list[int]) -> None:
    assert parse_seeds(text) == found


@pytest.mark.parametrize("text", ["", "3-1", "a", "1,,2", "1-", "1,1-2", "1-5000", "-1", "1.5"])
def test_what_is_no_list_of_seeds(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds(text)


def test_each_seed_is_a_run_and_the_failed_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    started: list[list[str]] = []

    class Child:
        def __init__(self, command: list[str], env: Any) -> None:
            started.append(command[4:])
            place = Path(command[command.index("--out") + 1])
            self.seed = int(place.name.removeprefix("seed-"))
            if not place.exists():
                write_run(place, self.seed)

        def __enter__(self) -> Child:
            return self

        def __exit__(self, *_: object) -> None: ...

        def wait(self) -> int:
            return int(self.seed == 2)

    monkeypatch.setattr(seeds.subprocess, "Popen", Child)
    (tmp_path / "many/seed-3/checkpoints/step_10").mkdir(parents=True)
    (tmp_path / "many/seed-3/config.yaml").write_text("algo: ppo\nenv: X\nseed: 3\n")
    flags = ["--algo", "ppo", "--env", "X", "--stop.env-steps", "10"]
    assert main(["train", *flags, "--seeds", "1-3", "--out", "many"]) == 1
    assert started == [
        [*flags, "--seed", str(seed), "--out", f"many/seed-{seed}", "--resume", "auto"] for seed in (1, 2, 3)
    ]
    out = capsys.readouterr().out
    assert "failed: seed 2; the log is in many/seed-2/log.txt" in out
    assert "2 seeds: such an interval says little" in out
    assert main(["train", *flags, "--seeds", "1,2", "--seed", "4"]) == 2


@pytest.mark.process
def test_two_seeds_and_what_they_say_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    command = "train --algo tests.cli.counting_algorithm:CountingAlgorithm --env X --stop.env-steps 20 --seeds 1,2"
    assert main([*command.split(), "--out", "two"]) == 0
    out = capsys.readouterr().out
    assert "evaluation of 2 seeds: mean " in out and (tmp_path / "two/seed-2/metrics.jsonl").exists()
    assert main([*command.split(), "--out", "two"]) == 0  # nothing is left to do
