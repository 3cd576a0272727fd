"""Walls between files: no circle of imports, and nobody uses what another class calls its own.

Imports for types and imports in functions count.
"""

from __future__ import annotations

import ast
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
ANYONES = {
    "_actor_id", "_info", "_creation",  # of handles, whose plain names are users' methods
    "_key",  # of refs: what their users see is nothing
    "_exit", "_getframe", "_current_frames", "_run_exitfuncs", "_clear", "_is_owned",  # of Python's own modules
    "_python_exit", "_exit_function", "_finalizer_registry", "_registry",  # of Python's ends
    "_replace",  # of named tuples
    "_dsdt",  # of gymnasium's Acrobot: its equations
    "_fused_adam_", "_fused_adamw_", "_foreach_norm", "_foreach_add", "_foreach_add_", "_foreach_copy_",  # of torch
    "_foreach_lerp_",
    "_foreach_mul_", "_foreach_sqrt", "_foreach_addcmul_", "_foreach_addcdiv_", "_linear_pointwise", "_version",
    "_schedulers", "_milestones",
    "_internal_kv_put", "_internal_kv_get",  # of Ray, which has no other store for what a handle knows
    "_study_id", "_trial_id",  # of Optuna's storages, whose methods ask for them
    "_lookup_module_and_qualname", "_make_skeleton_class", "_slotnames",  # of cloudpickle and copyreg: how classes go
    "_config",  # of multiprocessing's own process: whether it may have children
    "_option_string_actions", "_reader", "_writer",  # of argparse and multiprocessing: there is no other way to ask
}  # fmt: skip
KNOWN = {
    "rlplat/runtime/map.py": {"_code", "_options"},
}
"""Parts of one thing in several files: what answers for a node or a client, what runs a worker's calls."""


def circles() -> list[list[str]]:
    graph = grimp.build_graph("rlplat", exclude_type_checking_imports=False)
    packages = {module.rpartition(".")[0] for module in graph.modules}  # their `__init__` re-exports on first use
    imports = {
        module: graph.find_modules_directly_imported_by(module) - packages for module in graph.modules - packages
    }
    below = {module: reached(imports, module) for module in imports}
    found = {frozenset(other for other in below[m] if m in below[other]) for m in below if m in below[m]}
    return sorted(map(sorted, found))


def reached(imports: dict[str, set[str]], module: str) -> set[str]:
    found: set[str] = set()
    ahead = [module]
    while ahead:
        new = imports[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def private_names_of_others(path: Path) -> set[str]:
    """`_names` that a file reads of what is not `self`, and that nothing in it defines or sets."""
    tree = ast.parse(path.read_text())
    own: set[str] = set()
    read: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            own.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            read.add(node.attr)
    return {name for name in read - own if name.startswith("_") and not name.startswith("__")}


def test_no_imports_lead_in_a_circle() -> None:
    assert circles() == []


def test_nobody_uses_what_another_class_calls_its_own() -> None:
    paths = [*ROOT.glob("rlplat/**/*.py"), *ROOT.glob("algorithms/*.py")]
    found = {str(path.relative_to(ROOT)): private_names_of_others(path) - ANYONES for path in paths}
    assert {path: names for path, names in found.items() if names} == KNOWN
