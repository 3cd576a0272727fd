"""`GuardedEnv`: one environment behind a door that lets nothing malformed through.

Whatever the environment does wrong becomes one `EnvError` that names the environment, its number, the step, the last
action and the fix. NaN and infinity are looked for where whole batches pass (envs.py), at a fraction of the price.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import numpy as np

from rlplat.acting import brief, find_no_choice
from rlplat.config import closest
from rlplat.errors import EnvError, UsageError
from rlplat.given.global_random import seed_everything
from rlplat.given.raised_at import raised_here
from rlplat.rl.envs.copies import Copies, be
from rlplat.rl.envs.gym_spaces import action_converter, action_row, batched, flat_space, policy_actions, space_spec
from rlplat.rl.envs.obs_reader import ObsMismatch, ObsReader
from rlplat.rl.envs.state import generator_state, seed_spaces, set_generator
from rlplat.rl.envs.statistics import Frozen, Statistics, kept_statistics, layers, put_statistics
from rlplat.rl.envs.watchdog import is_environments_own
from rlplat.rl.info_metrics import GROUP, OF_EPISODES, InfoMetrics, NotANumber
from rlplat.rl.interfaces import Array
from rlplat.rl.obs_tree import copy_obs
from rlplat.rl.spaces import MASK, SpaceSpec, action_leaves, obs_leaves


class RandomActor:
    """Random actions, legal ones where a mask says which are; the same for a seed. The environment gets them as those
    of a policy."""

    def __init__(self, space: Any, spaces: SpaceSpec, seed: int) -> None:
        """space: of actions, gymnasium's; spaces: the environment's, as policies know them."""
        self._space = space
        self._batch_of_one = batched(self._space, 1)
        self._batch_of_one.seed(seed)
        self._rng = np.random.default_rng(seed)
        self._parts = action_leaves(spaces.action)
        self._has_mask = MASK in obs_leaves(spaces.obs)
        self._convert = action_converter(self._space)

    def act(self, obs: Any) -> Any:
        """An action as the environment takes it."""
        return action_row(self._convert(self.policy_actions(obs)), 0)

    def policy_actions(self, obs: Any) -> Array:
        """As a policy's, for one environment: [1, ...]."""
        if not self._has_mask:
            return policy_actions(self._space, self._batch_of_one.sample())
        mask = obs[MASK]
        columns: list[Array] = []
        start = 0
        for part in self._parts:
            for size in part.mask_groups:
                legal = np.flatnonzero(mask[start : start + size])
                # An episode that has ended has no legal one, and what is done there changes nothing.
                columns.append(self._rng.choice(legal, 1) if len(legal) else np.zeros(1, np.int64))
                start += size
            if part.kind == "multi_binary":
                columns.append(self._rng.integers(2, size=part.flat_size))
            elif part.kind == "box":
                columns.append(self._rng.normal(size=part.flat_size))
        actions = np.concatenate(columns)[None]
        return actions[:, 0] if len(self._parts) == 1 and self._parts[0].kind == "discrete" else actions


Ask = Literal["get", "set", "call"]
BY_AGENT = (
    "dicts by agent, as RLlib's MultiAgentEnv has them, are several agents: make it a pettingzoo.ParallelEnv "
    "(possible_agents, observation_space(agent), action_space(agent); no '__all__'), which ppo and dqn train "
    "(docs/multi-agent.md)"
)
NUMBERS = (float, int, np.floating, np.integer, np.bool_)


