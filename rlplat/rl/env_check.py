"""Does an environment keep its promises? For `rlplat check-env` and, with few steps, before every run.

    report = check_env("./my_env.py:MyEnv", {"size": 5})
    print(report)
    report.require_sound()              # UsageError with every error line

The checks that every step of a run makes are in env_guard.py and vector_env.py; here is what costs too much there:
bounds, nested observations, two plays from one seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

import numpy as np

from rlplat.errors import EnvError, UsageError
from rlplat.rl.env_guard import NUMBERS, GuardedEnv, brief
from rlplat.rl.env_names import EnvSource, resolve_env
from rlplat.rl.env_watchdog import EnvHung, StepWatchdog
from rlplat.rl.envs import make_single_env, make_vector_env
from rlplat.rl.interfaces import Array
from rlplat.rl.spaces import SpaceSpec, space_spec, unsupported_action, unsupported_observation
from rlplat.rl.vector_env import VectorEnv

PREFLIGHT_STEPS = 16
COMMAND_STEPS = 2000
SEED = 20_261_121

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    severity: Severity
    text: str

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
        return [
            str(finding) for severity in order for finding in self.findings if finding.severity == severity
        ]

    def add(self, severity: Severity, text: str) -> None:
        """The same complaint is made once, however many steps repeat it."""
        finding = Finding(severity, text)
        if finding not in self.findings:
            self.findings.append(finding)

    def require_sound(self) -> None:
        """Raises UsageError with all error lines, and how to see the rest."""
        errors = [finding.text for finding in self.findings if finding.severity == "error"]
        if errors:
            listed = "".join(f"\n  - {text}" for text in errors)
            raise UsageError(
                f"{self.name} cannot be trained on:{listed}\n  (all checks: rlplat check-env {self.name})"
            )

    def __str__(self) -> str:
        head = f"{self.name}: {self.spaces or 'unusable spaces'}; {self.steps} random steps, {self.episodes} episodes"
        return "\n".join([head, *(f"  {line}" for line in self.lines or ["no problems found"])])


def check_env(
    name: str,
    env_kwargs: dict[str, Any] | None = None,
    *,
    steps: int = COMMAND_STEPS,
    step_timeout_s: float = 60.0,
) -> EnvReport:
    """Makes one environment, resets it, plays `steps` random steps. Raises only EnvNotFound, MissingExtra and the like;
    whatever the environment itself does wrong is in the report."""
    try:
        source = resolve_env(name)
    except EnvError as error:  # its module raises
        return EnvReport(name, findings=[Finding("error", str(error))])
    report = EnvReport(source.name)
    if source.kind == "atari":
        with make_vector_env(
            name, 1, seed=SEED, env_kwargs=env_kwargs, step_timeout_s=step_timeout_s
        ) as vector_env:
            _play_batched(vector_env, steps, report)
        return report
    try:
        env = make_single_env(source, dict(env_kwargs or {}))
    except EnvError as error:
        report.add("error", _without_name(str(error), source.name))
        return report
    probe = _Probe(source, env, report, step_timeout_s)
    try:
        probe.run(steps)
    except (EnvError, _Stop) as error:
        if str(error):
            report.add("error", _without_name(str(error), source.name))
    finally:
        probe.close()
    return report


def preflight(
    name: str, env_kwargs: dict[str, Any] | None = None, *, step_timeout_s: float = 60.0
) -> EnvReport:
    """The quick check in the driver, before any worker starts; raises UsageError unless the environment is sound."""
    report = check_env(name, env_kwargs, steps=PREFLIGHT_STEPS, step_timeout_s=step_timeout_s)
    report.require_sound()
    return report


class _Stop(Exception):
    """Going on would only repeat what the report says."""


class _Probe:
    def __init__(self, source: EnvSource, env: Any, report: EnvReport, step_timeout_s: float) -> None:
        self._env, self._report = env, report
        self._guard = GuardedEnv(env, source.name)
        self._watchdog = StepWatchdog(step_timeout_s, self._guard.place)
        self._is_out_of_bounds = False

    def close(self) -> None:
        self._watchdog.close()
        self._guard.close()

    def run(self, steps: int) -> None:
        report, env = self._report, self._env
        unsupported = [unsupported_observation(env.observation_space), unsupported_action(env.action_space)]
        for problem in filter(None, unsupported):
            report.add("error", problem)
        obs, _ = self._timed(lambda: self._guard.call_reset(SEED), "reset()")
        self._check_obs(obs, "reset()", "error")
        if any(unsupported):
            raise _Stop
        report.spaces = space_spec(env.observation_space, env.action_space)
        if not np.array_equal(np.array(obs), self._reset()):
            report.add(
                "warning",
                "two resets with the same seed give different observations: runs cannot be repeated; call "
                "super().reset(seed=seed) and draw from self.np_random",
            )
        env.action_space.seed(SEED)
        actions = [env.action_space.sample() for _ in range(steps)]
        trace = self._play(actions)
        self._reset()
        replayed = self._play(actions[: min(steps, 50)], is_replay=True)
        for step, (one, other) in enumerate(zip(trace, replayed, strict=False), start=1):
            if not (np.array_equal(one[0], other[0]) and one[1] == other[1]):
                report.add(
                    "warning",
                    f"two plays with the same seed and actions differ from step {step} on: runs cannot be repeated; "
                    "draw every random number from self.np_random",
                )
                break
        has_limit = getattr(getattr(env, "spec", None), "max_episode_steps", None) is not None
        if steps >= 1000 and report.episodes == 0 and not has_limit:
            report.add(
                "warning",
                f"no episode ended in {steps} random steps and there is no time limit: no return would ever be "
                "reported; return truncated=True after some steps, or wrap it in gymnasium.wrappers.TimeLimit",
            )

    def _reset(self) -> Array:
        return np.array(self._timed(lambda: self._guard.reset(seed=SEED), "reset()")[0])

    def _play(self, actions: list[Any], is_replay: bool = False) -> list[tuple[Array, float]]:
        report = self._report
        trace = []
        for action in actions:
            obs, reward, terminated, truncated, _ = self._timed(
                lambda a=action: self._guard.step(a), "step()"
            )
            trace.append((np.array(obs), float(reward)))
            if not isinstance(reward, NUMBERS) or not math.isfinite(reward):
                report.add(
                    "error", f"{self._at()}: the reward is {brief(reward)}; rewards are finite numbers"
                )
                raise _Stop
            if not is_replay:
                report.steps += 1
                report.episodes += bool(terminated or truncated)
                self._check_obs(obs, f"step() [{self._at()}]", "warning")
            if terminated or truncated:
                self._timed(self._guard.reset, "reset()")
        return trace

    def _check_obs(self, obs: Any, caller: str, out_of_bounds: Severity) -> None:
        """A lie about shape, dtype or finiteness ends the check. Values outside the bounds are an error in reset() and
        a warning later: policies do not read bounds, and well-known environments overstep theirs."""
        for kind, text in observation_problems(obs, self._env.observation_space):
            if kind != "bounds":
                self._report.add("error", f"{caller}: {text}")
            elif not self._is_out_of_bounds:
                self._is_out_of_bounds = True
                self._report.add(out_of_bounds, f"{caller}: {text}")
        if not self._report.is_sound:
            raise _Stop

    def _timed(self, call: Any, what: str) -> Any:
        watchdog = self._watchdog
        try:
            watchdog.deadline = monotonic() + watchdog.timeout_s
            result = call()
            watchdog.deadline = math.inf
            return result
        except EnvHung as hung:
            raise EnvError(
                f"{self._at()}: {what} took longer than step_timeout_s={watchdog.timeout_s:g}, at {hung}"
            ) from None
        finally:
            watchdog.deadline = math.inf

    def _at(self) -> str:
        return _without_name(self._guard.place(), self._guard.name)


def observation_problems(obs: Any, space: Any, path: str = "observation") -> list[tuple[str, str]]:
    """(kind, text) for each way in which `obs` is not in `space`; the path says which part of a nested one."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        if not isinstance(obs, dict):
            return [("type", f"{path} is a {type(obs).__name__}, but its space is a Dict; return a dict")]
        missing, extra = sorted(set(space) - set(obs), key=str), sorted(set(obs) - set(space), key=str)
        found = [("type", f"{path} lacks the key {key!r} that its space has") for key in missing]
        found += [("type", f"{path} has the key {key!r}, which its space lacks") for key in extra]
        return found + [
            one
            for key in space
            if key in obs
            for one in observation_problems(obs[key], space[key], f"{path}[{key!r}]")
        ]
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space):
            return [("type", f"{path} is {brief(obs)}, but its space is a Tuple of {len(space)}")]
        return [
            one for i, part in enumerate(space) for one in observation_problems(obs[i], part, f"{path}[{i}]")
        ]
    if isinstance(space, spaces.Box):
        return _box_problems(obs, space, path)
    if isinstance(space, spaces.Space) and not space.contains(obs):
        return [("type", f"{path} is {brief(obs)} ({type(obs).__name__}), which is not in its space {space}")]
    return []


