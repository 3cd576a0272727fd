"""Environments by name, many side by side.

env = make_vector_env("Pong", 8, seed=1, num_threads=2)
obs = env.reset()
step = env.step(actions)            # interfaces.Step
episodes = env.pop_episodes()       # raw returns and lengths of those that finished since the last call
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import numpy as np

from rlplat.errors import EnvError, RlplatError, UsageError
from rlplat.given.raised_at import raised_here
from rlplat.rl.class_path import made_of
from rlplat.rl.envs.atari import ale_arguments, atari_settings
from rlplat.rl.envs.classic_control import MOVES, ClassicVectorEnv
from rlplat.rl.envs.copies import Copies, made_as, parameters, with_numbers
from rlplat.rl.envs.guard import BY_AGENT, GuardedEnv, changed_spaces, has_info_mask, mask_method
from rlplat.rl.envs.gym_spaces import space_spec
from rlplat.rl.envs.image_settings import ImageSettings, is_ours, with_images, with_true_bounds
from rlplat.rl.envs.loops import (
    AsyncLoop,
    PoolLoop,
    SyncLoop,
    children_now,
    end_left_behind,
    kill_unmade,
    process_makers,
)
from rlplat.rl.envs.names import EnvSource, resolve_env
from rlplat.rl.envs.state import is_native_saved
from rlplat.rl.envs.tensors.contract import attribute, is_tensor_env
from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.envs.watchdog import NO_LIMITS, Limits, is_environments_own
from rlplat.rl.seeding import sequence_of

__all__ = ["Vectorization", "VectorEnv", "make_single_env", "make_vector_env"]

NEVER = 2**31 - 1
"""Steps after which a vector implementation that knows only numbers cuts an episode off that has no limit."""
Vectorization = Literal["auto", "native", "sync", "async", "envpool"]


def make_vector_env(
    env: Any,
    num_envs: int,
    *,
    seed: int | np.random.SeedSequence = 0,
    env_kwargs: dict[str, Any] | None = None,
    num_threads: int = 1,
    vectorization: Vectorization = "auto",
    step_timeout_s: float = 60.0,
    reset_timeout_s: float | None = None,
    keep_state: bool = False,
    seeds_each: bool = False,
    copies: Copies = Copies(),  # noqa: B008
    any_number: bool = False,
    env_metrics: Sequence[str] = (),
) -> VectorEnv:
    """env: a name, or a class, function or environment (env_objects.py).

    A vector environment (gymnasium.vector.VectorEnv) is used as it is; it is given `num_envs` where its constructor has
    such an argument, and is refused where it has another number, unless `any_number`.

    `seed` is that of the first `reset()`; `num_threads` is for environments that step in C++ (Atari, EnvPool).

    `auto` takes the environment's own vector implementation where there is one that accepts `env_kwargs`, else `sync`.
    `step_timeout_s`, `reset_timeout_s` (None: as the first): seconds that one environment may take. `copies`: which of
    a run's copies these are. `keep_state`: for `VectorEnv.get_state`; actions are recorded, and `auto` takes only what
    can be saved.
    `seeds_each`: `auto` takes only environments with a generator each.
    `env_metrics`: numbers of the infos, `name` or `name:sum` (info_metrics.py).
    """
    if num_envs < 1:
        raise UsageError(f"num_envs is {num_envs}; at least one environment is needed")
    source = resolve_env(env)
    kwargs = dict(env_kwargs or {})
    limits = Limits(step_timeout_s, step_timeout_s if reset_timeout_s is None else reset_timeout_s)
    facts: dict[str, Any] = {"env": source.name, "num_envs": num_envs, "env_kwargs": kwargs}
    made = partial(VectorEnv, name=source.name, seed=seed, facts=facts, keeps_state=keep_state, env_metrics=env_metrics)
    if source.kind == "atari":
        if vectorization not in ("auto", "native"):
            raise UsageError(f"{source.name} steps in C++ only: leave vectorization at 'auto', not '{vectorization}'")
        settings = atari_settings(source, kwargs)
        raw = _make_atari(source, num_envs, ale_arguments(settings), num_threads)
        facts |= {"vectorization": "native", **settings}
        return made(
            raw,
            limits=limits,
            ends_at_lost_life=settings["episodic_life"],
            fire=_fire_action(source.rom, settings) if settings["fire_after_lost_life"] else None,
        )
    if source.kind == "external":
        from rlplat.rl.envs.external.vector_env import ExternalVectorEnv

        if vectorization != "auto":
            raise UsageError(f"simulators step by themselves: leave vectorization at 'auto', not '{vectorization}'")
        external = ExternalVectorEnv(num_envs, **kwargs)
        facts["vectorization"] = "external"
        # A simulator may be away for longer than any limit: who is waited for is said every few seconds.
        return made(external, limits=NO_LIMITS)
    if source.kind == "registered":
        spec = source.spec
        facts["max_episode_steps"] = _time_limit(source, kwargs)
        is_saved = not keep_state or is_native_saved(spec.vector_entry_point)
        if vectorization == "auto" and (seeds_each or not is_saved):
            vectorization = "sync"
        raw = None
        if _use_native(source, spec, kwargs, vectorization, num_envs):
            raw = _make_native(source, spec, num_envs, kwargs, facts["max_episode_steps"])
            facts["vectorization"] = "native"
        elif vectorization == "envpool":
            raw = _make_pool(source, num_envs, kwargs, num_threads)
            facts |= {"vectorization": "envpool", "max_episode_steps": raw.max_episode_steps}
        if raw is not None:
            return made(raw, limits=limits)
    elif vectorization == "envpool":
        raise UsageError(
            f"{source.name} is none of EnvPool's environments: set vectorization to 'auto', 'sync' or 'async'"
        )
    elif vectorization == "native":
        raise UsageError(f"{source.name} has no vector implementation: set vectorization to 'auto', 'sync' or 'async'")

    with_info_mask: bool | None = None
    children = children_now() if vectorization == "async" else set()
    first: Any = make_single_env(source, kwargs, copies, num_envs=num_envs)
    if is_tensor_env(first):
        from rlplat.rl.envs.tensors.env import OnHost

        first = OnHost(first, source.name)
        facts["device"] = first.device
    if is_vector_env(first):
        if vectorization != "auto":
            raise UsageError(
                f"{source.name} is a vector environment already: leave vectorization at 'auto', not '{vectorization}'"
            )
        if first.num_envs != num_envs and not any_number:
            raise UsageError(other_number(source.name, first.num_envs, num_envs))
        facts |= {"vectorization": "given", "num_envs": first.num_envs}
        return made(first, limits=limits)

    def make_guard(index: int) -> GuardedEnv:
        nonlocal with_info_mask, first
        single = make_single_env(source, kwargs, copies, index) if first is None or index else first
        first = None
        spec = space_spec(single.observation_space, single.action_space)  # refuses what could not even be stacked
        if with_info_mask is None:
            with_info_mask = spec.action.mask_size > 0 and has_info_mask(single)
            if problem := changed_spaces(single, spec):
                raise EnvError(f"{source.name}: {problem}")
        return GuardedEnv(
            single,
            source.name,
            index,
            num_envs,
            has_info_mask=with_info_mask,
            keeps_state=keep_state,
            copies=copies,
            env_metrics=env_metrics,
        )

    if vectorization == "async":
        facts["vectorization"] = "async"
        make_guard(0).close()  # for `with_info_mask`, before the processes are forked
        raw = _make_async(source, make_guard, num_envs, limits, sequence_of(seed))
        end_left_behind(children, raw.envs)
        limits = NO_LIMITS
    else:
        facts["vectorization"] = "sync"
        raw = SyncLoop([make_guard(index) for index in range(num_envs)])
    return made(raw, limits=limits)


def make_single_env(
    source: EnvSource,
    env_kwargs: dict[str, Any],
    copies: Copies | None = None,
    index: int = 0,
    num_envs: int = 1,
) -> Any:
    """One gymnasium environment with its time limit, without gymnasium's own checker (`GuardedEnv` does its work); or a
    vector environment (`is_vector_env`), where the user gave one. num_envs: of that, if its constructor asks.
    copies, index: which copy of a run's this is; None: the one that is being made.

    Raises EnvError where the constructor raises, UsageError where a package is missing that no extra of ours brings.
    """
    import gymnasium

    try:
        with nullcontext() if copies is None else made_as(copies, index):
            if source.kind == "registered":
                _log_mujoco_warnings(source)
                env = call_wrapped(
                    lambda **kwargs: gymnasium.make(source.spec, disable_env_checker=True, **kwargs),
                    env_kwargs,
                    constructor=_creator(source.spec.entry_point),
                )
            else:
                assert source.factory is not None
                asks = "num_envs" in parameters(source.factory)
                env = call_wrapped(source.factory, {"num_envs": num_envs, **env_kwargs} if asks else env_kwargs)
    except RlplatError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(f"{source.name} needs a package that is not installed: {error}") from error
    except BaseException as error:
        if not is_environments_own(error):
            raise
        given = f"env_kwargs={env_kwargs}" if env_kwargs else "no env_kwargs"
        raise EnvError(
            f"{source.name}: making the environment (with {given}) raised {type(error).__name__}: "
            f"{error}{raised_here(error)}"
        ) from error
    if cure := _not_gymnasium(env):
        raise EnvError(f"{source.name} made a {type(env).__name__}: {cure}")
    one = "single_" if is_tensor_env(env) else ""
    for name in ("reset", "step", f"{one}observation_space", f"{one}action_space"):
        if attribute(env, name) is None:
            raise EnvError(
                f"{source.name} made a {type(env).__name__}, which has no {name}; an environment is a "
                "gymnasium.Env (https://gymnasium.farama.org/api/env)"
            )
    return env


def is_vector_env(env: Any) -> bool:
    """Whether it is many environments already (gymnasium.vector.VectorEnv, or what has its attributes)."""
    return hasattr(env, "single_observation_space") and hasattr(env, "num_envs")


def other_number(name: str, has: int, asked: int) -> str:
    return (
        f"{name} is a vector environment of {has}, and num_envs_per_worker is {asked}: set num_envs_per_worker={has} "
        f"(--num-envs-per-worker {has}), or give its constructor an argument num_envs"
    )


def _not_gymnasium(env: Any) -> str:
    """The cure where it is of another package's kind, or the empty string."""
    if any(base.__name__ == "MultiAgentEnv" for base in type(getattr(env, "unwrapped", env)).__mro__):
        return BY_AGENT
    if hasattr(env, "possible_agents"):
        return (
            "a PettingZoo environment of several agents, which ppo, mappo and dqn train; `rlplat check-env`, or "
            "rlplat.rl.multi_agent.check.check_any_env, looks for its mistakes"
        )
    if hasattr(env, "step_async") and hasattr(env, "step_wait") and not is_vector_env(env):
        return (
            "a vector environment of Stable-Baselines3 is not one of gymnasium; give the environment that it is made "
            "of (env=lambda: MyEnv()), of which num_envs_per_worker copies are made"
        )
    if type(env).__module__.partition(".")[0] == "envpool" or hasattr(env, "all_env_ids"):
        return "name EnvPool's environment instead: env='Ant-v5', vectorization='envpool'"
    return ""


