"""`PolicyRings`: the learners and the parameter server of every policy, for an algorithm that turns them all at once.

    rings = PolicyRings(plan, settings, start_learners)
    batches = workers.sample(*rings.latest())           # the weights of every policy; opponents draw theirs
    report = rings.update(batches)                      # every batch goes straight to its own policy's learners

    rollout workers ══batches of "main"═══▶ learner "main" ──weights──▶ parameter server "main" ──▶ rollout workers
                    ══batches of "other"══▶ learner "other" ─weights──▶ parameter server "other" ─▶ rollout workers
                                                                  └─every snapshot_period─▶ opponent pool ─▶ opponents

To the algorithm it is what a `LearnerGroup` is where there is one agent.

`OpponentPool`: earlier weights of a policy that is trained, for opponents to play with. The worker brings the random
number: what is drawn does not depend on who asks first.

    pool.add.remote(env_steps, parameter_server.latest.remote())            # the driver, every snapshot_period
    drawn = get(pool.draw.remote(rng.random(), my_snapshot))                # a rollout worker, before each fragment
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import rlplat
from rlplat.errors import RlplatError
from rlplat.rl.interfaces import Episode, MakePolicy, UpdateReport, Weights
from rlplat.rl.learning.learner_group import LearnerGroup
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.learning.weights import join_weights
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan
from rlplat.rl.multi_agent.rollout_worker import MultiAgentRolloutWorker
from rlplat.rl.multi_agent.vector_env import AgentReturns
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.recorders import Record
from rlplat.rl.saved import Saved
from rlplat.rl.spread import spread

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef


StartLearners = Callable[[str, dict[str, Any], PolicySpec, Any], LearnerGroup]
"""(policy name, the run's settings as they are for it, spec, its parameter server) -> learners that are starting."""


class PolicyRings:
    def __init__(self, plan: MultiAgentPlan, settings: dict[str, Any], start_learners: StartLearners) -> None:
        """settings: the config as a dict."""
        self._plan, self._settings = plan, settings
        self._start_learners = start_learners
        self._learners: dict[str, LearnerGroup] = {}
        self._pool: ActorHandle | None = None
        self.sources: dict[str, ActorHandle] = {}
        """By policy: its parameter server, or the pool of opponents."""
        self._returns = AgentReturns(plan.trained, plan.episode_return)
        self._env_steps = self._snapshot_at = 0
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        plan = self._plan
        for name, spec in plan.specs(self._settings).items():
            if plan.self_play and name == plan.opponent:
                self._pool = rlplat.remote(OpponentPool).remote(plan.self_play.pool, plan.self_play.sampling)
                self.sources[name] = self._pool
            else:
                server = self.sources[name] = rlplat.remote(ParameterServer).remote()
                own = plan.settings(self._settings, name)
                self._learners[name] = self._start_learners(name, own, spec, server)

    def worker_maker(self, make_policy: MakePolicy, record: Record = "samples") -> Callable[[int, int], ActorHandle]:
        """What `RolloutWorkers` starts its workers with; make_policy: of the algorithm's class."""
        worker = spread(MultiAgentRolloutWorker, self._settings)
        return lambda index, incarnation: worker.remote(
            self._settings, self._plan, index, incarnation, self._pool, make_policy, record=record
        )

    def wait_until_ready(self) -> None:
        """Returns when every policy has its first weights. Frozen policies' learners go when they gave them."""
        for learners in self._learners.values():
            learners.wait_until_ready()
        for name in [name for name in self._learners if name not in self._plan.trained]:
            self._learners.pop(name).close()
        self._add_snapshot()

    def update(self, fragments: Sequence[ObjectRef | Sequence[ObjectRef]]) -> UpdateReport:
        """One learning step of every trained policy, side by side.

        fragments: of every rollout worker, a ref (one trained policy) or a ref per trained policy. A learner that
        raises, raises here when the others are through.
        """
        started = {
            name: self._learners[name].start_update([_batch_of(fragment, index) for fragment in fragments])
            for index, name in enumerate(self._plan.trained)
        }
        reports: dict[str, UpdateReport] = {}
        failures: list[RlplatError] = []
        for name, refs in started.items():
            try:
                reports[name] = self._learners[name].finish_update(refs)
            except RlplatError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        report = self._join(reports)
        self._env_steps += report.env_steps
        self._snapshot_if_due()
        return report

    def latest(self) -> list[ObjectRef]:
        """Refs to (version, weights) as they are now, of every policy but the opponent's: for rollout workers."""
        return [source.latest.remote() for source in self.sources.values() if source is not self._pool]

    def weights(self) -> ObjectRef:
        """A ref of (version, weights) as they are now, as `<policy>/<name>`."""
        names = list(self.sources)
        merged: ObjectRef = (
            rlplat.remote(join_weights)
            .options(num_cpus=0)
            .remote(names, self._plan.trained, *(self.sources[name].latest.remote() for name in names))
        )
        return merged

    def get_state(self) -> dict[str, Any]:
        return {
            "policies": {name: learners.get_state() for name, learners in self._learners.items()},
            "frozen": {
                name: rlplat.get(source.latest.remote())[1]
                for name, source in self.sources.items()
                if name not in self._learners and source is not self._pool
            },
            "opponent": self._plan.opponent,
            "opponent_pool": rlplat.get(self._pool.get_state.remote()) if self._pool else None,
            "returns": self._returns.get_state(),
            "env_steps": self._env_steps,
            "snapshot_at": self._snapshot_at,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        for name, learners in self._learners.items():
            learners.set_state(state["policies"][name])
        for name, weights in state["frozen"].items():
            version = rlplat.get(self.sources[name].version.remote())
            rlplat.get(self.sources[name].set_weights.remote(version + 1, weights))
        if self._pool is not None:
            rlplat.get(self._pool.set_state.remote(state["opponent_pool"]))
        self._returns.set_state(state["returns"])
        self._env_steps, self._snapshot_at = int(state["env_steps"]), int(state["snapshot_at"])

    def close(self) -> None:
        for learners in self._learners.values():
            learners.close()
        for source in self.sources.values():
            rlplat.kill(source)
        self._learners, self.sources, self._pool = {}, {}, None

    def _join(self, reports: Mapping[str, UpdateReport]) -> UpdateReport:
        """Names: `policy/<name>/learner/...` of each; seconds are those of the slowest."""
        metrics: dict[str, float] = {}
        for name, report in reports.items():
            for key, value in report.metrics.items():
                if key.startswith(("time/", "rollout/")):
                    metrics[key] = max(value, metrics.get(key, value))
                else:
                    metrics[f"policy/{name}/{key}"] = value
        episodes: dict[str, Any] = {name: report.episodes for name, report in reports.items()}
        games: list[Episode] = self._returns.extend(episodes)
        return UpdateReport(
            sum(report.env_steps for report in reports.values()), games, metrics | self._returns.metrics()
        )

    def _snapshot_if_due(self) -> None:
        if self._plan.self_play is None:
            return
        period = self._plan.self_play.snapshot_period
        if self._env_steps // period > self._snapshot_at // period:
            self._add_snapshot()

    def _add_snapshot(self) -> None:
        if self._pool is not None:
            latest = self.sources[self._plan.learner].latest.remote()
            rlplat.get(self._pool.add.remote(self._env_steps, latest))
            self._snapshot_at = self._env_steps


def _batch_of(fragment: ObjectRef | Sequence[ObjectRef], index: int) -> ObjectRef:
    return fragment[index] if isinstance(fragment, list | tuple) else fragment  # type: ignore[return-value]


class OpponentPool(Saved):
    """An actor beside the parameter servers; snapshots are numbered from 0 and the oldest goes first."""

    saved = {"next_number": "_next_number", "snapshots": "_snapshots"}

    def __init__(self, capacity: int, sampling: Literal["latest", "uniform"]) -> None:
        self._capacity, self._sampling = capacity, sampling
        self._snapshots: list[dict[str, Any]] = []
        """number, env_steps and weights of each, oldest first; a new list for every one."""
        self._next_number = 0

    def add(self, env_steps: int, latest: tuple[int, Weights]) -> int:
        """latest: (version, weights), as the parameter server gives them; returns the snapshot's number."""
        number = self._next_number
        self._next_number += 1
        snapshot = {"number": number, "env_steps": env_steps, "weights": latest[1]}
        self._snapshots = [*self._snapshots, snapshot][-self._capacity :]
        return number

    def draw(self, at: float, held: int = -1) -> tuple[int, Weights] | None:
        """(number, weights) of one snapshot, or None when it is the one that the caller holds already.

        at: uniform in [0, 1).
        """
        if not self._snapshots:
            raise ValueError("the pool of opponents is empty; the driver adds the first snapshot before sampling")
        index = len(self._snapshots) - 1
        if self._sampling == "uniform":
            index = min(index, int(at * len(self._snapshots)))
        drawn = self._snapshots[index]
        return None if drawn["number"] == held else (drawn["number"], drawn["weights"])

    def latest(self, than_version: int = -1) -> tuple[int, Weights] | None:
        """The newest snapshot, as from a parameter server: what evaluation plays against."""
        if not self._snapshots or self._snapshots[-1]["number"] <= than_version:
            return None
        return self._snapshots[-1]["number"], self._snapshots[-1]["weights"]

    def env_steps(self) -> list[int]:
        """When the snapshots that are kept were taken, oldest first."""
        return [each["env_steps"] for each in self._snapshots]
