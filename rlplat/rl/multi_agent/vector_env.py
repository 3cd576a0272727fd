"""`MultiAgentVectorEnv`: E copies of one PettingZoo environment; every (copy, agent) is a column of its policy.

env = MultiAgentVectorEnv([make_game(name, kwargs) for _ in range(E)], plan, name, seed=1)
turns = env.reset()                                     # {policy: Turns}
while True:
    turns = env.step({name: act(name, each.acting, each.obs) for name, each in turns.items()})
episodes = env.pop_episodes()                           # {policy: [AgentEpisode]} of games that are over

A copy whose game is over is reset in the same step: a column can be answered and to act again at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rlplat.acting import brief, find_no_choice
from rlplat.errors import EnvError
from rlplat.rl.envs.copies import Copies, be, made_as
from rlplat.rl.envs.guard import Ask, ask_env
from rlplat.rl.envs.gym_spaces import action_converter, action_row
from rlplat.rl.envs.obs_reader import ObsMismatch, ObsReader, put_row
from rlplat.rl.envs.watchdog import Limits, StepWatchdog
from rlplat.rl.info_metrics import GROUP, InfoMetrics, NotANumber, episode_means
from rlplat.rl.interfaces import Array, Episode, Obs
from rlplat.rl.multi_agent.games import Game, Moment, make_game
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan
from rlplat.rl.obs_tree import find_not_finite, map_obs
from rlplat.rl.sampling.tally import EpisodeWindow
from rlplat.rl.seeding import sequence_of
from rlplat.rl.spaces import MASK, SpaceSpec

_ONE = np.ones(1, np.bool_)


class AgentEpisode(NamedTuple):
    """One agent's part in a finished game; stands where an `Episode` does."""

    episode_return: float
    """Raw, undiscounted; with what it got before its first decision."""
    length: int
    """Its decisions."""
    agent: str
    game: tuple[int, int, int, int]
    """(worker, incarnation, copy, number): equal for all agents of one game."""
    game_length: int
    """Steps of the environment (turn-based: turns of all agents)."""
    metrics: Mapping[str, float] = {}
    """What this agent's infos told, by name."""


