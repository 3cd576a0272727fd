"""`load`: a run's trained agent, to act with in this process: no actors, nothing that training needs.

agent = load("runs/demo", "best")
action = agent.act(obs)                                 # or many at once, sampled, masked (docs/load-and-act.md)
episodes = agent.evaluate(20)
with VideoWriter(Path("play.mp4")) as film:
    episodes = agent.film(1, film)
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from rlplat.checkpoints import BEST, WEIGHTS, Checkpoint, latest_valid, load_best
from rlplat.checkpoints import load as load_checkpoint
from rlplat.config import closest, layer_from_arguments
from rlplat.errors import CheckpointError, ConfigError, UsageError
from rlplat.paths import run_path, user_path
from rlplat.rl.class_path import forget_changed
from rlplat.rl.envs.statistics import Frozen, beside_weights, of_weights, put_statistics
from rlplat.rl.interfaces import Array, Episode, Obs, Policy, PolicyOutput, Weights
from rlplat.rl.learning.weights import split_weights
from rlplat.rl.multi_agent.games import make_game
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan, plan_multi_agent
from rlplat.rl.obs_tree import obs_rows
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.run.agent_spaces import AgentSpaces, agent_spaces
from rlplat.rl.run.evaluation import Evaluator, raw_env_kwargs
from rlplat.rl.run.run_directory import not_a_run, restore
from rlplat.rl.run.training_plan import TrainingPlan, plan_from_file
from rlplat.rl.run.video import Film
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.spaces import SpaceSpec


class Agent:
    """Acts with the weights of one checkpoint, normaliser included; `load` makes it.

    obs, info = env.reset()
    agent.reset()
    while not done:
        obs, reward, terminated, truncated, info = env.step(agent.act(obs))
    """

    def __init__(
        self,
        directory: Path,
        plan: TrainingPlan,
        checkpoint: Checkpoint,
        warnings: list[str],
        policy: str = "",
    ) -> None:
        self.directory = directory
        """The run's."""
        self.plan = plan
        self.checkpoint = checkpoint
        self.warnings = warnings
        """About checkpoints that were passed over."""
        self._name = policy
        self._num_rows = 0  # of the calls since `reset`, where there is a core

    @overload
    def act(self, obs: Any, *, greedy: bool = True, mask: Any = None, rng: Any = None) -> Array: ...

    @overload
    def act(
        self, obs: Any, *, state: Array, greedy: bool = True, mask: Any = None, rng: Any = None
    ) -> tuple[Array, Array]: ...

    def act(
        self,
        obs: Any,
        *,
        greedy: bool = True,
        mask: Any = None,
        state: Array | None = None,
        rng: int | np.random.Generator | np.random.SeedSequence | None = None,
    ) -> Any:
        """The action for one observation, or those for many; as the environment takes them.

        obs: as the environment gives it, or every array in it with a leading axis [N, ...]; greedy: the most likely
        action (largest Q), False: drawn as in training, from the agent's own generator or from `rng` (a seed or a
        generator); mask: bool[L] or bool[N, L], True where an action is legal, for environments that give one beside
        the observation.

        state: for a recurrent agent, float32[S] or float32[N, S] with which to act (`initial_state`); then the result
        is (actions, the next state), and the agent keeps nothing. Without it the agent keeps the state from call to
        call: `reset` where episodes begin.

        BadObservation (also a ValueError) for what does not fit; NonFiniteError where the weights have diverged.
        """
        policy = self.policy
        rows, is_batch = self.spaces.read(obs, mask)
        num_rows = obs_rows(rows)
        if rng is not None:
            policy.seed(_sequence(rng))
        if state is not None:
            kept = policy.core_state
            policy.core_state = self.spaces.inputs.state(state, self.state_size, num_rows, is_batch)
            actions = policy.act(rows, deterministic=greedy).actions
            following, policy.core_state = policy.core_state, kept
            return self.spaces.actions(actions, is_batch), following if is_batch else following[0]
        if self.state_size:
            self.spaces.inputs.require_remembered(num_rows, self._num_rows)
        self._num_rows = num_rows
        return self.spaces.actions(policy.act(rows, deterministic=greedy).actions, is_batch)

    def act_on_rows(self, rows: Obs, *, greedy: bool = True, state: Array | None = None) -> tuple[PolicyOutput, Array]:
        """For servers: actions with log probabilities and values, of rows as `spaces.read` gives them.

        state: float32[N, S] with which to act (None: episodes begin); returned is that of the next step. The agent
        keeps nothing. The actions are the policy's: `spaces.actions` makes the environment's of them.
        """
        policy = self.policy
        kept = policy.core_state
        policy.core_state = self.initial_state(obs_rows(rows)) if state is None else state
        try:
            output = policy.act(rows, deterministic=greedy)
            return output, policy.core_state
        finally:
            policy.core_state = kept

    def reset(self, ended: Any = None) -> None:
        """New episodes begin: everywhere, or where `ended` (bool[N]) is True; only recurrent agents remember any."""
        if ended is None:
            self.policy.core_state = np.zeros((0, self.state_size), np.float32)
            self._num_rows = 0
            return
        ended = self.spaces.inputs.ended(ended, self._num_rows)
        if self._num_rows:
            self.policy.reset_core(ended)

    @property
    def state_size(self) -> int:
        """S: numbers that a recurrent agent remembers of an episode; 0 without a core."""
        return int(self.policy.core_state.shape[1])

    def initial_state(self, num: int | None = None) -> Array:
        """float32[S], or float32[num, S]: with which episodes begin, for `act(state=)`."""
        return np.zeros((self.state_size,) if num is None else (num, self.state_size), np.float32)

    @cached_property
    def spaces(self) -> AgentSpaces:
        """Of the environment: `spaces.observation_space` and `spaces.action_space` are gymnasium's, `spaces.spec` the
        policy's. The environment is made once for it."""
        settings = self._settings
        if self._multi_agent is None:
            spaces = agent_spaces(settings["env"], raw_env_kwargs(settings))
            self._require_spaces(spaces.spec)
            return _as_its_actor_sees(spaces, settings)
        policy = self._multi_agent.policies[self._policy_name]
        agent = policy.agents[0]
        game = make_game(settings["env"], settings["env_kwargs"])
        try:
            spaces = AgentSpaces(*game.spaces(agent), adds_mask=agent in self._multi_agent.masked_by_info)
        finally:
            game.close()
        if self._multi_agent.state:
            spaces.without_state(policy.spaces)
        self._require_spaces(spaces.spec)
        return _as_its_actor_sees(spaces, self._multi_agent.settings(settings, self._policy_name))

    @property
    def policies(self) -> list[str]:
        """Names of the policies, as `load` takes them; [""] where there is one agent."""
        return list(self._multi_agent.policies) if self._multi_agent else [""]

    def weights(self) -> Weights:
        """What acting needs, normaliser statistics included; of several policies `<policy>/<name>`, unless `load` was
        told which one."""
        weights = self._weights
        return split_weights(weights)[self._policy_name] if self._name else weights

    def prepare_env(self, env: Any) -> Any:
        """The environment, with the running statistics of the training in the place of its own, for a loop of your own:
        those of a wrapper like gymnasium's NormalizeObservation, which does not change them any more."""
        if statistics := of_weights(self._weights):
            put_statistics(env, statistics)
            Frozen(env, statistics)
        return env

    def torch_module(self) -> Any:
        """A `torch.nn.Module` from raw observations to what actions are chosen by (torch/agent_module.py).

        UsageError where the network has no torch form; MissingExtra without torch.
        """
        from rlplat.rl.policies.framework_check import require_framework

        require_framework("torch")
        from rlplat.rl.torch.agent_module import agent_module

        name = self._policy_name
        weights = split_weights(self._weights)[name] if self._multi_agent else self._weights
        return agent_module(self.policy, weights, self._settings.get("framework", "torch"))

    def evaluate(self, episodes: int) -> list[Episode]:
        """Whole episodes on raw rewards, in environments of their own, many side by side; others than those by which
        the best weights were chosen, and than the evaluation at the end of the run."""
        if not self._acts_alone():
            with self.plan.algorithm_class(self.plan.config) as algorithm:
                restore(algorithm, self.checkpoint)
                played: list[Episode] = algorithm.evaluate(episodes)
                return played
        with self._evaluator() as evaluator:
            return evaluator.run((0, self._weights), episodes, purpose="report").episodes

    def film(self, episodes: int, film: Film, *, on_episode: Callable[[Episode], None] | None = None) -> list[Episode]:
        """One episode after another in front of the camera."""
        self._require_acting("be recorded")
        with self._evaluator() as evaluator:
            return evaluator.film((0, self._weights), episodes, film, purpose="report", on_episode=on_episode)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.plan.config.model_dump()
        return settings

    @cached_property
    def _weights(self) -> Weights:
        """Of all policies."""
        if self.checkpoint.has_weights_only:
            weights: Weights = self.checkpoint.state[WEIGHTS]
        else:
            self._require_acting("be loaded")
            state = self.checkpoint.state["algorithm"]
            weights = self.plan.algorithm_class.policy_weights(state)
            for part in state.values():
                if isinstance(part, dict) and "env_statistics" in part:
                    weights = weights | beside_weights(part["env_statistics"])
        return weights

    @cached_property
    def _multi_agent(self) -> MultiAgentPlan | None:
        plan = plan_multi_agent(self._settings)
        if self._name and (plan is None or self._name not in plan.policies):
            there = f"its policies are {', '.join(plan.policies)}" if plan else "it has one agent and one policy"
            near = closest(self._name, plan.policies) if plan else ""
            raise ConfigError(f"{self.directory} has no policy '{self._name}'{near}; {there}")
        return plan

    @cached_property
    def _policy_name(self) -> str:
        plan = self._multi_agent
        if plan is None or self._name:
            return self._name
        if len(plan.policies) > 1:
            raise UsageError(
                f"{self.directory} has several policies ({', '.join(plan.policies)}): say which one is to act, "
                f"rlplat.load(RUN, policy='{plan.trained[0]}')"
            )
        return next(iter(plan.policies))

    @cached_property
    def policy(self) -> Policy:
        """What acts, on rows as `spaces.read` makes them and without the checks of `act`."""
        self._require_acting("act")
        settings, weights = self._settings, self._weights
        seed, _ = seed_sequences(settings["seed"], "evaluation")
        if self._multi_agent is not None:
            settings = self._multi_agent.settings(settings, self._policy_name)
            weights = split_weights(weights)[self._policy_name]
        policy: Policy = self.plan.algorithm_class.make_policy(settings, self.spaces.spec, seed)
        policy.set_weights(weights)
        if places := of_weights(weights):
            logging.getLogger("rlplat.start").warning(
                "warning: this agent acts on what its environment made of observations with running statistics (%s), "
                "which are not in the policy: give your environment those of the training, agent.prepare_env(env)",
                ", ".join(places),
            )
        return policy

    def _acts_alone(self) -> bool:
        return bool(self.plan.algorithm_class.acts_alone())

    def _require_acting(self, what: str) -> None:
        if not self._acts_alone():
            raise ConfigError(
                f"'{self.plan.algo}' cannot {what}: {self.plan.algorithm_class.__name__} has no make_policy() and "
                "policy_weights(), by which it would act without its actors (see rlplat.rl.run.algorithm)"
            )

    def _require_spaces(self, spaces: SpaceSpec) -> None:
        saved = self.checkpoint.info
        # Of several policies, `MultiAgentPlan` lists the spaces one after another.
        if not any(each == str(spaces) or each.endswith(f": {spaces}") for each in saved.spaces.split("; ")):
            raise CheckpointError(
                f"{self.checkpoint.path} cannot be loaded: its spaces are {saved.spaces}, those of "
                f"{self._settings['env']} are now {spaces}"
            )

    def _evaluator(self) -> Evaluator:
        def make_policy(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Policy:
            self._require_spaces(spaces)
            policy: Policy = self.plan.algorithm_class.make_policy(settings, spaces, seed)
            return policy

        return Evaluator(self._settings, make_policy)


def _as_its_actor_sees(spaces: AgentSpaces, settings: dict[str, Any]) -> AgentSpaces:
    if not settings["policy"].get("obs_groups"):
        return spaces
    return spaces.read_only(policy_spec(settings["policy"], spaces.spec).actor_obs)


def load(
    run: str | os.PathLike[str],
    checkpoint: str | None = None,
    *,
    env: Any = None,
    policy: str = "",
    seed: int | None = None,
    precision: str | None = None,
) -> Agent:
    """The agent of a run, to act with.

    run: a run directory, one of its checkpoints, or gallery/NAME, an agent that comes with rlplat (docs/gallery.md);
    checkpoint: of a run: latest (the newest valid one, or the best where only that was kept; default), best, or step_N;
    env: the environment, where the run's was a Python object without a name (or to act in another one of equal spaces);
    policy: which one, where the run has several; seed: another one than the run's, for other episodes and other draws;
    precision: of the network, float32 or bfloat16, for another one than the run's.

    ConfigError where there is no run, CheckpointError where there is no such checkpoint or it is damaged.
    """
    run = run_path(run)
    warnings: list[str] = []
    if run.parent.name == "checkpoints" and not (run / "config.yaml").exists():
        if checkpoint is not None:
            raise ConfigError(f"{run} is a checkpoint already; omit --checkpoint {checkpoint}")
        directory = run.parent.parent  # `latest` is a file with the newest one's name
        found = _find(directory, "latest", warnings) if run.name == "latest" else load_checkpoint(run)
    else:
        directory, found = run, _find(run, checkpoint or "latest", warnings)
    # One process is enough for algorithms that act with their actors: nothing is trained.
    changes: dict[str, Any] = {"num_rollout_workers": 0}
    if seed is not None:
        changes["seed"] = seed
    if env is not None:
        changes["env"] = env
    if precision is not None:
        changes["learner"] = {"precision": precision}
    forget_changed()
    plan = plan_from_file(directory / "config.yaml", [layer_from_arguments(changes)])
    for note in plan.notes:
        logging.getLogger("rlplat.code").warning(note)
    if found.info.algorithm != plan.algorithm_class.name:
        raise CheckpointError(
            f"{found.path} cannot be loaded: its algorithm is {found.info.algorithm!r}, that of the run "
            f"{plan.algorithm_class.name!r}"
        )
    return Agent(directory, plan, found, warnings, policy)


def _find(directory: Path, which: str, warnings: list[str]) -> Checkpoint:
    if not (directory / "config.yaml").exists():
        raise ConfigError(not_a_run(directory))
    if which == "latest":
        found, refused = latest_valid(directory)
        if found is None and not refused:
            found = load_best(directory)  # the run was copied without the rest
        if found is None:
            raise CheckpointError("\n".join([*refused, f"no valid checkpoint in {directory}"]))
        warnings += refused
        return found
    if which == BEST:
        best = load_best(directory)
        if best is None:
            raise CheckpointError(
                f"{directory} has no best checkpoint yet: it comes with the first evaluation (evaluation.period); "
                "--checkpoint latest is the newest one"
            )
        return best
    there = sorted((path.name for path in (directory / "checkpoints").glob("step_*")), key=_env_steps)
    if which not in there:
        raise CheckpointError(
            f"{directory} has no checkpoint '{which}'; there are: {', '.join(['latest', BEST, *there])}"
        )
    return load_checkpoint(directory / "checkpoints" / which)


def _env_steps(name: str) -> int:
    number = name.removeprefix("step_")
    return int(number) if number.isdecimal() else -1


def _sequence(rng: int | np.random.Generator | np.random.SeedSequence) -> np.random.SeedSequence:
    if isinstance(rng, np.random.SeedSequence):
        return rng
    if isinstance(rng, np.random.Generator):
        return np.random.SeedSequence(rng.integers(2**32, size=4).tolist())
    return np.random.SeedSequence(rng)


_CHECKPOINT = re.compile(r"(.+):([^:/]+)")


@dataclass(frozen=True)
class InitialWeights:
    """Of one run as the beginning of another (`--init-from RUN`).

    initial = find_initial("runs/demo:best")            # before anything starts
    line = initial.give_to(algorithm)                   # its optimizer, counters and environments stay new
    """

    path: str
    """Of the checkpoint."""
    algorithm: str
    env_steps: int
    spaces: str
    weights: Weights

    def give_to(self, algorithm: Any) -> str:
        """What to tell about it; CheckpointError names every leaf that does not fit."""
        spaces = str(algorithm.spaces)
        differ = f"its spaces are {self.spaces}, and here {spaces}" if self.spaces != spaces else ""
        try:
            algorithm.set_weights(self.weights)
        except CheckpointError as error:
            other = f"it is a run of {self.algorithm}" if self.algorithm != algorithm.name else ""
            hint = "; ".join(filter(None, [other, differ]))
            raise CheckpointError(
                f"cannot start from {self.path}: {error}" + (f"\n  ({hint})" if hint else "")
            ) from None
        told = f"starting from the weights of {self.path} ({self.env_steps:,} env steps)"
        return f"{told}; note: {differ}" if differ else told


def find_initial(source: str | os.PathLike[str]) -> InitialWeights:
    """source: RUN (its newest checkpoint), RUN:best, RUN:step_4096, or a checkpoint's directory."""
    match = None if os.path.exists(user_path(source)) else _CHECKPOINT.fullmatch(os.fspath(source))
    agent = load(match[1], match[2]) if match else load(source)
    saved = agent.checkpoint
    info = saved.info
    return InitialWeights(str(saved.path), info.algorithm, info.env_steps, info.spaces, agent.weights())
