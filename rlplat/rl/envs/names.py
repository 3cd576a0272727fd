"""From an environment's name to the thing that makes it.

    Pong  pong  Pong-v5  ALE/Pong-v5  PongNoFrameskip-v4    one and the same Atari game, with rlplat's preprocessing
    external                                                simulators that connect (docs/external-simulators.md)
    TicTacToe  ConnectFour                                  a board game against an opponent (docs/alphazero.md)
    TensorCartPole  TensorPointMass                         as torch tensors on a device (docs/tensor-environments.md)
    CartPole-v1                                             an id that gymnasium has registered
    pkg.mod:MakeEnv                                         a class or function that returns an environment
    ./my_env.py:MakeEnv                                     the same, from a file
    pkg.mod:MyEnv-v0                                        import the module, then look the id up

From Python, a class, a function or an environment will do as well (env_objects.py).

Nothing here makes an environment; importing this file loads neither gymnasium nor ale_py.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from rlplat.config import closest
from rlplat.errors import ConfigError, EnvError, EnvNotFound, MissingExtra
from rlplat.rl.class_path import attribute_of, import_problem, load_class, load_module
from rlplat.rl.env_objects import EnvObject, env_name, is_marker, is_spec
from rlplat.rl.user_code import located

ATARI_ROMS = (
    "adventure air_raid alien amidar assault asterix asteroids atlantis atlantis2 backgammon bank_heist basic_math "
    "battle_zone beam_rider berzerk blackjack bowling boxing breakout carnival casino centipede chopper_command "
    "crazy_climber crossbow darkchambers defender demon_attack donkey_kong double_dunk earthworld elevator_action "
    "enduro entombed et fishing_derby flag_capture freeway frogger frostbite galaxian gopher gravitar hangman "
    "haunted_house hero human_cannonball ice_hockey jamesbond journey_escape kaboom kangaroo keystone_kapers king_kong "
    "klax koolaid krull kung_fu_master laser_gates lost_luggage mario_bros miniature_golf montezuma_revenge mr_do "
    "ms_pacman name_this_game othello pacman phoenix pitfall pitfall2 pong pooyan private_eye qbert riverraid "
    "road_runner robotank seaquest sir_lancelot skiing solaris space_invaders space_war star_gunner superman surround "
    "tennis tetris tic_tac_toe_3d time_pilot trondead turmoil tutankham up_n_down venture video_checkers video_chess "
    "video_cube video_pinball wizard_of_wor word_zapper yars_revenge zaxxon"
).split()
"""Single-player games of ale-py, by ROM name. Kept here so that `Pong` can ask for the missing extra by name."""

EXTERNAL = "external"
"""The environment whose simulators connect from elsewhere."""
BOARD_GAMES = {name: f"rlplat.rl.envs.board_games.env:{name}" for name in ("TicTacToe", "ConnectFour")}
TENSOR_TASKS = {name: f"rlplat.rl.envs.tensors.tasks:{name}" for name in ("TensorCartPole", "TensorPointMass")}
SHIPPED = BOARD_GAMES | TENSOR_TASKS
_ROM_BY_KEY = {rom.replace("_", ""): rom for rom in ATARI_ROMS}
_ATARI_NAME = re.compile(r"(?:ALE/)?(?P<game>[A-Za-z0-9_]+?)(?:NoFrameskip|Deterministic)?(?:-v[045])?")
_REGISTERED_ID = re.compile(r"[\w/.-]+-v\d+")

_FAMILY_BY_ENTRY_POINT = {
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.box2d.car_racing": "",
    "gymnasium.envs.box2d": "classic",
}
"""Entry-point prefix -> family; the first that fits."""

_EXTRA_BY_ENTRY_POINT = {
    "gymnasium.envs.box2d": [("Box2D", "box2d", "box2d")],
    "gymnasium.envs.mujoco": [("mujoco", "mujoco", "mujoco"), ("imageio", "imageio", "mujoco")],
}
"""Entry-point prefix -> (module to look for, package, rlplat extra). Gymnasium's mujoco environments import imageio."""


@dataclass(frozen=True)
class EnvSource:
    """Where an environment comes from; exactly one of `rom`, `spec`, `factory` is set, as `kind` says (`external`: a
    factory of what stands in for the simulators)."""

    name: str
    """Canonical: two names of the same environment resolve to equal ones."""
    kind: Literal["atari", "registered", "factory", "external"]
    rom: str = ""
    spec: Any = None
    """gymnasium's EnvSpec."""
    factory: Callable[..., Any] | None = None


def resolve_env(env: Any) -> EnvSource:
    """env: a name, or what `env_name` takes. Raises EnvNotFound with a suggestion, MissingExtra, or EnvError where the
    module of the environment raises."""
    given = env_name(env)
    if isinstance(given, EnvObject) and not given.is_registered and not is_spec(given.target):
        return EnvSource(str(given), "factory", factory=given.target)
    name = given.strip()
    if is_marker(given):
        raise EnvNotFound(
            f"the environment {name} was a Python object of the program that trained, which has no name to find it by: "
            "pass env=... again, in Python: rlplat.load(RUN, env=MyEnv), rlplat.train(resume=RUN, env=MyEnv)"
        )
    if name == EXTERNAL:
        from rlplat.rl.envs.external.spaces_file import StandIn

        return EnvSource(name, "external", factory=StandIn)
    if name in SHIPPED:
        return EnvSource(name, "factory", factory=load_class(SHIPPED[name]))
    if ":" in name and not isinstance(given, EnvObject):
        return _resolve_import(name)
    import gymnasium

    spec = gymnasium.registry.get(name)
    if isinstance(given, EnvObject):
        spec = given.target
        if given.is_registered:
            gymnasium.registry.setdefault(name, spec)  # as in the process that registered it
    if spec is None or str(spec.entry_point).startswith("ale_py"):
        rom = atari_rom(name)
        if rom is not None:
            return _atari_source(name, rom)
    if spec is None:
        if name.endswith(".py"):
            raise EnvNotFound(_without_class(name))
        raise EnvNotFound(_not_found(name, list(gymnasium.registry)))
    _require_extras(name, str(spec.entry_point))
    return EnvSource(name, "registered", spec=spec)


