"""`MultiAgentPlan`: which policy decides for which agent, made once in the driver and sent to every actor.

plan = plan_multi_agent(config.model_dump())            # None where the environment has one agent
plan.policy_of(copy=0, agent="player_1")                # "main"
plan.trained                                            # ("main",)
plan.settings(config.model_dump(), "main")              # those of this policy's learner
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, ValidationError

from rlplat.config import closest
from rlplat.errors import ConfigError, EnvError, UsageError
from rlplat.given.raised_at import raised_here
from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.envs import check
from rlplat.rl.envs.check import EnvReport
from rlplat.rl.envs.copies import Copies, made_as
from rlplat.rl.envs.gym_spaces import space_spec
from rlplat.rl.envs.own_process import Beat
from rlplat.rl.envs.watchdog import Limits, is_environments_own
from rlplat.rl.multi_agent.games import STATE, Game, WithState, is_multi_agent, make_game, state_problem
from rlplat.rl.policies.spec import PolicySpec, policy_spec
from rlplat.rl.schedules import scaled_horizons
from rlplat.rl.spaces import MASK, SpaceSpec
from rlplat.rl.user_code import located, renamed
from rlplat.section import Count, Section


def _with_names_located(policy: dict[str, Any]) -> dict[str, Any]:
    located_in: dict[str, Any] = renamed({"policy": policy}, located)["policy"]
    return located_in


class AgentPolicyConfig(Section):
    """One policy."""

    policy: Annotated[dict[str, Any], AfterValidator(_with_names_located)] = Field(default_factory=dict)
    """What differs from the run's `policy` section, e.g. {hidden_sizes: [128]}."""
    trained: bool = True
    """false: keeps its first, nearly uniform weights, or those that self_play gives it."""


class SelfPlayConfig(Section):
    """A policy that plays with earlier weights of the one that is trained."""

    opponent: str
    """The policy that gets snapshots; it is not trained."""
    learner: str = ""
    """The policy whose snapshots these are; may be left out where only one is trained."""
    snapshot_period: Count = 10_000
    """Env steps between snapshots."""
    pool: int = Field(default=10, ge=1, le=10_000)
    """Snapshots that are kept; the oldest goes."""
    sampling: Literal["latest", "uniform"] = "uniform"
    """Which snapshot an opponent plays a rollout fragment with."""
    swap_sides: bool = True
    """In every second copy of the environment the agents change places, so that the learner plays all sides."""


class MultiAgentConfig(Section):
    """Which policy decides for which agent (PettingZoo environments; ignored for others)."""

    example = {"mapping": {"adversary_*": "adversary"}}

    policies: dict[str, AgentPolicyConfig] = Field(default_factory=dict)
    """By name; empty: those that `mapping` names, all trained."""
    mapping: dict[str, str] = Field(default_factory=dict)
    """Agent, or pattern such as adversary_*, -> policy; exact names first, then patterns in their order. Empty: agents
    with equal spaces share one policy."""
    self_play: SelfPlayConfig | None = None
    """Frozen opponents from snapshots; null: none."""
    centralized_critic: bool = False
    """The critic sees the state of the environment beside what its agent observes (PPO; MAPPO, Yu et al. 2021)."""
    episode_return: Literal["mean", "sum"] = "mean"
    """What `episode_return_mean` is of a game: the mean, or the sum, over the agents of trained policies."""


SHARED = "shared"
"""Name of the one policy where nothing is said."""


@dataclass(frozen=True)
class AgentPolicy:
    """One policy."""

    name: str
    spaces: SpaceSpec
    agents: tuple[str, ...]
    """Whom it decides for in the first copy of the environment."""
    is_trained: bool
    section: dict[str, Any]
    """What differs from the run's `policy` section."""


