"""Does an environment keep its promises? For `rlplat check-env` and, with few steps, before every run.

    report = check_env("./my_env.py:MyEnv", {"size": 5})
    print(report)
    report.require_sound()              # UsageError with every error line

The checks that every step of a run makes are in guard.py and vector_env.py; here is what costs too much there:
bounds, superfluous keys, two plays from one seed.
"""

from __future__ import annotations

import json
import logging
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Literal, TypeVar

import numpy as np

from rlplat.acting import brief
from rlplat.errors import EnvError, UsageError
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.class_path import forget_changed
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.guard import (
    NUMBERS,
    GuardedEnv,
    RandomActor,
    changed_spaces,
    close_env,
    has_info_mask,
    mask_method,
    no_choice,
)
from rlplat.rl.envs.gym_spaces import (
    batched,
    by_path,
    mask_problem,
    policy_actions,
    space_spec,
    unsupported_action,
    unsupported_observation,
)
from rlplat.rl.envs.images import StackSeen
from rlplat.rl.envs.make import is_vector_env, make_single_env, make_vector_env, other_number
from rlplat.rl.envs.names import EnvSource, resolve_env
from rlplat.rl.envs.obs_reader import observation_problems
from rlplat.rl.envs.own_process import Beat, ProcessEnded, in_own_process
from rlplat.rl.envs.statistics import holders, told
from rlplat.rl.envs.tensors.contract import is_tensor_env
from rlplat.rl.envs.vector_env import RESETS_OTHERS, VectorEnv
from rlplat.rl.envs.watchdog import Limits, StepWatchdog
from rlplat.rl.info_metrics import numbers_of
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import copy_obs, take_obs
from rlplat.rl.policies.spec import bounds_advice, said_of_observations
from rlplat.rl.spaces import MASK, SpaceSpec, obs_leaves

log = logging.getLogger("rlplat.start")
PREFLIGHT_STEPS = 16
COMMAND_STEPS = 2000
SEED = 20_261_121
PATIENCE_S = 5.0
"""Beyond the limit of one step, within which the watchdog says more about what hangs."""
SLOW_S = 5.0
"""Of a first reset: a run does not wait for others that would only show whether it can be repeated."""
DARK, DARK_STEPS = 1 / 8, 50
"""Images that stay below that share of their range in so many steps have bounds that are not theirs."""
BLACK = 1 / 255
"""Below that share they are fractions, or codes, whose bounds say that they are bytes: a run says it as well."""
UNREAD_MASK = (
    "the action mask is not read: of a vector environment only one within its observations is, the key 'action_mask' "
    "of a Dict. Give the environment that it is made of (env=lambda: MyEnv()), or put the mask there"
)
WHOLE_FLOAT32 = 2.0**24
"""From here on float32 does not have every whole number."""
LOST_MASK = (
    "the observations of the environment have the key 'action_mask', which its wrappers take away (FlattenObservation "
    "does): nothing keeps policies from illegal actions. Give the mask in the infos, or by a method action_masks(), too"
)
STUCK = 4
"""Steps that end although the step before did, in environments where no other step follows an end."""
SAME_FINALS = 3
"""Episodes of which each ends with what the next one begins with."""
LONG = 100
"""Steps of an episode without a time limit that are worth a warning."""

