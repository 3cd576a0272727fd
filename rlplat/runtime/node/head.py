"""The head: the scheduler's hands, and the keeper of names, of clients and of their deaths.

It hears what clients say to the node, and does what the scheduler decides: by messages to clients, and by orders to the
agent of the machine where a worker is to run. No process and no file is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from rlplat.errors import RuntimeFault
from rlplat.runtime.core.gone import Dead
from rlplat.runtime.core.node import wait_graph
from rlplat.runtime.core.node.settling import Settling
from rlplat.runtime.core.scheduler import events
from rlplat.runtime.core.scheduler.actors import no_such_actor
from rlplat.runtime.core.scheduler.admission import check_actor, check_bundles, check_count, check_shape
from rlplat.runtime.core.scheduler.scheduler import Scheduler
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import DRIVER, NODE, Answer
from rlplat.runtime.wire.values import ErrorInfo, Shape

_STAYS_HERE = ErrorInfo(
    "OptionError",
    "in a cluster of several machines an actor with exactly_once runs on the head's, where its state is kept: it "
    "takes no placement group and no node_id",
)


class AgentOrders(Protocol):
    """What the head asks of a machine's agent, and what it tells it. (The ends of workers come as `worker_lost`.)"""

    def start(self, worker: str, gpu_ids: tuple[int, ...], env: str) -> None: ...
    def stop(self, worker: str, at_once: bool, is_surplus: bool, reason: str) -> None: ...
    def kill(self, worker: str, reason: str) -> None: ...
    def ready(self, worker: str) -> None: ...
    def answered(self, worker: str, now: float) -> None: ...
    def define_env(self, key: str, spec: str) -> None: ...
    def remove_files(self, workers: list[str]) -> None: ...


