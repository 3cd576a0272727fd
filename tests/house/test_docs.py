"""The pages tell the truth: links lead somewhere, named code exists, commands parse, the README's Python runs."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import a3c_scaling, runtime, simulation, train
from rlplat.cli import COMMANDS, command_of
from rlplat.cli import check_env as check_env_command
from rlplat.cli import serve as serve_command
from rlplat.cli import train as train_command
from rlplat.cli import tune as tune_command
from rlplat.cli import tune_show as tune_show_command
from rlplat.cli.cluster.options import with_program
from rlplat.cluster.settings import resolve_cluster
from rlplat.config import Layer, layer_from_flags, parse_yaml, resolve
from rlplat.rl.names_elsewhere import switches_of
from rlplat.rl.run.registry import algorithm_homes, load_algorithm, require_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "benchmarks").glob("**/*.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BENCHMARKS = {
    "runtime": runtime,
    "train": train,
    "a3c_scaling": a3c_scaling,
    "simulation": simulation,
}


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(page: Path) -> list[tuple[str, Path]]:
    """(text, file) of every link that stays in the repository."""
    targets = LINK.findall(BLOCK.sub("", page.read_text()))
    return [
        (text, page.parent / target.partition("#")[0])
        for text, target in targets
        if "://" not in target and not target.startswith("#")
    ]


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(page.read_text()) if found == language]


def commands(page: Path) -> list[list[str]]:
    """Every line of its sh blocks as words, comments left out."""
    lines = "".join(blocks(page, "sh")).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def defined_names(file: Path) -> set[str]:
    """Classes and functions as `name` and `Class.name`, and assigned names, of a Python file."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{child.name}" for child in node.body if isinstance(child, ast.FunctionDef)}
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [f"{text} -> {target}" for text, target in links(page) if not target.exists()]
    assert not missing


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", LINK.sub(r"\1", heading)).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", each) for each in words}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_into_pages_find_their_heading(page: Path) -> None:
    targets = [target.partition("#") for _, target in LINK.findall(BLOCK.sub("", page.read_text())) if "#" in target]
    files = [(page.parent / file if file else page, anchor) for file, _, anchor in targets if "://" not in file]
    assert [(str(file), anchor) for file, anchor in files if file.suffix == ".md" and anchor not in anchors(file)] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_linked_code_exists(page: Path) -> None:
    missing = []
    for text, target in links(page):
        match = re.fullmatch(r"`([A-Za-z_][\w.]*)`", text)
        if target.suffix == ".py" and match and not match[1].endswith(".py"):
            file = target.resolve().relative_to(ROOT)
            name = match[1].removeprefix(".".join(file.with_suffix("").parts) + ".")
            if name not in defined_names(target):
                missing.append(f"{name} is not in {file}")
    assert not missing


def test_the_index_lists_every_page() -> None:
    listed = {target.resolve() for _, target in links(ROOT / "docs" / "index.md")}
    assert [page_name(page) for page in (ROOT / "docs").glob("**/*.md") if page.resolve() not in listed] == [
        "docs/index.md"
    ]


@pytest.mark.parametrize("walk", ["journey-of-a-task.md", "journey-of-a-sample.md"])
def test_the_walks_name_code_at_every_step(walk: str) -> None:
    steps = re.split(r"^\*\*\d+\.", (ROOT / "docs" / walk).read_text(), flags=re.MULTILINE)[1:]
    assert len(steps) >= 8
    assert [number for number, step in enumerate(steps, 1) if ".py)" not in step] == []


def check_train(arguments: list[str]) -> None:
    known, flags = train_command.split_setting_flags(train_command.run.parser(), arguments)
    options = train_command.run.parser().parse_args(known)
    if (options.algo or "").startswith("./"):
        return  # a file of the page's own, which the page's own test runs
    given = [("env", options.env or "CartPole-v1"), ("seed", options.seed or "0")]
    given += [
        ("num-rollout-workers", options.num_rollout_workers or "1"),
        ("framework", options.framework or "torch"),
    ]
    comes_out = bool(options.config) and Path(options.config).parts[0] == "runs"  # of another command on the page
    config = require_config(options.config) if options.config and not comes_out else None
    switches = switches_of(options.algo or "")
    assert options.resume or comes_out or config or options.algo in algorithm_homes() or switches
    algo = switches.algo if switches else options.algo or (config.parent.name if config else "ppo")
    layers = [layer_from_flags(given + flags), train_command.settings_layer(options.set)]
    resolve(load_algorithm(algo).config_class, layers)


def check_check_env(arguments: list[str]) -> None:
    known, flags = train_command.split_setting_flags(check_env_command.run.parser(), arguments)
    check_env_command.run.parser().parse_args(known)
    assert all(flag.startswith("env-kwargs.") for flag, _ in flags), flags