Found = TypeVar("Found")
Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    severity: Severity
    text: str
    is_told: bool = False
    """At the start of every run, too."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}"


@dataclass
class EnvReport:
    """What was found, worst first; `spaces` is None where they cannot be used."""

    name: str
    spaces: SpaceSpec | None = None
    steps: int = 0
    """Random steps that were taken."""
    episodes: int = 0
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def lines(self) -> list[str]:
        order: list[Severity] = ["error", "warning", "note"]
        return [str(finding) for severity in order for finding in self.findings if finding.severity == severity]

    def add(self, severity: Severity, text: str, *, is_told: bool = False) -> None:
        """The same complaint is made once, however many steps repeat it."""
        finding = Finding(severity, text, is_told)
        if finding not in self.findings:
            self.findings.append(finding)

    def require_sound(self, env_kwargs: Mapping[str, Any] | None = None) -> SpaceSpec:
        """The spaces. UsageError with all error lines, and the command that shows the rest."""
        errors = [finding.text for finding in self.findings if finding.severity == "error"]
        if errors:
            listed = "".join(f"\n  - {text}" for text in errors)
            has_command = not self.name.startswith("<")  # of a function, which only Python has
            command = f"\n  (all checks: {_check_command(self.name, env_kwargs or {})})" if has_command else ""
            raise UsageError(f"{self.name} cannot be trained on:{listed}{command}")
        for finding in self.findings:
            if finding.is_told:
                log.warning("%s", finding)
        assert self.spaces is not None
        return self.spaces

    @property
    def head(self) -> str:
        spaces = self.spaces or "unusable spaces"
        return f"{self.name}: {spaces}; {self.steps} random steps, {self.episodes} episodes"

    @property
    def observations(self) -> list[str]:
        """What each observation is taken for, and the encoder that it gets unless the settings say another."""
        return said_of_observations(self.spaces.obs)[0] if self.spaces is not None else []

    def note_observations(self) -> None:
        """Where there are images, that is a finding: it is a guess, and decides what is learnt."""
        if self.spaces is None:
            return
        lines, warnings = said_of_observations(self.spaces.obs)
        for warning in warnings:
            self.add("warning", warning)
        for line in lines:
            if ": image " in line:
                self.add("note", line)

    def __str__(self) -> str:
        known = [line for line in self.observations if f"note: {line}" not in self.lines]
        is_fine = all(finding.severity == "note" for finding in self.findings)
        lines = [*known, *self.lines, *(["no problems found"] if is_fine else [])]
        if told := self.facts.get("numbers in info"):
            lines.append(f"numbers in info, which env_metrics can name: {', '.join(told)}")
        return "\n".join([self.head, *(f"  {line}" for line in lines)])


def check_env(
    name: Any,
    env_kwargs: dict[str, Any] | None = None,
    *,
    steps: int = COMMAND_STEPS,
    step_timeout_s: float = 60.0,
    reset_timeout_s: float | None = None,
) -> EnvReport:
    """Makes one environment (name: or a class, a function, an environment), resets it, plays `steps` random steps.
    Raises only EnvNotFound, MissingExtra and the like; whatever the environment itself does wrong is in the report.

    The environment lives in a process of its own (own_process.py): one that exits, crashes or hangs costs that process,
    and what it has started ends with it."""
    forget_changed()
    limits = Limits(step_timeout_s, reset_timeout_s or step_timeout_s)
    return apart(name, lambda beat: check_env_here(name, env_kwargs, beat, steps=steps, limits=limits), max(limits))


def apart(name: Any, look: Callable[[Beat], Found], step_timeout_s: float = 60.0) -> Found | EnvReport:
    """`look` at the environment of this name, in a process of its own; a report of its end where it ends that."""
    import gymnasium  # noqa: F401  # before the fork: this process may need it too (num_rollout_workers: 0)

    try:
        return in_own_process(look, silence_s=step_timeout_s + PATIENCE_S)
    except ProcessEnded as ended:
        text = f"{ended}; an environment must not end or block the process that it lives in"
        return EnvReport(str(name), findings=[Finding("error", text)])


def check_env_here(
    name: Any,
    env_kwargs: dict[str, Any] | None,
    beat: Beat,
    *,
    steps: int = COMMAND_STEPS,
    limits: Limits = Limits(),  # noqa: B008
    copies: Copies = Copies(),  # noqa: B008
    num_envs: int | None = None,
    env_metrics: Sequence[str] = (),
) -> EnvReport:
    """`check_env` in this process; num_envs: how many a vector environment has to have."""
    report = EnvReport(str(name))
    beat("the import of its module")
    try:
        source = resolve_env(name)
        report.name = source.name
        beat("the making of the environment")
        if source.kind == "atari":
            with make_vector_env(
                name, 1, seed=SEED, env_kwargs=env_kwargs, copies=copies, **limits.arguments()
            ) as vector_env:
                _play_batched(vector_env, steps, report, beat)
            return report
        env = make_single_env(source, dict(env_kwargs or {}), copies, num_envs=num_envs or 2)
        if text := told([*holders(env)]):
            report.add("warning", text, is_told=True)
        device = ""
        if is_tensor_env(env):
            from rlplat.rl.envs.tensors.env import OnHost

            env = OnHost(env, source.name)
            device = env.device
            report.add("note", f"its tensors are on {device}")
            if env_metrics:
                report.add(
                    "error",
                    "env_metrics is not for a tensor environment, which tells its numbers in info['log'] or "
                    "info['final_info']['episode']; they are metrics without being named: omit it",
                )
        if is_vector_env(env):
            if num_envs is not None and env.num_envs != num_envs:
                report.add("error", other_number(report.name, env.num_envs, num_envs))
            report.add("note", f"a vector environment, used as it is: its {env.num_envs} are num_envs_per_worker")
            with VectorEnv(env, source.name, seed=SEED, limits=limits, env_metrics=env_metrics) as vector_env:
                _play_batched(vector_env, steps, report, beat)
                copies_of = next(iter(getattr(env, "envs", ())), None)
                if vector_env.has_unread_mask or (copies_of is not None and mask_method(copies_of)):
                    report.add("warning", UNREAD_MASK, is_told=True)
            if report.spaces is not None:
                report.spaces = replace(report.spaces, device=device)
            return report
        probe = _Probe(source, env, report, limits, beat, env_metrics)
        try:
            probe.run(steps)
        finally:
            probe.close()
    except (EnvError, _Stop) as error:
        if str(error):
            report.add("error", _without_name(str(error), report.name))
    return report


def preflight(config: AlgorithmConfig) -> SpaceSpec:
    """The quick check before any worker starts: the environment's spaces. UsageError unless it is sound."""
    settings = config.model_dump()
    found = apart(config.env, lambda beat: look_before_run(settings, beat), max(Limits.of(settings)))
    return found.require_sound(config.env_kwargs)