def call_wrapped(factory: Callable[..., Any], env_kwargs: Mapping[str, Any], *, constructor: Any = None) -> Any:
    """The environment, in the wrappers that the key `wrappers` names, the first one innermost: each is
    `pkg.mod:Wrapper` or {`pkg.mod:Wrapper`: {argument: value}}, called with the environment. ConfigError where one
    cannot be made. constructor: what the factory calls in the end, where it is not that itself."""
    kwargs = dict(env_kwargs)
    wrappers = kwargs.pop("wrappers", [])
    image = kwargs.pop("image") if is_ours(kwargs, parameters(constructor or factory)) else {}
    settings = ImageSettings.of(image)
    env = factory(**with_numbers(constructor or factory, kwargs))
    for named in wrappers if isinstance(wrappers, list | tuple) else [wrappers]:
        _, env = made_of(named, "env_kwargs.wrappers", env)
    return with_true_bounds(with_images(env, settings))


def _log_mujoco_warnings(source: EnvSource) -> None:
    """MuJoCo prints its warnings (deprecated model attributes, every time) and leaves MUJOCO_LOG.TXT wherever it runs;
    they go to the logger `rlplat.mujoco` instead, at level INFO."""
    if str(source.spec.entry_point).startswith("gymnasium.envs.mujoco"):
        import mujoco

        mujoco.set_mju_user_warning(lambda message: logging.getLogger("rlplat.mujoco").info("%s", message))


