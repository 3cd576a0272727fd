"""The node process: the shell around `scheduler`; the workers are kept by `processes`. `launch` starts it.

It lives in a session of its own, so that a Ctrl-C in the terminal reaches the driver alone. However the driver ends,
this process kills every process that carries the cluster's mark in its environment, and removes the session's folder.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import traceback
from typing import Any

import msgspec

from rlplat.errors import RuntimeFault
from rlplat.given.say import say
from rlplat.runtime.core.gone import Dead
from rlplat.runtime.core.node import wait_graph
from rlplat.runtime.core.node.settling import Settling
from rlplat.runtime.core.scheduler import events
from rlplat.runtime.core.scheduler.actors import no_such_actor
from rlplat.runtime.core.scheduler.admission import check_actor, check_bundles, check_count, check_shape
from rlplat.runtime.core.scheduler.scheduler import Scheduler
from rlplat.runtime.link.answers import answer_as_node
from rlplat.runtime.link.dropped import Handler
from rlplat.runtime.link.system import SYSTEM, System
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.machine.hardware import visible_gpus
from rlplat.runtime.machine.session import MARK, kill_marked, remove_session
from rlplat.runtime.machine.worker_logs import SNAPSHOTS
from rlplat.runtime.node.processes import Processes
from rlplat.runtime.node.watch import Watch
from rlplat.runtime.process import stacks
from rlplat.runtime.store.account import remove_files_of
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import DRIVER, Answer
from rlplat.runtime.wire.values import Shape


class Node:
    def __init__(
        self,
        config: dict[str, Any],
        orders: socket.socket,
        zygote: int,
        gpus: list[str],
        *,
        system: System = SYSTEM,
        processes: type[Processes] = Processes,
        watch: type[Watch] = Watch,
    ) -> None:
        """`zygote`: its pid. `gpus`: what CUDA calls them. `processes` start and end the workers, `watch` looks at
        them."""
        session, total = config["session"], config["total"]
        self._session, self._total, self._folder = session, total, config["folder"]
        self._namespace = config.get("namespace", "")
        self._clock = system.clock
        self._started_at = self._clock()
        self._transport = Transport(session, "node", sockets=system.sockets)
        spares = max(1, min(4, int(total["CPU"])))
        self._num_spares = spares
        self._scheduler = Scheduler()
        self._wake_at: float | None = None
        """When the scheduler wants a Tick."""
        self._creations: dict[str, messages.KeepCreation] = {}
        """Of detached actors: how each of their incarnations is created."""
        self._creating: dict[int, str] = {}
        """Actors by number of the creation that we have sent."""
        self._num_created = 0
        self._waits = wait_graph.WaitGraph(self._scheduler.who)
        self._clients: set[str] = set()
        self._dead = Dead()
        self._settling = Settling()
        self._poller = system.poller()
        for descriptor in (0, self._transport.fd):
            self._poller.register(descriptor, select.POLLIN)
        self._processes = processes(
            orders,
            zygote,
            self._poller,
            gpus,
            self._folder,
            config["log_to_driver"],
            who=self._scheduler.who,
            is_ready=self._clients.__contains__,
            ask_to_exit=lambda worker: self._post(worker, messages.Exit()),
            on_lost=self._on_process_lost,
            on_env_settled=self._on_env_settled,
        )
        self._worker_watch = watch(
            self._processes,
            self._scheduler.in_use,
            lambda worker: self._post(worker, messages.Ping()),
            config["hang_timeout_s"],
            config["memory_usage_threshold"],
        )

    def run(self) -> None:
        """Serve until the driver is gone."""
        self._event(events.NodeJoined("node", self._total, self._num_spares))
        try:
            os.write(1, b"ready\n")
        except BrokenPipeError:  # the driver was killed meanwhile
            return
        while True:
            self._transport.flush()
            self._receive()
            self._keep_house()  # after the messages: whoever has just got a worker is watched from now on
            self._transport.flush()
            if (
                self._transport.has_input()
            ):  # the last look before the poll: sending may swallow the signal of it
                continue
            for descriptor, _ in self._poller.poll(self._next_deadline_ms()):
                if descriptor == 0:
                    if not os.read(0, 4096):
                        return
                elif descriptor != self._transport.fd and not self._processes.hear(descriptor):
                    how = self._processes.zygote_end
                    say(f"the zygote, which starts the workers of this cluster, {how}, so all end")
                    return

    # -- messages

    def _receive(self) -> None:
        for sender, batch in self._transport.receive():
            is_client = sender == DRIVER or sender in self._scheduler.placing.workers
            handler_of = self._handler_for_client if is_client else self._handler_for_stranger
            self._transport.dropped.deliver(sender, batch, handler_of)

    def _handler_for_client(self, kind: type) -> Handler | None:
        return self._on_message if kind is not messages.Inspect else None

    def _handler_for_stranger(self, kind: type) -> Handler | None:
        return self._on_inspect if kind is messages.Inspect else None

    def _on_inspect(self, sender: str, message: messages.Inspect) -> None:
        answer_as_node(self._transport, sender, message, self._view)

    def _view(self) -> dict[str, Any]:
        """All that it knows, as plain data."""
        return {
            "clients": sorted(self._clients),
            "pids": self._processes.pids(),
            "uptime_s": self._clock() - self._started_at,
            "session": self._session,
            "log_folder": self._processes.log_folder,
        } | self._scheduler.view()

    def _on_message(self, sender: str, message: Any) -> None:
        kind = type(message)
        if kind is messages.Hello:
            self._clients.add(sender)
            self._processes.on_ready(sender)
            placing = self._scheduler.placing
            self._post(
                sender,
                messages.Welcome(
                    self._total,
                    self._namespace,
                    list(placing.workers),
                    placing.next_worker,
                    self._dead.reasons,
                ),
            )
            self._event(events.WorkerReady(sender))
        elif kind is messages.RequestLeases:
            check_count(message.shape, message.count)
            self._check_env(message.shape)
            self._event(events.LeasesRequested(sender, message.shape, message.count))
        elif kind is messages.ReturnLease:
            self._event(events.LeaseReturned(sender, message.worker, message.is_worn))
        elif kind is messages.PlaceActor:
            m = message
            check_actor(m.actor, sender)
            check_shape(m.shape)
            self._check_env(m.shape)
            self._event(
                events.ActorRequested(
                    sender,
                    m.actor,
                    m.info,
                    m.shape,
                    m.name,
                    m.namespace,
                    m.max_restarts,
                    m.is_detached,
                    m.get_if_exists,
                )
            )
        elif kind is messages.EndActor:
            m = message
            self._event(events.ActorEnded(m.actor, m.reason, m.at_once, m.no_restart))
        elif kind is messages.FindActor:
            self._event(events.ActorSought(sender, message.actor))
        elif kind is messages.Blocked:
            self._waits.blocked(sender, message.on, self._clock())
            self._event(events.WorkerBlocked(sender))
        elif kind is messages.Unblocked:
            self._waits.unblocked(sender)
            self._event(events.WorkerUnblocked(sender))
        elif kind is messages.Makes:
            self._watch(self._waits.found((sender, message.id), message.worker, message.name, message.waits))
        elif kind is messages.AskByName:
            self._post(sender, self._by_name(message))
        elif kind is messages.AskNames:
            named = [key for key in self._scheduler.actor_by_name if message.namespace in (None, key[0])]
            self._post(sender, Answer(message.request, names=named))
        elif kind is messages.AskResources:
            amounts = self._scheduler.available if message.available else self._total
            self._post(sender, Answer(message.request, amounts=dict(amounts)))
        elif kind is messages.KillWorker:
            self._processes.kill(message.worker, message.reason)
        elif kind is messages.DeathHeard:
            self._tell_settled(self._settling.heard(sender, message.worker))
        elif kind is messages.Pong:
            self._worker_watch.answered(sender, self._clock())
        elif kind is messages.DefineEnv:
            self._processes.envs.define(message.key, message.spec)
            self._tell_env_failed([sender], message.key)
        elif kind is messages.CreateGroup:
            m = message
            bundles = tuple(m.bundles)
            check_bundles(bundles)
            self._event(events.GroupRequested(sender, m.group, bundles, m.strategy, m.name, m.is_detached))
        elif kind is messages.FindGroup:
            self._event(events.GroupSought(sender, message.group))
        elif kind is messages.RemoveGroup:
            self._event(events.GroupRemoved(message.group))
        elif kind is messages.AskCluster:
            state = self._scheduler
            nodes, groups, here = state.node_states(), state.group_states(), state.place_of(sender)
            self._post(sender, messages.Cluster(message.request, nodes, groups, here))
        elif kind is messages.KeepCreation:
            self._keep_creation(message)
        elif kind is messages.Done or kind is messages.DoneFull:
            self._on_created(message)
        else:
            raise TypeError("it is not for the node")

    def _check_env(self, shape: Shape) -> None:
        if shape.env and not self._processes.envs.is_known(shape.env):
            raise ValueError(f"environment {shape.env!r:.50} was not defined")

    def _by_name(self, message: messages.AskByName) -> Answer:
        by_name = self._scheduler.actor_by_name
        actor = by_name.get((message.namespace, message.name))
        if actor is None:
            return Answer(message.request, error=no_such_actor(message.name, message.namespace, by_name))
        entry = self._scheduler.actors[actor]
        return Answer(message.request, actor, entry.info, is_detached=entry.is_detached)

    def _post(self, client: str, message: Any) -> None:
        if client in self._clients:
            self._transport.post(client, message)

    def _event(self, event: events.Event) -> None:
        """(What clients ask was checked before.) With half of it done the books would not be true of the processes any
        more, and work would wait for ever: the node ends, with its traceback, and who waits is told."""
        try:
            self._perform(self._scheduler.handle(event, self._clock()))
        except Exception as error:
            raise RuntimeFault(f"the node could not handle {event!r:.300}") from error

    def _perform(self, actions: list[events.Action]) -> None:
        for action in actions:
            match action:
                case events.StartWorker(worker, gpu_ids, _, env):
                    self._processes.start(worker, gpu_ids, env)
                case events.StopWorker(worker, at_once, is_surplus, reason):
                    self._processes.stop(worker, at_once, is_surplus, reason)
                case events.Tell(client, message):
                    if type(message) is messages.ActorGone:
                        self._creations.pop(message.actor, None)
                        self._forget_creating(message.actor)
                    self._post(client, message)
                case events.CreateDetached(_, actor):
                    self._create(actor)
                case events.TellDied(worker, reason, kind):
                    self._clients.discard(worker)
                    self._dead.add_with(worker, reason)
                    for client in self._clients:
                        self._post(client, messages.WorkerDied(worker, reason, kind))
                    self._tell_settled(self._settling.died(worker, self._clients))
                case events.WakeAt(at):
                    self._wake_at = at
                case events.Warn(text):
                    self._processes.console.write(f"rlplat: {text}\n")

    def _tell_settled(self, workers: list[str]) -> None:
        if workers:
            for client in self._clients:
                self._post(client, messages.Settled(workers))
        for worker in workers:  # owners that live have given names of their own to what it had made for them
            remove_files_of(self._session, worker)

    # -- detached actors: no client may be there to create their next incarnation

    def _keep_creation(self, message: messages.KeepCreation) -> None:
        entry = self._scheduler.actors.get(message.actor)
        if entry is not None and entry.error is None and message.actor not in self._creations:
            self._creations[message.actor] = message
            if entry.worker:
                self._create(message.actor)

    def _create(self, actor: str) -> None:
        """Send the creation message to the actor's new process, when both are there."""
        kept, entry = self._creations.get(actor), self._scheduler.actors[actor]
        if kept is not None:
            self._forget_creating(actor)
            self._num_created += 1
            self._creating[self._num_created] = actor
            creation = msgspec.structs.replace(
                kept.creation, task=self._num_created, actor=actor, incarnation=entry.incarnation
            )
            self._post(entry.worker, kept.code)
            self._post(entry.worker, creation)

    def _forget_creating(self, actor: str) -> None:
        """Its process died in the constructor: no reply comes."""
        self._creating = {number: each for number, each in self._creating.items() if each != actor}

    def _on_created(self, message: messages.Done | messages.DoneFull) -> None:
        """The constructor of a detached actor has returned or raised."""
        if isinstance(message, messages.Done):
            for task in message.tasks:
                self._creating.pop(task, None)
            return
        error = message.values[0].error
        actor = self._creating.pop(message.task, "")
        if actor and error is not None:
            entry = self._scheduler.actors.get(actor)
            name = entry.info.class_name if entry is not None else actor
            self._event(events.ActorEnded(actor, f"it could not be created: {name}: {error.message}", True))

    def _watch(self, actions: list[wait_graph.Action]) -> None:
        for action in actions:
            match action:
                case wait_graph.Ask(owner, ids):
                    self._post(owner, messages.WhoMakes(ids))
                case wait_graph.Warn(text):
                    self._processes.console.write(f"rlplat: {text}\n")

    # -- processes

    def _on_process_lost(self, worker: str, reason: str, kind: str) -> None:
        self._transport.forget(worker)
        self._waits.unblocked(worker)
        self._event(events.WorkerLost(worker, reason, kind))

    def _on_env_settled(self, key: str) -> None:
        error = self._processes.envs.error(key)
        if error is not None:
            self._tell_env_failed(list(self._clients), key)
            self._event(events.EnvFailed(key, error))

    def _tell_env_failed(self, clients: list[str], key: str) -> None:
        error = self._processes.envs.error(key)
        if error is not None:
            for client in clients:
                self._post(client, messages.EnvFailed(key, error))

    # -- time

    def _next_deadline_ms(self) -> float | None:
        times = [self._wake_at] if self._wake_at is not None else []
        for deadline in (
            self._waits.deadline(),
            self._processes.next_deadline(),
            self._worker_watch.next_deadline(),
        ):
            times += [deadline] if deadline is not None else []
        return max(0.0, (min(times) - self._clock()) * 1000) + 1 if times else None

    def _keep_house(self) -> None:
        now = self._clock()
        if self._wake_at is not None and self._wake_at <= now:
            self._wake_at = None
            self._event(events.Tick())
        self._watch(self._waits.ticked(now))
        self._processes.keep_house(now)
        self._worker_watch.keep_house(now)

    def close(self) -> None:
        # The zygote first: with its orders closed it would take the node for dead, and kill it before it is done here.
        kill_marked(os.environ[MARK])
        self._processes.close()
        shutil.rmtree(os.path.join(self._folder, SNAPSHOTS), ignore_errors=True)
        remove_session(self._session)


def serve(config: dict[str, Any], orders: socket.socket, zygote: int) -> None:
    """The life of a node process (`launch` has forked its zygote). Never returns."""
    stacks.arm()
    node = Node(config, orders, zygote, visible_gpus())
    try:
        node.run()
    except BaseException:  # the driver says that its node is gone; here is why
        traceback.print_exc()
    finally:
        node.close()
        os._exit(0)
