"""Many environments behind one `step`, for those that have no vector implementation of their own.

All speak gymnasium's vector API. `SyncLoop` and `AsyncLoop` in SAME_STEP mode: an environment that ends is reset in the
same call, its last observation is `info["final_obs"][i]`. `PoolLoop` in EnvPool's, NEXT_STEP.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import TimeoutError as ProcessTimeout
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from typing import Any, NoReturn

import numpy as np
import psutil

from rlplat.acting import brief
from rlplat.errors import EnvError, RlplatError, UsageError
from rlplat.given.global_random import seed_everything
from rlplat.rl.envs.guard import GuardedEnv
from rlplat.rl.envs.gym_spaces import action_row
from rlplat.rl.envs.obs_reader import ObsReader, put_row
from rlplat.rl.envs.watchdog import Limits, too_long
from rlplat.rl.info_metrics import OF_EPISODES, row_of
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import copy_obs
from rlplat.rl.seeding import number_of
from rlplat.rl.spaces import ObsSpec

CHILDREN_S = 2.0
"""For the processes that an environment has started to end by themselves after its close()."""


class SyncLoop:
    """One after the other in this process.

    gymnasium's SyncVectorEnv merges the infos of all environments in every step and deep-copies; this does neither, and
    knows which environment it is in when one raises or hangs.
    """

    seed_form = "list"
    tells_episode_metrics = True

    def __init__(self, guards: list[GuardedEnv]) -> None:
        self.guards = guards
        self.num_envs = len(guards)
        self.single_observation_space = guards[0].observation_space
        self.single_action_space = guards[0].action_space
        self.metadata = {"autoreset_mode": "SAME_STEP"}
        self.next_seeds: list[int | None] = [None] * self.num_envs
        """With which each is reset when its episode ends; None: its generator draws on."""
        self.current = 0
        """Index of the environment that is being stepped or reset."""
        self.is_resetting = False
        reader = ObsReader(self.single_observation_space, self.single_action_space)
        self._is_plain = isinstance(reader.spec.obs, ObsSpec)
        self._empty = reader.empty(self.num_envs)
        for guard in guards[1:]:
            if (guard.observation_space, guard.action_space) != (
                guards[0].observation_space,
                guards[0].action_space,
            ):
                raise EnvError(
                    f"{guard.place()}: its spaces are {guard.observation_space} -> {guard.action_space}, those of "
                    f"environment 0 {guards[0].observation_space} -> {guards[0].action_space}; they must be equal"
                )

    def reset(self, *, seed: list[int] | None = None) -> tuple[Obs, dict[str, Any]]:
        obs = copy_obs(self._empty)
        self.is_resetting = True
        for i, guard in enumerate(self.guards):
            self.current, self.next_seeds[i] = i, None
            put_row(obs, i, guard.reset(seed=None if seed is None else seed[i])[0])
        self.is_resetting = False
        return obs, {}

    def step(self, actions: Any) -> tuple[Obs, Array, Array, Array, dict[str, Any]]:
        """actions: [B, ...], or a Dict or Tuple of such."""
        is_plain = self._is_plain
        obs: Any = np.empty_like(self._empty) if is_plain else copy_obs(self._empty)
        if actions.__class__ is not np.ndarray:
            actions = [action_row(actions, i) for i in range(self.num_envs)]
        rewards: list[float] = []
        terminated = np.zeros(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        info: dict[str, Any] = {}
        for i, guard in enumerate(self.guards):
            self.current = i
            row, reward, is_terminated, is_truncated, told = guard.step(actions[i])
            rewards.append(reward)
            if is_terminated or is_truncated:
                terminated[i], truncated[i] = is_terminated, is_truncated
                if not info:
                    info["final_obs"] = copy_obs(self._empty)
                put_row(info["final_obs"], i, row)
                if told:
                    info.setdefault(OF_EPISODES, [{}] * self.num_envs)[i] = told[OF_EPISODES]
                self.is_resetting = True
                row = guard.reset(seed=self.next_seeds[i])[0]
                self.is_resetting = False
                self.next_seeds[i] = None
            if is_plain:
                obs[i] = row
            else:
                put_row(obs, i, row)
        return obs, np.array(rewards, np.float64), terminated, truncated, info

    def of_all(self, method: str, num_steps: int, *arguments: Any, **keywords: Any) -> list[Any]:
        """What that method of every `GuardedEnv` returns; num_steps: of one environment, that it may take."""
        answers = []
        for self.current, guard in enumerate(self.guards):  # noqa: B020
            answers.append(getattr(guard, method)(*arguments, **keywords))
        return answers

    def close(self) -> None:
        for guard in self.guards:
            guard.close()


class AsyncLoop:
    """One process per environment (gymnasium's AsyncVectorEnv), worth it where a step takes milliseconds.

    A process that hangs or dies is named, and all of them are ended.
    """

    seed_form = "list"
    tells_episode_metrics = True

    def __init__(self, envs: Any, name: str, limits: Limits) -> None:
        """envs: an AsyncVectorEnv in SAME_STEP mode, made of `process_makers`."""
        self.envs = envs
        self._name = name
        self._limits = limits
        self._num_steps = 0
        self._actions: Any = None
        self.num_envs: int = envs.num_envs
        self.single_observation_space = self.envs.single_observation_space
        self.single_action_space = self.envs.single_action_space
        self.metadata = self.envs.metadata

    def reset(self, *, seed: list[int] | None = None) -> Any:
        try:
            self.envs.reset_async(seed=seed)
            return self.envs.reset_wait(timeout=self._limits.reset_s)
        except BaseException as error:
            self._fail(error, "reset()")

    def step(self, actions: Any) -> Any:
        self._num_steps += 1
        self._actions = actions
        try:
            self.envs.step_async(actions)
            result = self.envs.step_wait(timeout=max(self._limits))  # which also resets those that ended
        except BaseException as error:
            self._fail(error, "step()")
        told = result[4].get("final_info", {})
        if OF_EPISODES in told:
            rows = [row_of(told, i).get(OF_EPISODES, {}) for i in range(self.num_envs)]
            result[4][OF_EPISODES] = [{name: float(value) for name, value in row.items()} for row in rows]
        return result

    def of_all(self, method: str, num_steps: int, *arguments: Any, **keywords: Any) -> list[Any]:
        """As `SyncLoop.of_all`."""
        try:
            self.envs.call_async(method, *arguments, **keywords)
            limit_s = max(self._limits) + self._limits.step_s * (num_steps - 1)
            return list(self.envs.call_wait(timeout=limit_s))
        except BaseException as error:
            self._fail(error, method)

    def close(self) -> None:
        if not self.envs.closed:
            self.envs.close(timeout=5)
            _release(self.envs)

    def _fail(self, error: BaseException, call: str) -> NoReturn:
        waiting = [i for i, pipe in enumerate(self.envs.parent_pipes) if pipe is not None and not _has_answer(pipe)]
        lost = isinstance(error, EOFError | ConnectionError)
        if isinstance(error, ProcessTimeout):
            # Where an environment has processes of its own, those hold its pipes open when it is gone.
            lost = any(process.exitcode is not None for process in self.envs.processes)
        if lost:
            for process in self.envs.processes:
                process.join(timeout=0.2)
        exit_codes = {i: process.exitcode for i, process in enumerate(self.envs.processes)}
        _kill(self.envs)
        if isinstance(error, ProcessTimeout) and not lost:
            limit_s = self._limits.reset_s if call == "reset()" else max(self._limits)
            raise EnvError(f"{self._places(waiting)}: {too_long(call, limit_s, '')}") from None
        if lost:
            dead = [i for i, code in exit_codes.items() if code is not None]
            how = ", ".join(_how(exit_codes[i]) for i in dead) or "closed its pipe"
            raise EnvError(f"{self._places(dead)}: the environment's process died in {call} ({how})") from None
        raise error

    def _places(self, indices: list[int]) -> str:
        which = ", ".join(map(str, indices)) or "?"
        action = (
            "" if self._actions is None or not indices else f", action {brief(action_row(self._actions, indices[0]))}"
        )
        return f"{self._name} (environment {which} of 0..{self.num_envs - 1}), step {self._num_steps}{action}"


class PoolLoop:
    """EnvPool's C++ environments (https://envpool.readthedocs.io), stepped by threads of its own.

    It takes seeds when it is made: that is at each `reset(seed=...)`.
    """

    seed_form = "list"

    def __init__(self, name: str, num_envs: int, num_threads: int, kwargs: dict[str, Any]) -> None:
        """UsageError where EnvPool is missing, has no such environment, or has no such argument."""
        try:
            import envpool
        except ImportError as error:
            raise UsageError(
                f"vectorization 'envpool' needs a package that is not installed: pip install envpool ({error})"
            ) from error
        if name not in envpool.list_all_envs():
            raise UsageError(
                f"EnvPool has no {name}: leave vectorization at 'auto' (envpool.list_all_envs() lists what it has)"
            )
        try:
            self._spec = envpool.make_spec(name, **kwargs)
        except TypeError as error:
            raise UsageError(f"EnvPool's {name} does not take env_kwargs={kwargs}: {error}") from error
        threads = min(num_threads, num_envs)
        self._make: Callable[[list[int]], Any] = lambda seeds: envpool.make(
            name, env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=seeds, **kwargs
        )
        self._pool: Any = None
        self.num_envs = num_envs
        self.max_episode_steps: int = self._spec.config.max_episode_steps
        self.single_observation_space = self._spec.gymnasium_observation_space
        space = self._spec.gymnasium_action_space
        self._action_dtype = space.dtype
        if space.dtype == np.float64:  # MuJoCo's, which are float32 in gymnasium
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
            space = type(space)(low, high, dtype=np.float32)
        self.single_action_space = space
        self.metadata = {"autoreset_mode": "NEXT_STEP"}

    def reset(self, *, seed: list[int] | None = None) -> Any:
        if seed is not None:
            self.close()
            self._pool = self._make(seed)
        return self._pool.reset()

    def step(self, actions: Any) -> Any:
        return self._pool.step(actions if self._action_dtype is None else actions.astype(self._action_dtype))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def process_makers(
    make_guard: Callable[[int], GuardedEnv],
    num_envs: int,
    tell: Callable[[str], None],
    seed: np.random.SeedSequence,
) -> list[Callable[[], Any]]:
    """One function per environment; what it makes in a child process dies with the process that called this. tell: is
    told, there, why none could be made; seed: of the generators that each process has for itself."""
    parent = os.getpid()

    def maker(index: int) -> Callable[[], GuardedEnv]:
        def make() -> GuardedEnv:
            if os.getpid() == parent:
                return make_guard(index)
            _die_with(parent)
            _leave_signals_to_the_parent()
            _allow_children()
            # Made with draws of its own; from its first seeded reset on, with those of the seed.
            seed_everything(number_of(np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, index, 1))))
            try:
                guard = make_guard(index)
                guard.owns_process = True
                return guard
            except RlplatError as error:
                tell(f"{error} (in the process of environment {index})")
                raise SystemExit(1) from None

        return make

    return [maker(index) for index in range(num_envs)]


def kill_unmade(envs: Any) -> str:
    """Ends all processes of an AsyncVectorEnv of which some have ended by themselves -> `1 ended (exit code 3)`."""
    ended = wait([process.sentinel for process in envs.processes], timeout=1.0)
    for process in envs.processes:
        if process.sentinel in ended:
            process.join()  # its files are closed before it has an exit code
    codes = [process.exitcode for process in envs.processes]
    _kill(envs)
    return ", ".join(f"{i} ended ({_how(code)})" for i, code in enumerate(codes) if code is not None)


def _kill(envs: Any) -> None:
    for process in envs.processes:
        process.kill()
        process.join()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started: `_allow_children`
    with suppress(Exception):  # its pipes may be broken in any way by now
        envs.close(terminate=True)
    envs.closed = True
    _release(envs)


def _release(envs: Any) -> None:
    """The descriptors that gymnasium leaves to the garbage collector."""
    for pipe in envs.parent_pipes:
        if pipe is not None:
            pipe.close()
    errors = envs.error_queue
    errors.close()
    for end in (errors._reader, errors._writer):  # close() ends only its thread
        end.close()
    for process in envs.processes:
        process.close()


def _has_answer(pipe: Any) -> bool:
    try:
        return bool(pipe.poll(0))
    except (OSError, EOFError):
        return True


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"


def _leave_signals_to_the_parent() -> None:
    """A fork has the handlers of its parent, and Ctrl-C reaches all processes of a terminal: the run ends in order only
    if its environments go on until they are closed."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _allow_children() -> None:
    """multiprocessing lets no daemon start processes, and AsyncVectorEnv makes daemons; a simulator may need some. What
    its close() has left running is ended with this process, which would wait for it for ever."""
    multiprocessing.current_process().daemon = False
    os.setpgrp()  # by which they are found when this process is gone
    Finalize(None, _end_children, exitpriority=100)


def _end_children() -> None:
    running = _children_of(os.getpid())
    _, running = psutil.wait_procs(running, timeout=CHILDREN_S)
    for child in running:
        with suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(running, timeout=CHILDREN_S)


def end_left_behind(before: set[int], envs: Any) -> None:
    """Of the environments that were made in this process to be looked at: what they started and their close() did not
    end. before: children of this process that were there; envs: an AsyncVectorEnv, whose processes go on."""
    known = before | {process.pid for process in envs.processes}
    left = [child for child in _children_of(os.getpid(), recursive=False) if child.pid not in known]
    for child in left:
        with suppress(psutil.Error):
            if "resource_tracker" not in " ".join(child.cmdline()):
                child.kill()
    for process in multiprocessing.active_children():
        if any(process.pid == child.pid for child in left):
            process.join(CHILDREN_S)
            process.close()
    psutil.wait_procs(left, timeout=CHILDREN_S)


def children_now() -> set[int]:
    """Of this process, by pid."""
    return {child.pid for child in _children_of(os.getpid(), recursive=False)}


def _children_of(pid: int | None, *, recursive: bool = True) -> list[psutil.Process]:
    """And theirs; none of a process that is gone."""
    try:
        return psutil.Process(pid).children(recursive=recursive)
    except psutil.Error:
        return []


def _die_with(parent: int) -> None:
    """A killed rollout worker takes its environments with it: siblings hold each other's pipes open, so that the end of
    file by which they would notice never comes."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