def _make_atari(source: EnvSource, num_envs: int, arguments: dict[str, Any], num_threads: int) -> Any:
    """`num_threads` threads of C++ step the games."""
    import ale_py
    import gymnasium
    from ale_py.vector_env import AtariVectorEnv

    gymnasium.register_envs(ale_py)
    return AtariVectorEnv(
        source.rom,
        num_envs,
        num_threads=num_threads,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        **arguments,
    )


def _make_pool(source: EnvSource, num_envs: int, kwargs: dict[str, Any], num_threads: int) -> PoolLoop:
    """Refused where it would be another task than gymnasium's environment, in which the policy is evaluated."""
    _require_no_wrappers(source, kwargs)
    pool = PoolLoop(source.spec.id, num_envs, num_threads, kwargs)
    _require_same_spaces(source, pool, kwargs, "EnvPool's")
    return pool


def _require_same_spaces(source: EnvSource, many: Any, kwargs: dict[str, Any], whose: str) -> None:
    """UsageError where the environment by itself observes or takes something else, a mask too."""
    single = make_single_env(source, kwargs)
    spec = space_spec(single.observation_space, single.action_space)
    if spec.action.mask_size and (has_info_mask(single) or mask_method(single)):
        spec = space_spec(single.observation_space, single.action_space, adds_mask=True)
    single.close()
    spec.require_same(
        space_spec(many.single_observation_space, many.single_action_space),
        source.name,
        whose,
        fix="make them alike, or set vectorization to 'sync', which steps the environment itself",
    )