@dataclass(frozen=True)
class MultiAgentPlan:
    agents: tuple[str, ...]
    """All that may appear."""
    policies: dict[str, AgentPolicy]
    mapping: dict[str, str]
    """Agent -> policy in copies that do not swap sides."""
    masked_by_info: frozenset[str]
    """Agents whose action mask comes in `infos`."""
    self_play: SelfPlayConfig | None
    episode_return: str
    """mean or sum, over the agents of trained policies."""
    state: str = ""
    """What a central critic sees beside what its agent observes, in words; empty without one."""

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the policies that learn, in their order."""
        return tuple(name for name, policy in self.policies.items() if policy.is_trained)

    @property
    def opponent(self) -> str:
        """The policy that plays with snapshots, or the empty string."""
        return self.self_play.opponent if self.self_play else ""

    @property
    def learner(self) -> str:
        """The policy that snapshots are taken of; only with self-play."""
        assert self.self_play is not None
        return self.self_play.learner

    def about_returns(self) -> str:
        """One line for the start of a run: what its returns are, as 0 to the end need not be a mistake. Empty with
        self-play, where it is the learner's."""
        if self.self_play is not None:
            return ""
        is_shared = len(self.policies) == 1
        zero = ", 0 to the end in a zero-sum game, as one policy plays all sides" if is_shared else ""
        return (
            f"return and evaluation are the {self.episode_return} over the {len(self.agents)} agents of a game{zero}; "
            f"an agent's own return is the metric agent/{self.agents[0]}/episode_return_mean"
        )

    def about_critic(self) -> str:
        """One line for the start of a run, or the empty string."""
        return f"the critic sees {self.state} beside what its agent observes; the actor does not" if self.state else ""

    def policy_of(self, copy: int, agent: str) -> str:
        """Who decides for this agent in this copy of the environment.

        With self_play.swap_sides, the policies move on by one agent from copy to copy: after as many copies as there
        are agents, everyone has been everybody.
        """
        if self.self_play is None or not self.self_play.swap_sides:
            return self.mapping[agent]
        index = self.agents.index(agent)
        return self.mapping[self.agents[(index + copy) % len(self.agents)]]

    def settings(self, settings: dict[str, Any], name: str) -> dict[str, Any]:
        """The run's settings as they are for one policy: its network, its random numbers, its share of the run.

        Schedules go by the env steps that a learner has seen; those of one policy's learner are its agents' share.
        """
        trained = self.trained
        num_agents = sum(len(self.policies[each].agents) for each in trained)
        share = len(self.policies[name].agents) / num_agents if name in trained else 1.0
        index = list(self.policies).index(name)
        seed = settings["seed"]
        if index:
            seed = int(np.random.SeedSequence(seed, spawn_key=(9, index)).generate_state(1)[0])
        return (
            settings
            | scaled_horizons(settings, share)
            | {
                "policy": settings["policy"] | self.policies[name].section,
                "seed": seed,
                "stop": settings["stop"] | {"env_steps": max(1, round(settings["stop"]["env_steps"] * share))},
            }
        )

    def specs(self, settings: dict[str, Any]) -> dict[str, PolicySpec]:
        """The network of every policy."""
        return {
            name: policy_spec(self.settings(settings, name)["policy"], policy.spaces)
            for name, policy in self.policies.items()
        }

    def num_columns(self, name: str, num_copies: int) -> int:
        """Of a policy's batches, from a worker with that many copies of the environment."""
        return sum(self.policy_of(copy, agent) == name for copy in range(num_copies) for agent in self.agents)

    def __str__(self) -> str:
        """`main (player_1): Box(9) float32 -> Discrete(9); opponent (player_2), frozen: ...`; one line."""
        return "; ".join(
            f"{policy.name} ({', '.join(policy.agents)}){'' if policy.is_trained else ', frozen'}: {policy.spaces}"
            for policy in self.policies.values()
        )


def look_at_env(settings: dict[str, Any]) -> SpaceSpec | MultiAgentPlan:
    """The pre-flight of algorithms that know several agents, in a process of its own (own_process.py): the plan, or the
    spaces of an environment of one agent that has passed the quick check. UsageError where it does not fit."""

    def look(beat: Beat) -> EnvReport | MultiAgentPlan:
        beat("the making of the environment")
        try:
            with made_as(Copies.of(settings, "check")):
                plan = plan_multi_agent(settings)
        except EnvError as error:  # before a run it is bad input, as an unsound environment of one agent is
            raise UsageError(str(error)) from error.__cause__
        return check.look_before_run(settings, beat) if plan is None else plan

    found = check.apart(settings["env"], look, max(Limits.of(settings)))
    if isinstance(found, MultiAgentPlan):
        return found
    return found.require_sound(settings["env_kwargs"])


def policy_specs(settings: dict[str, Any], spaces: SpaceSpec | MultiAgentPlan) -> list[PolicySpec]:
    """The network of every policy; of the only one where there is one agent."""
    if isinstance(spaces, MultiAgentPlan):
        return [*spaces.specs(settings).values()]
    return [policy_spec(settings["policy"], spaces)]


def plan_multi_agent(settings: dict[str, Any]) -> MultiAgentPlan | None:
    """The plan of a config (as a dict), or None for an environment of one agent; ConfigError where it does not fit."""
    name, kwargs = settings["env"], settings["env_kwargs"]
    config = MultiAgentConfig.model_validate(settings.get("multi_agent", {}))
    if not is_multi_agent(name, kwargs):
        if config.centralized_critic:
            raise ConfigError(f"multi_agent.centralized_critic is for several agents, and '{name}' has one: omit it")
        return None
    if "multi_agent" not in settings:
        raise ConfigError(
            f"'{name}' is a PettingZoo environment with several agents; ppo and dqn learn with those (--algo ppo)"
        )
    if settings["vectorization"] != "auto":
        raise ConfigError(
            f"'{name}' has several agents, whose games are stepped one after the other: omit vectorization"
        )
    if settings.get("random_start_steps"):
        raise ConfigError(f"'{name}' has several agents: random_start_steps is for environments of one; omit it")
    game = make_game(name, kwargs, config.centralized_critic)
    try:
        plan = make_plan(config, *agent_spaces(game, name), run_policy=settings["policy"])
        if not isinstance(game, WithState):
            return plan
        if problem := state_problem(game):
            raise EnvError(f"{name}: multi_agent.centralized_critic asks for its state: {problem}")
        return replace(plan, state=_said_of_state(game, plan))
    finally:
        game.close()


