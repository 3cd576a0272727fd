"""What happens in the life of an actor: it is created, sought, loses its process, starts again, ends.

The books and the judgement are those of `actors`, processes come from `placing`.
"""

from __future__ import annotations

from rlplat.runtime.core.scheduler.actors import ActorEntry, Actors, name_is_taken
from rlplat.runtime.core.scheduler.events import (
    ActorEnded,
    ActorRequested,
    ActorSought,
    StopWorker,
    Tell,
    Turn,
)
from rlplat.runtime.core.scheduler.placing import Placing
from rlplat.runtime.core.scheduler.queues import Request
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import ErrorInfo


class ActorLives:
    def __init__(self, turn: Turn, placing: Placing, actors: Actors) -> None:
        self._turn, self._placing, self._actors = turn, placing, actors

    def on_requested(self, event: ActorRequested) -> None:
        if event.actor in self._actors.entries or not self._placing.is_alive(event.client):
            return
        early = self._actors.requested(event.actor)
        holder = self._actors.named(event.namespace, event.name) if event.name else None
        if holder is not None:
            self._refuse_name(event, holder, list(early.seekers) if early is not None else [])
            return
        entry = self._actors.add(event)
        if early is not None:
            for seeker in early.seekers:
                if self._placing.is_alive(seeker):
                    self._actors.seek(entry, seeker)
        self._placing.demand(Request(event.client, event.shape, 1, entry))
        if early is not None and early.end is not None:
            self.on_ended(early.end)

    def _refuse_name(self, event: ActorRequested, holder: ActorEntry, seekers: list[str]) -> None:
        error = name_is_taken(event.name)
        if event.get_if_exists:
            taken = Tell(event.client, messages.NameTaken(event.actor, holder.id, holder.info, holder.is_detached))
            self._turn.out.append(taken)
        else:
            self._turn.out.append(Tell(event.client, messages.ActorGone(event.actor, error)))
        self._turn.out.extend(Tell(seeker, messages.ActorGone(event.actor, error)) for seeker in seekers)

    def on_sought(self, event: ActorSought) -> None:
        client, actor = event.client, event.actor
        entry = self._actors.entries.get(actor)
        if entry is None:
            early = self._actors.early(actor) if self._may_come(actor) else None
            if early is not None:
                early.seekers[client] = None
                return
            error = ErrorInfo("ActorDied", f"actor {actor} is not known here: it ended long ago")
            self._turn.out.append(Tell(client, messages.ActorGone(actor, error)))
        elif entry.error is not None:
            self._turn.out.append(Tell(client, messages.ActorGone(actor, entry.error)))
        else:
            if self._placing.is_alive(client):
                self._actors.seek(entry, client)
            if entry.worker:
                self._turn.out.append(Tell(client, messages.Placed(actor, entry.worker, entry.incarnation)))

    def _may_come(self, actor: str) -> bool:
        return self._placing.is_alive(actor.rpartition(":")[0])

    def on_ended(self, event: ActorEnded) -> None:
        entry = self._actors.entries.get(event.actor)
        if entry is None:
            early = self._actors.early(event.actor) if self._may_come(event.actor) else None
            if early is not None and event.no_restart:
                early.end = event
        elif entry.error is None and event.no_restart:
            self._end(entry, event.reason, event.at_once)
        elif entry.error is None and entry.worker:
            entry.stop_reason = event.reason
            self._turn.out.append(StopWorker(entry.worker, True, reason=event.reason))

    def _end(self, entry: ActorEntry, reason: str, at_once: bool) -> None:
        entry.end_reason = reason
        if entry.worker:
            worker = self._placing.workers.get(entry.worker)
            if worker is not None and not worker.node.is_lost:
                self._turn.out.append(StopWorker(entry.worker, at_once))
            return
        if entry.request is not None:
            self._placing.unqueue(entry.request)
        placement = entry.placement
        when = "while it was restarted" if entry.num_restarts else "before it had a worker"
        self._actors.bury(entry, ErrorInfo("ActorDied", f"actor {entry.info.class_name} ended {when}: {reason}"))
        if placement is not None:
            self._placing.cancel(placement)

    def lost_process(self, entry: ActorEntry, what: str, is_crash: bool) -> float | None:
        """Its process is gone; seconds until its next, or None."""
        entry.worker = ""
        verdict = self._actors.judge(entry, what, self._turn.now, is_crash)
        if isinstance(verdict, ErrorInfo):
            self._actors.bury(entry, verdict)
            return None
        reason = entry.stop_reason or f"its process {what}"
        entry.stop_reason = ""
        entry.num_restarts += 1
        entry.incarnation += 1
        for client in sorted(entry.seekers):
            self._turn.out.append(Tell(client, messages.ActorRestarting(entry.id, reason)))
        if verdict > 0:
            self._turn.wake_at(self._turn.now + verdict, self.restart, entry)
        return verdict

    def restart(self, entry: ActorEntry) -> None:
        if entry.error is None:
            self._placing.demand(Request(entry.client, entry.shape, 1, entry))

    def end_with(self, entry: ActorEntry, error: ErrorInfo) -> None:
        """Like `_end`, and with just this error when it has no process."""
        if entry.error is not None:
            return
        if entry.worker:
            self._end(entry, error.message, at_once=True)
            return
        placement = entry.placement
        self._actors.bury(entry, ErrorInfo(error.kind, f"actor {entry.info.class_name}: {error.message}"))
        if placement is not None:
            self._placing.cancel(placement)

    def creator_lost(self, creator: str, why: str) -> None:
        """What it has created ends, and what it would have created will not come."""
        for entry in self._actors.client_lost(creator):
            self._end(entry, why, at_once=True)
        for actor, early in self._actors.never_created(creator).items():
            error = ErrorInfo("ActorDied", f"actor {actor} was never created: {why}")
            self._turn.out.extend(Tell(seeker, messages.ActorGone(actor, error)) for seeker in early.seekers)