def _fire_action(rom: str, settings: dict[str, Any]) -> int | None:
    """The index of FIRE among the game's actions; None where it has no such action."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    path = ale_py.roms.get_rom_path(rom)
    assert path is not None, rom
    ale.loadROM(path)
    actions = ale.getLegalActionSet() if settings["full_action_space"] else ale.getMinimalActionSet()
    return actions.index(ale_py.Action.FIRE) if ale_py.Action.FIRE in actions else None


def _make_async(
    source: EnvSource,
    make_guard: Callable[[int], GuardedEnv],
    num_envs: int,
    limits: Limits,
    seed: np.random.SeedSequence,
) -> AsyncLoop:
    import gymnasium
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode

    # fork: this process's threads do not matter to an environment, and nothing needs importing again.
    context = "fork" if sys.platform == "linux" else None
    problems = multiprocessing.get_context(context).SimpleQueue()

    class Envs(AsyncVectorEnv):
        def _check_spaces(self) -> None:
            """The end of the constructor, which is the first to hear of processes that made no environment."""
            try:
                super()._check_spaces()  # type: ignore[no-untyped-call]
            except (EOFError, ConnectionError):
                text = f"{source.name}: the process of environment {kill_unmade(self)} while it was made"
                raise EnvError(text if problems.empty() else problems.get()) from None

    # It prints the traceback of every environment that fails; ours travels in the EnvError.
    gymnasium.logger.min_level = 50
    try:
        makers = process_makers(make_guard, num_envs, problems.put, seed)
        envs = Envs(makers, autoreset_mode=AutoresetMode.SAME_STEP, context=context)
    finally:
        problems.close()
    return AsyncLoop(envs, source.name, limits)


def _require_no_wrappers(source: EnvSource, kwargs: dict[str, Any]) -> None:
    """Where many environments are one object."""
    for key in ("wrappers", "image"):
        if key in kwargs:
            raise UsageError(
                f"env_kwargs.{key} is for one environment each: set vectorization of {source.name} to 'auto', 'sync' "
                "or 'async'"
            )


def _use_native(
    source: EnvSource, spec: Any, kwargs: dict[str, Any], vectorization: Vectorization, num_envs: int
) -> bool:
    exists = (_is_ours(spec) or spec.vector_entry_point is not None) and not spec.additional_wrappers
    if vectorization == "native":
        if not exists:
            raise UsageError(
                f"{source.name} has no vector implementation: set vectorization to 'auto', 'sync' or 'async'"
            )
        _require_no_wrappers(source, kwargs)
        return True
    if vectorization != "auto" or not exists or (_is_ours(spec) and num_envs < MOVES[spec.entry_point][1]):
        return False
    own = (_parameters(spec.entry_point) | {"max_episode_steps"}) - {"render_mode"}
    asked = spec.kwargs.keys() | kwargs.keys()
    return asked <= (own if _is_ours(spec) else _parameters(spec.vector_entry_point))


def _time_limit(source: EnvSource, kwargs: Mapping[str, Any]) -> int | None:
    """As gymnasium.make reads the argument: None is the registered one, -1 is none."""
    limit = kwargs.get("max_episode_steps")
    if limit is None:
        limit = source.spec.max_episode_steps
    elif limit < 1 and limit != -1:
        raise UsageError(
            f"{source.name}: env_kwargs.max_episode_steps is {limit}; it is at least 1, or -1 for no limit at all"
        )
    return None if limit == -1 else limit


def _is_ours(spec: Any) -> bool:
    """Whether gymnasium has no vector implementation of it, and we have one."""
    return spec.vector_entry_point is None and spec.entry_point in MOVES


def _parameters(entry_point: Any) -> set[str]:
    """Names that a vector implementation's constructor takes; none where it cannot be imported."""
    return set(parameters(_creator(entry_point)))


