"""One PettingZoo environment as a sequence of moments, the same for parallel and turn-based (AEC) ones.

game = make_game("pettingzoo.classic.tictactoe_v3", {})
moment = game.reset(seed=1)
while not moment.is_over:
    moment = game.step({agent: act(obs) for agent, (obs, info) in moment.to_act.items()})

A decision of an agent is answered by the first later moment that has the agent in `to_act` or in `ended`: at once in a
parallel environment, at its next turn or its end in a turn-based one.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlplat.errors import ConfigError, EnvError, EnvNotFound, MissingExtra, RlplatError
from rlplat.given.raised_at import raised_here
from rlplat.rl.class_path import load_module
from rlplat.rl.env_objects import EnvObject
from rlplat.rl.envs.guard import close_env
from rlplat.rl.envs.gym_spaces import side_by_side, side_by_side_space, with_leaf
from rlplat.rl.envs.make import call_wrapped
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.envs.obs_reader import observation_problems


class Ending(NamedTuple):
    terminated: bool
    truncated: bool
    """Never both: what is terminated has no future that could have been cut off."""
    obs: Any
    """A copy: what the environment observes next, in another game too, may be written into the same memory."""
    info: dict[str, Any]


class Moment(NamedTuple):
    """What `reset` and `step` tell, by agent."""

    to_act: dict[str, tuple[Any, dict[str, Any]]]
    """(observation, info) of the agents that decide next: all that are alive, or the one whose turn it is."""
    rewards: dict[str, float]
    """Of agents in `to_act` and `ended`: what they collected since their last decision (or the beginning)."""
    ended: dict[str, Ending]

    @property
    def is_over(self) -> bool:
        return not self.to_act


class Game(Protocol):
    agents: tuple[str, ...]
    """All that may appear, by name."""
    env: Any
    """PettingZoo's."""

    def reset(self, seed: int | None = None) -> Moment: ...

    def step(self, actions: Mapping[str, Any]) -> Moment:
        """actions: of all agents in the last moment's `to_act`, as the environment wants them."""
        ...

    def spaces(self, agent: str) -> tuple[Any, Any]:
        """(observation space, action space)"""
        ...

    def info(self, agent: str) -> dict[str, Any]:
        """What the environment tells this agent now, also where it is not to act; empty where it is not there."""
        ...

    def close(self) -> None: ...


class _OfPettingZoo:
    def __init__(self, env: Any, name: str) -> None:
        self.env = self._env = env
        self._name = name
        self._agents = _possible_agents(env, name)
        self.agents = tuple(self._agents)

    def spaces(self, agent: str) -> tuple[Any, Any]:
        return _spaces(self._env, self._name, self._agents[agent])

    def close(self) -> None:
        """One whose close() raises has been used to the end all the same."""
        if problem := close_env(self._env):
            print(f"warning: {self._name}: {problem}", file=sys.stderr)


class ParallelGame(_OfPettingZoo):
    """All agents that are alive act at once (`pettingzoo.ParallelEnv`)."""

    def __init__(self, env: Any, name: str) -> None:
        super().__init__(env, name)
        self._infos: Mapping[Any, dict[str, Any]] = {}

    def info(self, agent: str) -> dict[str, Any]:
        return self._infos.get(self._agents[agent], {})

    def reset(self, seed: int | None = None) -> Moment:
        returned = self._env.reset(seed=seed)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise EnvError(
                f"{self._name}: reset() returned a {type(returned).__name__}; a parallel environment returns "
                "(observations, infos), both dicts by agent"
            )
        obs, infos = returned
        self._infos = infos
        to_act = {
            str(agent): (self._of(obs, agent, "observations"), infos.get(agent, {})) for agent in self._env.agents
        }
        return Moment(to_act, dict.fromkeys(to_act, 0.0), {})

    def step(self, actions: Mapping[str, Any]) -> Moment:
        returned = self._env.step({self._agents[name]: action for name, action in actions.items()})
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise EnvError(
                f"{self._name}: step() returned a {type(returned).__name__}"
                f"{f' of {len(returned)}' if isinstance(returned, tuple) else ''}; a parallel environment returns "
                "(observations, rewards, terminations, truncations, infos), all dicts by agent"
            )
        obs, rewards, terminations, truncations, infos = returned
        self._infos = infos
        to_act: dict[str, tuple[Any, dict[str, Any]]] = {}
        collected: dict[str, float] = {}
        ended: dict[str, Ending] = {}
        for name in actions:
            agent = self._agents[name]
            collected[name] = self._of(rewards, agent, "rewards")
            terminated = bool(self._of(terminations, agent, "terminations"))
            truncated = bool(self._of(truncations, agent, "truncations")) and not terminated
            if terminated or truncated:
                last_obs = deepcopy(self._of(obs, agent, "observations"))
                ended[name] = Ending(terminated, truncated, last_obs, infos.get(agent, {}))
            elif agent not in self._env.agents:
                raise EnvError(
                    f"{self._name}: '{agent}' left `agents` in step() although it is neither terminated nor truncated; "
                    "set one of both in its last step"
                )
        for agent in self._env.agents:
            name = str(agent)
            if name not in actions and (terminations.get(agent) or truncations.get(agent)):
                raise EnvError(
                    f"{self._name}: '{agent}' has ended, but is still in `agents`; remove an agent there in the step "
                    "that terminates or truncates it"
                )
            if name not in ended:  # an agent that appears only now has no reward for a decision
                to_act[name] = self._of(obs, agent, "observations"), infos.get(agent, {})
                collected.setdefault(name, rewards.get(agent, 0.0))
        return Moment(to_act, collected, ended)

    def _of(self, values: Any, agent: Any, what: str) -> Any:
        try:
            return values[agent]
        except (KeyError, TypeError):
            raise EnvError(
                f"{self._name}: {what} lack '{agent}' ({_keys(values)}); give an entry for every agent that acted or "
                "is in `agents`"
            ) from None


