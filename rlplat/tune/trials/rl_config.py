"""The config of a trial as the settings of an algorithm: what it means, what it needs, what is wrong with it.

defaults < the tuned config of that algorithm and environment, or its family's (but its `stop`, `expect`, `seed`) < the
trial's config.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlplat.config import Layer, load_yaml, resolve
from rlplat.errors import ConfigError
from rlplat.rl.run.registry import base_config, load_algorithm, owners_of, shown
from rlplat.rl.run.training_plan import TrainingPlan
from rlplat.rl.unused_settings import announcement

_OF_ONE_RUN = ("algo", "stop", "expect", "seed")
"""Keys of a tuned config that say how it is tested, and not how to train."""
_OF_THE_STATE = ("env", "env_kwargs", "policy", "framework", "num_envs_per_worker", "num_rollout_workers")
"""Keys that the state in a checkpoint is made for."""
MAX_ENVS_TRIED = 16


def plan_trial(
    algo: str, config: Mapping[str, Any], seed: int | None = None, origins: Mapping[Any, str] | None = None
) -> TrainingPlan:
    """What `trial.config` of this algorithm comes to; ConfigError, with `origins` of its keys, where it is wrong.

    seed: the trial's, where the config has none. A trial runs in its host's process unless its config asks for more
    than one rollout worker: same curve, one process instead of four.
    """
    algorithm_class = load_algorithm(algo)
    config_class = algorithm_class.config_class
    values = dict(config)
    if seed is not None and "seed" in config_class.model_fields:
        values.setdefault("seed", seed)
    tuned, path, notes = _base_layer(algo, values)
    if "num_rollout_workers" in config_class.model_fields and "num_rollout_workers" not in values:
        default = config_class.model_fields["num_rollout_workers"].default
        if tuned.values.get("num_rollout_workers", default) == 1:
            tuned.values["num_rollout_workers"] = 0
    settled = resolve(config_class, [tuned, Layer(values, dict(origins or {}))], owners_of)
    if text := announcement(settled, algo):
        notes.append(text)
    return TrainingPlan(algo, algorithm_class, settled, notes, base=shown(path) if path else "")


def _base_layer(algo: str, config: Mapping[str, Any]) -> tuple[Layer, Path | None, list[str]]:
    """The tuned config of the environment, or its family's, without what is for one run: (layer, path, notes)."""
    env = config.get("env")
    path, note = base_config(algo, env) if isinstance(env, str) else (None, "")
    if path is None:
        return Layer(), None, [note] if note else []
    layer = load_yaml(path)
    values = {key: value for key, value in layer.values.items() if key not in (*_OF_ONE_RUN, "env")}
    whose = "family" if path.stem.startswith("_") else "tuned"
    note = f"settings that config does not name are those of the {whose} config {path.parent.name}/{path.name}"
    return Layer(values, layer.origins), path, [note]


def demand_of(algo: str, config: Mapping[str, Any]) -> dict[str, float]:
    """What a trial with this config takes of the cluster where `resources` does not say it: a CPU for each rollout
    worker (at least one), and the GPUs that `learner.num_gpus` names. config: may be a part; the rest is defaults."""
    tuned = _base_layer(algo, config)[0].values
    workers: Any = _setting("num_rollout_workers", algo, config, tuned, 0)
    learner: Any = {**_section(tuned, "learner"), **_section(config, "learner")}
    gpus = learner.get("num_gpus", 0)
    demand = {"CPU": float(max(1, workers))}
    if isinstance(gpus, int | float) and gpus:
        demand["GPU"] = float(gpus) * float(learner.get("num_learners", 1))
    return demand


def _setting(key: str, algo: str, config: Mapping[str, Any], tuned: Mapping[str, Any], missing: Any) -> Any:
    """Its value, or its default; missing: where the algorithm has no such setting."""
    fields = load_algorithm(algo).config_class.model_fields
    default = fields[key].default if key in fields else missing
    return config.get(key, tuned.get(key, default))


def _section(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = values.get(key)
    return section if isinstance(section, Mapping) else {}


def check_configs(
    algo: str, configs: Iterable[Mapping[str, Any]], origins: Mapping[Any, str] | None = None
) -> list[str]:
    """In the driver, before anything is on the disk: these configs are understood, and every environment among them is
    there and sound (ConfigError, UsageError). Returns what was decided for the user, a line each."""
    notes: dict[str, None] = {}
    envs: dict[str, tuple[Any, ...]] = {}
    for config in configs:
        plan = plan_trial(algo, config, origins=origins)
        notes |= dict.fromkeys(plan.notes)
        name, kwargs = getattr(plan.config, "env", None), getattr(plan.config, "env_kwargs", {})
        if isinstance(name, str):
            envs.setdefault(json.dumps([name, kwargs], sort_keys=True, default=repr), (plan, name, kwargs))
    from rlplat.rl.multi_agent.policy_map import look_at_env

    for plan, name, kwargs in list(envs.values())[:MAX_ENVS_TRIED]:
        look_at_env({**plan.config.model_dump(), "env": name, "env_kwargs": kwargs})
    return list(notes)


def check_seeds(algo: str, config: Mapping[str, Any], seeds_per_trial: int) -> None:
    """Several seeds of a config that fixes its seed would be the same run several times."""
    if seeds_per_trial > 1 and "seed" in config:
        raise ConfigError(
            f"seeds_per_trial is {seeds_per_trial}, and config.seed fixes the seed of {algo}: omit config.seed"
        )


def check_mutations(algo: str, names: Iterable[str], scheduler: str, config: Mapping[str, Any]) -> None:
    """A trial that goes on from another one's checkpoint with other settings can change how it learns, not what.

    config: of the experiment; its domains stand for themselves.
    """
    config_class = load_algorithm(algo).config_class
    fixed = {*_OF_THE_STATE, *getattr(config_class, "fixed_on_resume", ())}
    of_replay: set[str] = set()
    if _setting("save_replay", algo, config, _base_layer(algo, config)[0].values, False) is not False:
        of_replay = {*getattr(config_class, "shapes_replay", ())} - fixed
    for name in names:
        key = next((key for key in (*fixed, *of_replay) if re.match(rf"{re.escape(key)}($|[.\[])", name)), "")
        if not key:
            continue
        what, more = "checkpoint", ""
        if key in of_replay:
            what = "replay in the checkpoint"
            more = "; or set save_replay: false, and a copy begins with an empty replay"
        raise ConfigError(
            f"scheduler {scheduler} would change '{name}' of a trial that goes on from a checkpoint, and the {what} "
            "fits one value only: make it a constant, or name in `mutations` what may change, such as "
            f"mutations: [learning_rate]{more}"
        )