def look_before_run(settings: Mapping[str, Any], beat: Beat) -> EnvReport:
    """What `preflight` does in the process of its own; settings: a run's config as a dict."""
    return check_env_here(
        settings["env"],
        settings["env_kwargs"],
        beat,
        steps=PREFLIGHT_STEPS,
        limits=Limits.of(settings),
        copies=Copies.of(settings, "check"),
        num_envs=settings["num_envs_per_worker"],
        env_metrics=settings.get("env_metrics", ()),
    )


def _check_command(name: str, env_kwargs: Mapping[str, Any]) -> str:
    """As a shell takes it: rlplat check-env './my envs.py:Env' --env-kwargs.size 3"""
    words = ["rlplat", "check-env", name]
    for key, value in env_kwargs.items():
        words += [f"--env-kwargs.{key}", value if isinstance(value, str) else json.dumps(value, default=str)]
    return shlex.join(words)


class _Stop(Exception):
    """Going on would only repeat what the report says."""


class _Tap:
    """The environment itself, with what it last observed: `GuardedEnv` gives only what it made of that."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.obs: Any = None
        self.told: set[str] = set()
        """Numbers in the infos of `step`, by the names that `env_metrics` takes."""

    def reset(self, **arguments: Any) -> Any:
        result = self.env.reset(**arguments)
        self.obs = result[0] if isinstance(result, tuple) and result else None
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.obs = result[0] if isinstance(result, tuple) and result else None
        if isinstance(result, tuple) and result and isinstance(result[-1], Mapping):
            self.told |= numbers_of(result[-1])
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


class _Stacks:
    """How stacks of images go on, of every leaf that might be one; for the replay, which keeps each image once."""

    MOST = 64
    """Steps that are looked at."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._seen: dict[str, StackSeen] = {}

    def add(self, spec: SpaceSpec, before: Any, now: Any) -> None:
        """Two observations, one after the other in an episode."""
        self._num_steps += 1
        if self._num_steps > self.MOST:
            return
        for path, leaf in obs_leaves(spec.obs).items():
            if leaf.kind == "image" and leaf.layout != "HWC":
                seen = self._seen.setdefault(path, StackSeen(leaf.shape[0]))
                seen.add(*((obs[path] if path else obs) for obs in (before, now)))

    def noted(self, spec: SpaceSpec) -> SpaceSpec:
        """The spec with what was seen."""
        leaves = {
            path: replace(leaf, renewed=self._seen[path].num_new) if path in self._seen else leaf
            for path, leaf in obs_leaves(spec.obs).items()
        }
        return SpaceSpec(leaves if isinstance(spec.obs, dict) else leaves[""], spec.action)