class TurnGame(_OfPettingZoo):
    """One agent after another (`pettingzoo.AECEnv`)."""

    def info(self, agent: str) -> dict[str, Any]:
        info: dict[str, Any] = self._env.infos.get(self._agents[agent], {})
        return info

    def reset(self, seed: int | None = None) -> Moment:
        self._env.reset(seed=seed)
        return self._next_decision()

    def step(self, actions: Mapping[str, Any]) -> Moment:
        [action] = actions.values()
        self._env.step(action)
        return self._next_decision()

    def _next_decision(self) -> Moment:
        """Past the agents that ended, which have nothing to decide any more, to the one whose turn it is."""
        rewards: dict[str, float] = {}
        ended: dict[str, Ending] = {}
        while self._env.agents:
            agent = str(self._env.agent_selection)
            obs, rewards[agent], terminated, truncated, info = self._env.last()
            if not terminated and not truncated:
                return Moment({agent: (obs, info)}, rewards, ended)
            if agent in ended:
                raise EnvError(
                    f"{self._name}: '{agent}' has ended, but step(None) leaves it in `agents`; call _was_dead_step() "
                    "where a terminated or truncated agent steps"
                )
            ended[agent] = Ending(bool(terminated), bool(truncated) and not terminated, deepcopy(obs), info)
            self._env.step(None)
        return Moment({}, rewards, ended)


STATE = "state"
"""The leaf of an observation that is for a central critic alone."""


class WithState:
    """A parallel game in which each agent observes the state beside its own observation, for a central critic: that of
    the environment (`state()`, where it has a `state_space`), or what all agents observe, side by side in the order of
    `agents`, zeros for those that are not there."""

    def __init__(self, game: Game, name: str) -> None:
        if not isinstance(game, ParallelGame):
            raise ConfigError(
                f"multi_agent.centralized_critic wants an environment in which all agents act at once, and {name} is "
                "turn-based: give a parallel one, or omit it"
            )
        self._game, self.env, self.agents = game, game.env, game.agents
        self.info, self.close = game.info, game.close
        self._own = {agent: game.spaces(agent)[0] for agent in self.agents}
        space = getattr(game.env, "state_space", None)
        self.has_own = space is not None
        """Whether it is the environment's."""
        for agent, own in self._own.items():
            if STATE in getattr(own, "spaces", ()):
                raise ConfigError(f"{name}: '{agent}' observes '{STATE}', which a central critic has: rename it")
            if not self.has_own and not own.is_np_flattenable:
                raise ConfigError(
                    f"{name} has no state_space, and what '{agent}' observes, {own}, cannot stand beside the others' "
                    "in one vector: give the environment state() and state_space, or omit "
                    "multi_agent.centralized_critic"
                )
        self._space = space if self.has_own else side_by_side_space(self._own)

    def reset(self, seed: int | None = None) -> Moment:
        return self._with_state(self._game.reset(seed))

    def step(self, actions: Mapping[str, Any]) -> Moment:
        return self._with_state(self._game.step(actions))

    def spaces(self, agent: str) -> tuple[Any, Any]:
        observation, action = self._game.spaces(agent)
        return with_leaf(observation, observation, STATE, self._space), action

    def _with_state(self, moment: Moment) -> Moment:
        seen = {agent: obs for agent, (obs, _) in moment.to_act.items()}
        seen |= {agent: ending.obs for agent, ending in moment.ended.items()}
        state = np.array(self.env.state()) if self.has_own else side_by_side(self._own, seen)
        both = {agent: with_leaf(self._own[agent], obs, STATE, state) for agent, obs in seen.items()}
        return Moment(
            {agent: (both[agent], info) for agent, (_, info) in moment.to_act.items()},
            moment.rewards,
            {agent: ending._replace(obs=both[agent]) for agent, ending in moment.ended.items()},
        )