class GuardedEnv:
    """Duck-types gymnasium.Env as far as vector environments need it. Of the infos only the numbers of `InfoMetrics`
    come out, with the last step of an episode: {"episode_metrics": {"success": 1.0}}.

    guard = GuardedEnv(env, "Pong", index=0, num_envs=8)
    obs, _ = guard.reset(seed=1)
    obs, reward, terminated, truncated, _ = guard.step(action)

    Observations other than plain arrays come out as `ObsReader` reads them, masks included, and `observation_space` is
    theirs.
    """

    def __init__(
        self,
        env: Any,
        name: str,
        index: int = 0,
        num_envs: int = 1,
        *,
        has_info_mask: bool = False,
        keeps_state: bool = False,
        copies: Copies = Copies(),  # noqa: B008
        env_metrics: Sequence[str] = (),
    ) -> None:
        """`has_info_mask`: its infos bring an "action_mask". `keeps_state`: `episode_state` will be asked for.
        `copies`: what `copy_index()` and `worker_index()` say in reset()."""
        self.env = env
        self.name, self.index, self.num_envs = name, index, num_envs
        self._copy = copies.first + index, copies.worker
        self.action_space = env.action_space
        self._has_info_mask = has_info_mask
        self._mask_method = None if has_info_mask else mask_method(env)
        self._adds_mask = has_info_mask or self._mask_method is not None
        self._spaces = env.observation_space, env.action_space
        self._reader = ObsReader(*self._spaces, adds_mask=self._adds_mask)
        self.spaces = self._reader.spec
        is_plain = self._reader.is_plain
        self.observation_space = (
            env.observation_space if is_plain else flat_space(self._reader.spec.obs, env.observation_space)
        )
        self.metadata = getattr(env, "metadata", None) or {}
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None)
        self.num_steps = 0
        """Calls of step() since the environment was made."""
        self.episode_step = 0
        # None: equal to nothing, so that every observation takes the longer way.
        self._shape = env.observation_space.shape if is_plain else None
        self._dtype = env.observation_space.dtype
        self._keeps_state = keeps_state
        self._metrics = InfoMetrics(env_metrics)
        self._episode_start: dict[str, Any] = {}
        self._action: Any = None
        self._step: Callable[[Any], Any] = env.step
        self._frozen: Frozen | None = None
        self.owns_process = False
        """Nothing else draws from the generators of this process: a seed is theirs as well."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        obs, info = self.call_reset(seed)
        if obs.__class__ is not np.ndarray or obs.shape != self._shape or obs.dtype is not self._dtype:
            obs = self._read_obs(obs, "reset()", info)
        return obs, {}

    def call_reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """reset() with everything checked but the observation."""
        self.episode_step = 0
        be(*self._copy)
        if self._frozen is not None:
            self._frozen.restore()
        if seed is not None:
            self._seed_shared(seed)
        self._metrics.reset()
        if self._keeps_state:
            self._episode_start = {
                "seed": seed,
                "generator": None if seed is not None else generator_state(self.env),
            }
        if seed is not None:
            seed_spaces(self.env, seed)
        try:
            result = self.env.reset() if seed is None else self.env.reset(seed=seed)
        except BaseException as error:
            if not is_environments_own(error):
                raise
            fix = ""
            if isinstance(error, TypeError) and "seed" in str(error):
                fix = "; the signature is reset(self, *, seed=None, options=None)"
            self._fail(f"reset() raised {type(error).__name__}: {error}{fix}{raised_here(error)}", error)
        if not isinstance(result, tuple) or len(result) != 2:
            self._fail(
                f"reset() returned {_kind(result)}, expected (obs, info); an environment of the old gym API returns "
                "obs alone: add an info dict"
            )
        self.require_same_spaces()
        if not isinstance(result[1], dict):
            self._fail(f"reset() returned the info {_kind(result[1])}, expected a dict; return obs, {{}}")
        return result

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        self.episode_step += 1
        self._action = action
        try:
            result = self._step(action)
        except BaseException as error:
            if not is_environments_own(error):
                raise
            self._fail(f"step() raised {type(error).__name__}: {error}{raised_here(error)}", error)
        if result.__class__ is not tuple or len(result) != 5:
            self._check_length(result)
        obs, reward, terminated, truncated, info = result
        if reward.__class__ is not float and not isinstance(reward, NUMBERS):
            reward = self._check_reward(reward)
        if terminated.__class__ is not bool and not isinstance(terminated, np.bool_):
            terminated = self._check_flag("terminated", terminated)
        if truncated.__class__ is not bool and not isinstance(truncated, np.bool_):
            truncated = self._check_flag("truncated", truncated)
        if info.__class__ is not dict and not isinstance(info, dict):
            self._fail(f"step() returned the info {_kind(info)}, expected a dict")
        if obs.__class__ is not np.ndarray or obs.shape != self._shape or obs.dtype is not self._dtype:
            obs = self._read_obs(obs, "step()", info, bool(terminated) or bool(truncated))
        if info and (self._metrics.is_asked or GROUP in info):
            self._add_metrics(info)
        told: dict[str, Any] = {}
        if terminated or truncated:
            obs = copy_obs(obs)  # it is read after reset(), which may write into the same memory
            if metrics := self._metrics.pop():
                told[OF_EPISODES] = metrics
        return obs, reward, terminated, truncated, told

    def require_same_spaces(self) -> None:
        """Of what the environment says now: policies are made for its first spaces."""
        now = self.env.observation_space, self.env.action_space
        if now != self._spaces:
            if problem := changed_spaces(self.env, self.spaces, adds_mask=self._adds_mask):
                self._fail(problem)
            self._spaces = now

    def _seed_shared(self, seed: int) -> None:
        """What an environment draws from beside `np_random`: its spaces, and what a process of its own has."""
        seeds = np.random.SeedSequence([seed, 1]).generate_state(5, np.uint32)
        seen: set[int] = set()
        for env, first in ((self.env, 1), (getattr(self.env, "unwrapped", None), 3)):
            for place, name in enumerate(("action_space", "observation_space")):
                space: Any = getattr(env, name, None)
                if hasattr(space, "seed") and id(space) not in seen:
                    seen.add(id(space))
                    space.seed(int(seeds[first + place] >> 1))
        if self.owns_process:
            seed_everything(int(seeds[0]))

    def close(self) -> None:
        """An environment whose close() raises has been used to the end all the same: a warning that names it."""
        if problem := close_env(self.env):
            print(f"warning: {self.place()}: {problem}", file=sys.stderr)

    def get_wrapper_attr(self, name: str) -> Any:
        """Also how an AsyncVectorEnv calls the methods below in its processes."""
        if name in ("episode_state", "restore", "ask", "statistics", "take_statistics", "wander"):
            return getattr(self, name)
        return self.env.get_wrapper_attr(name) if hasattr(self.env, "get_wrapper_attr") else getattr(self.env, name)

    def ask(self, what: Ask, name: str, *arguments: Any, **keywords: Any) -> Any:
        """`get`: an attribute; `set`: it becomes the argument; `call`: what the method of that name returns. Of the
        outermost wrapper that has it, else of the environment."""
        return ask_env(self.env, self.place(), what, name, *arguments, **keywords)

    def wander(self, most: int, seed: int) -> tuple[Any, int]:
        """A random number of random steps, 0 to `most` -> (observation, steps of the present episode)."""
        own = int(np.random.SeedSequence([seed, self.index]).generate_state(1)[0])
        actor, obs = RandomActor(self.action_space, self.spaces, own), self.reset()[0]
        for _ in range(int(np.random.default_rng(own).integers(most + 1))):
            obs, _, terminated, truncated, _ = self.step(actor.act(obs))
            if terminated or truncated:
                obs = self.reset()[0]
        self.num_steps = 0
        self._episode_start["wandered"] = self.episode_step > 0
        return obs, self.episode_step

    def statistics(self) -> Statistics:
        """Running ones, which the environment keeps between episodes."""
        return kept_statistics(self.env)

    def take_statistics(self, statistics: Statistics, share: float, is_frozen: bool) -> None:
        """In the place of its own; share: of what they count for; is_frozen: they stay as they are from now on."""
        put_statistics(self.env, statistics, share)
        if is_frozen and statistics:
            frozen = self._frozen = Frozen(self.env, statistics)
            step = self.env.step

            def step_frozen(action: Any) -> Any:
                frozen.restore()
                return step(action)

            self._step = step_frozen

    def episode_state(self) -> dict[str, Any]:
        """With the actions since then: enough to get here again. Numpy and JSON values."""
        generator = generator_state(self.env)
        return {**self._episode_start, "num_steps": self.num_steps, "generator_now": generator}

    def restore(self, states: list[dict[str, Any]], actions: list[list[Any]], obs: list[Any]) -> tuple[Any, str]:
        """Plays an episode again: reset as in `states[index]`, then the actions -> (observation, "").

        `obs[index]` is what must come out, bit for bit; if it does not, a new episode begins, and the text says why.
        The lists have an entry for every environment, so that one call serves all of them."""
        start, taken, expected = states[self.index], actions[self.index], obs[self.index]
        which = f"{self.name} (environment {self.index})"
        if start.get("wandered"):
            set_generator(self.env, start["generator_now"])
            return self.reset()[0], f"{which}: its episode began with random_start_steps"
        self.num_steps = start["num_steps"] - len(taken)
        try:
            set_generator(self.env, start["generator"])
            row, _ = self.reset(seed=start["seed"])
            for action in taken:
                row = self.step(action)[0]
            now = start["generator_now"]
            if not _same_obs(row, expected):
                problem = f"its episode of {len(taken)} steps, played again, leads to another observation"
            elif not _same(_known(generator_state(self.env), now), now):
                problem = f"its episode of {len(taken)} steps, played again, draws other random numbers"
            else:
                return row, ""
        except EnvError as error:
            problem = f"its episode could not be played again ({error})"
        self.num_steps = start["num_steps"]
        set_generator(self.env, start["generator_now"])
        return self.reset()[0], (
            f"{which}: {problem}, so a new one begins; reset() must set everything that step() changes, and random "
            "numbers must come from self.np_random"
        )

    def _check_length(self, result: Any) -> None:
        if isinstance(result, tuple) and len(result) == 4 and not isinstance(result[3], dict):
            self._fail(
                f"step() returned 4 values, the last one {brief(result[3])}: the info dict is missing; return obs, "
                "reward, terminated, truncated, {}"
            )
        if isinstance(result, tuple) and len(result) == 4:
            self._fail(
                "step() returned 4 values (the old gym API: obs, reward, done, info), expected 5: obs, reward, "
                "terminated, truncated, info; split `done` into terminated (the task ended) and truncated (time limit)"
            )
        if not isinstance(result, tuple) or len(result) != 5:
            self._fail(f"step() returned {_kind(result)}, expected (obs, reward, terminated, truncated, info)")

    def _read_obs(self, obs: Any, caller: str, info: Any, is_last: bool = False) -> Any:
        try:
            return self._reader.read(obs, self._mask(info, caller, is_last))
        except ObsMismatch as mismatch:
            self._fail(f"{caller}: {mismatch}")

    def _mask(self, info: Any, caller: str, is_last: bool) -> Any:
        """The mask beside the observation; where an episode ended there is nothing to decide, and it may be missing."""
        if self._mask_method is not None:
            try:
                return self._mask_method()
            except BaseException as error:
                if not is_environments_own(error):
                    raise
                self._fail(
                    f"action_masks() after {caller} raised {type(error).__name__}: {error}{raised_here(error)}",
                    error,
                )
        if not self._has_info_mask:
            return None
        mask = info.get(MASK) if isinstance(info, dict) else None
        if mask is None and is_last:
            return np.zeros(self._reader.spec.action.mask_size, np.bool_)
        if mask is None:
            self._fail(
                f"{caller} returned an info without '{MASK}', which its first reset() had; put it into every info"
            )
        return mask

    def _add_metrics(self, info: dict[str, Any]) -> None:
        try:
            self._metrics.add(info)
        except NotANumber as problem:
            self._fail(f"step() returned {problem}")

    def _check_reward(self, reward: Any) -> float:
        if isinstance(reward, np.ndarray) and reward.size == 1 and reward.dtype.kind in "fiub":
            return float(reward.item())  # (1,) too: what `-abs(obs)` makes of an observation of one number
        if isinstance(reward, dict):
            self._fail(f"step() returned a reward for each of {', '.join(map(str, reward))}: {BY_AGENT}")
        self._fail(f"step() returned the reward {_kind(reward)}, expected a number; return float(reward)")

    def _check_flag(self, which: str, flag: Any) -> bool:
        if isinstance(flag, np.ndarray) and flag.size == 1 and flag.dtype == np.bool_:
            return bool(flag.item())
        self._fail(f"step() returned {which} as {_kind(flag)}, expected True or False; return bool({which})")

    def _fail(self, problem: str, cause: BaseException | None = None) -> NoReturn:
        raise EnvError(f"{self.place()}: {problem}") from cause

    def place(self) -> str:
        return env_place(self.name, self.index, self.num_envs, self.num_steps, self.episode_step, self._action)


def close_env(env: Any) -> str:
    """What its close() raised, or the empty string."""
    try:
        if hasattr(env, "close"):
            env.close()
    except BaseException as error:
        if not is_environments_own(error):
            raise
        return f"close() raised {type(error).__name__}: {error}{raised_here(error)}"
    return ""


def no_choice(mask: Array, groups: tuple[int, ...], decides: Array) -> tuple[int, str] | None:
    """(row, what is wrong) of a mask bool[B, L] that leaves nothing to choose from; decides: bool[B], where to look."""
    found = find_no_choice(mask, groups, decides)
    if found is None:
        return None
    return found[0], (
        f"the action mask has no legal action{found[1]}: {brief(mask[found[0]].astype(np.int8))}; leave at least one "
        "True, or end the episode: return terminated=True from the step that leads there"
    )


def env_place(name: str, index: int, num_envs: int, num_steps: int, episode_step: int, action: Any) -> str:
    """`Pong (environment 3 of 0..7), step 812 (step 12 of its episode), action 1`."""
    which = f"{name} (environment {index} of 0..{num_envs - 1})" if num_envs > 1 else name
    if num_steps == 0:
        return f"{which}, before its first step"
    shown = "" if action is None else f", action {brief(action)}"
    return f"{which}, step {num_steps} (step {episode_step} of its episode){shown}"


def ask_env(env: Any, place: str, what: Ask, name: str, *arguments: Any, **keywords: Any) -> Any:
    """`GuardedEnv.ask`; place: in messages. EnvError where nothing has that name, or the environment raises."""
    for layer in layers(env):
        if name in getattr(layer, "__dict__", {}) or hasattr(type(layer), name):
            break
    else:
        known = {key for layer in layers(env) for key in dir(layer) if not key.startswith("_")}
        raise EnvError(
            f"{place}: neither the environment nor a wrapper of it has an attribute '{name}'{closest(name, known)}"
        )
    try:
        if what == "set":
            setattr(layer, name, arguments[0])
            return None
        found = getattr(layer, name)
        return found(*arguments, **keywords) if what == "call" else found
    except BaseException as error:
        if not is_environments_own(error):
            raise
        raised = f"{type(error).__name__}: {error}{raised_here(error)}"
        raise EnvError(f"{place}: {what} of '{name}' raised {raised}") from error


def changed_spaces(env: Any, before: SpaceSpec, *, adds_mask: bool = False) -> str:
    """What is wrong where the environment's spaces are not those of `before` any more, or the empty string."""
    try:
        now = space_spec(env.observation_space, env.action_space, adds_mask=adds_mask)
    except UsageError as error:
        return f"its spaces have changed since it was made: {error}"
    return (
        ""
        if now == before
        else f"its spaces were {before} when it was made and are {now} now; set them in __init__ and leave them so"
    )


