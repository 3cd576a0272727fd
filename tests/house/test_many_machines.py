"""What breaks on two machines, whatever the engine, is not written above the runtime: docs/on-ray.md.

Each rule is shown to find what it forbids.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("rlplat/rl", "rlplat/tune", "algorithms")
KEEP_WAITING = {"ParameterServer", "OpponentPool", "join_weights", "_unpacked", "_reduce", "_nothing"}
"""What may be started without `spread`: actors that mostly wait, and short tasks."""
LOCAL = {
    "rlplat/rl/policies/spec.py": "cpu_share: called in the process that will have the threads",
    "rlplat/rl/sampling/worker_group.py": "how many workers memory holds, asked where there is one machine only",
    "rlplat/tune/database.py": "its own name, shown to who looks after the database",
    "rlplat/rl/replay/frame_storage.py": "whether more frames than were expected fit, asked where they are",
    "rlplat/rl/envs/loops.py": "ends what an environment started, in its own process",
    "rlplat/rl/replay/buffer.py": "whether a replay fits, asked where it will be",
    "rlplat/rl/offline/dataset.py": "whether recorded episodes fit, asked by who reads them; writers that were killed",
}
"""Files that look at the machine that they run on, and why they may."""

Rule = Callable[[str, ast.AST], bool]


def _called(node: ast.AST) -> str:
    """`rlplat.wait`, of `rlplat.wait(...)`; "" for what has no such name."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Name):
        return node.func.id
    is_plain = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    return ast.unparse(node.func) if is_plain else ""


def loopback(path: str, node: ast.AST) -> bool:
    """An address under which only the own machine answers. Simulators that connect are given one by default."""
    if path.startswith("rlplat/rl/envs/external/"):
        return False
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text and re.search(r"\b127\.0\.0\.1\b|\blocalhost\b", ast.literal_eval(node)) is not None


def meaning_of_an_id(path: str, node: ast.AST) -> bool:
    """What kind of process this is: `is_worker` and `is_one_process` say so on any engine."""
    texts = [each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return isinstance(node, ast.Compare) and "client_id" in ast.unparse(node) and bool(texts)


def values_to_the_driver(path: str, node: ast.AST) -> bool:
    """`wait` that brings what it waits for."""
    return _called(node).endswith("wait") and any(k.arg == "fetch_local" for k in getattr(node, "keywords", ()))


def one_engine(path: str, node: ast.AST) -> bool:
    """An engine chosen past `--backend`; only the one without processes may be."""
    named = [k.value for k in getattr(node, "keywords", ()) if k.arg == "backend"]
    return _called(node) == "rlplat.init" and any(
        isinstance(value, ast.Constant) and value.value not in (None, "inproc") for value in named
    )


def own_machine(path: str, node: ast.AST) -> bool:
    """CPUs or memory of the machine that this code happens to run on."""
    asked = re.search(r"psutil\.|sched_getaffinity|cpu_count|gethostname", _called(node))
    return asked is not None and path not in LOCAL


def no_place(path: str, node: ast.AST) -> bool:
    """An actor that keeps a CPU busy and asks for none."""
    return (
        _called(node) == "rlplat.remote"
        and path.startswith(("algorithms/", "rlplat/rl/"))
        and ast.unparse(node.args[0]) not in KEEP_WAITING | {"actor_class"}  # type: ignore[attr-defined]
    )


RULES: dict[Rule, str] = {
    loopback: "address = 'tcp://127.0.0.1:80'",
    meaning_of_an_id: "is_ours = context.client_id in ('driver', 'inproc')",
    values_to_the_driver: "rlplat.wait(refs, fetch_local=True)",
    one_engine: "rlplat.init(backend='zmq')",
    own_machine: "free = psutil.virtual_memory().available",
    no_place: "worker = rlplat.remote(RolloutWorker)",
}
"""With what each of them forbids."""


@functools.cache
def offences() -> dict[Rule, list[str]]:
    found: dict[Rule, list[str]] = {rule: [] for rule in RULES}
    for file in (each for floor in FLOORS for each in sorted((ROOT / floor).rglob("*.py"))):
        path, tree = str(file.relative_to(ROOT)), ast.parse(file.read_text())
        statements = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
        documentation = {id(each.value) for each in statements if isinstance(each.value, ast.Constant)}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Call, ast.Compare, ast.Constant)) and id(node) not in documentation:
                for rule, found_by_it in found.items():
                    if rule(path, node):
                        found_by_it.append(f"{path}:{node.lineno}")
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_floors_are_clean(rule: Rule) -> None:
    assert offences()[rule] == [], rule.__doc__


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_rule_finds_what_it_forbids(rule: Rule) -> None:
    assert any(rule("algorithms/new.py", node) for node in ast.walk(ast.parse(RULES[rule])))


def test_every_exception_is_needed() -> None:
    unused = {
        path
        for path in LOCAL
        if not re.search(r"psutil\.|sched_getaffinity|cpu_count|gethostname", (ROOT / path).read_text())
    }
    assert unused == set()
