"""`PolicyRings`: the learner and the parameter server of every policy, for an algorithm that turns them all at once.

    rings = PolicyRings(specs, start_learners, plan)
    report = rings.update(workers.sample())             # every batch goes straight to its own policy's learner
    rings.sources                                       # where rollout workers take each policy's weights from

    rollout workers ══batches of "main"═══▶ learner "main" ──weights──▶ parameter server "main" ──▶ rollout workers
                    ══batches of "other"══▶ learner "other" ─weights──▶ parameter server "other" ─▶ rollout workers
                                                                  └─every snapshot_period─▶ opponent pool ─▶ opponents

An environment of one agent is the case of one policy, whose name is the empty string: its report and its state are the
learner's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rlplat
from rlplat.errors import RlplatError
from rlplat.rl.interfaces import Episode, UpdateReport
from rlplat.rl.learning.learner_group import LearnerGroup
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.learning.policy_weights import join_weights
from rlplat.rl.multi_agent.agent_returns import AgentReturns
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan
from rlplat.rl.multi_agent.self_play import OpponentPool
from rlplat.rl.policies.spec import PolicySpec

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef

ALONE = ""
"""The policy of an environment of one agent."""

StartLearners = Callable[[str, PolicySpec, Any], LearnerGroup]
"""(policy name, spec, its parameter server) -> learners that are starting."""


class PolicyRings:
    def __init__(
        self,
        specs: Mapping[str, PolicySpec],
        start_learners: StartLearners,
        plan: MultiAgentPlan | None = None,
    ) -> None:
        """specs: of every policy, {"": spec} for an environment of one agent; plan: None for that."""
        self._plan = plan
        self._start_learners = start_learners
        self._specs = dict(specs)
        self._trained = plan.trained if plan else (ALONE,)
        self._learners: dict[str, LearnerGroup] = {}
        self._pool: ActorHandle | None = None
        self.sources: dict[str, ActorHandle] = {}
        """By policy: its parameter server, or the pool of opponents."""
        self._returns = AgentReturns(self._trained, plan.episode_return) if plan else None
        self._env_steps = self._snapshot_at = 0
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        opponent = self._plan.opponent if self._plan else ""
        for name, spec in self._specs.items():
            if self._plan and self._plan.self_play and name == opponent:
                self_play = self._plan.self_play
                self._pool = rlplat.remote(OpponentPool).remote(self_play.pool, self_play.sampling)
                self.sources[name] = self._pool
            else:
                self.sources[name] = rlplat.remote(ParameterServer).remote()
                self._learners[name] = self._start_learners(name, spec, self.sources[name])

    def wait_until_ready(self) -> None:
        """Returns when every policy has its first weights. Frozen policies' learners go when they gave them."""
        for learners in self._learners.values():
            learners.wait_until_ready()
        for name in [name for name in self._learners if name not in self._trained]:
            self._learners.pop(name).close()
        self._add_snapshot()

    def learner(self, name: str = ALONE) -> ActorHandle:
        """Learner 0 of one policy, for rings that do not turn by `update`."""
        return self._learners[name].handles[0]

    def update(self, fragments: Sequence[ObjectRef | Sequence[ObjectRef]]) -> UpdateReport:
        """One learning step of every trained policy, side by side.

        fragments: of every rollout worker, a ref (one trained policy) or a ref per trained policy. A learner that
        raises, raises here when the others are through.
        """
        started = {
            name: self._learners[name].start_update([_batch_of(fragment, index) for fragment in fragments])
            for index, name in enumerate(self._trained)
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
        report = reports[ALONE] if self._returns is None else self._join(reports, self._returns)
        self._env_steps += report.env_steps
        self._snapshot_if_due()
        return report

    def weights(self) -> ObjectRef:
        """A ref of (version, weights) as they are now; those of several policies as `<policy>/<name>`."""
        if self._plan is None:
            ref: ObjectRef = self.sources[ALONE].latest.remote()
            return ref
        names = list(self.sources)
        merged: ObjectRef = rlplat.remote(join_weights).remote(
            names, self._trained, *(self.sources[name].latest.remote() for name in names)
        )
        return merged

    def get_state(self) -> dict[str, Any]:
        if self._returns is None:
            return self._learners[ALONE].get_state()
        return {
            "policies": {name: learners.get_state() for name, learners in self._learners.items()},
            "frozen": {
                name: rlplat.get(source.latest.remote())[1]
                for name, source in self.sources.items()
                if name not in self._learners and source is not self._pool
            },
            "opponent": self._plan.opponent if self._plan else "",
            "opponent_pool": rlplat.get(self._pool.get_state.remote()) if self._pool else None,
            "returns": self._returns.get_state(),
            "env_steps": self._env_steps,
            "snapshot_at": self._snapshot_at,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        if self._returns is None:
            self._learners[ALONE].set_state(state)
            return
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

    def _join(self, reports: Mapping[str, UpdateReport], returns: AgentReturns) -> UpdateReport:
        """Names: `policy/<name>/learner/...` of each; seconds are those of the slowest."""
        metrics: dict[str, float] = {}
        for name, report in reports.items():
            for key, value in report.metrics.items():
                if key.startswith(("time/", "rollout/")):
                    metrics[key] = max(value, metrics.get(key, value))
                else:
                    metrics[f"policy/{name}/{key}"] = value
        episodes: dict[str, Any] = {name: report.episodes for name, report in reports.items()}
        games: list[Episode] = returns.extend(episodes)
        return UpdateReport(
            sum(report.env_steps for report in reports.values()), games, metrics | returns.metrics()
        )

    def _snapshot_if_due(self) -> None:
        if self._plan is None or self._plan.self_play is None:
            return
        period = self._plan.self_play.snapshot_period
        if self._env_steps // period > self._snapshot_at // period:
            self._add_snapshot()

    def _add_snapshot(self) -> None:
        if self._pool is not None and self._plan is not None:
            latest = self.sources[self._plan.learner].latest.remote()
            rlplat.get(self._pool.add.remote(self._env_steps, latest))
            self._snapshot_at = self._env_steps


def _batch_of(fragment: ObjectRef | Sequence[ObjectRef], index: int) -> ObjectRef:
    return fragment[index] if isinstance(fragment, list | tuple) else fragment  # type: ignore[return-value]