def atari_rom(name: str) -> str | None:
    """`Pong`, `ms_pacman`, `ALE/MsPacman-v5`, `PongNoFrameskip-v4` -> the ROM's name, or None."""
    match = _ATARI_NAME.fullmatch(name)
    return _ROM_BY_KEY.get(match["game"].replace("_", "").lower()) if match else None


def env_family(name: str) -> str | None:
    """`atari`, `mujoco` or `classic` (classic control and Box2D, without CarRacing's images); "" for an environment of
    no family, None where no environment has that name."""
    import gymnasium

    spec = gymnasium.registry.get(name)
    entry_point = "" if spec is None else str(spec.entry_point)
    if (spec is None or entry_point.startswith("ale_py")) and atari_rom(name) is not None:
        return "atari"
    for prefix, family in _FAMILY_BY_ENTRY_POINT.items():
        if entry_point.startswith(prefix):
            return family
    return "" if spec is not None or ":" in name or name in SHIPPED else None


def has_time_limit(name: str, env_kwargs: Mapping[str, Any]) -> bool:
    """Whether episodes are known to be cut off at some step; of a class or function of the user's nothing is known."""
    import gymnasium

    spec = name.target if isinstance(name, EnvObject) else gymnasium.registry.get(name)
    limit = env_kwargs.get("max_episode_steps", getattr(spec, "max_episode_steps", None))
    return limit not in (None, -1) or name == EXTERNAL or atari_rom(name) is not None


def atari_game(rom: str) -> str:
    """`ms_pacman` -> `MsPacman`, as in ale-py's ids."""
    return rom.title().replace("_", "")


def _atari_source(name: str, rom: str) -> EnvSource:
    if importlib.util.find_spec("ale_py") is None:
        raise MissingExtra("ale-py", "atari", name)
    return EnvSource(f"ALE/{atari_game(rom)}-v5", "atari", rom=rom)


def _require_extras(name: str, entry_point: str) -> None:
    for prefix, requirements in _EXTRA_BY_ENTRY_POINT.items():
        if entry_point.startswith(prefix):
            for module, package, extra in requirements:
                if importlib.util.find_spec(module) is None:
                    raise MissingExtra(package, extra, name)


def _without_class(name: str) -> str:
    """For a file whose class was forgotten: the environments that are defined in it."""
    import gymnasium

    module = _load(name, name)
    names = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, gymnasium.Env) and value.__module__ == module.__name__
    ]
    listed = ", ".join(f"{name}:{key}" for key in names)
    hint = f"its environments: {listed}" if names else f"it defines no gymnasium.Env; a function: {name}:make_env"
    return f"'{name}' is a file: write the class as well; {hint}"


def _not_found(name: str, registered: list[str]) -> str:
    if name.startswith("pettingzoo."):
        return f"'{name}' has several agents, and only ppo and dqn know of such: --algo ppo (docs/multi-agent.md)"
    games = [atari_game(rom) for rom in ATARI_ROMS]
    bases = {env_id.rsplit("-v", 1)[0]: env_id for env_id in registered}  # the last registered version of each
    stem = name.rsplit("-v", 1)[0]
    hint = f"; did you mean '{bases[stem]}'?" if stem in bases else closest(name, [*registered, *games, *SHIPPED])
    return (
        f"no environment is called '{name}'{hint or ';'} a name is an id that gymnasium has registered "
        "(CartPole-v1), an Atari game (Pong), pkg.mod:MakeEnv, or ./file.py:MakeEnv; for an id that a module of yours "
        f"registers, name the module too: my_module:{name if _REGISTERED_ID.fullmatch(name) else 'MyEnv-v0'}"
    )


def _resolve_import(name: str) -> EnvSource:
    module_name, _, attribute = name.rpartition(":")
    module = _load(name, module_name)
    if _REGISTERED_ID.fullmatch(attribute):
        return resolve_env(attribute)
    factory = attribute_of(module, attribute)
    if factory is None:
        candidates = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise EnvNotFound(f"{module_name} has no '{attribute}'{closest(attribute, candidates)} (environment '{name}')")
    if not callable(factory):
        raise EnvNotFound(
            f"'{name}' is a {type(factory).__name__}; give a class, or a function that returns an environment"
        )
    return EnvSource(located(name), "factory", factory=factory)


_MOVED = {
    "rlplat.rl.diagnostic_envs": "rlplat.rl.envs.diagnostic",
    "rlplat.rl.diagnostic_multi_agent_envs": "rlplat.rl.envs.diagnostic_multi_agent",
}
"""Modules of environments that runs were started with under another name: their run directories have that one."""


def _load(name: str, home: str) -> ModuleType:
    try:
        return load_module(_MOVED.get(home, home))
    except ConfigError as error:
        raise EnvNotFound(f"{error} (environment '{name}')") from None
    except Exception as error:
        raise EnvError(f"environment '{name}': {import_problem(error, name)}") from error
