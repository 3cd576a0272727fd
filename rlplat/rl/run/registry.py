"""Finding algorithms by name, and the config of an algorithm on an environment: tuned for it, or for its family.

Algorithms announce themselves in the entry-point group `rlplat.algorithms`, ours and those of other packages:

    [project.entry-points."rlplat.algorithms"]
    ppo = "rlplat.algorithms.ppo:PPO"

`pkg.mod:Class` names one that is not announced.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from rlplat.config import closest, key_names
from rlplat.errors import ConfigError
from rlplat.paths import current_folder
from rlplat.rl.class_path import load_class
from rlplat.rl.envs.names import atari_rom, env_family
from rlplat.rl.names_elsewhere import switches_of
from rlplat.rl.user_code import is_file

GROUP = "rlplat.algorithms"
_FAMILY_NAMES = {"atari": "Atari", "mujoco": "MuJoCo", "classic": "classic-control"}
_SOURCE_TREE = Path(__file__).resolve().parents[3]


def algorithm_homes() -> dict[str, str]:
    """Name -> "module:Class" of every announced algorithm."""
    return announced(GROUP)


def announced(group: str) -> dict[str, str]:
    """Name -> "module:Class" of the entry points of a group, of installed packages and of this checkout."""
    places = [path or "." for path in sys.path if os.path.exists(path or ".")]
    installed = _announced_in_packages(group, tuple((path, os.stat(path).st_mtime_ns) for path in places))
    return {**installed, **_announced_in_source_tree(group)}


@cache  # a command asks eight times, and each reads a file of every package
def _announced_in_packages(group: str, places: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """places: where packages may be, and when something was installed there last."""
    return {point.name: point.value for point in metadata.entry_points(group=group)}


@cache
def _announced_in_source_tree(group: str) -> dict[str, str]:
    """What the pyproject.toml of a checkout announces, whether it was installed (since it last changed) or not."""
    import tomllib

    try:
        project = tomllib.loads((_SOURCE_TREE / "pyproject.toml").read_text())["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return {}
    return dict(project.get("entry-points", {}).get(group, {}))


def is_announced(name: str) -> bool:
    """Whether an algorithm is found by this name."""
    return ":" in name or announced_name(name) in algorithm_homes()


def announced_name(name: str) -> str:
    """`ppo` for `PPO`; a name that is not announced as it is."""
    homes = algorithm_homes()
    return name.lower() if name not in homes and name.lower() in homes else name


def load_algorithm(name: str) -> type[Any]:
    """The class of `ppo`, or of `pkg.mod:Class`; an `Algorithm`."""
    homes = algorithm_homes()
    home = homes.get(announced_name(name)) or (name if ":" in name else None)
    if home is None and (known := switches_of(name)):
        raise ConfigError(f"'{name}' is {known} (only `rlplat train` takes that name)")
    if home is None and is_file(name):
        raise ConfigError(f"algorithm '{name}' is a file: write the class as well, {name}:MyAlgorithm")
    if home is None:
        raise ConfigError(f"unknown algorithm '{name}'{closest(name, homes)}\nalgorithms: {', '.join(sorted(homes))}")
    try:
        found = load_class(home)
    except ConfigError as error:
        raise ConfigError(str(error) if home == name else f"algorithm '{name}': {error}") from None
    if not is_algorithm(found):
        raise ConfigError(f"algorithm '{name}': {home} is not a subclass of rlplat.rl.run.algorithm.Algorithm")
    return found


def owners_of(key: str) -> str:
    """`; it is a setting of ppo`, where that and others of ours, which all can be imported quickly, have this key."""
    ours = sorted(name for name, home in algorithm_homes().items() if home.startswith("rlplat.algorithms."))
    owners = [name for name in ours if key in key_names(load_algorithm(name).config_class)]
    return f"; it is a setting of {', '.join(owners)}" if owners else ""


def is_algorithm(found: Any) -> bool:
    """Whether it is a subclass of `Algorithm`: there is none before that is imported, and this does not import it."""
    home = sys.modules.get("rlplat.rl.run.algorithm")
    return home is not None and isinstance(found, type) and issubclass(found, home.Algorithm)


def configs_directory() -> Path | None:
    """The copy that the wheel brings, or `configs/` of the source tree."""
    shipped = Path(__file__).resolve().parents[2] / "configs"
    if shipped.is_dir():
        return shipped
    is_source_tree = (_SOURCE_TREE / "pyproject.toml").is_file() and (_SOURCE_TREE / "configs").is_dir()
    return _SOURCE_TREE / "configs" if is_source_tree else None


def shipped_configs() -> list[str]:
    """`ppo/CartPole-v1`, `tune/ppo-cartpole`, ...: the names of the configs that come with rlplat."""
    directory = configs_directory()
    found = directory.glob("*/[!_]*.yaml") if directory else []
    return sorted(f"{path.parent.name}/{path.stem}" for path in found)


def find_config(name: str | os.PathLike[str]) -> Path | None:
    """What the user has under this name; else the shipped config `configs/ppo/Pong.yaml`, or `ppo/Pong` for short."""
    path, directory = Path(name).expanduser(), configs_directory()
    if path.exists():
        return path
    if directory is None or path.is_absolute() or ".." in path.parts:
        return None
    inner = str(path).removeprefix("configs/")
    shipped = directory / inner
    if shipped.suffix in (".yaml", ".yml"):
        return shipped if shipped.is_file() else None
    algo, slash, env = inner.partition("/")
    if algo == "tune":
        return shipped if (shipped := directory / f"{inner}.yaml").is_file() else None
    return tuned_config(algo, env) if slash else None


def require_config(name: str | os.PathLike[str]) -> Path:
    """`find_config`, or a ConfigError that says what there is."""
    path = find_config(name)
    if path is not None:
        return path
    text = str(name)
    if "=" in text:
        raise ConfigError(f"no config file '{text}'; did you mean --set {text}?")
    plain = text.removeprefix("configs/").removesuffix(".yaml").removesuffix(".yml")
    raise ConfigError(
        f"no config file '{text}'{closest(plain, shipped_configs())} (rlplat configs lists those that come with rlplat)"
    )


def tuned_config(algo: str, env: str) -> Path | None:
    """`configs/<algo>/<env>.yaml`, whatever the case of the name; `Pong` and `ALE/Pong-v5` are one environment."""
    directory = _configs_of(algo)
    if directory is None:
        return None
    wanted = _plain_name(env)
    for path in sorted(directory.glob("*.yaml")):
        if _plain_name(path.stem) == wanted and not path.stem.startswith("_"):
            return path
    return None


class BaseConfig(NamedTuple):
    """What a run of an algorithm on an environment starts from, under the user's own settings."""

    path: Path | None
    """The tuned config or the family's; None: the plain defaults of the config class."""
    note: str
    """One line that says so; empty where there is nothing to say."""


