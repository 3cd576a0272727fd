"""From what the user gave to what will be run: which algorithm, which settings, and what to tell about it."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from rlplat.config import Layer, dump, dump_values, load_yaml, resolve
from rlplat.config_sources import KeyPath, merge, put
from rlplat.errors import ConfigError
from rlplat.paths import user_path
from rlplat.rl.env_objects import env_name, is_spec
from rlplat.rl.names_elsewhere import Switches, switches_of
from rlplat.rl.run.registry import (
    BaseConfig,
    algorithm_homes,
    announced_name,
    base_config,
    configs_directory,
    is_algorithm,
    is_announced,
    load_algorithm,
    owners_of,
    require_config,
    shown,
)
from rlplat.rl.unused_settings import announcement
from rlplat.rl.user_code import find_code, located, names_in, record_code

_BASE_COMMENT = "# complete settings of a run that was based on "


@dataclass
class TrainingPlan:
    algo: str
    """The name under which the algorithm can be loaded again."""
    algorithm_class: type[Any]
    config: Any
    """An instance of the algorithm's config class, complete."""
    notes: list[str] = field(default_factory=list)
    """One line each: what was decided for the user."""
    base: str = ""
    """The file in configs/ that the settings were laid over, for people; empty where there is none."""
    origins: dict[KeyPath, str] = field(default_factory=dict)
    """Where each key was written: a file and line, a flag."""
    init_from: str = ""
    """The checkpoint whose weights the run begins with; empty: the network's own."""

    def names(self) -> list[str]:
        """Of code, among the settings."""
        return names_in({"algo": self.algo, **self.config.model_dump(mode="json")})

    def to_yaml(self, directory: Path | None = None) -> str:
        """What `config.yaml` of a run in this directory holds; `plan_from_file` reads it back, and finds the user's
        files by the section `code`. Without a directory: the settings alone."""
        base = f"{_BASE_COMMENT}{self.base}\n" if self.base else ""
        initial = f"init_from: {json.dumps(self.init_from)}\n" if self.init_from else ""
        recorded = record_code(self.names(), directory) if directory is not None else {}
        code = dump_values({"code": recorded}) if recorded else ""
        return f"algo: {self.algo}\n{base}{initial}{code}{dump(self.config)}"


def plan_training(
    algo: str | None, config_file: str | os.PathLike[str] | Literal[False] | None, layers: Sequence[Layer]
) -> TrainingPlan:
    """defaults < config file (given, or the tuned one of that algorithm and env, or its family's; False: none) < layers
    (flags, arguments)."""
    layers = list(layers)
    algo = located(algo) if isinstance(algo, str) else algo
    known, asked = switches_of(algo) if isinstance(algo, str) and not is_announced(algo) else None, algo
    if known is not None:
        algo, layers = known.algo, [_layer_of(known, f"--algo {asked}"), *layers]
    plan = _plan(algo, config_file, layers)
    if known is not None:
        plan.notes.insert(0, f"{asked} is {known}")
    if text := announcement(plan.config, plan.algo):
        plan.notes.append(text)
    return plan


def _layer_of(known: Switches, origin: str) -> Layer:
    layer = Layer()
    for key, value in known.settings.items():
        put(layer, tuple(key.split(".")), value, origin)
    return layer


def _plan(
    algo: str | None, config_file: str | os.PathLike[str] | Literal[False] | None, layers: Sequence[Layer]
) -> TrainingPlan:
    if config_file is not None and config_file is not False:
        file = require_config(config_file)
        plan = plan_from_file(file, layers, algo)
        if file != Path(config_file):
            plan.notes.append(f"using the shipped config {shown(file)}")
        return plan
    if algo is not None and not isinstance(algo, str):
        raise ConfigError(f"algo is the name of an algorithm, such as 'ppo', not {algo!r}{_named(algo)}")
    if algo is None:
        raise ConfigError(
            "which algorithm? give --algo ppo (and --env NAME), or a config file: rlplat train CONFIG.yaml"
        )
    algorithm_class, algo = load_algorithm(algo), announced_name(algo)
    env = next((layer.values["env"] for layer in reversed(layers) if "env" in layer.values), None)
    env = env_name(env) if is_spec(env) else env
    path, note = BaseConfig(None, "")
    if config_file is False:
        note = f"no config: the plain defaults of {algo} apply"
    elif isinstance(env, str):
        path, note = base_config(algo, env)
        if ":" in algo:
            note = _of_the_original(algo, algorithm_class, env)
    if path is None:
        plan = TrainingPlan(
            algo,
            algorithm_class,
            resolve(algorithm_class.config_class, layers, owners_of),
            origins=merge(layers).origins,
        )
    else:
        is_tuned = not path.stem.startswith("_")
        plan = plan_from_file(path, [_without_env(layer) for layer in layers] if is_tuned else layers, algo)
    plan.notes += [note] if note else []
    return plan


