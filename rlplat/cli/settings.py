"""`rlplat settings ALGO`: every setting with its type, default and meaning; with --env also what the config changes."""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import textwrap
import typing
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from rlplat.cli.output import print_json
from rlplat.cli.parser import command
from rlplat.section import Section

_HELP = """\
Show every setting of an algorithm: its default, what it takes and what it means.

ALGO  ppo, dqn, pqn, r2d2, apex, sac, discrete_sac, td3, tqc, crossq, mbpo, impala, a3c, es, alphazero, bc, \
iql, td3_bc, cql, or module:Class
--env NAME  mark what the config for this environment changes
--json  print one JSON array

examples:
  rlplat settings ppo
  rlplat settings ppo --env CartPole-v1     the values that `rlplat train --algo ppo --env CartPole-v1` would use
  rlplat settings dqn --json

Each is a flag of rlplat train (--policy.core-size 256), a key for --set (policy.core_size=256), and a line of a config
file.
"""


@command("settings", _HELP)
def run(options: argparse.Namespace) -> int:
    from rlplat.config import Layer
    from rlplat.rl.run.registry import load_algorithm
    from rlplat.rl.run.training_plan import plan_training

    rows = list(rows_of(load_algorithm(options.algo).config_class))
    notes: list[str] = []
    if options.env:
        plan = plan_training(options.algo, None, [Layer({"env": options.env}, {("env",): "--env"})])
        notes = plan.notes or [f"no config for {options.env} comes with rlplat: these are the defaults"]
        for row in rows:
            row["value"] = _plain(_value_at(plan.config, row["key"], row["default"]))
    if options.json:
        print_json(rows)
        return 0
    for note in notes:
        print(f"{note}\n")
    for row in rows:
        value = row.get("value", row["default"])
        is_changed = value != row["default"] and not row["is_required"]
        changed = f"   (default {_shown(row['default'])})" if is_changed else ""
        print(f"{row['key']}: {'(required)' if row['is_required'] else _shown(value)}{changed}")
        for text in (row["takes"], row["meaning"]):
            print(textwrap.fill(text, 110, initial_indent="    ", subsequent_indent="    "))
    return 0


def rows_of(model: Any, prefix: str = "", defaults: Any = None) -> Iterator[dict[str, Any]]:
    """A row for each setting, those of nested groups in their place. defaults: the group that the owner starts with."""
    from rlplat.config import nested_model
    from rlplat.setting_types import takes

    meanings = _meanings(model)
    for name, info in model.model_fields.items():
        default = getattr(defaults, name, None)
        if defaults is None and not info.is_required():
            default = info.get_default(call_default_factory=True)
        inner = nested_model(info.annotation)
        if inner is None or default is None:
            yield {
                "key": prefix + name,
                "takes": takes(info),
                "default": _plain(default),
                "is_required": info.is_required(),
                "meaning": " ".join((info.description or meanings.get(name, "")).split()),
            }
        if inner is None and typing.get_origin(info.annotation) is dict:
            member = nested_model(typing.get_args(info.annotation)[1])
            if member is not None:
                yield from rows_of(member, f"{prefix}{name}.NAME.")
        elif inner is not None:
            yield from rows_of(inner, f"{prefix}{name}.", default)


def _meanings(model: type) -> dict[str, str]:
    """The docstrings below the settings. Not pydantic's `use_attribute_docstrings`, by which every process that trains
    would parse its source at its start."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__[: model.__mro__.index(Section)]):
        with contextlib.suppress(OSError, TypeError):  # a class of a user's without a file
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            for field, text in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    found[ast.unparse(field.target)] = ast.literal_eval(text.value)
    return found


def _value_at(config: Any, key: str, default: Any) -> Any:
    """default: for a group that is absent (multi_agent.self_play), and for the members of a group by name."""
    for part in key.split("."):
        if not hasattr(config, part):
            return default
        config = getattr(config, part)
    return config


def _plain(value: Any) -> Any:
    """As in a config file."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    """One line of YAML."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()