def check_tune(arguments: list[str]) -> None:
    if arguments[0] == "show":
        tune_show_command.run.parser().parse_args(arguments[1:])
        return
    options = tune_command.run.parser().parse_args(arguments)
    if options.experiment is None or options.experiment.startswith("configs/"):
        options.experiment = options.experiment and str(ROOT / options.experiment)
        assert all(spec.checked() for spec in tune_command.planned(options))


def check_serve(arguments: list[str]) -> None:
    if arguments[0] in ("deploy", "status", "shutdown"):
        serve_command.build_file_parser(arguments[0]).parse_args(arguments[1:])
    else:
        serve_command.run.parser().parse_args(arguments)


CHECKS: dict[str, Callable[[list[str]], object]] = {
    "train": check_train,
    "serve": check_serve,
    "check-env": check_check_env,
    "tune": check_tune,
    "exec": lambda arguments: command_of("exec").parser().parse_args(with_program(arguments)[0]),
    "submit": lambda arguments: command_of("submit").parser().parse_args(with_program(arguments)[0]),
}


def check(command: str, arguments: list[str]) -> None:
    if command in CHECKS:
        CHECKS[command](arguments)
        return
    assert command in COMMANDS
    command_of(command).parser().parse_args(arguments)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=page_name)
def test_commands_in_code_blocks_are_known(page: Path) -> None:
    for program, *arguments in commands(page):
        if program.startswith("./"):
            assert os.access(ROOT / program, os.X_OK), f"{program} is not an executable file"
        if program == "source":
            assert arguments == [".venv/bin/activate"]
        elif program == "./scripts/bench":
            BENCHMARKS[arguments[0]].build_parser().parse_args(arguments[1:])
        elif program in ("rlplat", "./scripts/rlplat"):
            check(arguments[0], arguments[1:])
        else:
            is_known = program.startswith("./scripts/") or program in ("scp", "export", "optuna-dashboard")
            assert is_known, f"{program} is not ours to promise"


@pytest.mark.parametrize(
    "arguments",
    [["--algo", "ppo", "--env", "X", "--learning-rat", "1"], ["--algo", "ppo", "--set", "stop.steps=1"]],
)
def test_the_check_of_train_finds_unknown_settings(arguments: list[str]) -> None:
    with pytest.raises(Exception, match="unknown key"):
        check_train(arguments)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_python_and_yaml_blocks_are_valid(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, page_name(page), "exec")
    for block in blocks(page, "yaml"):
        layer = parse_yaml(block, page_name(page))
        if page.stem.startswith("tuning"):
            continue  # experiments: test_tuning_page.py
        if "provider" in layer.values:
            resolve_cluster(layer, page.stem)
            continue
        algo = layer.values.pop("algo", page.stem if page.stem in algorithm_homes() else "ppo")
        resolve(load_algorithm(algo).config_class, [Layer({"env": "CartPole-v1"}), layer])


def run(arguments: list[str], directory: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_block(block: str, directory: Path) -> str:
    script = directory / "script.py"
    script.write_text(block)
    return run([str(script)], directory)


@pytest.mark.process
def test_the_readmes_tasks_and_actors_print_what_they_say(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(ROOT / "README.md", "python") if "@rlplat.remote" in block)
    said = re.search(r"print\(.*#\s*(.*)", block)
    assert said is not None
    assert run_block(block, tmp_path).strip() == said[1]


def figures(file: Path) -> dict[str, float]:
    """Row (with its part) -> value, of what a benchmark wrote with --json."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return {f"{record['row']} {record['part']}".strip(): record["value"] for record in records}


@pytest.mark.process
def test_the_runtime_benchmark_measures_every_row(tmp_path: Path) -> None:
    options = [
        "--quick",
        "--repeats",
        "1",
        "--json",
        str(tmp_path / "rows"),
        "--markdown",
        str(tmp_path / "page"),
    ]
    run(["-m", "benchmarks.runtime", *options], tmp_path)
    measured = figures(tmp_path / "rows")
    for row in runtime.ROWS:
        assert any(name.startswith(row.name) for name in measured), f"{row.name} is missing"
    assert all(math.isfinite(value) for value in measured.values())
    page = (tmp_path / "page").read_text()
    assert "| row | rlplat |" in page and "| cpu |" in page and "--quick run" in page


@pytest.mark.process
def test_the_training_benchmark_measures_rates_and_the_time_to_the_threshold(tmp_path: Path) -> None:
    options = ["--quick", "--repeats", "1", "--rows", "cartpole", "threshold", "--seeds", "1"]
    said = run(["-m", "benchmarks.train", *options, "--json", str(tmp_path / "rows")], tmp_path)
    measured = figures(tmp_path / "rows")
    assert measured[train.RATES["cartpole"]] > 0
    assert measured[train.STOP] > 0 and measured[train.REACHED] == 0
    assert "seed 1: not reached" in said, "4,096 env steps are too few to reach 475"