class AgentReturns:
    """Windows over the last 100 games by policy and by agent."""

    def __init__(self, trained: Sequence[str], episode_return: str) -> None:
        """trained: whose agents count for the headline; episode_return: mean or sum over them."""
        self._trained = tuple(trained)
        self._is_sum = episode_return == "sum"
        self._by_policy: dict[str, EpisodeWindow] = {}
        self._by_agent: dict[str, EpisodeWindow] = {}

    def extend(self, episodes: Mapping[str, Sequence[AgentEpisode]]) -> list[Episode]:
        """episodes by policy, all those of a game in one call; returns one `Episode` per game."""
        games: dict[tuple[int, int, int, int], list[AgentEpisode]] = {}
        for policy, parts in episodes.items():
            self._by_policy.setdefault(policy, EpisodeWindow()).extend(_plain_episodes(parts))
            for part in parts:
                self._by_agent.setdefault(part.agent, EpisodeWindow()).extend(_plain_episodes([part]))
                if policy in self._trained:
                    games.setdefault(part.game, []).append(part)
        return [game_episode(parts, is_sum=self._is_sum) for parts in games.values()]

    def metrics(self) -> dict[str, float]:
        """`policy/<name>/episode_return_mean`, `.../episode_length_mean`, `agent/<name>/episode_return_mean`,
        `agent/<name>/env/<number>_mean`."""
        metrics: dict[str, float] = {}
        for policy, window in self._by_policy.items():
            if window.return_mean is not None and window.length_mean is not None:
                metrics[f"policy/{policy}/episode_return_mean"] = window.return_mean
                metrics[f"policy/{policy}/episode_length_mean"] = window.length_mean
        for agent, window in self._by_agent.items():
            if window.return_mean is not None:
                metrics[f"agent/{agent}/episode_return_mean"] = window.return_mean
            metrics |= {f"agent/{agent}/{name}": value for name, value in window.env_metrics.items()}
        return metrics

    def get_state(self) -> dict[str, Any]:
        return {
            "by_policy": {name: window.get_state() for name, window in self._by_policy.items()},
            "by_agent": {name: window.get_state() for name, window in self._by_agent.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._by_policy = _windows(state["by_policy"])
        self._by_agent = _windows(state["by_agent"])


def game_episode(parts: Sequence[AgentEpisode], *, is_sum: bool) -> Episode:
    """The game as one episode: mean or sum of the agents' returns, length in steps of the environment. What their infos
    told is averaged over the agents that have it."""
    total = sum(part.episode_return for part in parts)
    metrics = episode_means((part.metrics for part in parts), "", "")
    return Episode(total if is_sum else total / len(parts), parts[0].game_length, metrics)


def _plain_episodes(parts: Sequence[AgentEpisode]) -> list[Episode]:
    return [Episode(part.episode_return, part.length, part.metrics) for part in parts]


def _windows(states: dict[str, Any]) -> dict[str, EpisodeWindow]:
    windows = {name: EpisodeWindow() for name in states}
    for name, window in windows.items():
        window.set_state(states[name])
    return windows


class Turns(NamedTuple):
    """What one step means for one policy's columns."""

    answered: Array
    """int64[M]: columns whose last decision is answered by what follows."""
    rewards: Array
    """float32[M]: collected since that decision, raw."""
    terminated: Array
    """bool[M]"""
    truncated: Array
    """bool[M]; never where `terminated` is."""
    final_obs: Obs
    """[M, ...]: the last observation where `truncated`; zeros elsewhere."""
    acting: Array
    """int64[N]: columns that decide next; in `step`, their actions come in this order."""
    obs: Obs
    """[N, ...] of `acting`."""


class MultiAgentVectorEnv:
    def __init__(
        self,
        games: Sequence[Game],
        plan: MultiAgentPlan,
        name: str,
        *,
        seed: np.random.SeedSequence | int = 0,
        limits: Limits = Limits(),  # noqa: B008
        game_id: tuple[int, int] = (0, 0),
        copies: Copies = Copies(),  # noqa: B008
        env_metrics: Sequence[str] = (),
    ) -> None:
        """game_id: (worker, incarnation), the beginning of the ids of games; copies: what `copy_index()` says in
        reset(); env_metrics: numbers of the agents' infos, as in the setting."""
        self.name = name
        self.num_copies = len(games)
        self.columns: dict[str, list[tuple[int, str]]] = {policy: [] for policy in plan.policies}
        """By policy: (copy, agent) of every column."""
        self.games, self._plan, self._game_id = games, plan, game_id
        self._columns_of: dict[tuple[int, str], tuple[str, int]] = {}
        for copy in range(len(games)):
            for agent in plan.agents:
                policy = plan.policy_of(copy, agent)
                self._columns_of[copy, agent] = policy, len(self.columns[policy])
                self.columns[policy].append((copy, agent))
        self._readers = {
            agent: ObsReader(*games[0].spaces(agent), adds_mask=agent in plan.masked_by_info) for agent in plan.agents
        }
        self._specs: dict[str, SpaceSpec] = {
            name: self._readers[policy.agents[0]].spec for name, policy in plan.policies.items()
        }
        self._converters = {
            name: action_converter(games[0].spaces(policy.agents[0])[1]) for name, policy in plan.policies.items()
        }
        self._seed: np.random.SeedSequence | None = sequence_of(seed)
        self._acting: dict[str, list[tuple[int, str]]] = {}
        self._decided: list[set[str]] = [set() for _ in games]
        """Agents with a decision that is not answered yet, by copy."""
        self._returns: list[dict[str, float]] = [{} for _ in games]
        self._lengths: list[dict[str, int]] = [{} for _ in games]
        self._metrics = [{agent: InfoMetrics(env_metrics) for agent in plan.agents} for _ in games]
        self._game_steps = [0] * len(games)
        self._game_numbers = [0] * len(games)
        self._episodes: dict[str, list[AgentEpisode]] = {}
        self._num_steps = 0
        self._now: tuple[int, Mapping[str, Any]] = 0, {}
        """The copy that is being stepped, and its actions."""
        self._is_closed = False
        self._copies = copies
        self._watchdog = StepWatchdog(limits, self._place, places_errors=True)

    def empty_obs(self, policy: str, num_rows: int) -> Obs:
        """Zeros [num_rows, ...]; in a mask everything is legal, so that rows that mean nothing do no harm."""
        obs: Obs = self._readers[self._plan.policies[policy].agents[0]].empty(num_rows)
        if isinstance(obs, dict) and MASK in obs:
            obs[MASK][:] = True
        return obs

    def reset(self, seed: np.random.SeedSequence | int | None = None) -> dict[str, Turns]:
        """New games everywhere. Without a seed only the first reset is seeded; copy i gets its i-th child."""
        sequence, self._seed = self._seed if seed is None else sequence_of(seed), None
        self._watchdog.bind_thread()
        notes = {policy: _Notes() for policy in self.columns}
        for copy in range(self.num_copies):
            one = None
            if sequence is not None:
                child = np.random.SeedSequence(sequence.entropy, spawn_key=(*sequence.spawn_key, copy))
                one = int(child.generate_state(1, np.uint32)[0] >> 1)
            self._begin_game(copy, notes, one)
        return self._turns(notes)

    def step(self, actions: Mapping[str, Array]) -> dict[str, Turns]:
        """actions by policy: [N, ...] for the columns in its last `acting`, as `PolicyOutput.actions`."""
        self._num_steps += 1
        by_copy: list[dict[str, Any]] = [{} for _ in range(self.num_copies)]
        for policy, places in self._acting.items():
            if places:
                rows = actions[policy]
                assert len(rows) == len(places), f"{len(rows)} actions of '{policy}' for {len(places)} columns"
                converted = self._converters[policy](rows)
                for i, (copy, agent) in enumerate(places):
                    by_copy[copy][agent] = action_row(converted, i)
        notes = {policy: _Notes() for policy in self.columns}
        for copy, of_copy in enumerate(by_copy):
            self._now = copy, of_copy
            moment = self._watchdog.call(partial(self.games[copy].step, of_copy), "step()")
            self._decided[copy].update(of_copy)
            self._game_steps[copy] += 1
            for agent in of_copy:
                self._lengths[copy][agent] = self._lengths[copy].get(agent, 0) + 1
            self._take(copy, moment, notes)
            if moment.is_over:
                self._end_game(copy)
                self._begin_game(copy, notes)
        return self._turns(notes)

    def pop_episodes(self) -> dict[str, list[AgentEpisode]]:
        """Of the games that are over since the last call, by policy."""
        episodes, self._episodes = self._episodes, {}
        return episodes

    def ask(self, what: Ask, name: str, *arguments: Any, **keywords: Any) -> list[Any]:
        """Of every copy: `GuardedEnv.ask` of its PettingZoo environment."""
        return [ask_env(game.env, self.name, what, name, *arguments, **keywords) for game in self.games]

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._watchdog.close()
            for game in self.games:
                game.close()

    def _begin_game(self, copy: int, notes: dict[str, _Notes], seed: int | None = None) -> None:
        self._now = copy, {}
        self._returns[copy], self._lengths[copy] = {}, {}
        self._decided[copy] = set()
        self._game_steps[copy] = 0
        be(self._copies.first + copy, self._copies.worker)
        if seed is not None:
            for place, agent in enumerate(self._plan.agents):
                for which, space in enumerate(self.games[copy].spaces(agent)):
                    space.seed(int(np.random.SeedSequence([seed, place, which]).generate_state(1)[0] >> 1))
        for metrics in self._metrics[copy].values():
            metrics.reset()
        moment = self._watchdog.call(partial(self.games[copy].reset, seed), "reset()")
        if moment.is_over:
            raise EnvError(f"{self._place()}: after reset() no agent is there to act; see `agents`")
        self._take(copy, moment, notes)

    def _end_game(self, copy: int) -> None:
        game = (*self._game_id, copy, self._game_numbers[copy])
        self._game_numbers[copy] += 1
        for agent, total in self._returns[copy].items():
            policy, _ = self._columns_of[copy, agent]
            episode = AgentEpisode(
                total,
                self._lengths[copy].get(agent, 0),
                agent,
                game,
                self._game_steps[copy],
                self._metrics[copy][agent].pop(),
            )
            self._episodes.setdefault(policy, []).append(episode)

    def _take(self, copy: int, moment: Moment, notes: dict[str, _Notes]) -> None:
        for agent, reward in moment.rewards.items():
            policy, column = self._column(copy, agent)
            if isinstance(reward, np.ndarray) and reward.size == 1:
                reward = reward.item()
            if not isinstance(reward, float | int | np.floating | np.integer) or not math.isfinite(reward):
                raise EnvError(
                    f"{self._place()}: the reward of '{agent}' is {brief(reward)} ({type(reward).__name__}); it must "
                    "be a finite number"
                )
            self._returns[copy][agent] = self._returns[copy].get(agent, 0.0) + float(reward)
            if agent not in self._decided[copy]:
                continue  # it got this before it decided anything: it belongs to no row
            self._decided[copy].discard(agent)
            ending = moment.ended.get(agent)
            terminated, truncated = (ending.terminated, ending.truncated) if ending else (False, False)
            self._add_metrics(copy, agent, ending.info if ending else moment.to_act[agent][1])
            final = self._read(agent, ending.obs, ending.info, must_act=False) if ending and truncated else None
            notes[policy].answered.append((column, float(reward), terminated, truncated, final))
        for agent, (obs, info) in moment.to_act.items():
            policy, column = self._column(copy, agent)
            notes[policy].acting.append((column, (copy, agent), self._read(agent, obs, info)))

    def _add_metrics(self, copy: int, agent: str, info: Any) -> None:
        """Of the info that answers a decision of this agent."""
        metrics = self._metrics[copy][agent]
        if not isinstance(info, Mapping) or not (metrics.is_asked or GROUP in info):
            return
        try:
            metrics.add(info)
        except NotANumber as problem:
            raise EnvError(f"{self._place()}: agent '{agent}': {problem}") from None

    def _column(self, copy: int, agent: str) -> tuple[str, int]:
        try:
            return self._columns_of[copy, agent]
        except KeyError:
            raise EnvError(
                f"{self._place()}: agent '{agent}' is not in possible_agents ({', '.join(self._plan.agents)}); list it"
            ) from None

    def _read(self, agent: str, obs: Any, info: Any, *, must_act: bool = True) -> Any:
        """One agent's observation as its policy sees it; checked."""
        reader = self._readers[agent]
        mask = info.get(MASK) if isinstance(info, dict) else None
        if mask is not None and not (isinstance(reader.spec.obs, dict) and MASK in reader.spec.obs):
            raise EnvError(
                f"{self._place()}: agent '{agent}' has an action mask in its info, but had none after reset(), so its "
                f"policy takes none; set infos['{agent}']['{MASK}'] in reset() as well, also where another agent begins"
            )
        if mask is None and not must_act and agent in self._plan.masked_by_info:
            mask = np.zeros(reader.spec.action.mask_size, np.bool_)  # it decides nothing more
        try:
            row = reader.read(obs, mask)
        except ObsMismatch as error:
            raise EnvError(f"{self._place()}: agent '{agent}': {error}") from None
        found = find_not_finite(map_obs(lambda leaf: np.asarray(leaf)[None], row))
        if found is not None:
            raise EnvError(
                f"{self._place()}: NaN or infinity in the observation{found[1]} of agent '{agent}': {brief(found[2])}; "
                "find where the environment divides by zero or overflows"
            )
        groups = reader.spec.action.mask_groups
        if isinstance(row, dict) and MASK in row and find_no_choice(row[MASK][None], groups, _ONE) is not None:
            if must_act:
                raise EnvError(
                    f"{self._place()}: agent '{agent}' is to act, but its action mask {brief(row[MASK])} leaves a "
                    "choice without a legal action; make one legal, or end the agent"
                )
            row[MASK] = np.ones_like(row[MASK])
        return row

    def _turns(self, notes: dict[str, _Notes]) -> dict[str, Turns]:
        self._acting = {policy: [place for _, place, _ in each.acting] for policy, each in notes.items()}
        return {policy: self._turns_of(policy, each) for policy, each in notes.items()}

    def _turns_of(self, policy: str, notes: _Notes) -> Turns:
        final_obs = self.empty_obs(policy, len(notes.answered))
        obs = self.empty_obs(policy, len(notes.acting))
        for i, (*_, final) in enumerate(notes.answered):
            if final is not None:
                put_row(final_obs, i, final)
        for i, (_, _, row) in enumerate(notes.acting):
            put_row(obs, i, row)
        return Turns(
            answered=np.array([each[0] for each in notes.answered], np.int64),
            rewards=np.array([each[1] for each in notes.answered], np.float32),
            terminated=np.array([each[2] for each in notes.answered], np.bool_),
            truncated=np.array([each[3] for each in notes.answered], np.bool_),
            final_obs=final_obs,
            acting=np.array([each[0] for each in notes.acting], np.int64),
            obs=obs,
        )

    def _place(self) -> str:
        """`tictactoe (copy 3 of 0..7), step 812 (step 4 of its game), actions {'player_1': 4}`."""
        copy, actions = self._now
        which = f"{self.name} (copy {copy} of 0..{self.num_copies - 1})" if self.num_copies > 1 else self.name
        shown = f", actions {brief({agent: _plain(action) for agent, action in actions.items()})}" if actions else ""
        return f"{which}, step {self._num_steps} (step {self._game_steps[copy] + bool(actions)} of its game){shown}"


class _Notes:
    """What a step brings to one policy, before it is put into arrays."""

    def __init__(self) -> None:
        self.answered: list[tuple[int, float, bool, bool, Any]] = []
        self.acting: list[tuple[int, tuple[int, str], Any]] = []


def make_multi_agent_vector_env(
    name: str,
    num_copies: int,
    plan: MultiAgentPlan,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    copies: Copies = Copies(),  # noqa: B008
    **more: Any,
) -> MultiAgentVectorEnv:
    """`num_copies` games side by side; EnvError where their agents are not those of the plan. more: of the class."""
    games = []
    for index in range(num_copies):
        with made_as(copies, index):
            games.append(make_game(name, env_kwargs or {}, bool(plan.state)))
    if games[0].agents != plan.agents:
        raise EnvError(
            f"{name} has the agents {', '.join(games[0].agents)}, but the run was planned for "
            f"{', '.join(plan.agents)}; possible_agents must be the same every time"
        )
    return MultiAgentVectorEnv(games, plan, name, copies=copies, **more)


def games_of(
    config: Mapping[str, Any], plan: MultiAgentPlan, num_copies: int, copies: Copies, **more: Any
) -> MultiAgentVectorEnv:
    """As a run's config (as a dict) says."""
    return make_multi_agent_vector_env(
        config["env"],
        num_copies,
        plan,
        env_kwargs=config["env_kwargs"],
        copies=copies,
        limits=Limits.of(config),
        env_metrics=config.get("env_metrics", ()),
        **more,
    )


def _plain(action: Any) -> Any:
    return action.tolist() if isinstance(action, np.ndarray | np.generic) else action