def base_config(algo: str, env: str) -> BaseConfig:
    """The tuned config of this algorithm on this environment, else that of the environment's family:
    `configs/<algo>/_atari.yaml`, `_mujoco.yaml`, `_classic.yaml` (`envs.names.env_family`)."""
    directory = _configs_of(algo)
    if directory is None:  # an algorithm without any configs: nobody expects one
        return BaseConfig(None, "")
    tuned = tuned_config(algo, env)
    if tuned is not None:
        return BaseConfig(tuned, f"using the tuned config {shown(tuned)}")
    family = env_family(env)
    if family is None:  # what is wrong with the name is said where the environment is made
        return BaseConfig(None, "")
    path = directory / f"_{family}.yaml"
    if family and path.is_file():
        whose = _FAMILY_NAMES[family]
        return BaseConfig(path, f"no tuned config for {env}: using the {whose} family's, {shown(path)}")
    name = algo.lower()
    reason = f"the {_FAMILY_NAMES[family]} family has none for {name}" if family else "it belongs to no family"
    return BaseConfig(None, f"no tuned config for {env}, and {reason}: the plain defaults of {name} apply")


def _configs_of(algo: str) -> Path | None:
    root = configs_directory()
    directory = root / algo.lower() if root is not None else None
    return directory if directory is not None and directory.is_dir() else None


def shown(path: Path) -> str:
    """The path for people: from the current directory, or from configs/, where it is there."""
    root = configs_directory()
    here = current_folder()
    for base, prefix in ((Path(here) if here else None, ""), (root, "configs")):
        if base is not None and path.is_relative_to(base):
            return str(Path(prefix) / path.relative_to(base))
    return str(path)


def _plain_name(env: str) -> str:
    return atari_rom(env) or env.lower()