def _creator(entry_point: Any) -> Any:
    """What a registered entry point names; None where it cannot be imported."""
    from gymnasium.envs.registration import load_env_creator

    try:
        return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    except Exception:
        return None


def _make_native(
    source: EnvSource, spec: Any, num_envs: int, kwargs: dict[str, Any], max_episode_steps: int | None
) -> Any:
    import gymnasium

    if _is_ours(spec):
        return ClassicVectorEnv(make_single_env(source, kwargs).unwrapped, num_envs, max_episode_steps)
    if "max_episode_steps" in kwargs:
        kwargs = {**kwargs, "max_episode_steps": NEVER if max_episode_steps is None else max_episode_steps}
    if "autoreset_mode" in _parameters(spec.vector_entry_point):
        kwargs = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP, **kwargs}
    try:
        made = gymnasium.make_vec(source.spec, num_envs, vectorization_mode="vector_entry_point", **kwargs)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise UsageError(f"{source.name} needs a package that is not installed: {error}") from error
    except Exception as error:
        given = f"env_kwargs={kwargs}" if kwargs else "no env_kwargs"
        raise EnvError(
            f"{source.name}: making {num_envs} environments (with {given}) raised {type(error).__name__}: {error}"
        ) from error
    if not str(spec.vector_entry_point).startswith("gymnasium."):
        if made.num_envs != num_envs:
            raise UsageError(
                f"{source.name}: its vector implementation made {made.num_envs} environments, asked for {num_envs}; "
                "set vectorization to 'sync', which steps the environment itself"
            )
        _require_same_spaces(source, made, kwargs, "its vector implementation")
    return made
