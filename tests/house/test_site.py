"""The site without mkdocs: its navigation names pages that are there, its hooks make the links, its programs run."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplat.rl.run.registry import algorithm_homes

ROOT = Path(__file__).resolve().parents[2]
NOT_IN_NAVIGATION = {"docs/decisions"}


def load_hooks() -> Any:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load_hooks()


def named(navigation: Any) -> list[str]:
    if isinstance(navigation, str):
        return [navigation]
    parts = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for part in parts for page in named(part)]


def test_the_navigation_names_every_page_once_and_no_other() -> None:
    pages = named(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    made = {f"settings/{algo}.md" for algo in algorithm_homes()}
    assert sorted(page for page in pages if "/" not in page) == sorted(there)
    assert {page for page in pages if page.startswith("settings/")} == made
    reached = {hooks.page_of(path) for path in hooks.outside_pages(docs())}
    assert {page for page in pages if page.startswith("repository/")} <= reached


def docs() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "docs").glob("**/*.md")}


def test_every_link_of_every_page_leads_to_a_page_of_the_site() -> None:
    pages = docs()
    site = {hooks.page_of(path) for path in (*pages, *hooks.outside_pages(pages))}
    others = (*(ROOT / "docs").glob("images/*"), *(ROOT / "docs").glob("notebooks/*"))
    site |= {hooks.page_of(str(path.relative_to(ROOT))) for path in others}
    for path, text in pages.items():
        rewritten = hooks.rewritten(path, text)
        for part in hooks.FENCE.split(rewritten)[::2]:
            for _, target, _ in hooks.LINK.findall(part):
                file = hooks.target_of(hooks.page_of(path), target)
                assert file is None or file in site, f"{path}: {target}"


@pytest.mark.parametrize(
    ("page", "target", "expected"),
    [
        ("docs/ppo.md", "../algorithms/ppo.py", "repository/algorithms/ppo.py.md"),
        ("docs/ppo.md", "dqn.md#a", "dqn.md#a"),
        ("docs/decisions/0003-numpy-acting.md", "../ppo.md", "../ppo.md"),
        ("README.md", "docs/ppo.md", "../ppo.md"),
        ("benchmarks/README.md", "results/README.md", "results/README.md"),
        ("docs/ppo.md", "https://x.org/a.py", "https://x.org/a.py"),
        ("docs/ppo.md", "../nothing.py", "../nothing.py"),
    ],
)
def test_a_link_is_that_of_the_site(page: str, target: str, expected: str) -> None:
    assert hooks.rewritten(page, f"see [it]({target}).") == f"see [it]({expected})."
    assert hooks.rewritten(page, f"```\n[it]({target})\n```") == f"```\n[it]({target})\n```"


def test_the_settings_of_an_algorithm_are_one_table() -> None:
    page = hooks.settings_page("ppo")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 60 and all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
    assert any(row.startswith("| `clip_range` ") and "0.2" in row for row in rows)


@pytest.mark.slow
@pytest.mark.process
def test_the_programs_of_the_new_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, smaller, with what the commands of the page before them would have made."""
    monkeypatch.chdir(tmp_path)
    smaller = [("num_rollout_workers=2", "num_rollout_workers=0"), ("50_000", "2_000"), ("20_000", "2_000")]
    for page in ("from-sb3", "from-rllib", "from-cleanrl", "recipes"):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            for large, small in smaller:
                block = block.replace(large, small)
            block = block.replace('out="runs/', 'num_rollout_workers=0, out="runs/')
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(block, f"{page}.md", "exec"), {"__name__": "__main__"})
            assert said.getvalue().strip(), f"{page}: a program that prints nothing"


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("notebook", "smaller", "last"),
    [("ppo-cartpole", ("80_000", "4_000"), float), ("own-env-and-policy", ("30_000", "6_000"), list)],
)
def test_a_notebook_runs_from_its_first_cell_to_its_last(
    notebook: str, smaller: tuple[str, str], last: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells one after the other in this process, with less training; the last one's value is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = json.loads((ROOT / "docs" / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(cell.get("outputs", []) == [] for cell in cells), "committed without outputs"
    assert any(smaller[0] in cell for cell in code)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in code[:-1]:
        exec(
            compile(cell.replace(*smaller).replace('period": 20_000', 'period": 2_000'), notebook, "exec"),
            names,
        )
    *before, value = ast.parse(code[-1]).body
    assert isinstance(value, ast.Expr)
    exec(compile(ast.Module(before, []), notebook, "exec"), names)
    assert isinstance(eval(compile(ast.Expression(value.value), notebook, "eval"), names), last)
    if "plt" in names:
        names["plt"].close("all")
