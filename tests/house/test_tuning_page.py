"""docs/tuning.md, its reference and configs/tune/: programs run, experiments are sound, names exist, Ray's and ours."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from rlplat import tune
from rlplat.config import parse_yaml
from rlplat.rl.run.registry import load_algorithm
from rlplat.tune.experiment_file import KEYS, load_experiments
from rlplat.tune.schedulers import SCHEDULERS
from rlplat.tune.search import _OPTIONS as SEARCHERS
from tests.house.test_docs import ROOT, blocks, run, run_block

PAGES = [ROOT / "docs" / "tuning.md", ROOT / "docs" / "tuning-reference.md"]
TEXT = "".join(page.read_text() for page in PAGES)
PROGRAMS, EXPERIMENTS = ([block for page in PAGES for block in blocks(page, kind)] for kind in ("python", "yaml"))
TRIAL = """
def train(config, report):
    for step in range(1, 101):
        report(accuracy=config["alpha"] * step / (config["beta"] + step))
"""


def rows(heading: str) -> list[list[str]]:
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert section is not None, f"there is no section {heading!r}"
    cells = re.sub(r"^\|.*\n\|---.*\n", "", section[1], flags=re.MULTILINE)
    lines = [line for line in cells.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.process
@pytest.mark.parametrize("block", PROGRAMS, ids=range(len(PROGRAMS)))
def test_every_program_of_the_pages_runs_and_prints_what_it_says(tmp_path: Path, block: str) -> None:
    printed = run_block(block, tmp_path)
    for said in re.findall(r"print\(.*\)  # (\{.*\})$", block, re.MULTILINE):
        assert said in printed


@pytest.mark.process
def test_the_seed_example_is_the_same_in_python_and_as_a_file(tmp_path: Path) -> None:
    program, file = PROGRAMS[0], EXPERIMENTS[0]
    assert len([line for line in program.splitlines() if line]) <= 10
    (tmp_path / "my_trial.py").write_text(TRIAL)
    (tmp_path / "experiment.yaml").write_text(file)
    printed = run(["-m", "rlplat.cli", "tune", "experiment.yaml"], tmp_path)
    assert "alpha: 0.6\n  beta: 1\n" in printed and "{'alpha': 0.6, 'beta': 1}" in program
    assert TRIAL.strip() in program


@pytest.mark.parametrize("block", EXPERIMENTS, ids=range(len(EXPERIMENTS)))
def test_every_experiment_of_the_pages_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_trial.py").write_text(TRIAL)
    Path("experiment.yaml").write_text(block)
    for spec in load_experiments("experiment.yaml"):
        spec.checked()


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "tune").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_that_is_shipped_is_sound(path: Path) -> None:
    specs = [spec.checked() for spec in load_experiments(path)]
    assert all(load_algorithm(spec.trainable) for spec in specs)
    assert f"configs/tune/{path.name}" in TEXT


def test_every_searcher_and_scheduler_is_in_its_table() -> None:
    assert [name for cell, *_ in rows("Searchers") for name in code(cell)] == list(SEARCHERS)
    assert [name for cell, *_ in rows("Trial schedulers") for name in code(cell)] == list(SCHEDULERS)


def test_every_domain_exists_and_every_key_is_explained() -> None:
    named = {
        name.partition("(")[0].removeprefix("tune.") for cell, *_ in rows("The search space") for name in code(cell)
    }
    ours = {name for name in tune.__all__ if name.islower()} - {"load", "run"}
    assert named - {"the value"} == ours
    assert [key for key in KEYS if f"`{key}" not in TEXT and f"\n{key}:" not in TEXT] == []
    parameters = set(inspect.signature(tune.run).parameters)
    assert {key for key in KEYS if key != "config"} <= parameters


@pytest.mark.process
def test_a_finished_experiment_has_the_files_that_the_page_names(tmp_path: Path) -> None:
    (tmp_path / "my_trial.py").write_text(TRIAL)
    (tmp_path / "experiment.yaml").write_text(EXPERIMENTS[0])
    run(["-m", "rlplat.cli", "tune", "experiment.yaml"], tmp_path)
    named = {name.split("/")[0] for cell, *_ in rows("The experiment's directory") for name in code(cell)}
    assert {path.name for path in (tmp_path / "runs" / "experiment").iterdir()} == named


def test_every_name_of_ray_tunes_exists() -> None:
    pytest.importorskip("ray")
    pytest.importorskip("pyarrow", reason="ray.tune needs pyarrow")
    modules = [
        importlib.import_module(name) for name in ("ray.tune", "ray.tune.schedulers", "ray.tune.search", "ray.train")
    ]
    modules += [
        importlib.import_module(f"ray.tune.{name}") for name in ("schedulers.pb2", "search.optuna", "search.bayesopt")
    ]
    modules.append(importlib.import_module("ray.tune.search.basic_variant"))
    named = [name for cell, *_ in rows("From Ray Tune") for name in code(cell)]
    classes = {word for name in named for word in re.findall(r"\b[A-Z]\w+", name)} - {"PPO", "True"}
    assert [name for name in sorted(classes) if not any(hasattr(module, name) for module in modules)] == []
    functions = {word for name in named for word in re.findall(r"\btune\.(\w+)", name)}
    assert [name for name in sorted(functions) if not hasattr(modules[0], name)] == []


def test_the_experiments_of_the_page_have_the_keys_of_files() -> None:
    for block in EXPERIMENTS:
        assert set(parse_yaml(block, "tuning.md").values) <= {*KEYS, "runs"}


@pytest.mark.process
def test_the_readmes_experiment_runs(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(ROOT / "README.md", "python") if "from rlplat import tune" in block)
    assert "{'alpha': 0." in run_block(block, tmp_path)
