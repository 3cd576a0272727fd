"""`VectorEnv`: one `step` whatever the autoreset mode is, and nothing malformed gets past it.

    SAME_STEP   obs is the reset observation already; the last one comes from info["final_obs"]
    DISABLED    obs is the last one; the environments that ended are reset here, at once
    NEXT_STEP   obs is the last one; the next step only resets those environments: `valid` is False there

(https://farama.org/Vector-Autoreset-Mode)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, Literal, NoReturn, cast

import numpy as np

from rlplat.acting import brief
from rlplat.errors import EnvError, NonFiniteError, UsageError
from rlplat.rl.envs.guard import Ask, env_place, no_choice
from rlplat.rl.envs.gym_spaces import action_converter, action_row
from rlplat.rl.envs.obs_reader import ObsMismatch, ObsReader, put_row
from rlplat.rl.envs.state import native_state, set_native_state, why_not_saved
from rlplat.rl.envs.statistics import Frozen, Statistics, kept_statistics, merged, put_statistics
from rlplat.rl.envs.watchdog import Limits, StepWatchdog
from rlplat.rl.info_metrics import GROUP, OF_EPISODES, NotANumber, VectorInfoMetrics
from rlplat.rl.interfaces import Array, Closing, Episode, Obs, Step
from rlplat.rl.obs_tree import copy_obs, find_not_finite, map_obs, take_obs, where_rows
from rlplat.rl.seeding import sequence_of
from rlplat.rl.spaces import MASK, action_leaves

RESETS_OTHERS = (
    "reset(options={'reset_mask': ...}) changed the observations of environments that the mask leaves out: if it "
    "resets them too, their episodes are cut without a word. Its autoreset mode is DISABLED: reset those of the mask"
)


class VectorEnv(Closing):
    """`num_envs` environments in lock step. `raw` speaks gymnasium's vector API in any of the three autoreset modes.

    Nothing that NaN, a wrong shape or a hang has touched gets past it: EnvError names environment, step and action.

    `spec.obs` says whether observations are an array or a dict of arrays (`interfaces.Obs`).
    """

    def __init__(
        self,
        raw: Any,
        name: str,
        *,
        seed: int | np.random.SeedSequence = 0,
        limits: Limits = Limits(),  # noqa: B008
        facts: dict[str, Any] | None = None,
        ends_at_lost_life: bool = False,
        fire: int | None = None,
        keeps_state: bool = False,
        env_metrics: Sequence[str] = (),
    ) -> None:
        """`ends_at_lost_life`: `terminated` may mean a lost life (`info["lives"]` fell) in a game that goes on;
        `Episode`s are whole games all the same. `fire`: the action that is taken, whatever the policy says, in the step
        after a lost life; that step is not `valid`, its reward counts in the episode's return. `keeps_state`:
        `get_state` will be asked for. `env_metrics`: numbers of the infos, as in the setting."""
        self.name = name
        self.num_envs: int = raw.num_envs
        self.observation_space = raw.single_observation_space
        self.action_space = raw.single_action_space
        self._reader = ObsReader(self.observation_space, self.action_space)
        self.spec = self._reader.spec
        self._raw = raw
        self._mode = _autoreset_mode(raw, name)
        self._seed: np.random.SeedSequence | None = sequence_of(seed)
        self._facts = facts or {}
        self._convert = action_converter(self.action_space)
        self._is_float_action = self.spec.action.kind in ("box", "composite")
        is_plain = self._reader.is_plain
        # None: equal to nothing, so that every observation goes through the reader.
        self._obs_shape = (self.num_envs, *self.observation_space.shape) if is_plain else None
        self._row_shape = (self.num_envs,)
        self._obs_dtype = np.dtype(self.observation_space.dtype)
        self._checks_finite = not is_plain or self._obs_dtype.kind == "f"
        self._has_mask = isinstance(self.spec.obs, dict) and MASK in self.spec.obs
        self._tapes: list[list[Array]] | None = None  # the actions of the episodes that are going on
        if keeps_state and hasattr(raw, "of_all"):
            self._tapes = [[] for _ in range(self.num_envs)]
        self.not_saved = why_not_saved(raw, name, keeps_state)
        """Why `get_state` cannot be called, or the empty string."""
        self.not_restored: dict[int, str] = {}
        """Environments that had to begin a new episode in the last `set_state`, and why."""
        self.has_unread_mask = False
        """Whether the infos bring a mask: `GuardedEnv` reads it, of copies that are stepped one by one."""
        self._inspects_steps = self._has_mask or not self.not_saved
        self._all_valid = np.ones(self.num_envs, np.bool_)
        self._all_valid.flags.writeable = False
        self._resetting: Array | None = None  # NEXT_STEP: bool[B], who only resets in the coming step
        self._returns = np.zeros(self.num_envs, np.float64)
        self._num_steps = 0
        self._episode_start = np.zeros(self.num_envs, np.int64)  # _num_steps when the episode began
        self._episodes: list[Episode] = []
        self._began_at_random = np.zeros(self.num_envs, np.bool_)
        """Whose present episode has steps that were not counted."""
        self.ended_metrics: list[dict[str, float]] = [{} for _ in range(self.num_envs)]
        """By environment: what the infos of its last finished episode told, as `Episode.metrics`."""
        self._info_metrics: VectorInfoMetrics | None = None
        """None where the loop reads the infos, environment by environment."""
        if not getattr(raw, "tells_episode_metrics", False):
            in_step = self._mode == "SAME_STEP"
            self._info_metrics = VectorInfoMetrics(env_metrics, self.num_envs, resets_in_step=in_step)
        self.resets_others = False
        """DISABLED: whether a reset of those that ended has changed others."""
        self._reads_infos = bool(env_metrics) and self._info_metrics is not None
        self._obs: Obs | None = None
        self._actions: Any = None
        self._is_closed = False
        self._ends_at_lost_life = ends_at_lost_life
        self._fire = fire
        self._watches_lives = ends_at_lost_life or fire is not None
        self._fires: Array | None = None  # bool[B], who presses FIRE in the coming step
        self._lives: Array = np.zeros(self.num_envs, np.int32)
        self._watchdog = StepWatchdog(
            limits,
            self._describe_now,
            is_resetting=lambda: getattr(raw, "is_resetting", None),
            progress=lambda: getattr(raw, "current", None),
        )
        self._guarded = self._watchdog.call

    @property
    def seeds_each(self) -> bool:
        """Whether one environment alone can be given the seed of its next episode (`seed_next`)."""
        return hasattr(self._raw, "next_seeds")

    def seed_next(self, index: int, seed: np.random.SeedSequence) -> None:
        """When this environment's episode ends, it is reset with this seed."""
        self._raw.next_seeds[index] = _raw_number(seed)

    def reset(self, seed: int | np.random.SeedSequence | Sequence[np.random.SeedSequence] | None = None) -> Obs:
        """Starts new episodes everywhere -> obs [B, ...]. Without a seed, only the first reset is seeded.

        Environment i gets the i-th child of the seed's sequence, whatever the number of environments; of a list the
        i-th one, where each has a generator of its own (else the first is that of all).
        """
        sequence = self._seed if seed is None else seed if isinstance(seed, Sequence) else sequence_of(seed)
        self._seed = None
        self._watchdog.bind_thread()
        self._resetting, self._fires, self._actions = None, None, None
        self._returns[:] = 0.0
        self._began_at_random[:] = False
        self._episode_start[:] = self._num_steps
        if self._info_metrics is not None:
            self._info_metrics.reset()
        kwargs = {} if sequence is None else {"seed": _raw_seed(self._raw, sequence)}
        obs, info = self._guarded(lambda: self._raw.reset(**kwargs), "reset()")
        if not isinstance(info, dict):
            raise EnvError(
                f"{self.name}: reset() gave the infos as a {type(info).__name__}, expected a dict of arrays; leave out "
                "the wrapper that makes something else of them (DictInfoToList)"
            )
        self.has_unread_mask = MASK in info and not self._has_mask
        obs = self._check_obs(obs)
        self._require_finite(obs, "observation")
        if self._watches_lives:
            self._lives = info["lives"]
        if self._tapes is not None:
            self._tapes = [[] for _ in range(self.num_envs)]
        if self._has_mask:
            self._require_legal(obs, self._all_valid)
        self._obs = obs
        return obs

    def step(self, actions: Array) -> Step:
        """actions: as `PolicyOutput.actions`; Discrete counts from 0, a Box is clipped to its bounds here."""
        if self._is_float_action and not np.isfinite(actions).all():
            self._refuse_actions(actions)
        raw_actions: Any = self._convert(actions)
        if self._fires is not None:
            raw_actions = np.array(raw_actions)
            raw_actions[self._fires] = self._fire
        self._actions = raw_actions
        self._num_steps += 1
        watchdog = self._watchdog
        try:
            watchdog.deadline = monotonic() + watchdog.timeout_s
            obs, rewards, terminated, truncated, info = self._raw.step(raw_actions)
            watchdog.deadline = math.inf
        except BaseException as error:
            watchdog.fail(error, "step()")
        if obs.__class__ is not np.ndarray or obs.shape != self._obs_shape or obs.dtype != self._obs_dtype:
            obs = self._check_obs(obs)
        rewards = self._check_rows(rewards, "rewards", np.float32)
        terminated = self._check_rows(terminated, "terminated", np.bool_)
        truncated = self._check_rows(truncated, "truncated", np.bool_)
        if info and (self._reads_infos or GROUP in info or "final_info" in info):
            self._read_info(info, terminated | truncated)
        valid = self._all_valid
        if self._resetting is not None:
            valid = ~self._resetting
            rewards = np.where(valid, rewards, np.float32(0.0))
            terminated, truncated = terminated & valid, truncated & valid
            self._resetting = None
        forced = None
        if self._fires is not None:
            # A FIRE that ends the game is taken for the policy's own: somebody has to see the end.
            valid = ~self._fires | terminated | truncated
            forced = ~valid
            self._fires = None
        if self._checks_finite and (obs.__class__ is dict or not np.isfinite(obs).all()):
            self._require_finite(obs, "observation")
        if not np.isfinite(rewards).all():
            self._require_finite(rewards, "reward")
        self._returns += rewards
        lives_before = self._lives
        if self._watches_lives:
            self._lives = info["lives"]
            if self._fire is not None and np.count_nonzero(self._lives < lives_before):
                self._fires = self._lives < lives_before
        if not np.count_nonzero(terminated) and not np.count_nonzero(truncated):
            step = Step(obs, rewards, terminated, truncated, valid, None, forced)
            if self._inspects_steps:
                self._inspect(actions, step, self._all_valid)
            return step
        truncated = truncated & ~terminated
        done = terminated | truncated
        obs, final_obs = self._restart(obs, done, info)
        if self._ends_at_lost_life:
            goes_on = terminated & (self._lives < lives_before)
            # ale-py 0.12 gives frames of long ago as the final observation there.
            final_obs = where_rows(goes_on, obs, final_obs)
            done = done & ~goes_on
        self._count_episodes(done, info)
        step = Step(obs, rewards, terminated, truncated, valid, final_obs, forced)
        if self._inspects_steps:
            self._inspect(actions, step, ~done if self._mode == "NEXT_STEP" else self._all_valid)
        return step

    def pop_episodes(self) -> list[Episode]:
        """Episodes finished since the last call, in order of time, then environment."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def facts(self) -> dict[str, Any]:
        """What a curve must be read with: autoreset mode, frame skip, sticky actions, clipping, time limit."""
        return {
            **self._facts,
            "autoreset_mode": self._mode,
            "spaces": str(self.spec),
            "actions_clipped": any(part.kind == "box" for part in action_leaves(self.spec.action)),
            "rewards": "raw" if not self._facts.get("reward_clipping") else "clipped by the environment",
        }

    def get_state(self) -> dict[str, Any]:
        """Where every environment is, in numpy and JSON values, `pop_episodes` to come included. UsageError where
        `not_saved`."""
        if self.not_saved:
            raise UsageError(self.not_saved)
        assert self._obs is not None, "reset() comes first"
        state = {
            "num_steps": self._num_steps,
            "returns": self._returns.copy(),
            "episode_start": self._episode_start.copy(),
            "episodes": [list(episode) for episode in self._episodes],
            "lives": np.array(self._lives),
            "resetting": None if self._resetting is None else self._resetting.copy(),
            "fires": None if self._fires is None else self._fires.copy(),
            "obs": copy_obs(self._obs),
        }
        if self._tapes is None:
            metrics = self._info_metrics
            told = [each.get_state() for each in metrics.each] if metrics is not None else []
            return {**state, "native": native_state(self._raw), "metrics": told}
        starts = self._of_all("episode_state", "saving its state")
        tapes = [np.stack(tape) if tape else np.zeros(0, np.float32) for tape in self._tapes]
        return {**state, "starts": starts, "actions": tapes}

    def set_state(self, state: dict[str, Any]) -> Obs:
        """Goes on from a `get_state` of the same environment, in another process if need be -> obs [B, ...].

        An environment that cannot be brought back begins a new episode; `not_restored` says which and why.
        """
        if len(state["returns"]) != self.num_envs or ("native" in state) != (self._tapes is None):
            how = "a native" if "native" in state else "a Python"
            raise UsageError(
                f"the state is one of {len(state['returns'])} environments in {how} loop, but {self.name} has "
                f"{self.num_envs} here, vectorization {self._facts.get('vectorization')}; make both alike"
            )
        self._watchdog.bind_thread()
        self._seed, self._actions = None, None
        self._num_steps = int(state["num_steps"])
        self._returns = np.array(state["returns"], np.float64)
        self._episode_start = np.array(state["episode_start"], np.int64)
        self._episodes = [Episode(float(total), int(length), *metrics) for total, length, *metrics in state["episodes"]]
        if self._info_metrics is not None and "metrics" in state:
            for each, saved in zip(self._info_metrics.each, state["metrics"], strict=True):
                each.set_state(saved)
        self._lives = np.array(state["lives"])
        self._resetting = None if state["resetting"] is None else np.array(state["resetting"], np.bool_)
        fires = state.get("fires")  # older states have none
        self._fires = None if fires is None else np.array(fires, np.bool_)
        obs = copy_obs(state["obs"])
        self.not_restored = {}
        if self._tapes is None:
            set_native_state(self._raw, state["native"])
        else:
            self._replay(state, obs)
        self._obs = obs
        return obs

    def ask(self, what: Ask, name: str, *arguments: Any, **keywords: Any) -> list[Any]:
        """Of every environment: `GuardedEnv.ask`. UsageError where they are one object that gives no access."""
        if hasattr(self._raw, "of_all"):
            return list(self._of_all("ask", name, what, name, *arguments, **keywords))
        raw = getattr(self._raw, "unwrapped", self._raw)
        method = {"get": "get_attr", "set": "set_attr", "call": "call"}[what]
        if not hasattr(raw, method):
            raise UsageError(
                f"the environments of {self.name} are stepped by a vector implementation without {method}(): set "
                "vectorization to 'sync' or 'async'"
            )
        told = self._guarded(lambda: getattr(raw, method)(name, *arguments, **keywords), name)
        return [None] * self.num_envs if told is None else list(told)

    def wander(self, most: int, seed: int) -> Obs:
        """New episodes, and in each environment a random number of random steps, up to `most` -> obs [B, ...]. They do
        not count: not in `pop_episodes`, where an episode that began in them is left out. UsageError where the
        environments are not stepped one by one."""
        if not hasattr(self._raw, "of_all"):
            hint = "an Atari game has env_kwargs.noop_max" if hasattr(self._raw, "ale") else "use 'sync' or 'async'"
            raise UsageError(
                f"random_start_steps: the environments of {self.name} cannot be stepped one by one "
                f"(vectorization {self._facts.get('vectorization')}); {hint}"
            )
        call = partial(self._raw.of_all, "wander", 1 + most, most, seed)
        rows = self._guarded(call, "random_start_steps", 1 + most)
        obs = copy_obs(self._obs if self._obs is not None else self._reader.empty(self.num_envs))
        for i, (row, steps) in enumerate(rows):
            put_row(obs, i, row)
            self._began_at_random[i] = steps > 0
        self._obs = obs
        return obs

    def statistics(self) -> Statistics:
        """Running ones that the environments keep between episodes, merged; empty where there are none."""
        if hasattr(self._raw, "of_all"):
            return merged(self._of_all("statistics", "statistics"))
        return kept_statistics(self._raw)

    def take_statistics(self, statistics: Statistics, *, num_copies: int = 1, is_frozen: bool = False) -> None:
        """In the place of their own; num_copies: that go on from them, over which they were merged; is_frozen: they
        stay as they are from now on."""
        if hasattr(self._raw, "of_all"):
            self._of_all("take_statistics", "statistics", statistics, 1.0 / num_copies, is_frozen)
            return
        put_statistics(self._raw, statistics, self.num_envs / num_copies)
        if is_frozen:
            Frozen(self._raw, statistics)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._watchdog.close()
            self._raw.close()

    def _read_info(self, info: dict[str, Any], ended: Array) -> None:
        metrics = self._info_metrics
        if metrics is None:
            return
        try:
            metrics.add(info, ended, self._resetting)
        except NotANumber as problem:
            text, b = problem.args
            raise EnvError(f"{self._place(b)}: {text}") from None

    def _count_episodes(self, done: Array, info: dict[str, Any]) -> None:
        told = info.get(OF_EPISODES)
        for b in np.flatnonzero(done):
            length = int(self._num_steps - self._episode_start[b])
            if self._info_metrics is not None:
                metrics = self._info_metrics.each[b].pop()
            else:
                metrics = told[b] if told is not None else {}
            self.ended_metrics[b] = metrics
            if not self._began_at_random[b]:
                self._episodes.append(Episode(float(self._returns[b]), length, metrics))
            self._began_at_random[b] = False
            self._returns[b] = 0.0
            # In NEXT_STEP mode the coming step resets and does not count.
            self._episode_start[b] = self._num_steps + (self._mode == "NEXT_STEP")

    def _of_all(self, method: str, what: str, *arguments: Any, **keywords: Any) -> Any:
        return self._guarded(partial(self._raw.of_all, method, 1, *arguments, **keywords), what)

    def _replay(self, state: dict[str, Any], obs: Obs) -> None:
        """Plays the episodes of `state` again; rows of `obs` are replaced where that leads elsewhere."""
        self._tapes = [list(tape) for tape in state["actions"]]
        # Through a batch of one episode's steps, so that environments get what they got in `step`.
        actions = []
        for tape in self._tapes:
            converted = self._convert(np.stack(tape)) if tape else None
            actions.append([action_row(converted, t) for t in range(len(tape))])
        expected = [take_obs(obs, i) for i in range(self.num_envs)]
        longest = 1 + max(map(len, actions))
        call = partial(self._raw.of_all, "restore", longest, state["starts"], actions, expected)
        restored = self._guarded(call, "restoring its state", 1 + sum(map(len, actions)))
        for i, (row, problem) in enumerate(restored):
            if problem:
                self.not_restored[i] = problem
                put_row(obs, i, row)
                self._tapes[i] = []
                self._returns[i], self._episode_start[i] = 0.0, self._num_steps

    def _inspect(self, actions: Array, step: Step, decides: Array) -> None:
        """What only masks and saved states need; `decides`: bool[B], whose observation an action will follow."""
        self._obs = step.obs
        if self._tapes is not None:
            kept = np.array(actions)
            done = step.terminated | step.truncated
            for i, tape in enumerate(self._tapes):
                if done[i]:
                    tape.clear()
                else:
                    tape.append(kept[i])
        if self._has_mask:
            self._require_legal(step.obs, decides)

    def _require_legal(self, obs: Any, decides: Array) -> None:
        """Raises EnvError where a mask leaves nothing to choose from."""
        found = no_choice(obs[MASK], self.spec.action.mask_groups, decides)
        if found is not None:
            raise EnvError(f"{self._place(found[0])}: {found[1]}")

    def _restart(self, obs: Obs, done: Array, info: dict[str, Any]) -> tuple[Obs, Obs]:
        """-> (observations to act on next, last observations of the episodes that ended)."""
        if self._mode == "NEXT_STEP":
            self._resetting = done
            return obs, obs
        if self._mode == "DISABLED":
            final_obs = copy_obs(obs)  # the environment may reset into the same memory
            obs = self._guarded(lambda: self._raw.reset(options={"reset_mask": done.copy()}), "reset()")[0]
            obs = self._check_obs(obs)
            self._require_finite(obs, "observation")
            self._watch_the_others(final_obs, obs, ~done)
            return obs, final_obs
        final_obs = self._final_obs(obs, done, info)
        zeros = map_obs(np.zeros_like, final_obs)
        self._require_finite(where_rows(done, final_obs, zeros), "final observation")
        return obs, final_obs

    def _watch_the_others(self, before: Obs, after: Obs, others: Array) -> None:
        """A reset that has begun new episodes where none had ended: nothing else would show it."""
        if self.resets_others or not others.any():
            return
        same = map_obs(np.array_equal, take_obs(before, others), take_obs(after, others))
        if not (all(same.values()) if isinstance(same, dict) else same) and not kept_statistics(self._raw):
            self.resets_others = True
            print(f"warning: {self.name}: {RESETS_OTHERS}", file=sys.stderr)

    def _final_obs(self, obs: Obs, done: Array, info: dict[str, Any]) -> Obs:
        found = info.get("final_obs")
        if found is None:
            raise EnvError(
                f"{self._place(int(np.flatnonzero(done)[0]))}: its autoreset mode is SAME_STEP, but "
                "info['final_obs'] is missing where an episode ended; the vector environment must give it"
            )
        is_array = isinstance(found, np.ndarray)
        if is_array and found.dtype == self._obs_dtype and found.shape == self._obs_shape:
            return cast(Obs, found)
        if not is_array or found.dtype != object:
            return self._check_obs(found)
        final_obs = map_obs(np.zeros_like, obs)  # gymnasium's own: an object array, None where nothing ended
        for b in np.flatnonzero(done):
            try:
                row = found[b] if self._obs_shape is not None else self._reader.read(found[b])
            except ObsMismatch as mismatch:
                raise EnvError(f"{self._place(int(b))}: final {mismatch}") from None
            put_row(final_obs, int(b), row)
        return cast(Obs, final_obs)

    def _check_obs(self, obs: Any) -> Obs:
        try:
            return self._reader.read_batch(obs, self.num_envs)
        except ObsMismatch as mismatch:
            raise EnvError(f"{self._describe_now()}: {mismatch}") from None

    def _check_rows(self, rows: Any, what: str, dtype: Any) -> Array:
        if rows.__class__ is np.ndarray and rows.shape == self._row_shape and rows.dtype == dtype:
            return rows
        rows = np.asarray(rows)
        is_convertible = rows.dtype == dtype or (dtype is np.float32 and rows.dtype.kind in "fiu")
        if rows.shape != self._row_shape or not is_convertible:
            raise EnvError(
                f"{self._describe_now()}: {what} of shape {rows.shape} {rows.dtype}, expected {self._row_shape} "
                f"{np.dtype(dtype)}; correct the vector environment"
            )
        return rows.astype(dtype, copy=False)

    def _require_finite(self, values: Obs, what: str) -> None:
        """Raises EnvError on the first environment whose row has a NaN or an infinity."""
        found = find_not_finite(values)
        if found is not None:
            b, where, row = found
            raise EnvError(
                f"{self._place(b)}: NaN or infinity in the {what}{where}: {brief(row)}; find where the environment "
                "divides by zero or overflows (rewards are float32)"
            )

    def _refuse_actions(self, actions: Array) -> NoReturn:
        b = int(np.flatnonzero(~np.isfinite(actions).reshape(self.num_envs, -1).all(axis=1))[0])
        raise NonFiniteError(
            f"the policy gave {self.name} (environment {b}) the action {brief(np.asarray(actions)[b])} before step "
            f"{self._num_steps + 1}; its weights have diverged: lower the learning rate or clip gradients"
        )

    def _place(self, index: int) -> str:
        action = None if self._actions is None else action_row(self._actions, index)
        episode_step = int(self._num_steps - self._episode_start[index])
        return env_place(self.name, index, self.num_envs, self._num_steps, episode_step, action)

    def _describe_now(self) -> str:
        """Where a fault is that the whole batch shares, or that the loop knows the environment of."""
        current = getattr(self._raw, "current", None)
        if current is not None or self.num_envs == 1:
            return self._place(current or 0)
        actions = "" if self._actions is None else f", actions {brief(self._actions)}"
        return f"{self.name} (one of {self.num_envs} environments), step {self._num_steps}{actions}"


def _autoreset_mode(raw: Any, name: str) -> Literal["SAME_STEP", "NEXT_STEP", "DISABLED"]:
    mode = (raw.metadata or {}).get("autoreset_mode")
    label = getattr(mode, "name", mode)
    if label not in ("SAME_STEP", "NEXT_STEP", "DISABLED"):
        raise EnvError(
            f"{name}: the vector environment's metadata['autoreset_mode'] is {mode!r}; set it to a member of "
            "gymnasium.vector.AutoresetMode, or set vectorization to 'sync'"
        )
    return label


def _raw_number(sequence: np.random.SeedSequence) -> int:
    """31 bits."""
    return int(sequence.generate_state(1, np.uint32)[0] >> 1)


def _raw_seed(raw: Any, sequence: np.random.SeedSequence | Sequence[np.random.SeedSequence]) -> Any:
    """31-bit seeds in the form that the vector environment takes: a list, an array (ALE), or the one of the first.

    Children are derived by hand: `sequence.spawn` counts, and a second call would give other ones.
    """
    if isinstance(sequence, np.random.SeedSequence):
        entropy, key, size = sequence.entropy, sequence.spawn_key, sequence.pool_size
        sequence = [np.random.SeedSequence(entropy, spawn_key=(*key, i), pool_size=size) for i in range(raw.num_envs)]
    seeds = [_raw_number(each) for each in sequence]
    form = getattr(raw, "seed_form", "array" if hasattr(raw, "ale") else "one")
    return seeds if form == "list" else np.array(seeds) if form == "array" else seeds[0]
