"""How a process takes part in the cluster: its parts, and what it hears from the node. The driver and every worker
have one.

The parts each keep a book of their own: `calls` of what is under way and of leased workers, `actors` of those that this
process calls, `objects` of what it owns and borrows, `questions` of what it asked the node. Each is given those
parts that it needs; the `link` sends and receives for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from rlplat.runtime.backend import Backend
from rlplat.runtime.client import report
from rlplat.runtime.client.actors import Actors
from rlplat.runtime.client.awaiting import Awaiting
from rlplat.runtime.client.calls import Calls
from rlplat.runtime.client.cancels import Cancels
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.questions import ClientEnvs, Questions
from rlplat.runtime.client.reading import Reader
from rlplat.runtime.client.streams import Streams
from rlplat.runtime.core.resources import Growing
from rlplat.runtime.link.chores import NEVER
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.waiters import Waiters
from rlplat.runtime.process import signals
from rlplat.runtime.process.spans import Span
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.messages import NODE


class Client:
    can_nest = False
    outer: Backend | None = None

    def __init__(self, link: Link, *, on_await_cancelled: Callable[[ObjectRef], None] = lambda ref: None) -> None:
        """`on_await_cancelled`: a coroutine that awaited this ref was cancelled."""
        self.client_id, self.session, self.link = link.client_id, link.session, link
        self.gpu_ids: tuple[int, ...] = ()
        self.objects = Objects(link)
        self.waiters = Waiters(link, on_await_cancelled)
        self.streams = Streams(link, self.objects, self.waiters)
        self.envs = ClientEnvs(link)
        self.calls = Calls(
            link, self.objects, self.streams, self.envs, lambda call, error: self.actors.not_made(call, error)
        )
        self.reader = Reader(link, self.objects, self.calls.rebuilder)
        self.awaiting = Awaiting(link, self.objects, self.reader, self.waiters)
        self.cancels = Cancels(link, self.objects, self.calls)
        self.questions = Questions(link, self.objects)
        self.actors = Actors(link, self.objects, self.reader, self.calls, self.questions, self.envs)
        # The verbs of the parts, bound here: a call less on the way of each task.
        self.submitter, self.submit_call = self.calls.submitter, self.actors.submit_call
        self.get, self.wait = self.reader.get, self.reader.wait
        self.create_actor, self.kill, self.on_death = (
            self.actors.create,
            self.actors.kill,
            self.actors.on_death,
        )
        self.handle_of = self.actors.handle_of
        self.get_actor, self.actor_names = self.actors.get, self.actors.names
        self.resources, self.cluster = self.questions.resources, self.questions.cluster
        self.create_group, self.group_ready = self.questions.create_group, self.questions.group_ready
        self.remove_group = self.questions.remove_group
        self.future, self.value_of = self.awaiting.future_of, self.awaiting.value_of
        self.as_completed = self.awaiting.as_completed
        self.cancel, self.adopt, self.empty = self.cancels.cancel, self.objects.adopt, self.objects.empty
        link.on(messages.Farewell, lambda sender, _: link.transport.post(sender, messages.FarewellHeard()))
        link.on(messages.Welcome, self._on_welcome)
        link.on(messages.Grown, lambda _, message: self.calls.cluster_has(Growing(message.total)))
        link.on(messages.WorkerDied, self._on_worker_died)
        link.on(messages.Inspect, lambda sender, m: report.answer(self, sender, m))
        link.chore(
            lambda: self.cancels.close_generators(self.streams.abandoned()),
            lambda: NEVER,
            self.streams.dropped,
        )
        if "RLPLAT_RECORD_CALLSITES" in os.environ:
            from rlplat.runtime.client.report import record_call_sites

            record_call_sites(self)

    def start(self) -> None:
        """Join the cluster."""
        with self.link.lock:
            self.link.transport.post(NODE, messages.Hello(self.client_id))
            self.link.wait_until(lambda: bool(self.link.total), 30, "the node's welcome")
        self.link.loop.start()

    @property
    def namespace(self) -> str:
        return self.link.namespace

    def nested_opened(self) -> None:
        """Workers override."""

    def use_runtime_env(self, env: dict[str, Any], snapshots: str) -> None:
        """What this process runs in, which what it submits inherits."""
        self.envs.own, self.envs.folder = env, snapshots

    def put(self, value: Any) -> ObjectRef:
        return self.objects.make(codec.pack(value, "the value of rlplat.put"))[1]

    # ---------------------------------------------------------------- what a worker says of itself as well

    @property
    def actor_name(self) -> str:
        """Of the class of the actor that this process is."""
        return ""

    def owners_waiting(self) -> list[str]:
        """Of each call that waits here to be run."""
        return []

    def spans(self) -> list[Span]:
        """The last calls that ran here."""
        return []

    def coroutines(self) -> list[Any]:
        """Of the calls that run here."""
        return []

    def exit_actor(self) -> None:
        raise TypeError("rlplat.exit_actor() is for the methods of an actor; this process is no actor")

    # ---------------------------------------------------------------- news from the node (lock held)

    def _on_welcome(self, sender: str, message: messages.Welcome) -> None:
        self.link.total = Growing(message.total) if message.can_grow else message.total
        self.link.namespace = message.namespace
        self.objects.heard_who_lives(message.alive, message.next_worker, message.reasons)

    def _on_worker_died(self, sender: str, message: messages.WorkerDied) -> None:
        worker, reason = message.worker, message.reason
        if worker in self.objects.dead:
            return
        self.objects.peer_died(worker, reason, message.with_machine)
        self.calls.on_worker_died(worker, reason, message.kind)
        self.link.loop.notify()

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        self.waiters.close()
        self.awaiting.close()
        self.link.loop.close()
        with self.link.lock:
            self.objects.close()
            self.calls.close()
        signals.unwrap_handlers()