def _said_of_state(game: WithState, plan: MultiAgentPlan) -> str:
    spaces = [policy.spaces.obs for policy in plan.policies.values()]
    images = [path for obs in spaces if isinstance(obs, dict) for path, leaf in obs.items() if leaf.kind == "image"]
    if images and not game.has_own:
        raise ConfigError(
            f"multi_agent.centralized_critic: observations have images ('{images[0]}'), which do not stand side by "
            "side in one vector: give the environment state() and state_space"
        )
    state = spaces[0][STATE]  # type: ignore[index]
    return (
        f"state() ({state})" if game.has_own else f"the observations of {_listed(plan.agents)} side by side ({state})"
    )


def agent_spaces(game: Game, name: str) -> tuple[dict[str, SpaceSpec], frozenset[str]]:
    """(spaces by agent, agents whose mask comes in `infos`); resets the game to see what the infos hold.

    An agent that has no mask there is taken to be like those of equal spaces.
    """
    try:
        game.reset(seed=0)
    except BaseException as error:
        if isinstance(error, EnvError) or not is_environments_own(error):
            raise
        raise EnvError(f"{name}: reset() raised {type(error).__name__}: {error}{raised_here(error)}") from error
    specs: dict[str, SpaceSpec] = {}
    for agent in game.agents:
        try:
            specs[agent] = space_spec(*game.spaces(agent))
        except Exception as error:
            raise ConfigError(f"{name}: agent '{agent}': {error}") from None
    seen = {agent for agent in game.agents if MASK in game.info(agent)}
    masked = frozenset(
        agent
        for agent in game.agents
        if any(specs[agent] == specs[other] for other in seen)
        and not (isinstance(specs[agent].obs, dict) and MASK in specs[agent].obs)  # type: ignore[operator]
    )
    return {agent: space_spec(*game.spaces(agent), adds_mask=agent in masked) for agent in game.agents}, masked


def make_plan(
    config: MultiAgentConfig,
    spaces: Mapping[str, SpaceSpec],
    masked_by_info: frozenset[str] = frozenset(),
    *,
    run_policy: Mapping[str, Any],
) -> MultiAgentPlan:
    """spaces: of every agent; run_policy: the run's `policy` section. ConfigError names what does not fit."""
    mapping = resolve_mapping(config, spaces)
    names = list(config.policies) or list(dict.fromkeys(mapping.values()))
    policies: dict[str, AgentPolicy] = {}
    for name in names:
        agents = tuple(agent for agent in spaces if mapping[agent] == name)
        if not agents:
            raise ConfigError(
                f"multi_agent.policies.{name} has no agent: map one to it ({_listed(spaces)}), or leave it out"
            )
        for agent in agents[1:]:
            if spaces[agent] != spaces[agents[0]]:
                raise ConfigError(
                    f"policy '{name}' cannot be shared by '{agents[0]}' ({spaces[agents[0]]}) and '{agent}' "
                    f"({spaces[agent]}): their spaces differ; map them to two policies, or pad one of the spaces"
                )
        if not name or "/" in name:
            raise ConfigError(f"'{name}' cannot be the name of a policy: it becomes a part of metrics' names")
        entry = config.policies.get(name)
        section = dict(entry.policy) if entry else {}
        obs = spaces[agents[0]].obs
        if config.centralized_critic and isinstance(obs, dict):
            own = {**run_policy, **section}
            if own["core"] != "none" or own["share_encoder"] is True:
                key = "share_encoder=true" if own["share_encoder"] is True else f"core={own['core']}"
                raise ConfigError(
                    f"multi_agent.centralized_critic gives the critic a network of its own, and policy.{key} one for "
                    "both: omit one"
                )
            groups = own.get("obs_groups") or {}
            section["obs_groups"] = {"actor": [path for path in obs if path != STATE], **groups}
            if STATE in section["obs_groups"]["actor"]:
                raise ConfigError(f"policy.obs_groups.actor names '{STATE}', which an agent that acts has not: omit it")
        try:
            PolicyConfig.model_validate({**run_policy, **section})
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"multi_agent.policies.{name}.policy.{key}: {first['msg']}{closest(key, PolicyConfig.model_fields)}"
            ) from None
        policies[name] = AgentPolicy(name, spaces[agents[0]], agents, entry.trained if entry else True, section)
    plan = MultiAgentPlan(
        agents=tuple(spaces),
        policies=policies,
        mapping=mapping,
        masked_by_info=masked_by_info,
        self_play=None,
        episode_return=config.episode_return,
    )
    if config.self_play is not None:
        plan = _with_self_play(plan, config.self_play)
    if not plan.trained:
        raise ConfigError(f"no policy of {_listed(policies)} is trained; set multi_agent.policies.NAME.trained=true")
    return plan