def mask_method(env: Any) -> Callable[[], Any] | None:
    """The environment's method `action_masks`, which is what sb3-contrib's MaskablePPO calls, or None."""
    if MASK in getattr(env.observation_space, "spaces", ()):
        return None
    method = getattr(env, "action_masks", None) or getattr(getattr(env, "unwrapped", env), "action_masks", None)
    return method if callable(method) else None


def has_info_mask(env: Any) -> bool:
    """Whether its infos bring an "action_mask": only a reset tells. One that raises will do so again when it counts."""
    if MASK in getattr(env.observation_space, "spaces", ()) or mask_method(env) is not None:
        return False
    try:
        info = env.reset()[1]
        return isinstance(info, dict) and MASK in info
    except BaseException as error:
        if not is_environments_own(error):
            raise
        return False


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"{brief(value)} ({type(value).__name__})"


def _known(state: dict[str, Any], saved: dict[str, Any] | None) -> dict[str, Any] | None:
    """What older states hold of it: they know nothing of spaces, and are None without an np_random."""
    known = {key: value for key, value in state.items() if key in (saved or {})}
    return known or None


def _same_obs(obs: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return all(_same_obs(obs[path], leaf) for path, leaf in expected.items())
    return bool(np.asarray(obs, expected.dtype).tobytes() == expected.tobytes())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(np.array_equal(one, other))
