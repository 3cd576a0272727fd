"""Large values that a machine has from others: pulled in chunks when a reader asks, once per machine (decision 0023).

A copy is a file of the session's folder with the original's name, so a reader opens it as any segment. Names are not
used twice where a cluster has several machines, so a copy is the value or is not there. The machine of the
original looks after who has copies: when the original is gone, it tells them. Copies are the first to go when room is
needed: they can be pulled again.

An owner on the machine where a dead process has left its bytes gives them a name of its own; one elsewhere says `Keep`,
and they are this part's until it says that they are free, or dies.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from rlplat.runtime.link.trunk import Data
from rlplat.runtime.machine.session import SPILL_LINK
from rlplat.runtime.store.account import Account
from rlplat.runtime.wire.agent_messages import AskChunk, Chunk, CreatorsLost, DropCopies, Keep
from rlplat.runtime.wire.messages import NODE, MakeRoom, Pull, Pulled, RoomMade

CHUNK_BYTES = 1 << 20
_WINDOW = 8
"""Most chunks of all pulls that are on their way: other messages wait behind them. (Each pull has one, ...)"""
_LATE_S = 0.5
"""... and there are fewer where one takes so long."""
_LOOK_S = 1.0
Tell = Callable[[AskChunk | Chunk | DropCopies, bytes], None]


@dataclass(slots=True)
class _Pulling:
    creator: str
    waiters: list[tuple[str, int]]
    """(client, its request)"""
    descriptor: int = -1
    size: int = -1
    asked: int = 0
    """Bytes up to here are asked for, ..."""
    have: int = 0
    """... so many are here."""
    asked_at: deque[float] = field(default_factory=deque)
    """For those that are on their way."""


class Copies:
    """`tell` sends a message, and bytes, to the machine of a creator (`AskChunk`), or to one by name (the others);
    `post` sends to a client of this machine."""

    def __init__(
        self,
        session: str,
        node: str,
        tell: Tell,
        post: Callable[[str, Pulled | RoomMade], object],
        clock: Callable[[], float],
    ) -> None:
        self._session, self._node, self._tell, self._post, self._clock = session, node, tell, post, clock
        self._account = Account.open(session, NODE)
        self._copies: dict[str, int] = {}
        """Bytes of each, oldest first."""
        self._pulling: dict[str, _Pulling] = {}
        self._window = _WINDOW
        self._served: dict[str, set[str]] = {}
        """Of segments made here: who has copies."""
        self._kept: dict[str, tuple[str, int, int]] = {}
        """Segments of the dead: (owner, bytes in shared memory, bytes on disk)."""
        self._look_at = 0.0

    def _path(self, name: str) -> str:
        if os.sep in name or not name.startswith("s-"):
            raise ValueError(f"a segment of the name {name!r:.50}")
        return os.path.join(self._session, name)

    def _places(self, name: str) -> tuple[str, str]:
        """Where the original is: in shared memory, or spilled."""
        return self._path(name), os.path.join(self._session, SPILL_LINK, name)

    def __contains__(self, file: object) -> bool:
        """Whether the file of a segment is in the care of this part (and not of who has made it)."""
        name = str(file).removesuffix(".part")
        return name in self._kept or name in self._copies or name in self._pulling

    def hear(self, message: AskChunk | Chunk | DropCopies | Keep | CreatorsLost, data: Data = b"") -> None:
        match message:
            case AskChunk():
                self.serve(message)
            case Chunk():
                self.take(message, data)
            case DropCopies(_, names):
                self.drop(names)
            case Keep(_, _, names, True):
                self._free(names)
            case Keep(owner, creator, names, _):
                self._keep(owner, creator, names)
            case CreatorsLost(creators):
                self.lost(creators)

    # -- this machine wants one

    def pull(self, client: str, message: Pull) -> None:
        name = message.name
        if os.path.exists(self._path(name)):
            self._post(client, Pulled(message.request, True))
        elif name in self._pulling:
            self._pulling[name].waiters.append((client, message.request))
        else:
            self._pulling[name] = _Pulling(message.creator, [(client, message.request)])
            self._ask()

    def _ask(self) -> None:
        left = self._window - sum(len(pulling.asked_at) for pulling in self._pulling.values())
        for name, pulling in list(self._pulling.items()):
            while (not pulling.asked_at or left > 0) and (pulling.asked < pulling.size or not pulling.asked):
                offset, pulling.asked, left = pulling.asked, pulling.asked + CHUNK_BYTES, left - 1
                pulling.asked_at.append(self._clock())
                self._tell(AskChunk(self._node, pulling.creator, name, offset), b"")  # may end it at once

    def take(self, chunk: Chunk, data: Data) -> None:
        name = chunk.name
        pulling = self._pulling.get(name)
        if pulling is None or chunk.offset != pulling.have:  # it was asked for by a pull that has failed
            return
        is_late = self._clock() - pulling.asked_at.popleft() > _LATE_S
        self._window = max(1, self._window // 2) if is_late else min(_WINDOW, self._window + 1)
        if chunk.size < 0 or (pulling.size >= 0 and chunk.size != pulling.size):
            self._end(name, pulling, is_there=False)
            return
        if pulling.size < 0:
            if not self._has_room(chunk.size):
                self._end(name, pulling, is_there=False, error=self._account.describe())
                return
            pulling.size = chunk.size
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            pulling.descriptor = os.open(self._path(name) + ".part", flags, 0o600)
        try:
            pulling.have += os.pwrite(pulling.descriptor, data, chunk.offset)
            if pulling.have >= pulling.size:
                os.rename(self._path(name) + ".part", self._path(name))
        except OSError as error:  # other programs fill /dev/shm as well
            self._end(name, pulling, is_there=False, error=f"{error.strerror}; {self._account.describe()}")
            return
        if pulling.have >= pulling.size:
            self._copies[name] = pulling.size
            self._end(name, pulling, is_there=True)
        self._ask()

    def _end(self, name: str, pulling: _Pulling, is_there: bool, error: str = "") -> None:
        del self._pulling[name]
        if pulling.descriptor >= 0:
            os.close(pulling.descriptor)
            if not is_there:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(name) + ".part")
                self._account.release(pulling.size)
        for client, request in pulling.waiters:
            self._post(client, Pulled(request, is_there, error))

    def _has_room(self, size: int) -> bool:
        while not self._account.reserve(size):
            if not self._copies:
                return False
            self.drop([next(iter(self._copies))])
        return True

    def lost(self, creators: Collection[str]) -> None:
        """With their machine: what is pulled from them does not come, and copies go (owners here have linked
        theirs)."""
        for name, pulling in list(self._pulling.items()):
            if pulling.creator in creators:
                self._end(name, pulling, is_there=False)
        self.drop([name for name in self._copies if name[2:].rpartition("-")[0] in creators])

    def drop(self, names: list[str]) -> int:
        """Readers keep what they map. Returns how many bytes these were."""
        dropped = 0
        for name in names:
            size = self._copies.pop(name, 0)
            if size:
                with contextlib.suppress(FileNotFoundError):  # somebody removed it
                    os.unlink(self._path(name))
                self._account.release(size)
                dropped += size
        return dropped

    def make_room(self, client: str, message: MakeRoom) -> None:
        dropped = 0
        for name in list(self._copies):
            if dropped >= message.to_spill:
                break
            dropped += self.drop([name])
        self._post(client, RoomMade())

    # -- another machine wants one of ours

    def serve(self, asked: AskChunk) -> None:
        size, data = -1, b""
        for path in self._places(asked.name):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            try:
                data = os.pread(descriptor, CHUNK_BYTES, asked.offset)
                size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            self._served.setdefault(asked.name, set()).add(asked.node)
            break
        if not data:
            size = -1
        self._tell(Chunk(asked.node, asked.name, asked.offset, size), data)

    # -- what dead processes of this machine have left for owners elsewhere

    def _keep(self, owner: str, creator: str, names: list[str]) -> None:
        for name in names:
            for is_spilled, path in enumerate(self._places(name)):
                if name not in self._kept and os.path.exists(path):
                    size = os.path.getsize(path)
                    self._kept[name] = owner, *((0, size) if is_spilled else (size, 0))
                    self._account.take_over(creator, *self._kept[name][1:])

    def _free(self, names: list[str]) -> None:
        for name in names:
            _, size, spilled = self._kept.pop(name, ("", 0, 0))
            if size or spilled:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._places(name)[spilled > 0])
                self._account.release(size)
                self._account.spilled(-spilled)

    def settled(self, owners: list[str]) -> None:
        """Nobody needs what these have owned."""
        self._free([name for name, (owner, _, _) in self._kept.items() if owner in owners])

    def next_deadline(self) -> float | None:
        return self._look_at if self._served else None

    def keep_house(self, now: float) -> None:
        """Which originals are gone?"""
        if not self._served or now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        gone: dict[str, list[str]] = {}
        for name, nodes in list(self._served.items()):
            if not any(map(os.path.exists, self._places(name))):
                del self._served[name]
                for node in nodes:
                    gone.setdefault(node, []).append(name)
        for node, names in gone.items():
            self._tell(DropCopies(node, names), b"")