def state_problem(game: Game) -> str:
    """What is wrong with the environment's state as it is now, for a central critic; empty also where it has none."""
    space = getattr(game.env, "state_space", None)
    if space is None or isinstance(game, TurnGame):
        return ""
    try:
        state = game.env.state()
    except Exception as error:
        return f"state() raised {type(error).__name__}: {error}{raised_here(error)}"
    texts = [text for kind, text in observation_problems(np.array(state), space) if kind not in ("bounds", "cast")]
    return texts[0].replace("observation", "state()", 1) if texts else ""


def is_multi_agent(name: str, env_kwargs: Mapping[str, Any]) -> bool:
    """Whether a name means a PettingZoo environment; makes one only where a function's result cannot be known."""
    if is_module_name(name):
        return True
    if ":" not in name and not isinstance(name, EnvObject):
        return False
    factory = resolve_env(name).factory
    if factory is None or "pettingzoo" not in sys.modules:
        return False
    if isinstance(factory, type):
        return _is_parallel(factory) or _is_turn_based(factory)
    if name.rpartition(":")[2] in ("env", "raw_env", "parallel_env"):
        return True
    try:
        env = call_wrapped(factory, env_kwargs)
    except Exception:
        return False  # the pre-flight makes it again and says what is wrong
    try:
        return _is_parallel(type(env)) or _is_turn_based(type(env))
    finally:
        close_env(env)


def is_module_name(name: str) -> bool:
    """`pettingzoo.classic.tictactoe_v3`, and nothing that gymnasium has registered."""
    return "." in name and all(part.isidentifier() for part in name.split("."))


def make_game(name: str, env_kwargs: Mapping[str, Any], with_state: bool = False) -> Game:
    """name: a module with `parallel_env` or `env`, pkg.mod:factory, pkg.mod:Class or ./file.py:either; with_state: as
    `WithState` has it."""
    game = _make_game(name, env_kwargs)
    return WithState(game, name) if with_state else game


def _make_game(name: str, env_kwargs: Mapping[str, Any]) -> Game:
    factory = _module_factory(name) if is_module_name(name) else resolve_env(name).factory
    if factory is None:
        raise EnvNotFound(f"'{name}' is an environment of one agent; leave out what is for several")
    try:
        env = call_wrapped(factory, env_kwargs)
    except RlplatError:
        raise
    except Exception as error:
        given = f"env_kwargs={dict(env_kwargs)}" if env_kwargs else "no env_kwargs"
        raise EnvError(
            f"{name}: making the environment (with {given}) raised {type(error).__name__}: {error}"
        ) from error
    if _is_parallel(type(env)):
        return ParallelGame(env, name)
    if _is_turn_based(type(env)):
        return TurnGame(env, name)
    raise EnvError(
        f"{name} made a {type(env).__name__}, which is neither a pettingzoo.ParallelEnv nor a pettingzoo.AECEnv; "
        "derive it from one of them"
    )


def _module_factory(name: str) -> Callable[..., Any]:
    root = name.partition(".")[0]
    if root == "pettingzoo" and importlib.util.find_spec("pettingzoo") is None:
        raise MissingExtra("pettingzoo", "marl", name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # on importing, instead of a registry of 1.27
            module = load_module(name)
    except ModuleNotFoundError as error:
        raise EnvError(f"environment '{name}': it needs '{error.name}', which is not installed") from error
    except ConfigError:
        raise EnvNotFound(
            f"no module '{name}'; a PettingZoo environment is a module (pettingzoo.classic.tictactoe_v3), or "
            "pkg.mod:parallel_env, pkg.mod:env, pkg.mod:Class"
        ) from None
    for attribute in ("parallel_env", "env"):
        if hasattr(module, attribute):
            factory: Callable[..., Any] = getattr(module, attribute)
            return factory
    raise EnvNotFound(f"the module '{name}' has neither parallel_env nor env; name the factory: {name}:NAME")


def _is_parallel(kind: type) -> bool:
    return any(base.__name__ == "ParallelEnv" for base in kind.__mro__)


def _is_turn_based(kind: type) -> bool:
    return any(base.__name__ == "AECEnv" for base in kind.__mro__)


def _possible_agents(env: Any, name: str) -> dict[str, Any]:
    """The environment's own agent ids by name."""
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise EnvError(f"{name} has no possible_agents; list there every agent that may appear")
    by_name = {str(agent): agent for agent in agents}
    if len(by_name) < len(agents):
        raise EnvError(f"{name}: two of possible_agents {list(agents)} have the same name")
    return by_name


def _spaces(env: Any, name: str, agent: Any) -> tuple[Any, Any]:
    try:
        return env.observation_space(agent), env.action_space(agent)
    except Exception as error:
        raise EnvError(
            f"{name}: the spaces of '{agent}' cannot be had: {type(error).__name__}: {error}; define "
            "observation_space(agent) and action_space(agent)"
        ) from error


def _keys(values: Any) -> str:
    return f"there are {', '.join(map(str, values))}" if isinstance(values, dict) else type(values).__name__