class _Brightness:
    """The largest pixels of images whose range begins at 0."""

    def __init__(self) -> None:
        self._largest: dict[str, tuple[float, float]] = {}
        """(the largest, the bound that the space says) by path."""

    def add(self, spec: SpaceSpec, obs: Any) -> None:
        for path, leaf in obs_leaves(spec.obs).items():
            low, high = (leaf.low, leaf.high) if leaf.low else ((0.0,), (255.0,) if leaf.dtype == "uint8" else ())
            if leaf.kind == "image" and low == (0.0,) and len(high) == 1:
                largest = float((obs[path] if isinstance(obs, dict) else obs).max())
                self._largest[path] = max(self._largest.get(path, (0.0, 0.0))[0], largest), high[0]

    def note(self, report: EnvReport) -> None:
        for path, (largest, high) in self._largest.items():
            is_black = largest <= BLACK * high
            if 0 < largest <= DARK * high and report.steps >= (PREFLIGHT_STEPS if is_black else DARK_STEPS):
                which = f"the observation '{path}'" if path else "the observation"
                report.add(
                    "warning",
                    f"{which} is an image of 0 to {high:g}, but was at most {largest:.3g} in {report.steps} steps: if "
                    f"it is never more, networks see it as 0 to {largest / high:.2g}; give the space its bounds, or "
                    f"--env-kwargs.image.range '[0, {largest:.3g}]'",
                    is_told=is_black,
                )


class _Precision:
    """Numbers so large that float32, in which networks compute, does not tell two different ones apart."""

    def __init__(self) -> None:
        self._lost: dict[str, tuple[int, Any, Any]] = {}
        """(index, before, now) by path: the first change that nothing sees."""

    def add(self, spec: SpaceSpec, before: Mapping[str, Array], now: Mapping[str, Array]) -> None:
        """Two observations, one after the other, by path as the environment gave them."""
        for path, leaf in obs_leaves(spec.obs).items():
            key = path if path in before else ""  # a mask beside it gives it a name
            if leaf.kind != "vector" or path in self._lost or key not in before:
                continue
            was, is_now = before[key].ravel(), now[key].ravel()
            if was.dtype.itemsize < 4 or was.dtype == np.float32:
                continue
            equal = was.astype(np.float32) == is_now.astype(np.float32)
            lost = np.flatnonzero((was != is_now) & equal & (np.abs(is_now.astype(np.float64)) >= WHOLE_FLOAT32))
            if len(lost):
                self._lost[path] = int(lost[0]), was[lost[0]], is_now[lost[0]]

    def note(self, report: EnvReport) -> None:
        for path, (index, before, now) in self._lost.items():
            report.add(
                "warning",
                f"{path or 'observation'}[{index}] went from {before} to {now}, which are one number in the float32 of "
                "networks: give it from an origin of its own (seconds since the episode began), or in larger units",
                is_told=True,
            )


