"""Evaluation: whole episodes on raw rewards with frozen weights and statistics, in environments of its own.

    driver ──start(ref of (version, weights), episodes)──▶ evaluation actor ──Evaluated──▶ driver

The driver takes the ref when the evaluation starts, so that the weights are pinned while training continues.
Evaluations of one purpose (`Purpose`) play from the same seeds of the run: they differ by the weights alone.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import rlplat
from rlplat.errors import ActorDied, WorkerCrashed
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.guard import Ask
from rlplat.rl.envs.make import VectorEnv, make_vector_env
from rlplat.rl.envs.names import atari_rom
from rlplat.rl.envs.statistics import of_weights
from rlplat.rl.envs.watchdog import Limits
from rlplat.rl.info_metrics import episode_means
from rlplat.rl.interfaces import TELL_PERIOD_S, Closing, CutEpisode, Episode, MakePolicy, Obs, Policy, Weights
from rlplat.rl.policies.exploration import use_greedy_epsilon
from rlplat.rl.run.video import Film, VideoWriter, open_filmed_env
from rlplat.rl.sampling.worker_group import CLOSE_S
from rlplat.rl.seeding import PURPOSE_INDICES, Purpose, process_seeded, seed_sequences
from rlplat.rl.spread import spread

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef

MAX_FILM_STEPS = 5_000
"""Steps after which the film of an evaluation ends: games that go on for half an hour are not filmed to their end."""


class Evaluated(NamedTuple):
    """What comes home from an evaluation."""

    weights_version: int
    episodes: list[Episode]
    no_video: str = ""
    """Why there is no video although there should be one."""
    video: bytes = b""
    """An mp4 file: the caller has the run's directory, the evaluation's machine may not."""


def play_episodes(
    policy: Policy,
    env: VectorEnv,
    episodes: int,
    *,
    seed: int | np.random.SeedSequence,
    deterministic: bool = True,
    max_steps: int | None = None,
    max_episode_steps: int | None = None,
    forgets_lives: bool = False,
    on_episode: Callable[[Episode], None] | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> list[Episode]:
    """Exactly `episodes` episodes, each environment playing a share fixed beforehand.

    Taking the first ones to finish would favour short episodes: good ones where the aim is speed, bad ones where it is
    survival. Episodes come back in order of environment, then time. After `max_steps` steps of every environment (None:
    no limit) those that have not ended are left out. An episode of `max_episode_steps` steps that has not ended comes
    back as a `CutEpisode`, and its environment plays no more: the rest of its share is left out.
    forgets_lives: a core begins anew after the FIRE that follows a lost life, as in training with `episodic_life`.
    on_episode is told of each as it ends; tell, every ten seconds, how many have ended and how long the longest is.
    """
    num_envs = env.num_envs
    quotas = [episodes // num_envs + (b < episodes % num_envs) for b in range(num_envs)]
    finished: list[list[Episode]] = [[] for _ in range(num_envs)]
    returns, lengths = np.zeros(num_envs, np.float64), np.zeros(num_envs, np.int64)
    limit = max_episode_steps or math.inf
    obs: Obs = env.reset(seed)
    num_steps = 0
    tell_at = monotonic() + TELL_PERIOD_S
    while any(len(done) < quota for done, quota in zip(finished, quotas, strict=True)):
        if num_steps == max_steps:
            break
        if tell is not None and monotonic() >= tell_at:
            tell_at = monotonic() + TELL_PERIOD_S
            tell(sum(map(len, finished)), int(lengths.max()))
        num_steps += 1
        step = env.step(policy.act(obs, deterministic=deterministic).actions)
        obs = step.obs
        ended = step.terminated | step.truncated
        policy.reset_core(ended | ~step.valid if forgets_lives else step.forgets)
        returns += step.rewards
        lengths += step.valid
        for b in np.flatnonzero(ended):
            if len(finished[b]) < quotas[b]:
                finished[b].append(Episode(float(returns[b]), int(lengths[b]), env.ended_metrics[b]))
                if on_episode is not None:
                    on_episode(finished[b][-1])
            returns[b], lengths[b] = 0.0, 0
        if lengths.max() >= limit:
            for b in np.flatnonzero(lengths >= limit):
                if len(finished[b]) < quotas[b]:
                    finished[b].append(CutEpisode(float(returns[b]), int(lengths[b])))
                    quotas[b] = len(finished[b])
    env.pop_episodes()
    return [episode for done in finished for episode in done]


class Evaluator(Closing):
    """Plays episodes with weights that it is given: an actor during training, a plain object in `rlplat evaluate`.

    with Evaluator(config.model_dump(), PPO.make_policy) as evaluator:
        episodes = evaluator.run((0, weights), 20).episodes
    """

    def __init__(self, settings: dict[str, Any], make_policy: MakePolicy) -> None:
        self._settings = settings
        self._make_policy = make_policy
        self._envs: dict[int, VectorEnv] = {}
        self._told: list[tuple[Any, ...]] = []
        if _is_worker():
            # Before a framework is loaded or used: the CPUs belong to the training.
            for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
                os.environ[name] = "1"

    def run(
        self,
        pinned: tuple[int, Weights],
        episodes: int,
        with_video: bool = False,
        *,
        purpose: Purpose = "choice",
        tells: bool = False,
    ) -> Evaluated:
        """pinned: (version, weights); with_video: record one episode more; tells: say on stderr
        how far it is, for who waits."""
        with process_seeded(self._settings["seed"], "evaluation", PURPOSE_INDICES[purpose]):
            return self._run(pinned, episodes, with_video, purpose, tells)

    def _run(
        self, pinned: tuple[int, Weights], episodes: int, with_video: bool, purpose: Purpose, tells: bool
    ) -> Evaluated:
        from rlplat.rl.multi_agent.policy_map import plan_multi_agent
        from rlplat.rl.multi_agent.rollout_worker import GamePlayer

        version, weights = pinned
        tell = partial(_tell, episodes) if tells else None
        plan = plan_multi_agent(self._settings)
        if plan is not None:
            with GamePlayer(self._settings, plan, self._make_policy) as player:
                no_video = "games of several agents are not recorded as video" if with_video else ""
                return Evaluated(version, player.play(weights, episodes, purpose, tell), no_video)
        num_envs = min(episodes, self._settings["evaluation"]["num_envs"])
        if num_envs not in self._envs:
            way = self._settings["vectorization"]
            env = make_vector_env(
                self._settings["env"],
                num_envs,
                env_kwargs=raw_env_kwargs(self._settings),
                # EnvPool's environments are for training only, and native is what auto takes.
                vectorization=way if way in ("sync", "async") else "auto",
                copies=Copies.of(self._settings, "evaluation"),
                any_number=True,
                env_metrics=self._settings.get("env_metrics", ()),
                **Limits.of(self._settings).arguments(),
            )
            self._envs[num_envs] = self._made(env)
        played = self._play(self._envs[num_envs], weights, episodes, purpose, tell=tell)
        if not with_video:
            return Evaluated(version, played)
        video = BytesIO()
        try:
            with VideoWriter(video) as film:
                self.film(pinned, 1, film, purpose=purpose, max_steps=MAX_FILM_STEPS)
        except Exception as error:  # rendering may fail in any way; what was evaluated is not lost for it
            return Evaluated(version, played, no_video=str(error) or type(error).__name__)
        return Evaluated(version, played, video=video.getvalue())

    def film(
        self,
        pinned: tuple[int, Weights],
        episodes: int,
        film: Film,
        *,
        purpose: Purpose = "choice",
        max_steps: int | None = None,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> list[Episode]:
        """Episodes in front of the camera: those that environment 0 of an evaluation begins with."""
        with process_seeded(self._settings["seed"], "evaluation", PURPOSE_INDICES[purpose]):
            env = open_filmed_env(
                self._settings["env"],
                raw_env_kwargs(self._settings),
                film,
                Copies.of(self._settings, "video"),
                Limits.of(self._settings),
            )
            if self._told:
                self._made(env)
            try:
                return self._play(env, pinned[1], episodes, purpose, max_steps=max_steps, on_episode=on_episode)
            finally:
                env.close()

    def ask_envs(self, what: Ask, name: str, *arguments: Any, **keywords: Any) -> None:
        """In the environments that there are, and in those to come: `VectorEnv.ask`."""
        self._told.append((what, name, arguments, keywords))
        for env in self._envs.values():
            env.ask(what, name, *arguments, **keywords)

    def _made(self, env: VectorEnv) -> VectorEnv:
        """A new one, told what the others were."""
        for what, name, arguments, keywords in self._told:
            env.ask(what, name, *arguments, **keywords)
        return env

    def _play(self, env: VectorEnv, weights: Weights, episodes: int, purpose: Purpose, **options: Any) -> list[Episode]:
        policy_seed, env_seed = seed_sequences(self._settings["seed"], "evaluation", PURPOSE_INDICES[purpose])
        policy = self._make_policy(self._settings, env.spec, policy_seed)
        torch = sys.modules.get("torch")
        if torch is not None and _is_worker() and torch.get_num_threads() > 1:
            torch.set_num_threads(1)  # it was loaded before this process became an evaluator
        policy.set_weights(weights)
        if statistics := of_weights(weights):
            env.take_statistics(statistics, is_frozen=True)
        use_greedy_epsilon(policy, self._settings)
        section = self._settings["evaluation"]
        return play_episodes(
            policy,
            env,
            episodes,
            seed=env_seed,
            deterministic=section["deterministic"],
            max_episode_steps=section["max_episode_steps"],
            forgets_lives=bool(self._settings["env_kwargs"].get("episodic_life")),
            **options,
        )

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
        self._envs.clear()


class Evaluation:
    """The driver's end of an evaluation actor, which starts when it is first needed.

    evaluation = Evaluation(config.model_dump(), PPO.make_policy)
    episodes = evaluation.run(algorithm.weights(), 20)              # waits
    ref = evaluation.start(algorithm.weights(), 20)                 # does not; get(ref) is an `Evaluated`
    """

    def __init__(self, settings: dict[str, Any], make_policy: MakePolicy) -> None:
        self._settings = settings
        self._make_policy = make_policy
        self._actor: ActorHandle | None = None
        self._told: dict[tuple[Ask, str], tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def ask_envs(self, what: Ask, name: str, *arguments: Any, **keywords: Any) -> None:
        """From the next evaluation on, in an actor that begins later too (there the last of each name)."""
        self._told[what, name] = arguments, keywords
        if self._actor is not None:
            rlplat.get(self._actor.ask_envs.remote(what, name, *arguments, **keywords))

    def start(
        self,
        weights: ObjectRef,
        episodes: int,
        with_video: bool = False,
        *,
        purpose: Purpose = "choice",
        tells: bool = False,
    ) -> ObjectRef:
        """weights: the ref of a (version, weights), which are pinned by it. Several starts play one after another.
        tells: for who waits, see `Evaluator.run`."""
        if self._actor is None:
            self._actor = spread(Evaluator, self._settings).remote(self._settings, self._make_policy)
            for (what, name), (arguments, keywords) in self._told.items():
                self._actor.ask_envs.remote(what, name, *arguments, **keywords)
        return self._actor.run.remote(weights, episodes, with_video, purpose=purpose, tells=tells)

    def run(self, weights: ObjectRef, episodes: int) -> list[Episode]:
        """Starts anew, once, where the actor dies."""
        try:
            evaluated: Evaluated = rlplat.get(self.start(weights, episodes))
        except (ActorDied, WorkerCrashed):
            self.close()
            evaluated = rlplat.get(self.start(weights, episodes))
        return evaluated.episodes

    def close(self) -> None:
        """End the actor, whatever it is doing; the next start makes another one."""
        if self._actor is not None and rlplat.is_initialized():
            rlplat.wait([self._actor.close.remote()], timeout=CLOSE_S)
            rlplat.kill(self._actor)
        self._actor = None


def evaluation_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Raw, undiscounted returns of evaluation episodes. Those that were cut off are counted, and in nothing else."""
    ended = [episode for episode in episodes if not isinstance(episode, CutEpisode)]
    num_cut = len(episodes) - len(ended)
    counts: dict[str, float] = {"eval/episodes": len(ended)} if episodes else {}
    if num_cut:
        counts["eval/cut_episodes"] = num_cut
    if not ended:
        return counts
    returns = np.array([episode.episode_return for episode in ended])
    return {
        "eval/return_mean": float(returns.mean()),
        "eval/return_std": float(returns.std()),
        "eval/return_min": float(returns.min()),
        "eval/return_max": float(returns.max()),
        "eval/length_mean": float(np.mean([episode.length for episode in ended])),
        **episode_means((episode.metrics for episode in ended), "eval/env/"),
        **counts,
    }


