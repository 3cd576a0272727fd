"""`rlplat configs`: the configs that come with rlplat, which `rlplat train` and `rlplat tune` take by name."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from rlplat.cli.output import print_json
from rlplat.cli.parser import command
from rlplat.config import closest
from rlplat.errors import ConfigError

_HELP = """\
List the configs that come with rlplat: tuned settings of an algorithm for an environment, and experiments for
rlplat tune.

ALGO?  only those of this algorithm, or of tune
--json  print one JSON array

examples:
  rlplat configs
  rlplat configs ppo
  rlplat train ppo/CartPole-v1 --seed 1      one of them; a file of your own with that path would come first
  rlplat tune tune/ppo-cartpole
"""


@command("configs", _HELP)
def run(options: argparse.Namespace) -> int:
    from rlplat.cli.view.runs import table
    from rlplat.rl.run.registry import configs_directory, shipped_configs

    names = shipped_configs()
    if options.algo is not None:
        owners = {name.partition("/")[0] for name in names}
        if (algo := options.algo.lower()) not in owners:
            raise ConfigError(
                f"no configs of '{options.algo}'{closest(algo, owners)} (there are {', '.join(sorted(owners))})"
            )
        names = [name for name in names if name.startswith(f"{algo}/")]
    rows = [_described(name) for name in names]
    if options.json:
        print_json(rows)
        return 0
    print(table([[row["name"], row["env"] or "-", row["about"]] for row in rows], ["name", "environment", "about"]))
    print(
        f"\nThe files are in {configs_directory()}. `rlplat train --algo A --env E` without a config of its own begins "
        "with that of its family: _atari.yaml, _mujoco.yaml or _classic.yaml beside the algorithm's."
    )
    return 0


def _described(name: str) -> dict[str, Any]:
    """about: the comment at the head of the file."""
    from rlplat.config import load_yaml
    from rlplat.rl.run.registry import configs_directory

    directory = configs_directory()
    assert directory is not None, "a shipped config was found"
    path = directory / f"{name}.yaml"
    values = load_yaml(path).values
    settings = values.get("config") or values
    head = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        head.append(line.lstrip("# "))
    about = textwrap.shorten(" ".join(head), 90, placeholder=" ...")
    env = settings.get("env") if isinstance(settings, dict) else None
    return {"name": name, "env": env, "about": about, "path": str(path)}
