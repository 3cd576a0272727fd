"""What a client (driver or worker) says of itself to a command that looks on (`look.observer`).

Called by whichever thread reads the socket, with the lock held, so that it answers while user code runs; it only reads
the books that exist anyway. Rows are bounded by the asker's limit; what is beyond them is counted. The asker is no
client: it gets one report for one question and is forgotten, so it can neither block nor outlive anything here.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from rlplat.runtime.link.answers import reply, stacks
from rlplat.runtime.options import Options
from rlplat.runtime.process import own_frames
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.messages import Inspect, Report

_MAX_RUNS = 1000
_MAX_GROUPS = 100


def answer(client: Any, sender: str, message: Inspect) -> None:
    """Tell `sender` what it asked a client (driver or worker) for."""
    reply(client.link.transport, sender, message, lambda: _ROOMS[message.what](client, message.limit))


# ---------------------------------------------------------------- tasks


def _tasks(client: Any, limit: int) -> Report:
    """Records of the calls that this process has submitted, and what waits in its own queue as a worker."""
    calls = client.objects.book.calls()
    sent: dict[str, list[Any]] = {}
    waiting: Counter[tuple[str, str, str]] = Counter()
    for record in calls:
        if record.lease is not None:
            sent.setdefault(record.lease.worker, []).append(record)
        else:
            waiting[_state(record), record.name, record.queue.kind] += 1

    rows = []
    for worker, records in sent.items():
        for position, record in enumerate(records[:limit]):
            rows.append(_task_row(client, record, "sent", worker) | {"position": position})
    rows += _waiting_rows(client, calls, waiting, limit)
    totals = {
        "waiting": [[state, name, kind, count] for (state, name, kind), count in waiting.items()],
        "sent": {worker: _runs(records) for worker, records in sent.items()},
        "queued_here": Counter(client.owners_waiting()),
        "failed": dict(client.calls.failures),
        "finished": _finished(client.spans()),
    }
    return Report(0, rows, totals)


def _state(record: Any) -> str:
    if record.waits:
        return "waiting-args"
    return "waiting-actor" if record.queue.kind == "call" else "waiting-worker"


def _waiting_rows(client: Any, calls: list[Any], waiting: Counter[tuple[str, str, str]], limit: int) -> list[Any]:
    """At most `limit` rows of each state."""
    room: Counter[str] = Counter()
    for (state, _, _), count in waiting.items():
        room[state] += count
    room = Counter({state: min(limit, count) for state, count in room.items()})
    rows: list[Any] = []
    left = room.total()
    for record in calls:
        if not left:
            break
        state = _state(record)
        if room[state] and record.lease is None:
            room[state] -= 1
            left -= 1
            rows.append(_task_row(client, record, state, ""))
    return rows


def _task_row(client: Any, record: Any, state: str, worker: str) -> dict[str, Any]:
    return {
        "task": f"{client.client_id}:{record.id}",
        "name": record.name + (".__init__" if record.message.creation is not None else ""),
        "kind": record.queue.kind,
        "state": state,
        "worker": worker,
        "actor": record.queue.actor_id if record.queue.kind == "call" else "",
        "owner": client.client_id,
        "waits": record.waits,
        "retries_left": record.retries_left,
        "resources": {} if record.queue.shape is None else dict(record.queue.shape.demand),
    }


def _runs(records: list[Any]) -> list[list[Any]]:
    """[name, kind, count] of neighbours with one name; what is too mixed ends as one run of many names."""
    runs: list[list[Any]] = []
    for record in records:
        if runs and runs[-1][0] == record.name:
            runs[-1][2] += 1
        elif len(runs) == _MAX_RUNS:
            runs.append(["(others)", "call", 1])
        elif len(runs) > _MAX_RUNS:
            runs[-1][2] += 1
        else:
            runs.append([record.name, record.queue.kind, 1])
    return runs


def _finished(spans: list[tuple[str, float, float]]) -> dict[str, list[float]]:
    """Name -> [count, seconds] of the calls that ended here lately."""
    out: dict[str, list[float]] = {}
    for name, began, ended in spans:
        entry = out.setdefault(name, [0, 0.0])
        entry[0] += 1
        entry[1] += ended - began
    return out


# ---------------------------------------------------------------- objects


def _objects(client: Any, limit: int) -> Report:
    """What this process owns, biggest first, what it borrows, and all that it owns in groups."""
    objects = client.objects
    groups: dict[tuple[str, str, str], list[int]] = {}
    sized: list[tuple[int, Any, str, str]] = []
    num_pending = num_bytes = 0
    makers = _Makers(client)
    for entry in objects.book.values():
        value = entry.value
        if value is None:
            size, where = 0, "pending"
            num_pending += 1
        else:
            size, where = _size(value), _where(objects, entry)
            num_bytes += size
        made_by, site = makers.of(entry)
        group = groups.setdefault((made_by, site, where), [0, 0])
        group[0] += 1
        group[1] += size
        sized.append((size, entry, made_by, site))
    biggest = heapq.nlargest(limit, sized, key=itemgetter(0))
    rows = [_owner_row(objects, *each) for each in biggest] + _borrower_rows(objects, limit)
    largest = heapq.nlargest(_MAX_GROUPS, groups.items(), key=lambda group: (group[1][1], group[1][0]))
    totals = {
        "owned": len(sized),
        "borrowed": len(objects.borrows),
        "pending": num_pending,
        "bytes": num_bytes,
        "groups": [[*key, *counts] for key, counts in largest],
    }
    return Report(0, rows, totals)


class _Makers:
    """What made an object, as far as it is known: (task, actor or "put"; call site)."""

    def __init__(self, client: Any) -> None:
        self._actors, self._me = client.actors.books, client.client_id
        self._sites = getattr(client, "call_sites", {})

    def of(self, entry: Any) -> tuple[str, str]:
        made_by, site = self._sites.get(entry.id, ("", ""))
        if not made_by:
            if entry.call is not None:
                made_by = entry.call.name
            else:
                made_by = entry.made_by or self._guess(entry)
        return made_by, site

    def _guess(self, entry: Any) -> str:
        actor = self._actors.get(f"{self._me}:{entry.id}")
        return "" if actor is None else f"actor {actor.class_name}"


def _size(value: Any) -> int:
    return len(value.data) if value.segment is None else sum(value.segment.sizes)


def _where(objects: Any, entry: Any) -> str:
    value = entry.value
    if value.error is not None:
        return "error"
    if value.segment is None:
        return "inline"
    place = str(objects.store.place(value.segment))
    return "elsewhere" if place == "lost" and objects.is_there(entry.id) else place


def _owner_row(objects: Any, size: int, entry: Any, made_by: str, site: str) -> dict[str, Any]:
    value = entry.value
    return {
        "id": f"{objects.client_id}:{entry.id}",
        "role": "owner",
        "size": size,
        "where": "pending" if value is None else _where(objects, entry),
        "creator": "" if value is None or value.segment is None else value.segment.creator,
        "refs": entry.num_refs,
        "borrowers": entry.num_lent(),
        "made_by": made_by,
        "call_site": site,
    }


def _borrower_rows(objects: Any, limit: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{owner}:{id}",
            "role": "borrower",
            "size": 0 if borrow.value is None else _size(borrow.value),
            "refs": borrow.num_refs,
        }
        for (owner, id), borrow in itertools.islice(objects.borrows.items(), limit)
    ]


# ---------------------------------------------------------------- time and stacks


def _spans(client: Any, limit: int) -> Report:
    """(name, began, ended) of the last calls and waits here, on the monotonic clock that all processes share."""
    spans, waits = client.spans(), client.link.loop.waits.last(limit)
    totals = {"spans": spans[-limit:], "waits": waits, "actor": client.actor_name}
    return Report(0, totals=totals)


def _own_stacks(client: Any, limit: int) -> Report:
    doing = f"actor {client.actor_name}" if client.actor_name else ""
    return stacks(__file__, doing, client.coroutines())


_ROOMS: dict[str, Callable[[Any, int], Report]] = {
    "tasks": _tasks,
    "objects": _objects,
    "spans": _spans,
    "stacks": _own_stacks,
}


# ---------------------------------------------------------------- call sites (RLPLAT_RECORD_CALLSITES)

_SLACK = 10_000


def record_call_sites(client: Any) -> None:
    """From now on `client.call_sites` has id -> (task, "file.py:12 in function") of the objects that it owns."""
    sites: dict[int, tuple[str, str]] = {}
    client.call_sites = sites

    def recording(verb: Callable[..., Any], made_by: Callable[..., str]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            out = verb(*args, **kwargs)
            refs = out if type(out) is list else [getattr(out, "_creation", out)]
            site = made_by(*args), _site()
            for ref in refs:
                if type(ref) is ObjectRef:
                    sites[ref.id] = site
            if len(sites) > 2 * len(client.objects.book) + _SLACK:
                for id in [id for id in list(sites) if client.objects.book.find(id) is None]:
                    sites.pop(id, None)
            return out

        return recorded

    client.put = recording(client.put, lambda value: "put")
    client.create_actor = recording(client.create_actor, lambda code, *_: f"actor {code.name}")
    client.submit_call = recording(client.submit_call, lambda handle, method, *_: f"{handle._info.class_name}.{method}")
    submitter = client.submitter

    def recording_submitter(code: RemoteCode, options: Options) -> Callable[..., Any]:
        return recording(submitter(code, options), lambda *_: options.name or code.name)

    client.submitter = recording_submitter


def _site() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and own_frames.is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