def resolve_mapping(config: MultiAgentConfig, spaces: Mapping[str, SpaceSpec]) -> dict[str, str]:
    """Agent -> policy for every agent."""
    if not config.mapping:
        return _default_mapping(config, spaces)
    patterns = config.mapping
    for pattern, policy in patterns.items():
        if config.policies and policy not in config.policies:
            raise ConfigError(
                f"multi_agent.mapping.{pattern} names the policy '{policy}', which multi_agent.policies lacks"
                f"{closest(policy, config.policies)}; there are: {_listed(config.policies)}"
            )
        if pattern not in spaces and not fnmatch.filter(spaces, pattern):
            raise ConfigError(
                f"multi_agent.mapping.{pattern} fits no agent{closest(pattern, spaces)}; agents: {_listed(spaces)}"
            )
    mapping: dict[str, str] = {}
    for agent in spaces:
        fitting = [
            policy for pattern, policy in patterns.items() if pattern == agent or fnmatch.fnmatchcase(agent, pattern)
        ]
        if not fitting:
            raise ConfigError(
                f"no policy decides for '{agent}': multi_agent.mapping has only {_listed(patterns)}; add it, or '*'"
            )
        mapping[agent] = patterns.get(agent, fitting[0])
    return mapping


def _default_mapping(config: MultiAgentConfig, spaces: Mapping[str, SpaceSpec]) -> dict[str, str]:
    """Agents with equal spaces share a policy: `shared`, or, where there are several kinds, named after the first."""
    if len(config.policies) == 1:
        return dict.fromkeys(spaces, next(iter(config.policies)))
    if config.policies:
        raise ConfigError(
            f"multi_agent.policies has {_listed(config.policies)}, but multi_agent.mapping does not say who decides "
            f"for {_listed(spaces)}; e.g. --set multi_agent.mapping.{next(iter(spaces))}={next(iter(config.policies))}"
        )
    kinds: list[tuple[str, SpaceSpec]] = []
    mapping: dict[str, str] = {}
    for agent, spec in spaces.items():
        alike = [name for name, kind in kinds if kind == spec]
        if not alike:
            kinds.append((agent, spec))
        mapping[agent] = alike[0] if alike else agent
    return mapping if len(kinds) > 1 else dict.fromkeys(spaces, SHARED)


def _with_self_play(plan: MultiAgentPlan, self_play: SelfPlayConfig) -> MultiAgentPlan:
    opponent = self_play.opponent
    if opponent not in plan.policies:
        raise ConfigError(
            f"multi_agent.self_play.opponent is '{opponent}', which is no policy{closest(opponent, plan.policies)}; "
            f"there are: {_listed(plan.policies)}"
        )
    if plan.policies[opponent].is_trained:
        raise ConfigError(
            f"multi_agent.self_play.opponent '{opponent}' is trained itself: set "
            f"multi_agent.policies.{opponent}.trained=false"
        )
    learner = self_play.learner or (plan.trained[0] if len(plan.trained) == 1 else "")
    if learner not in plan.trained:
        said = f"'{learner}', which is not trained" if learner else "not given"
        raise ConfigError(
            f"multi_agent.self_play.learner is {said}; it is one of the trained policies: "
            f"{_listed(plan.trained) or '-'}"
        )
    mine, theirs = plan.policies[learner], plan.policies[opponent]
    if mine.section != theirs.section:
        raise ConfigError(
            f"'{opponent}' plays with weights of '{learner}', so their networks must be equal, but "
            f"multi_agent.policies.{learner}.policy is {mine.section} and that of {opponent} {theirs.section}"
        )
    mine.spaces.require_same(theirs.spaces, f"policy '{learner}'", f"its opponent '{opponent}'")
    if self_play.swap_sides:
        odd = [name for name, policy in plan.policies.items() if policy.spaces != mine.spaces]
        if odd:
            raise ConfigError(
                f"multi_agent.self_play.swap_sides needs equal spaces, but those of '{odd[0]}' are not those of "
                f"'{learner}'; set it to false"
            )
    return replace(plan, self_play=self_play.model_copy(update={"learner": learner}))


def _listed(names: Any) -> str:
    return ", ".join(names)