def _box_problems(obs: Any, space: Any, path: str) -> list[tuple[str, str]]:
    shape, dtype = space.shape, space.dtype
    if not isinstance(obs, np.ndarray | np.generic):
        expected = f"expected an array of shape {shape} {dtype}; return np.asarray(obs, np.{dtype})"
        return [("type", f"{path} is {brief(obs)} ({type(obs).__name__}), {expected}")]
    values = np.asarray(obs)
    if values.shape != shape:
        return [("shape", f"{path} has shape {values.shape}, but its space says {shape}; change one of them")]
    if not np.can_cast(values.dtype, dtype, "safe"):
        fix = f"return obs.astype(np.{dtype}), or change the space's dtype"
        return [("dtype", f"{path} has dtype {values.dtype}, but its space says {dtype}; {fix}")]
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        index = tuple(map(int, np.argwhere(~np.isfinite(values))[0]))
        return [
            ("finite", f"{path}{list(index)} is {values[index]}; find where it divides by zero or overflows")
        ]
    outside = (values < space.low) | (values > space.high)
    if outside.any():
        index = tuple(map(int, np.argwhere(outside)[0]))
        bounds = f"[{space.low[index]:g}, {space.high[index]:g}]"
        fix = "widen the bounds (they may be infinite) or clip the observation"
        return [("bounds", f"{path}{list(index)} is {values[index]:g}, outside its space's {bounds}; {fix}")]
    return []


def _play_batched(env: VectorEnv, steps: int, report: EnvReport) -> None:
    """For environments that exist only as vector environments; ones that we did not write need fewer questions."""
    report.spaces, report.facts = env.spec, env.facts()
    rng = np.random.default_rng(SEED)
    try:
        env.reset()
        for _ in range(steps):
            env.step(rng.integers(env.spec.action.n, size=1))
            report.steps += 1
    except EnvError as error:
        report.add("error", _without_name(str(error), env.name))
    report.episodes = len(env.pop_episodes())


def _without_name(text: str, name: str) -> str:
    """The report's heading names the environment already."""
    for separator in (": ", ", "):
        text = text.removeprefix(f"{name}{separator}")
    return text
