"""`Algorithm`: what all algorithms do alike, and every member that the platform reads of one.

    class PPO(Algorithm[PPOConfig]):
        name, config_class = "ppo", PPOConfig

        def setup(self) -> None:                        # the ring: which actors there are, and who knows whom
            server = self.start(ParameterServer)
            self.learners = self.add(LearnerGroup(...), saved_as="learner")
            self.workers = self.start_workers(lambda index, incarnation: worker.remote(...))

        def step(self) -> Result:                       # turns it once; only refs pass through the driver
            ...
            return self.result(report)

    with PPO(PPOConfig(env="CartPole-v1", seed=1)) as algorithm:
        for result in rlplat.training_loop(algorithm, stop={"episode_return_mean": 475}):
            print(result.env_steps, result.episode_return_mean)

It has no order of its own: what happens when is written in the `step` of each algorithm (docs/custom-algorithm.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, reduce
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np

import rlplat
from rlplat.errors import ConfigError, NotInitialized, UsageError
from rlplat.rl.algorithm_config import Config, Rolling, settings_of
from rlplat.rl.envs.guard import Ask
from rlplat.rl.envs.names import has_time_limit
from rlplat.rl.envs.statistics import Statistics, beside_weights
from rlplat.rl.interfaces import Closing, Episode, Policy, Result, UpdateReport, Weights
from rlplat.rl.learning.backend import Computation, computation_of, require_as_written
from rlplat.rl.learning.learner_group import LearnerGroup, learner_actor, learner_gpus
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.learning.weights import given_to, put_weights_in_state, require_fitting, weights_in_state
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan, look_at_env, policy_specs
from rlplat.rl.multi_agent.policy_rings import PolicyRings
from rlplat.rl.normalization import require_normalizable
from rlplat.rl.policies.make import policy_for
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.run.evaluation import Evaluation
from rlplat.rl.sampling.returns import LearningRewards
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.sampling.tally import RunTally
from rlplat.rl.sampling.worker_group import CLOSE_S, RolloutWorkers
from rlplat.rl.saved import HasState
from rlplat.rl.seeding import ProcessSeeds
from rlplat.rl.spaces import SpaceSpec, obs_leaves
from rlplat.rl.spread import spread
from rlplat.rl.user_code import folder_of, names_in

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef

log = logging.getLogger("rlplat.start")


class Part(Protocol):
    """Something of the ring that is ended with it."""

    def close(self) -> None: ...


AnyPart = TypeVar("AnyPart", bound=Part)


class Algorithm(Closing, Generic[Config]):
    """A ring of actors and the one method that turns it. A subclass writes `name`, `config_class`, `setup`, `step`, and
    `weights` where no `learners` publish them; to be evaluated during the training, played and loaded also
    `make_policy`, and `policy_weights` where these are not in the state of a `Learner`."""

    name: str
    """By which checkpoints know it; as it is announced (pyproject.toml), it is found by `--algo`."""
    config_class: type[Config]
    nets: ClassVar[Mapping[str, Any]] = {}
    """By framework ("torch", "tf", "numpy"): the class with its networks, optimizers and losses, or "pkg.mod:Class". A
    subclass may name others; those for tf and numpy stand for the class and the losses that they were written for."""
    losses: ClassVar[tuple[str, ...]] = ()
    """Names of the losses: methods of `nets["torch"]` (of `learner_class`, where there are no nets). A subclass that
    has a static method of such a name trains with it."""
    learner_class: type[Any]
    """What makes the updates, an actor."""
    weights_keys: ClassVar[tuple[str, ...]] = ("weights",)
    """In the state of a learner: the weights that act, and copies of them that learn behind (a target network's)."""
    config: Config
    spaces: object
    """Of the environment, set by `setup`: a `SpaceSpec` where there is one agent. A checkpoint is for the spaces that
    have the same `str`."""
    workers: RolloutWorkers
    """Set by `setup`, where there are some."""
    learners: Any
    """Who publishes the weights, where `setup` has set it: a `LearnerGroup`, or one for every policy."""
    notes: tuple[str, ...] = ()
    """What the log of a run is to say about how it was set up."""
    _worker_groups: Sequence[RolloutWorkers] = ()
    _evaluations: Sequence[Evaluation] = ()

    def __init__(self, config: Config) -> None:
        """Starts the runtime, where there is none, and the actors: ConfigError and others where that cannot be."""
        seeds = ProcessSeeds()  # ahead of the pre-flight, which may make an environment in this process
        self.config = settings_of(config, self.config_class, type(self).__name__)
        self.tally = RunTally()
        self.saved: dict[str, HasState] = {}
        """By name: what a checkpoint holds, beside the tally."""
        self._evaluation = self.new_evaluation()
        self.ends = ExitStack()
        """What `close` ends: the last one started first."""
        self._is_open = True
        require_as_written(type(self), config.num_rollout_workers)
        if not rlplat.is_initialized():
            # Before the pre-flight: the first processes start while it looks at the environment.
            backend = None if config.num_rollout_workers else "inproc"
            user_code = folder_of(names_in(config.model_dump()))
            # Every actor of the ring needs what the algorithm's module imports: once, ahead of the fork.
            ring = next(base.__module__ for base in type(self).__mro__ if base.__module__.startswith("rlplat."))
            rlplat.init(backend=backend, preload=(*self.preload(), ring), user_code=user_code)
            self.ends.callback(rlplat.shutdown)
        self.ends.callback(seeds.give_back)
        self.ends.callback(self._evaluation.close)
        try:
            self.setup()
        except BaseException:
            self.close()
            raise

    # -- what a subclass writes

    def setup(self) -> None:
        """Pre-flight in the driver (environment, spaces, resources), then start the actors; returns when the first
        weights are published."""
        raise NotImplementedError

    def preload(self) -> tuple[str, ...]:
        """Modules that processes have from their start; asked before the runtime starts, if this object starts it."""
        uses_torch = self.config.framework == "torch" and "framework" not in self.config.unused
        return ("torch",) if uses_torch else ()

    def step(self) -> Result:
        """One turn of the ring, e.g. sample, update, publish."""
        raise NotImplementedError

    def weights(self) -> ObjectRef:
        """A ref to (version, weights) as they are now: of `learners`, unless a subclass has them elsewhere."""
        self.require_open()
        ref: ObjectRef = self.learners.weights()
        return ref

    @property
    def not_saved(self) -> tuple[str, ...]:
        """What a checkpoint leaves out, for its manifest."""
        return ()

    @staticmethod
    def make_policy(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Policy:
        """The policy that acts with this algorithm's weights, without its actors; settings: the config as a dict."""
        raise ConfigError("this algorithm cannot act without its actors: it has no make_policy()")

    @classmethod
    def policy_weights(cls, state: dict[str, Any]) -> Weights:
        """What `make_policy`'s policy acts with, out of `get_state()`: of a `Learner` that is saved as "learner"."""
        if not _is_of_learner(state):
            raise ConfigError("this algorithm cannot act without its actors: it has no policy_weights()")
        return weights_in_state(state["learner"])

    @classmethod
    def with_weights(cls, state: dict[str, Any], weights: Weights) -> dict[str, Any]:
        """What `get_state()` returned, with such weights in the place of its own: for `--init-from`."""
        if not _is_of_learner(state):
            raise ConfigError("this algorithm cannot start from other weights: it has no with_weights()")

        def put(learner: dict[str, Any], own: Weights) -> dict[str, Any]:
            return given_to(learner, own, cls.weights_keys)

        return state | {"learner": put_weights_in_state(state["learner"], weights, put)}

    def wants_statistics(self, weights: Weights) -> bool:
        """Whether such weights have to bring statistics of observations along: where those are normalised."""
        return bool(self.config.model_dump().get("normalize_observations"))

    # -- what it calls

    @cached_property
    def computation(self) -> Computation:
        """`config_class`, `nets` and `losses`, for the processes that compute with them."""
        return computation_of(type(self))

    def start(self, actor_class: type | spread, *arguments: Any) -> ActorHandle:
        """An actor that ends with this object."""
        remote = actor_class if isinstance(actor_class, spread) else rlplat.remote(actor_class)
        handle: ActorHandle = remote.remote(*arguments)
        self.ends.callback(rlplat.kill, handle)
        return handle

    def add(self, part: AnyPart, saved_as: str = "") -> AnyPart:
        """The part, which ends with this object; saved_as: the name of its state in a checkpoint (of a part with
        `get_state` and `set_state`), empty for none."""
        self.ends.callback(part.close)
        if saved_as:
            self.saved[saved_as] = cast(HasState, part)
        return part

    def start_learners(self, settings: dict[str, Any], spec: PolicySpec, *more: Any) -> LearnerGroup:
        """`learner_group` with a parameter server of its own, which ends with this object; saved as "learner"."""
        return self.add(self.learner_group(settings, spec, self.start(ParameterServer), *more), "learner")

    def learner_group(
        self, settings: dict[str, Any], spec: PolicySpec, parameter_server: ActorHandle, *more: Any
    ) -> LearnerGroup:
        """`learner.num_learners` of `learner_class`, made with (computation, settings, spec, parameter_server, *more),
        and their rank where it is not 0; on a GPU where the settings say so."""
        learner = learner_actor(self.learner_class, settings, spec)
        return LearnerGroup(
            parameter_server,
            lambda rank: learner.remote(
                self.computation, settings, spec, parameter_server, *more, *([rank] if rank else [])
            ),
            settings["learner"]["num_learners"],
        )

    def start_workers(
        self,
        make_worker: Callable[[int, int], ActorHandle],
        num_batches: int = 1,
        saved_as: str = "rollout_workers",
    ) -> RolloutWorkers:
        """As many as the config says, replaced as it says; make_worker, num_batches: of `RolloutWorkers`."""
        if not has_time_limit(self.config.env, self.config.env_kwargs):
            self.tally.num_envs = max(1, self.config.num_rollout_workers) * self.config.num_envs_per_worker
        if device := getattr(getattr(self, "spaces", None), "device", ""):
            name = self.config.env
            log.warning("warning: tensors of %s (%s) are copied to the host: %s", name, device, why_on_host(self))
        if num_workers := self.config.num_rollout_workers:
            log.info("starting %s rollout worker%s", f"{num_workers:,}", "s" if num_workers > 1 else "")
        workers = RolloutWorkers(
            make_worker,
            max(1, num_workers),
            max_restarts=self.config.max_worker_restarts,
            restart_on_env_error=self.config.on_env_error == "restart",
            num_batches=num_batches,
        )
        self._worker_groups = [*self._worker_groups, workers]
        return self.add(workers, saved_as)

    def result(self, report: UpdateReport, metrics: dict[str, float]) -> Result:
        """One more iteration, in which this was learnt; metrics: more than the report has."""
        self.tally.count(report.env_steps, report.episodes, report.num_unlisted)
        return self.tally.result(report.metrics | metrics)

    def require_open(self) -> None:
        if not self._is_open:
            name = type(self).__name__
            raise NotInitialized(f"this {name} is closed: make a new one, and use it within `with`")

    # -- what the platform calls

    @classmethod
    def acts_alone(cls) -> bool:
        """Whether it acts without its actors: else evaluations hold up the training, and it cannot be played."""
        return cls.make_policy is not Algorithm.make_policy

    def evaluate(self, episodes: int) -> list[Episode]:
        """Greedy episodes (or sampled, `evaluation.deterministic`) on raw rewards with the newest weights, in
        environments of their own; `CutEpisode`s among them where one does not end."""
        self.require_open()
        return self._evaluation.run(self.acting_weights(), episodes)

    def new_evaluation(self) -> Evaluation:
        """An actor that evaluates, whose environments `set_env_attr` and `call_env` reach; the caller ends it."""
        made = Evaluation(self.config.model_dump(), self.make_policy)
        self._evaluations = [*self._evaluations, made]
        return made

    def acting_weights(self) -> ObjectRef:
        """`weights()`, and beside them the running statistics that the environments keep, where they keep any."""
        ref = self.weights()
        statistics: Statistics = {}
        for workers in self._worker_groups:
            statistics |= workers.env_statistics()
        if not statistics:
            return ref
        version, weights = rlplat.get(ref)
        return rlplat.put((version, weights | beside_weights(statistics)))

    # -- what callbacks call

    def get_env_attr(self, name: str) -> list[Any]:
        """The attribute of every environment of every rollout worker, in order."""
        return self._ask_envs("get", name)

    def set_env_attr(self, name: str, value: Any, *, evaluation: bool = False) -> None:
        """In every environment of every rollout worker, from its next step on; of the outermost wrapper that has an
        attribute of this name, else of the environment. evaluation: in its environments, too.

        A worker that is replaced is told again; a resumed run is not (`Callback.on_start` is called there as well).
        EnvError where nothing has that name, UsageError where the environments are stepped by a vector implementation.
        """
        self._ask_envs("set", name, value, evaluation=evaluation)

    def call_env(self, name: str, *arguments: Any, evaluation: bool = False, **keywords: Any) -> list[Any]:
        """What the method of this name returns in every environment of every rollout worker; otherwise as
        `set_env_attr`, of which a new worker is told the last call of each method."""
        return self._ask_envs("call", name, *arguments, evaluation=evaluation, **keywords)

    def _ask_envs(self, what: Ask, name: str, *arguments: Any, evaluation: bool = False, **keywords: Any) -> list[Any]:
        self.require_open()
        if not self._worker_groups:
            raise UsageError(f"{self.name} has no rollout workers, whose environments could be asked")
        groups = [workers.ask_envs(what, name, *arguments, **keywords) for workers in self._worker_groups]
        for each in self._evaluations if evaluation else ():
            each.ask_envs(what, name, *arguments, **keywords)
        return [answer for answers in groups for answer in answers]

    def set_weights(self, weights: Weights) -> None:
        """Act and learn on from these weights (`rlplat.load(RUN).weights()`), normaliser statistics included; the
        optimizer stays as it is. CheckpointError names every leaf that does not fit."""
        state = self.get_state()
        require_fitting(self.policy_weights(state), weights, normalizes=self.wants_statistics(weights))
        self.set_state(self.with_weights(state, weights))

    def get_state(self) -> dict[str, Any]:
        """Everything a checkpoint needs: nested dicts of numpy arrays and JSON values."""
        self.require_open()
        return self.tally.get_state() | {name: part.get_state() for name, part in self.saved.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called."""
        self.require_open()
        for name, part in self.saved.items():
            part.set_state(state[name])
        self.tally.set_state(state)

    def close(self) -> None:
        """Stop the actors; and the runtime, if this object started it. May be called again."""
        self._is_open = False
        ends = self.ends.pop_all()
        if rlplat.is_initialized():
            ends.close()


def _is_of_learner(state: dict[str, Any]) -> bool:
    """Whether it is of an algorithm with `Learner`s, or of one for every policy."""
    learner = state.get("learner")
    return isinstance(learner, dict) and ("weights" in learner or "policies" in learner)


class OnPolicy(Algorithm[Rolling]):
    """Rollout workers, and the policies that learn from what they bring; of one agent or, where the config has
    `multi_agent`, of several."""

    make_policy = staticmethod(policy_for)
    can_sample_in_learner: ClassVar[bool] = False
    """Whether `setup` and `step` ask `samples_in_learner`."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config as a dict: what actors are made with."""
        return self.config.model_dump()

    @cached_property
    def looked_at(self) -> SpaceSpec | MultiAgentPlan:
        """The pre-flight, in the driver: UsageError unless the environment is sound, and policies for its spaces can be
        built and learnt."""
        config, spaces = self.config, look_at_env(self.settings)
        for spec in policy_specs(self.settings, spaces):
            self.computation.require(config, spec)
            if config.normalize_observations:
                require_normalizable(spec.obs, images=config.framework == "torch")
        LearningRewards(config)  # refuses settings that exclude each other
        num_envs = max(1, config.num_rollout_workers) * config.num_envs_per_worker
        if num_envs < config.learner.num_learners:
            raise ConfigError(
                f"learner.num_learners={config.learner.num_learners} learners cannot share {num_envs} environments: "
                "raise num_envs_per_worker, or lower it"
            )
        return spaces

    @property
    def specs(self) -> list[PolicySpec]:
        """The network of every policy."""
        return policy_specs(self.settings, self.looked_at)

    @property
    def learns_on_gpu(self) -> bool:
        learner = self.config.learner
        return any(learner_gpus(learner.num_gpus, learner.device, spec) for spec in self.specs)

    @cached_property
    def samples_in_learner(self) -> bool:
        """Whether the learner steps the environment itself, which is one of tensors, on its device. Else rollout
        workers step copies of it."""
        if not self.can_sample_in_learner or not isinstance(self.looked_at, SpaceSpec):
            return False
        return bool(self.looked_at.device) and not why_on_host(self)

    def start_sampling_learner(self) -> LearnerGroup:
        """The one learner, of a tensor environment that it steps itself."""
        device = "cuda" if cast(SpaceSpec, self.looked_at).device.startswith("cuda") else "cpu"
        self.settings["learner"] = self.settings["learner"] | {"backend": "torch", "device": device}
        learners: LearnerGroup = self.start_policies()
        learners.wait_until_ready()
        rlplat.get([handle.sample_here.remote() for handle in learners.handles])
        self.ends.callback(self._close_envs, learners)
        self.notes = (f"the learner steps {self.config.env} itself: rollouts and updates are on {device}",)
        return learners

    @staticmethod
    def _close_envs(learners: LearnerGroup) -> None:
        rlplat.wait([handle.close_envs.remote() for handle in learners.handles], timeout=CLOSE_S)

    def update_alone(self) -> Result:
        """One round of a learner that samples itself."""
        started = perf_counter()
        report = self.learners.update(())
        sample_s = report.metrics["rollout/sample_s"]
        update_s = perf_counter() - started - sample_s
        return self.result(report, {"time/sample_s": sample_s, "time/update_s": update_s})

    def preload(self) -> tuple[str, ...]:
        """Without torch, where numpy or TensorFlow computes."""
        names = self.computation.preload(self.config, lambda: self.specs)
        is_numpy = self.config.framework == "torch" and not names  # only then the environment was looked at
        return ("torch",) if is_numpy and self.samples_in_learner else names

    def look(self) -> list[PolicySpec]:
        """At the environment, ahead of the first actor: the specs of the policies."""
        self.spaces, specs = self.looked_at, self.specs
        leaves = obs_leaves(self.spaces.obs) if isinstance(self.spaces, SpaceSpec) and self.spaces.device else {}
        if {"policy", "critic"} <= {path.partition("/")[0] for path in leaves} and not self.config.policy.obs_groups:
            log.warning(
                "warning: the actor sees the critic's observations, too: --policy.obs-groups '{actor: [policy], "
                "critic: [critic]}' divides them"
            )
        self.notes = self.computation.notes(self.config, specs)
        return specs

    def start_policies(self) -> Any:
        """Learners and a parameter server, of every policy: a `LearnerGroup`, or `PolicyRings`."""
        specs = self.look()
        if not isinstance(self.spaces, MultiAgentPlan):
            return self.start_learners(self.settings, specs[0])
        rings = PolicyRings(self.spaces, self.settings, lambda _name, *its: self.learner_group(*its))
        return self.add(rings, saved_as="learner")

    def start_rollout_workers(self, worker_class: type = RolloutWorker, *, num_batches: int = 1) -> RolloutWorkers:
        """After the policies; num_batches: of `RolloutWorkers`."""
        if isinstance(self.spaces, MultiAgentPlan):
            return self.start_workers(self.learners.worker_maker(self.make_policy), len(self.spaces.trained))
        worker = spread(worker_class, self.settings)
        return self.start_workers(lambda *which: worker.remote(self.settings, *which), num_batches)

    @property
    def not_saved(self) -> tuple[str, ...]:
        if self.samples_in_learner:
            return tuple(filter(None, rlplat.get([handle.not_saved.remote() for handle in self.learners.handles])))
        return self.workers.not_saved()


def why_on_host(algorithm: Any) -> str:
    """Why rollout workers step a tensor environment, with copies of its tensors, in words that follow a colon; empty
    where the learner does, on the device. algorithm: an `Algorithm` that has looked at its environment."""
    if not getattr(algorithm, "can_sample_in_learner", False) or not isinstance(algorithm.looked_at, SpaceSpec):
        return f"{algorithm.name} learns from what rollout workers bring"
    spaces, config, learner = algorithm.looked_at, algorithm.config, algorithm.config.learner
    [spec], is_on_gpu = algorithm.specs, spaces.device.startswith("cuda")
    leaves = obs_leaves(spec.obs).values()
    for key, is_hindered in {
        "num_rollout_workers": config.num_rollout_workers > 1,
        "framework": config.framework != "torch",
        "learner.backend": learner.backend == "numpy",
        "learner.num_learners": learner.num_learners > 1,
        "learner.device": learner.device != "auto" and (learner.device == "cuda") != is_on_gpu,
        "overlap_sampling": getattr(config, "overlap_sampling", False) is True,
        "random_start_steps": config.random_start_steps > 0,
        "vectorization": config.vectorization != "auto",
        "on_env_error": config.on_env_error != "fail",
        "normalize_rewards": config.normalize_rewards,
        "normalize_value": getattr(config, "normalize_value", False),
        "exploration_bonus": getattr(config, "exploration_bonus", None) is not None,
        "policy.core": spec.core != "none",
        "policy.use_sde": spec.use_sde,
        "normalize_observations": config.normalize_observations
        and any(leaf.kind not in ("vector", "mask") for leaf in leaves),
    }.items():
        if is_hindered:
            return f"{key} is {reduce(getattr, key.split('.'), config)}"
    if spec.action.kind == "composite":
        return f"actions are {spec.action}"
    if not is_on_gpu and spaces.device != "cpu":
        return "learners compute on cpu and cuda"
    if not algorithm.learner_class.__module__.startswith("rlplat."):
        return f"{algorithm.learner_class.__name__} is a learner of your own"
    home = next(base for base in type(algorithm).__mro__ if "can_sample_in_learner" in vars(base))
    own = [name for name in ("setup", "step") if getattr(type(algorithm), name) is not getattr(home, name)]
    return f"{type(algorithm).__name__}.{own[0]} is your own" if own else ""
