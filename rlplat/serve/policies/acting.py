"""`ServedPolicy`: a trained agent that acts for many callers, with the sessions of those that remember.

    act(request) ─▶ Engine.act (one forward pass for all that wait)
        │ session ─▶ SessionBook here, or the replica that has it (an actor call)

Errors are `Refused`. A replica that drains gives its sessions to another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import numpy as np

from rlplat.errors import RlplatError
from rlplat.serve.policies.bodies import RawRows, Rows, bad
from rlplat.serve.policies.engine import Acted, Engine
from rlplat.serve.policies.sessions import MAX_ID, Session, SessionBook
from rlplat.serve.refusals import Refused

LOOKS = (0.0, 0.0, 0.05, 0.25)
"""Seconds before each search for a session in all replicas; behind the last one it is lost."""


class ServedPolicy:
    def __init__(
        self,
        model: str,
        *,
        max_rows: int = 256,
        max_rows_per_request: int = 65_536,
        max_waiting_rows: int = 131_072,
        max_sessions: int = 100_000,
        session_idle_s: float = 600.0,
    ) -> None:
        """model: its name in `/v2/models/NAME`. The agent arrives by `reconfigure`, as every newer one does.

        max_rows: of a forward pass; max_waiting_rows: beyond them requests are refused (503).
        """
        self.model = model
        self._max_rows, self._max_waiting_rows = max_rows, max_waiting_rows
        self.max_rows_per_request = max_rows_per_request
        self.sessions = SessionBook(max_sessions, session_idle_s)
        self._name = "policy"
        self._peers: Callable[[], dict[str, Any]] = dict
        self.engine: Engine | None = None
        self.raw: RawRows | None = None
        self.is_leaving = asyncio.Event()
        """Set when the replica drains."""
        self.probe: Any = None

    def introduce(self, name: str, peers: Callable[[], dict[str, Any]]) -> None:
        """Who this replica is, and the others of its deployment by name, also those that drain."""
        self._name, self._peers = name, peers

    async def reconfigure(self, agent: Any) -> None:
        """Act with this agent from the next batch on; one that cannot act changes nothing."""
        probe = await asyncio.to_thread(_prepared, agent)
        if self.engine is None:
            self.engine = Engine(agent, max_rows=self._max_rows, max_waiting_rows=self._max_waiting_rows)
            self.raw = RawRows(agent.spaces)
        else:
            self.agent.spaces.spec.require_same(agent.spaces.spec, "the policy that is served", "the new one")
            self.engine.agent = agent
        self.probe = probe

    @property
    def agent(self) -> Any:
        assert self.engine is not None, "reconfigure comes first"
        return self.engine.agent

    def gauges(self) -> dict[str, float]:
        assert self.engine is not None
        return {
            "rlplat_serve_rows_total": self.engine.batcher.num_rows,
            "rlplat_serve_batches_total": self.engine.batcher.num_batches,
            "rlplat_serve_sessions": len(self.sessions),
            "rlplat_serve_weights_env_steps": self.agent.checkpoint.info.env_steps,
        }

    # ---------------------------------------------------------------- acting

    async def act(self, request: Rows) -> Acted:
        assert self.engine is not None
        if request.session is not None:
            return await self.step_here(request) or await self._step_elsewhere(request)
        size = self.agent.state_size
        if size and not request.gives_state:
            raise bad(
                "session-needed",
                f"this policy remembers ({size} numbers): give session (POST /v1/sessions opens one), or "
                '"state": "initial" and then the state that is answered',
            )
        return await self.engine.act(request.rows, request.num_rows, greedy=request.greedy, state=request.state)

    async def _step_elsewhere(self, request: Rows) -> Acted:
        assert request.session is not None
        id = request.session
        async for peer in self._who_may_have(id):
            if peer is None:
                answer = await self.step_here(request)
            else:
                answer = await _asked(peer, "step_here", request)
            if answer is not None:
                return answer
        raise self._lost(id)

    async def step_here(self, request: Rows) -> Acted | None:
        """None where the session is not here."""
        assert request.session is not None
        session = self.sessions.find(request.session, time.monotonic())
        return None if session is None else await self._step_session(session, request)

    async def _step_session(self, session: Session, request: Rows) -> Acted:
        assert self.engine is not None
        async with session.lock:
            if session.has_moved:
                return await self._step_elsewhere(request)
            digest = b"" if request.seq is None else request.digest()
            repeated: Acted | None = session.repeated(request.seq, digest)
            if repeated is not None:
                return repeated
            if request.reset:
                session.reset()
            acted = await self.engine.act(
                request.rows, request.num_rows, greedy=request.greedy, state=session.state[None]
            )
            session.keep(acted.state[0], request.seq, digest, acted)
            return acted

    async def open_session(self) -> str:
        """The id of a new one: in another replica where this one ends."""
        for peer in self._others() if self.is_leaving.is_set() else ():
            try:
                opened: str = await peer.ask.remote("open_for_peer")
                return opened
            except RlplatError:
                continue
        return self._open_here()

    def open_for_peer(self) -> str:
        """Refused where this replica ends too."""
        self._require_to_stay()
        return self._open_here()

    def _open_here(self) -> str:
        id = f"{self._name}.{secrets.token_hex(12)}"
        self.sessions.open(id, self.agent.state_size, time.monotonic())
        return id

    def _others(self, opener: str = "") -> list[Any]:
        """The other replicas, the opener first, then by name."""
        others = [(name, peer) for name, peer in self._peers().items() if name != self._name]
        return [peer for _, peer in sorted(others, key=lambda each: (each[0] != opener, each[0]))]

    async def _who_may_have(self, session: str) -> AsyncIterator[Any]:
        """The other replicas, that which opened it first; then None, which is this one; all of them LOOKS times.

        While they are asked one after another, a session may move from one that is not asked yet to one that was
        asked before, or to this one; and of a replica that has just begun not every other knows at once."""
        if len(session) > MAX_ID:
            raise bad("bad-session", f"a session's id has at most {MAX_ID} characters, this one {len(session):,}")
        for pause_s in LOOKS:
            await asyncio.sleep(pause_s)
            for peer in self._others(session.rpartition(".")[0]):
                yield peer
            yield None

    def _lost(self, session: str) -> Refused:
        return Refused(
            410,
            "session-lost",
            f"there is no session {session!r:.80}: it was ended, was idle for more than "
            f"{self.sessions.idle_s:g} s, or its "
            "replica died; open another one, and begin a new episode",
        )

    async def end_session(self, id: str) -> None:
        if await self.sessions.close(id):
            return
        async for peer in self._who_may_have(id):
            if await (self.sessions.close(id) if peer is None else _asked(peer, "end_of_peer", id)):
                return
        raise self._lost(id)

    async def end_of_peer(self, id: str) -> bool:
        return await self.sessions.close(id)

    def adopt(self, sessions: list[Any]) -> None:
        """Those of a replica that ends. Refused where this one ends too."""
        self._require_to_stay()
        self.sessions.adopt(sessions, time.monotonic())

    def _require_to_stay(self) -> None:
        if self.is_leaving.is_set():
            raise Refused(503, "draining", f"{self._name} is ending", 0.0)

    async def hand_over(self) -> None:
        """This replica ends: WebSockets are told, sessions go to another replica."""
        self.is_leaving.set()
        await asyncio.sleep(0)
        for peer in self._others():
            try:
                await self.sessions.move_all(partial(peer.ask.remote, "adopt"))
                return
            except RlplatError:
                continue  # that replica died: they are here still

    async def check(self) -> None:
        """A forward pass through the queue, as a request takes it."""
        assert self.engine is not None
        rows, _ = self.probe
        await self.engine.act(rows, 1, greedy=True)

    async def check_health(self) -> None:
        """A forward pass ends: where some wait, whichever is next."""
        assert self.engine is not None
        batcher = self.engine.batcher
        if not batcher.is_running:
            with contextlib.suppress(Refused):  # weights that have diverged are no better in another process
                await self.check()
        before = batcher.num_batches
        while batcher.is_running and batcher.num_batches == before:
            await asyncio.sleep(0.02)

    def describe(self) -> dict[str, Any]:
        agent = self.agent
        info = agent.checkpoint.info
        return {
            "model": self.model,
            "env": info.env,
            "algorithm": info.algorithm,
            "spaces": str(agent.spaces.spec),
            "space": agent.spaces.spec.describe(),
            "state_size": agent.state_size,
            "checkpoint": str(agent.checkpoint.path),
            "env_steps": info.env_steps,
            "evaluation": info.evaluation,
            "max_rows_per_request": self.max_rows_per_request,
        }

    def raw_request(self, body: bytes, options: dict[str, str]) -> Rows:
        """Raw rows with the options of a query: greedy, outputs, session, seq, reset."""
        assert self.raw is not None
        return self.raw.request(body, options, self.agent.state_size, self.max_rows_per_request)


async def _asked(peer: Any, method: str, argument: Any) -> Any:
    """What another replica answers; None where it died."""
    try:
        return await peer.ask.remote(method, argument)
    except Refused as error:
        raise getattr(error, "cause", None) or error from None
    except RlplatError:
        return None


def _prepared(agent: Any) -> Any:
    """Make what an agent makes on first use, in a thread; the observation with which readiness is checked."""
    rows = agent.spaces.read(*_zeros(agent.spaces))
    agent.act_on_rows(rows[0])
    return rows


def _zeros(spaces: Any) -> tuple[Any, Any]:
    """(an observation of the space, a mask in which everything is legal, or None)."""
    mask = np.ones(spaces.spec.action.mask_size, np.bool_) if spaces.has_mask else None
    space = spaces.observation_space
    sample = space.sample()
    return _emptied(sample), mask


def _emptied(sample: Any) -> Any:
    """Zeros where a number is real; choices as they were drawn."""
    if isinstance(sample, dict):
        return {key: _emptied(value) for key, value in sample.items()}
    if isinstance(sample, tuple):
        return tuple(map(_emptied, sample))
    is_real = isinstance(sample, np.ndarray) and sample.dtype.kind == "f"
    return np.zeros_like(sample) if is_real else sample