class Head:
    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float],
        total: dict[str, float],
        namespace: str,
        warn: Callable[[str], None],
        is_fixed: bool = True,
    ) -> None:
        """`total`: of this machine. `warn` prints a line where the user looks. `is_fixed`: no machine can join."""
        self._transport, self._clock, self._namespace, self._warn = transport, clock, namespace, warn
        self._total, self._is_fixed = total, is_fixed
        self.scheduler = Scheduler(is_fixed=is_fixed)
        self.wake_at: float | None = None
        """When the scheduler wants a Tick."""
        self.agents: dict[str, AgentOrders] = {}
        """By node."""
        self._agent_of: dict[str, AgentOrders] = {}
        """By worker."""
        self.clients: set[str] = set()
        self.num_joining: Callable[[], int] = lambda: 0
        self.on_elsewhere: dict[type, Callable[[str, Any], None]] = {}
        """What clients ask of a node that has to do with other machines."""
        self.on_settled: Callable[[list[str]], None] = lambda workers: None
        """These deaths are, and their files are about to go."""
        self.on_died: Callable[[str, AgentOrders | None], None] = lambda worker, agent: None
        """A worker has died, on this agent's machine."""
        self._creations: dict[str, messages.KeepCreation] = {}
        """Of detached actors: how each of their incarnations is created."""
        self._creating: dict[int, str] = {}
        """Actors by number of the creation that we have sent."""
        self._num_created = 0
        self._envs: dict[str, str] = {}
        """Specs of runtime environments, by key."""
        self._env_errors: dict[str, ErrorInfo] = {}
        self._waits = wait_graph.WaitGraph(self.scheduler.who)
        self._dead = Dead()
        self._settling = Settling()

    @property
    def total(self) -> dict[str, float]:
        """Of the cluster."""
        return self._total if self._is_fixed else self.scheduler.total

    # -- news

    def node_joined(self, joined: events.NodeJoined, agent: AgentOrders) -> None:
        for key, spec in self._envs.items():
            agent.define_env(key, spec)
        self.agents[joined.node] = agent
        self.event(joined)
        self._tell_total()

    def node_suspected(self, node: str) -> None:
        """It may be lost: nothing more goes there."""
        self.event(events.NodeSuspected(node))

    def node_lost(self, node: str, reason: str) -> None:
        """Its workers are dead."""
        agent = self.agents.pop(node)
        for worker, of in self._agent_of.items():
            if of is agent:
                self._transport.forget(worker)
                self._waits.unblocked(worker)
        self.event(events.NodeLost(node, reason))
        self._tell_total()

    def _tell_total(self) -> None:
        if not self._is_fixed:
            for client in self.clients:
                self._post(client, messages.Grown(self.total))

    def worker_lost(self, worker: str, reason: str, kind: str) -> None:
        self._transport.forget(worker)
        self._waits.unblocked(worker)
        self.event(events.WorkerLost(worker, reason, kind))

    def env_settled(self, key: str, error: ErrorInfo | None) -> None:
        if error is not None:
            self._env_errors[key] = error
            self._tell_env_failed(list(self.clients), key, error)
            self.event(events.EnvFailed(key, error))

    def on_message(self, sender: str, message: Any) -> None:
        kind = type(message)
        if kind is messages.Hello:
            self.clients.add(sender)
            if sender != DRIVER:
                self._agent_of[sender].ready(sender)
            placing = self.scheduler.placing
            self._post(
                sender,
                messages.Welcome(
                    self.total,
                    self._namespace,
                    list(placing.workers),
                    placing.next_worker,
                    self._dead.reasons,
                    not self._is_fixed,
                ),
            )
            self.event(events.WorkerReady(sender))
        elif kind is messages.RequestLeases:
            check_count(message.shape, message.count)
            self._check_env(message.shape)
            self.event(events.LeasesRequested(sender, message.shape, message.count))
        elif kind is messages.ReturnLease:
            self.event(events.LeaseReturned(sender, message.worker, message.is_worn))
        elif kind is messages.PlaceActor:
            m = message
            check_actor(m.actor, sender)
            check_shape(m.shape)
            self._check_env(m.shape)
            shape = m.shape
            if m.info.exactly_once and not self._is_fixed:  # what it keeps is in a file of this machine
                if shape.group or shape.strategy.startswith("node"):
                    self._post(sender, messages.ActorGone(m.actor, _STAYS_HERE))
                    return
                shape = msgspec.structs.replace(shape, strategy=f"node:{NODE}")
            self.event(
                events.ActorRequested(
                    sender,
                    m.actor,
                    m.info,
                    shape,
                    m.name,
                    m.namespace,
                    m.max_restarts,
                    m.is_detached,
                    m.get_if_exists,
                )
            )
        elif kind is messages.EndActor:
            m = message
            self.event(events.ActorEnded(m.actor, m.reason, m.at_once, m.no_restart))
        elif kind is messages.FindActor:
            self.event(events.ActorSought(sender, message.actor))
        elif kind is messages.Blocked:
            self._waits.blocked(sender, message.on, self._clock())
            self.event(events.WorkerBlocked(sender))
        elif kind is messages.Unblocked:
            self._waits.unblocked(sender)
            self.event(events.WorkerUnblocked(sender))
        elif kind is messages.Makes:
            self._watch(self._waits.found((sender, message.id), message.worker, message.name, message.waits))
        elif kind is messages.AskByName:
            self._post(sender, self._by_name(message))
        elif kind is messages.AskNames:
            named = [key for key in self.scheduler.actor_by_name if message.namespace in (None, key[0])]
            self._post(sender, Answer(message.request, names=named))
        elif kind is messages.AskResources:
            amounts = self.scheduler.available if message.available else self.total
            self._post(sender, Answer(message.request, amounts=dict(amounts)))
        elif kind is messages.KillWorker:
            if message.worker in self._agent_of:
                self._agent_of[message.worker].kill(message.worker, message.reason)
        elif kind is messages.DeathHeard:
            self._tell_settled(self._settling.heard(sender, message.worker))
        elif kind is messages.Pong:
            self._agent_of[sender].answered(sender, self._clock())
        elif kind is messages.DefineEnv:
            self._define_env(sender, message)
        elif kind is messages.CreateGroup:
            m = message
            bundles = tuple(m.bundles)
            check_bundles(bundles)
            self.event(events.GroupRequested(sender, m.group, bundles, m.strategy, m.name, m.is_detached))
        elif kind is messages.FindGroup:
            self.event(events.GroupSought(sender, message.group))
        elif kind is messages.RemoveGroup:
            self.event(events.GroupRemoved(message.group))
        elif kind is messages.AskCluster:
            state = self.scheduler
            nodes, groups, here = state.node_states(), state.group_states(), state.place_of(sender)
            self._post(sender, messages.Cluster(message.request, nodes, groups, here, self.num_joining()))
        elif kind is messages.KeepCreation:
            self._keep_creation(message)
        elif kind is messages.Done:
            self._on_created(message)
        elif kind in self.on_elsewhere:
            self.on_elsewhere[kind](sender, message)
        else:
            raise TypeError("it is not for the node")

    def _define_env(self, sender: str, message: messages.DefineEnv) -> None:
        key = message.key
        if key not in self._envs:
            for agent in self.agents.values():
                agent.define_env(key, message.spec)
            self._envs[key] = message.spec
        if key in self._env_errors:
            self._tell_env_failed([sender], key, self._env_errors[key])

    def _check_env(self, shape: Shape) -> None:
        if shape.env and shape.env not in self._envs:
            raise ValueError(f"environment {shape.env!r:.50} was not defined")

    def _by_name(self, message: messages.AskByName) -> Answer:
        by_name = self.scheduler.actor_by_name
        actor = by_name.get((message.namespace, message.name))
        if actor is None:
            return Answer(message.request, error=no_such_actor(message.name, message.namespace, by_name))
        entry = self.scheduler.actors[actor]
        return Answer(message.request, actor, entry.info, is_detached=entry.is_detached)

    def _post(self, client: str, message: Any) -> None:
        if client in self.clients:
            self._transport.post(client, message)

    def event(self, event: events.Event) -> None:
        """(What clients ask was checked before.) With half of it done the books would not be true of the processes any
        more, and work would wait for ever: the node ends, with its traceback, and who waits is told."""
        try:
            self._perform(self.scheduler.handle(event, self._clock()))
        except Exception as error:
            raise RuntimeFault(f"the node could not handle {event!r:.300}") from error

    def _perform(self, actions: list[events.Action]) -> None:
        for action in actions:
            match action:
                case events.StartWorker(worker, gpu_ids, node, env):
                    agent = self._agent_of[worker] = self.agents[node]
                    agent.start(worker, gpu_ids, env)
                case events.StopWorker(worker, at_once, is_surplus, reason):
                    if worker in self._agent_of:
                        self._agent_of[worker].stop(worker, at_once, is_surplus, reason)
                case events.Tell(client, message):
                    if type(message) is messages.ActorGone:
                        self._creations.pop(message.actor, None)
                        self._forget_creating(message.actor)
                    self._post(client, message)
                case events.CreateDetached(_, actor):
                    self._create(actor)
                case events.TellDied(worker, reason, kind):
                    self.clients.discard(worker)
                    home = self._agent_of.pop(worker, None)
                    self._dead.add_with(worker, reason)
                    self.on_died(worker, home)
                    with_machine = home not in self.agents.values()
                    for client in self.clients:
                        self._post(client, messages.WorkerDied(worker, reason, kind, with_machine))
                    self._tell_settled(self._settling.died(worker, self.clients))
                case events.WakeAt(at):
                    self.wake_at = at
                case events.Warn(text):
                    self._warn(text)

    def _tell_settled(self, workers: list[str]) -> None:
        if workers:
            for client in self.clients:
                self._post(client, messages.Settled(workers))
            self.on_settled(workers)
            for agent in self.agents.values():
                agent.remove_files(workers)

    # -- detached actors: no client may be there to create their next incarnation

    def _keep_creation(self, message: messages.KeepCreation) -> None:
        entry = self.scheduler.actors.get(message.actor)
        if entry is not None and entry.error is None and message.actor not in self._creations:
            self._creations[message.actor] = message
            if entry.worker:
                self._create(message.actor)

    def _create(self, actor: str) -> None:
        """Send the creation message to the actor's new process, when both are there."""
        kept, entry = self._creations.get(actor), self.scheduler.actors[actor]
        if kept is not None:
            self._forget_creating(actor)
            self._num_created += 1
            self._creating[self._num_created] = actor
            creation = msgspec.structs.replace(kept.creation, task=self._num_created)
            self._post(entry.worker, kept.code)
            self._post(entry.worker, creation)

    def _forget_creating(self, actor: str) -> None:
        """Its process died in the constructor: no reply comes."""
        self._creating = {number: each for number, each in self._creating.items() if each != actor}

    def _on_created(self, message: messages.Done) -> None:
        """The constructor of a detached actor has returned or raised."""
        for task, result in zip(message.tasks, message.results, strict=True):
            actor = self._creating.pop(task, "")
            error = result[0].error if isinstance(result, list) else None
            if actor and error is not None:
                entry = self.scheduler.actors.get(actor)
                name = entry.info.class_name if entry is not None else actor
                self.event(events.ActorEnded(actor, f"it could not be created: {name}: {error.message}", True))

    def _watch(self, actions: list[wait_graph.Action]) -> None:
        for action in actions:
            match action:
                case wait_graph.Ask(owner, ids):
                    self._post(owner, messages.WhoMakes(ids))
                case wait_graph.Warn(text):
                    self._warn(text)

    def _tell_env_failed(self, clients: list[str], key: str, error: ErrorInfo) -> None:
        for client in clients:
            self._post(client, messages.EnvFailed(key, error))

    # -- time

    def next_deadline(self) -> float | None:
        return min((at for at in (self.wake_at, self._waits.deadline()) if at is not None), default=None)

    def keep_house(self, now: float) -> None:
        if self.wake_at is not None and self.wake_at <= now:
            self.wake_at = None
            self.event(events.Tick())
        self._watch(self._waits.ticked(now))

    def ask_to_exit(self, worker: str) -> None:
        self._post(worker, messages.Exit())

    def ask_for_life(self, worker: str) -> None:
        self._post(worker, messages.Ping())
