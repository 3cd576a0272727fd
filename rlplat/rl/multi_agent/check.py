"""`rlplat check-env` where there may be several agents: random games, checked as a run checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlplat.errors import EnvError, EnvNotFound, MissingExtra, UsageError
from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.class_path import forget_changed
from rlplat.rl.env_objects import env_name
from rlplat.rl.envs.check import COMMAND_STEPS, SEED, EnvReport, apart, check_env_here
from rlplat.rl.envs.own_process import Beat
from rlplat.rl.envs.watchdog import Limits
from rlplat.rl.multi_agent.games import is_multi_agent, make_game, state_problem
from rlplat.rl.multi_agent.policy_map import MultiAgentConfig, MultiAgentPlan, agent_spaces, make_plan
from rlplat.rl.multi_agent.vector_env import Turns, make_multi_agent_vector_env
from rlplat.rl.policies.exploration import RandomActions
from rlplat.rl.policies.spec import said_of_observations
from rlplat.rl.spaces import SpaceSpec

REPEATED = 100
"""Steps of the two plays from one seed."""


@dataclass
class GamesReport(EnvReport):
    agents: Mapping[str, SpaceSpec] = field(default_factory=dict)

    @property
    def observations(self) -> list[str]:
        return [
            f"{agent}: {spaces}; {', '.join(said_of_observations(spaces.obs)[0])}"
            for agent, spaces in self.agents.items()
        ]

    @property
    def head(self) -> str:
        return f"{self.name}: {len(self.agents)} agents; {self.steps} random steps, {self.episodes} games"


def check_any_env(
    name: Any,
    env_kwargs: dict[str, Any] | None = None,
    *,
    steps: int = COMMAND_STEPS,
    step_timeout_s: float = 60.0,
    reset_timeout_s: float | None = None,
) -> EnvReport:
    """`check_env`, for environments of several agents too, in a process of its own."""
    name, env_kwargs = env_name(name), env_kwargs or {}
    limits = Limits(step_timeout_s, reset_timeout_s or step_timeout_s)

    def look(beat: Beat) -> EnvReport:
        beat("the import of its module")
        try:
            is_game = is_multi_agent(name, env_kwargs)
        except EnvError:
            is_game = False  # which the other check says
        if is_game:
            return _check_games(name, env_kwargs, beat, steps, limits)
        return check_env_here(name, env_kwargs, beat, steps=steps, limits=limits)

    forget_changed()
    return apart(name, look, max(limits))


def _check_games(name: str, env_kwargs: dict[str, Any], beat: Beat, steps: int, limits: Limits) -> GamesReport:
    report = GamesReport(name)
    try:
        beat("the making of the environment")
        game = make_game(name, env_kwargs)
        try:
            spaces, masked = agent_spaces(game, name)
        finally:
            game.close()
        report.agents = spaces
        each_its_own = MultiAgentConfig(mapping={agent: f"p{i}" for i, agent in enumerate(spaces)})
        plan = make_plan(each_its_own, spaces, masked, run_policy=PolicyConfig().model_dump())
        first = _play(report, plan, env_kwargs, beat, steps, limits)
        again = _play(GamesReport(name), plan, env_kwargs, beat, min(steps, REPEATED), limits)
        differing = [t for t, (one, other) in enumerate(zip(first, again, strict=False)) if one != other]
        if differing:
            report.add(
                "warning",
                f"two plays with the same seed and actions differ from step {differing[0]} on: runs cannot be "
                "repeated; draw from a generator that reset(seed=...) seeds",
            )
    except (EnvNotFound, MissingExtra):
        raise
    except (EnvError, UsageError) as error:
        report.add("error", str(error).removeprefix(f"{name}: ").removeprefix(f"{name} "))
    return report


def _play(
    report: GamesReport,
    plan: MultiAgentPlan,
    env_kwargs: dict[str, Any],
    beat: Beat,
    steps: int,
    limits: Limits,
) -> list[bytes]:
    """`steps` steps of one game after another, counted in the report -> what each of the first showed."""
    random = {
        name: RandomActions(policy.spaces.action, np.random.SeedSequence([SEED, i]))
        for i, (name, policy) in enumerate(plan.policies.items())
    }
    env = make_multi_agent_vector_env(report.name, 1, plan, seed=SEED, env_kwargs=env_kwargs, limits=limits)
    shown: list[bytes] = []
    try:
        beat("reset()")
        turns = env.reset()
        for _ in range(steps):
            if len(shown) < REPEATED:
                shown.append(b"".join(_bytes(each) for each in turns.values()))
            if problem := state_problem(env.games[0]):
                report.add("warning", f"a run with multi_agent.centralized_critic would end: {problem}")
            beat("step()")
            turns = env.step({name: random[name].drawn(len(each.acting), each.obs) for name, each in turns.items()})
            report.steps += 1
    finally:
        games = {episode.game for episodes in env.pop_episodes().values() for episode in episodes}
        report.episodes += len(games)
        env.close()
    return shown


def _bytes(turns: Turns) -> bytes:
    leaves = turns.obs.values() if isinstance(turns.obs, dict) else [turns.obs]
    return b"".join(array.tobytes() for array in (turns.acting, turns.rewards, *leaves))