class _Probe:
    def __init__(
        self,
        source: EnvSource,
        env: Any,
        report: EnvReport,
        limits: Limits,
        beat: Beat,
        env_metrics: Sequence[str],
    ) -> None:
        self._env, self._report, self._beat = _Tap(env), report, beat
        self._env_metrics = env_metrics
        self._name = source.name
        self._guard: GuardedEnv | None = None
        self._watchdog = StepWatchdog(limits, self._place)
        self._is_out_of_bounds = False
        self._never_masks = True
        self._longest, self._is_ever_truncated = 0, False
        self._stacks = _Stacks()
        self._brightness = _Brightness()
        self._precision = _Precision()

    def close(self) -> None:
        self._watchdog.close()
        self._beat("close()")
        if problem := close_env(self._env):
            self._report.add("warning", f"{problem}; runs end all the same")

    def run(self, steps: int) -> None:
        report, env = self._report, self._env
        problems = [unsupported_observation(env.observation_space), unsupported_action(env.action_space)]
        if not any(problems):
            problems = [mask_problem(env.observation_space, env.action_space)]
        for problem in filter(None, problems):
            report.add("error", problem)
        if any(problems):
            raise _Stop
        report.spaces = spec = space_spec(env.observation_space, env.action_space)
        started = monotonic()
        by_info = spec.action.mask_size > 0 and self._timed(lambda: has_info_mask(env), "reset()")
        if problem := changed_spaces(env, spec):
            report.add("error", problem)
            raise _Stop
        guard = self._guard = GuardedEnv(env, self._name, has_info_mask=by_info, env_metrics=self._env_metrics)
        report.spaces = spec = guard.spaces
        report.note_observations()
        inner = getattr(env, "unwrapped", env).observation_space
        if spec.action.mask_size and MASK in getattr(inner, "spaces", ()) and MASK not in obs_leaves(spec.obs):
            report.add("warning", LOST_MASK, is_told=True)
        if advice := bounds_advice(spec.action):
            report.add("warning", advice)
        if monotonic() - started < SLOW_S:
            self._timed(lambda: guard.call_reset(SEED), "reset()")
            self._check_obs("reset()", "error")
        if steps <= PREFLIGHT_STEPS and monotonic() - started > SLOW_S:
            obs = self._reset()
            self._check_obs("reset()", "error")
            self._play(obs, steps)
            report.spaces = self._stacks.noted(spec)
            return
        if not _is_same(self._reset(), self._reset()):
            report.add(
                "warning",
                "two resets with the same seed give different observations: runs cannot be repeated; call "
                "super().reset(seed=seed) and draw from self.np_random",
            )
        trace = self._play(self._reset(), steps)
        report.spaces = self._stacks.noted(spec)
        self._brightness.note(report)
        self._precision.note(report)
        replayed = self._play(self._reset(), min(steps, 50), is_replay=True)
        for step, (one, other) in enumerate(zip(trace, replayed, strict=False), start=1):
            if not (_is_same(one[0], other[0]) and one[1] == other[1]):
                report.add(
                    "warning",
                    f"two plays with the same seed and actions differ from step {step} on: runs cannot be repeated; "
                    "draw every random number from self.np_random",
                )
                break
        if self._env.told:
            report.facts["numbers in info"] = sorted(self._env.told)
        has_limit = getattr(getattr(env, "spec", None), "max_episode_steps", None) is not None
        if steps >= 1000 and report.episodes and not has_limit and not self._is_ever_truncated:
            report.add(
                "warning" if self._longest >= LONG else "note",
                f"the longest of {report.episodes} episodes took {self._longest} steps, and there is no time limit: a "
                "policy may learn to go on for ever; return truncated=True after some steps, or wrap it in "
                "gymnasium.wrappers.TimeLimit",
            )
        if steps >= 1000 and report.episodes == 0 and not has_limit:
            report.add(
                "warning",
                f"no episode ended in {steps} random steps and there is no time limit: no return would ever be "
                "reported; return truncated=True after some steps, or wrap it in gymnasium.wrappers.TimeLimit",
            )
        if steps >= 1000 and self._never_masks and MASK in obs_leaves(spec.obs):
            report.add("note", f"the action mask forbade nothing in {steps} steps; without it, steps are cheaper")

    def _reset(self) -> Obs:
        assert self._guard is not None
        guard = self._guard
        obs = self._timed(lambda: guard.reset(seed=SEED), "reset()")[0]
        self._check_mask(obs)
        return copy_obs(obs)

    def _play(self, obs: Obs, steps: int, is_replay: bool = False) -> list[tuple[Obs, float]]:
        assert self._guard is not None
        guard, report = self._guard, self._report
        actor = RandomActor(guard.action_space, guard.spaces, SEED)
        trace = []
        for _ in range(steps):
            action, before, given = actor.act(obs), copy_obs(obs), self._given()
            obs, reward, terminated, truncated, _ = self._timed(lambda a=action: guard.step(a), "step()")
            guard.require_same_spaces()
            trace.append((copy_obs(obs), float(reward)))
            if not isinstance(reward, NUMBERS) or not math.isfinite(reward):
                report.add("error", f"{self._at()}: the reward is {brief(reward)}; rewards are finite numbers")
                raise _Stop
            if not is_replay:
                report.steps += 1
                report.episodes += bool(terminated or truncated)
                self._longest = max(self._longest, guard.episode_step)
                self._is_ever_truncated |= bool(truncated)
                self._check_obs(f"step() [{self._at()}]", "warning")
                self._stacks.add(guard.spaces, before, obs)
                self._precision.add(guard.spaces, given, self._given())
                self._brightness.add(guard.spaces, obs)
            if terminated or truncated:
                obs = self._timed(guard.reset, "reset()")[0]
            self._check_mask(obs)
        return trace

    def _given(self) -> dict[str, Array]:
        """What the environment observed, by path; a copy."""
        return {path: leaf.copy() for path, leaf in by_path(self._env.observation_space, self._env.obs).items()}

    def _check_obs(self, caller: str, out_of_bounds: Severity) -> None:
        """A lie about shape, dtype or finiteness ends the check. Values outside the bounds are an error in reset() and
        a warning later: policies do not read bounds, and well-known environments overstep theirs."""
        for kind, text in observation_problems(self._env.obs, self._env.observation_space):
            if kind == "cast":
                self._report.add("warning", text)
            elif kind != "bounds":
                self._report.add("error", f"{caller}: {text}")
            elif not self._is_out_of_bounds:
                self._is_out_of_bounds = True
                self._report.add(out_of_bounds, f"{caller}: {text}")
        if not self._report.is_sound:
            raise _Stop

    def _check_mask(self, obs: Any) -> None:
        if not isinstance(obs, dict) or MASK not in obs:
            return
        assert self._guard is not None
        mask = obs[MASK]
        self._never_masks = self._never_masks and bool(mask.all())
        found = no_choice(mask[None], self._guard.spaces.action.mask_groups, np.ones(1, np.bool_))
        if found is not None:
            self._report.add("error", f"{self._at()}: {found[1]}")
            raise _Stop

    def _timed(self, call: Any, what: str) -> Any:
        self._beat(what if self._guard is None else f"{what} after {self._guard.num_steps} steps")
        return self._watchdog.call(call, what)

    def _at(self) -> str:
        return _without_name(self._place(), self._name)

    def _place(self) -> str:
        return self._name if self._guard is None else self._guard.place()