def _of_the_original(algo: str, algorithm_class: type[Any], env: str) -> str:
    """What a copy or a subclass of an announced algorithm does not take over: the config that the original has."""
    name = getattr(algorithm_class, "name", "")
    path = base_config(name, env).path if is_announced(name) else None
    if path is None:
        return ""
    whose = f"{algo.rpartition(':')[2]}: the plain defaults apply; rlplat's {name}"
    return f"{whose} has {shown(path)} for {env}: name that file after --algo to train with its settings"


def plan_from_file(path: Path, layers: Sequence[Layer], algo: str | None = None) -> TrainingPlan:
    """A config file says its algorithm (`algo: ppo`); in `configs/ppo/` the directory does.

    Files that it names are looked for from the current directory; those of a run's own config.yaml are found where the
    run left them, or in the same place beside the run, and the plan's notes tell what has changed.
    """
    layer = load_yaml(path)
    recorded = layer.values.pop("code", None)
    notes: list[str] = []
    is_of_run = recorded is not None or (path.name == "config.yaml" and (path.parent / "checkpoints").is_dir())
    if is_of_run:
        given = {key for over in layers for key in over.values if key == "env"}
        kept = {key: value for key, value in layer.values.items() if key not in given}
        found, notes = find_code(kept, recorded or {}, path.parent)
        layer.values |= found
    if "trainable" in layer.values or isinstance(layer.values.get("runs"), dict):
        raise ConfigError(f"{path} is an experiment, which is many runs: rlplat tune {shlex.quote(str(path))}")
    written = layer.values.pop("algo", None)
    if written is not None and not isinstance(written, str):
        raise ConfigError(f"{path}: 'algo' is the name of an algorithm, not {written!r}")
    init_from = layer.values.pop("init_from", None) or ""
    if not isinstance(init_from, str):
        raise ConfigError(f"{path}: 'init_from' is a run or a checkpoint of one, not {init_from!r}")
    written, algo = (located(name) if name else name for name in (written, algo))
    if written and algo and written.lower() != algo.lower():
        raise ConfigError(f"--algo {algo} does not fit {path}, which is for '{written}'")
    name = algo or written or _algo_by_directory(path)
    if name is None:
        raise ConfigError(f"{path} does not say its algorithm: add a line `algo: ppo`, or give --algo ppo")
    algorithm_class, name = load_algorithm(name), announced_name(name)
    removed = getattr(algorithm_class.config_class, "removed", {}) if is_of_run else {}
    for key, value in removed.items():
        if value in (None, layer.values.get(key)):
            layer.values.pop(key, None)
    config = resolve(algorithm_class.config_class, [layer, *layers], owners_of)
    origins = merge([layer, *layers]).origins
    return TrainingPlan(
        name,
        algorithm_class,
        config,
        notes=[f"warning: {note}" for note in notes],
        base=_base(path),
        origins=origins,
        init_from=init_from,
    )


def algorithm_of_file(path: Path) -> str | None:
    """The name that a config file gives its algorithm, or its directory does."""
    written = load_yaml(path).values.get("algo")
    return written if isinstance(written, str) else _algo_by_directory(path)


def _named(algo: Any) -> str:
    """`: write 'ppo'` for the class or an object of an algorithm."""
    wanted = algo if isinstance(algo, type) else type(algo)
    home = f"{wanted.__module__}:{wanted.__qualname__}"
    if not is_algorithm(wanted):
        return ""
    names = [name for name, value in algorithm_homes().items() if value == home]
    return f": write '{names[0] if names else home}'"


def default_directory(plan: TrainingPlan) -> Path:
    """runs/<algo>-<env>-<date>-<time>, with a number where that is taken; made, so that no other run takes it."""
    algo = re.sub(r"[^\w.-]+", "-", plan.algo.rpartition(":")[2]).lower()
    env = re.sub(r"[^\w.-]+", "-", Path(plan.config.env).name).strip("-.")
    stem = f"{algo}-{env}-{datetime.now():%Y%m%d-%H%M%S}"
    runs = user_path("runs")
    directory, number = runs / stem, 1
    while True:
        try:
            directory.mkdir(parents=True)
            return directory
        except FileExistsError:
            number += 1
            directory = runs / f"{stem}-{number}"
        except OSError as error:
            raise ConfigError(f"cannot make the run directory {directory}: {error.strerror or error}") from None


def _algo_by_directory(path: Path) -> str | None:
    root = configs_directory()
    parent = path.resolve().parent
    return parent.name if root is not None and parent.parent == root.resolve() else None


def _without_env(layer: Layer) -> Layer:
    """The tuned config was found by the env's name and spells it properly."""
    return Layer({key: value for key, value in layer.values.items() if key != "env"}, layer.origins)


def _base(path: Path) -> str:
    """The file itself where it is one of configs/; of a run's config.yaml, what that says: a resumed run keeps it."""
    root = configs_directory()
    if root is not None and path.resolve().is_relative_to(root.resolve()):
        return shown(path.resolve())
    for line in path.read_text().splitlines()[:2]:
        if line.startswith(_BASE_COMMENT):
            return line.removeprefix(_BASE_COMMENT)
    return ""