def what_was_cut(episodes: Sequence[Episode], asked: int, max_episode_steps: int) -> str:
    """`8 of 20 episodes had not ended after 30,000 steps and were cut off ...`, or the empty string."""
    num_cut = sum(isinstance(episode, CutEpisode) for episode in episodes)
    if not num_cut:
        return ""
    rest = asked - len(episodes)
    unplayed = f"; {rest} more, which their environments had still to play, were left out" if rest else ""
    return (
        f"{num_cut} of {asked} episodes had not ended after {max_episode_steps:,} steps and were cut off "
        f"(evaluation.max_episode_steps){unplayed}: they are not in the mean"
    )


def _tell(asked: int, num_ended: int, longest: int) -> None:
    running = f", the longest one running has {longest:,} steps" if longest else ""
    print(f"evaluating: {num_ended} of {asked} episodes{running}", file=sys.stderr, flush=True)


def raw_env_kwargs(settings: dict[str, Any]) -> dict[str, Any]:
    """The environment's arguments without those that are for learning only: whole games, rewards as they are."""
    kwargs: dict[str, Any] = settings["env_kwargs"]
    if atari_rom(settings["env"]) is None:
        return kwargs
    return {key: value for key, value in kwargs.items() if key not in ("episodic_life", "reward_clipping")}


def _is_worker() -> bool:
    """Whether this process is an actor's own one."""
    return rlplat.is_initialized() and rlplat.get_runtime_context().is_worker