def _play_batched(env: VectorEnv, steps: int, report: EnvReport, beat: Beat) -> None:
    """For environments that exist only as vector environments; ones that we did not write need fewer questions."""
    report.spaces, report.facts = env.spec, env.facts()
    report.note_observations()
    batch = batched(env.action_space, env.num_envs)
    batch.seed(SEED)
    actor = RandomActor(env.action_space, env.spec, SEED)
    has_mask = MASK in obs_leaves(env.spec.obs)
    stacks, brightness = _Stacks(), _Brightness()
    ended, num_stuck, goes_on = np.zeros(env.num_envs, np.bool_), 0, np.zeros(2, np.bool_)
    num_ends, num_lost, moves = 0, 0, False
    try:
        beat("reset()")
        obs = env.reset()
        before = copy_obs(take_obs(obs, 0))
        for _ in range(steps):
            beat("step()")
            if has_mask:
                rows = [actor.policy_actions(take_obs(obs, i)) for i in range(env.num_envs)]
                step = env.step(np.concatenate(rows))
            else:
                step = env.step(policy_actions(env.action_space, batch.sample()))
            obs = step.obs
            brightness.add(env.spec, obs)
            report.steps += env.num_envs
            ends = step.terminated | step.truncated
            num_stuck += int((ended & ends).sum())
            goes_on |= [bool((each & step.valid & ~ends).any()) for each in (~ended, ended)]
            ended = np.where(step.valid, ends, ended)
            if step.final_obs is not None and report.facts["autoreset_mode"] == "SAME_STEP":
                num_ends += int(ends.sum())
                num_lost += sum(_is_same(take_obs(step.final_obs, i), take_obs(obs, i)) for i in np.flatnonzero(ends))
            now = copy_obs(take_obs(obs, 0))
            if not (step.terminated[0] or step.truncated[0] or not step.valid[0]):
                moves = moves or not _is_same(before, now)
                stacks.add(env.spec, before, now)
            before = now
    except EnvError as error:
        report.add("error", _without_name(str(error), env.name))
    report.spaces = stacks.noted(env.spec)
    report.episodes = len(env.pop_episodes())
    brightness.note(report)
    if env.resets_others:
        report.add("warning", RESETS_OTHERS, is_told=True)
    if moves and num_lost == num_ends >= SAME_FINALS:
        report.add(
            "warning",
            "the final observation of every episode is the first one of the next: does the environment write all its "
            "observations into one array? Return copies, or use AutoresetMode.NEXT_STEP",
            is_told=True,
        )
    if num_stuck >= STUCK and goes_on.tolist() == [True, False]:
        report.add(
            "warning",
            "episodes that have ended do not begin again: every later step ended at once. An environment of several "
            "copies resets those that end, within that step (SAME_STEP) or in the next one (NEXT_STEP)",
            is_told=True,
        )


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(np.array_equal(one[path], other[path]) for path in one)
    return np.array_equal(one, other)


def _without_name(text: str, name: str) -> str:
    """The report's heading names the environment already."""
    for separator in (": ", ", "):
        text = text.removeprefix(f"{name}{separator}")
    return text
