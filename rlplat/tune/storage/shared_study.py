"""A study that several tuners share, each on machines of its own: who owns which trial, and whose turn it is.

    study = SharedStudy.open("postgresql://user@host/database", "demo", ["max"], resume=False)
    trials, orphans = study.others(first=0, numbers=[])        # of other tuners; those whose tuner is gone
    trial = study.take(orphans[0])                             # this tuner's now, unless somebody was faster
    with study.turn() as is_mine: ...                          # nobody else makes a trial meanwhile
    study.let_go()                                             # what others took while the server was out of reach

A tuner has a random id, and holds an advisory lock on it for as long as its connection lives. All that it writes goes
through this connection: a tuner whose lock is free cannot write, so its trials can be taken over. One that comes back
gets its lock first; then it looks which trials are still its own, and forgets what it wanted to write of the others.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlplat.errors import ConfigError
from rlplat.tune.core.trial import Trial
from rlplat.tune.storage.database import LOCKS, DatabaseWriter, read_study, read_trials
from rlplat.tune.storage.journal_writer import StoredTrial
from rlplat.tune.storage.postgres import ServerError, limited
from rlplat.tune.storage.study import Direction, Study, restored

ORPHAN_S = 5.0
"""A tuner's lock is free for so long before its trials are taken: where the server starts anew, all locks are free
until their holders have connected again (they try every two seconds)."""
KEEPALIVE = (10, 5, 3)
"""Of a machine that vanishes nothing is heard: after 10 s of silence the server asks 3 times, every 5 s; then the lock
of its tuner is free. Whole seconds."""
TURN_S = 1.0
"""How long another tuner's turn is waited for, before something else is done."""
SETTLING_S = 60.0
_TURNS, _TUNERS = LOCKS + 1, LOCKS + 2
"""First halves of advisory locks' keys; the second are a study's id and a tuner's."""
_ALIVE = """SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objsubid = 2
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
_TAKE = """UPDATE trial_system_attributes SET value_json = %s WHERE trial_id = (SELECT trial_id FROM trials
WHERE study_id = %s AND number = %s) AND key = 'owner' AND value_json = %s AND pg_try_advisory_xact_lock(%s, %s)
RETURNING trial_id"""


class SharedWriter(DatabaseWriter):
    _ids_at_once = 1

    def __init__(
        self, url: str, name: str, directions: Sequence[str], *, resume: bool, say: Callable[[str], None] = print
    ) -> None:  # fmt: skip
        self._id = secrets.randbelow(2**31 - 1) + 1
        self._turn: Any = None
        """The connection on which this tuner has its turn."""
        self._dead_since: dict[int, float] = {}
        """Tuners whose locks were found free, and when first (monotonic seconds)."""
        self.lost: set[int] = set()
        super().__init__(url, name, directions, resume=resume, say=say)

    def create_trial(
        self, number: int, params: dict[str, float], distributions: dict[str, str],
        user_attrs: dict[str, Any], system_attrs: dict[str, Any],
    ) -> None:  # fmt: skip
        """In its turn only: its number is the next one, and Optuna's ids have the order of the numbers."""
        self._free_ids = self._server.patiently(self._reserve_ids)
        if self._turn is not self._connection:  # a new connection: the turn may be another's by now
            self.lost.add(number)
            return
        super().create_trial(number, params, distributions, user_attrs, {**system_attrs, "owner": self._id})

    def load_others(self, first: int, numbers: Sequence[int]) -> tuple[list[StoredTrial], list[int]]:
        def read() -> tuple[list[StoredTrial], set[int]]:
            with limited(self._connected()):
                which = "AND (number >= %s OR number = ANY(%s::int[]))"
                trials = read_trials(self._connection, self._study_id, which, first, list(numbers))[1]
            return trials, {row[0] for row in self._ask(_ALIVE, _TUNERS)}

        trials, alive = self._server.patiently(read)
        trials = [trial for trial in trials if trial.number not in self._ids]
        now, orphans = time.monotonic(), []
        for trial in trials:
            owner = trial.system_attrs["owner"]
            if trial.is_finished:
                continue
            if owner == self._id:  # taken, and the answer to that was lost
                orphans.append(trial.number)
            elif owner in alive:
                self._dead_since.pop(owner, None)
            elif now - self._dead_since.setdefault(owner, now) >= ORPHAN_S:
                orphans.append(trial.number)
        return trials, orphans

    def load_trials(self) -> list[StoredTrial]:
        """To look at; those that run stay whose they are."""
        self.sync()
        return self._server.patiently(lambda: read_trials(self._connected(), self._study_id))[1]

    def take(self, number: int, owner: int) -> StoredTrial | None:
        """The trial as its owner left it; None: somebody else has it."""

        def take() -> StoredTrial | None:
            values = (json.dumps(self._id), self._study_id, number, json.dumps(owner), _TUNERS, owner)
            if not (rows := self._ask(_TAKE, *values)):
                return None
            with limited(self._connected()):
                trial = read_trials(self._connection, self._study_id, "AND number = %s", number)[1][0]
            self._ids[number] = rows[0][0]  # not before: else it is an orphan, which the next look finds
            return trial

        return self._server.patiently(take)

    @contextmanager
    def turn(self, within_s: float = TURN_S) -> Iterator[bool]:
        """Whether this tuner alone may settle things and make trials; else the others take too long."""
        deadline, is_mine = time.monotonic() + within_s, False
        while not is_mine and time.monotonic() < deadline:
            is_mine = self._server.patiently(
                lambda: self._ask("SELECT pg_try_advisory_lock(%s, %s)", _TURNS, self._study_id)[0][0]
            )
            if not is_mine:
                time.sleep(0.01)
        if not is_mine:
            yield False
            return
        self._turn = self._connection
        try:
            yield True
            self.sync()
        finally:
            turn, self._turn = self._turn, None
            if turn is self._connection and not turn.closed:
                with suppress(ServerError), limited(turn):  # it ended: so has the turn
                    self._query("SELECT pg_advisory_unlock(%s, %s)", _TURNS, self._study_id)

    def refresh(self) -> None:
        """The settings of the study: another tuner may have written them."""
        study = self._server.patiently(lambda: read_study(self._connected(), self._study_id, self._name))
        self._study_attrs = study.user_attrs

    # ------------------------------------------------------------------------------------------------------------

    def _connected(self) -> Any:
        before = self._connection
        if super()._connected() is not before:
            try:
                self._forget_what_was_taken()
            except BaseException:
                self._connection.close()
                raise
        return self._connection

    def _forget_what_was_taken(self) -> None:
        """While the connection was away. What had not come to the database by then never will."""
        self._dead_since.clear()
        mine = {
            row[0]
            for row in self._query(
                "SELECT trial_id FROM trials JOIN trial_system_attributes USING (trial_id) WHERE study_id = %s "
                "AND key = 'owner' AND value_json = %s",
                self._study_id,
                json.dumps(self._id),
            )
        }
        ended = {trial_id: row[0] for (trial_id,), row in self._waiting["trials"].items()}
        by_id = ended | {trial_id: number for number, trial_id in self._ids.items()}
        for trial_id, number in by_id.items():
            if trial_id not in mine:
                self.lost.add(number)
                self._ids.pop(number, None)
        for table, rows in self._waiting.items():
            if table.startswith("trial"):
                self._waiting[table] = {key: row for key, row in rows.items() if key[0] in mine}

    def _lock(self) -> None:
        """Beside other joined tuners, and not beside a lone one; a new connection waits until the old one is gone."""
        self._hold("pg_try_advisory_lock_shared", LOCKS, self._study_id)
        self._hold("pg_try_advisory_lock", _TUNERS, self._id)
        idle_s, interval_s, count = KEEPALIVE
        unanswered_ms = (idle_s + interval_s * count) * 1000
        for setting, value in (
            ("tcp_keepalives_idle", idle_s),
            ("tcp_keepalives_interval", interval_s),
            ("tcp_keepalives_count", count),
            ("tcp_user_timeout", unanswered_ms),  # where it vanishes before it has the answer to a query
        ):
            self._query(
                "SELECT set_config(name, %s, false) FROM pg_settings WHERE name = %s", str(value), setting
            )

    def _is_abandoned(self) -> bool:
        holders = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s"
        return super()._is_abandoned() and len(self._query(holders, LOCKS, self._study_id)) == 1

    def _ask(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with limited(self._connected()):
            return self._query(text, *values)


class SharedStudy(Study):
    _writer: SharedWriter

    @classmethod
    def open(
        cls, storage: str | Path, name: str, directions: Sequence[Direction], *, resume: bool,
        say: Callable[[str], None] = print,
    ) -> SharedStudy:  # fmt: skip
        """storage: postgresql://user@host/database; the study is made where it is not there. resume: it stays even if
        it has no report yet."""
        writer = SharedWriter(str(storage), name, directions, resume=resume, say=say)
        return cls._over(writer, storage, name, directions)

    @contextmanager
    def settling(self) -> Iterator[dict[str, Any]]:
        with self._writer.turn(SETTLING_S) as is_mine:
            if not is_mine:
                raise ConfigError(
                    f"another tuner of {self._name!r} has had its turn for {SETTLING_S:g} s: is it stopped?"
                )
            self._writer.refresh()
            yield self.settings

    def settle(self, settings: Mapping[str, Any]) -> None:
        """The first tuner's settings stand."""
        if "experiment" not in self.settings:
            super().settle(settings)

    def turn(self) -> Any:
        """Context manager: whether this tuner may make a trial; it is written when the context is left."""
        return self._writer.turn()

    def others(self, first: int, numbers: Iterable[int]) -> tuple[list[Trial], list[int]]:
        """(trials from `first` on and those of `numbers`, which of them can be taken over), by number."""
        stored, orphans = self._writer.load_others(first, list(numbers))
        self._owners = {trial.number: trial.system_attrs["owner"] for trial in stored}
        return [restored(trial, self._sign) for trial in stored], orphans

    def take(self, number: int) -> Trial | None:
        """One that `others` has named as an orphan; None: somebody else was faster."""
        if (stored := self._writer.take(number, self._owners[number])) is None:
            return None
        trial = restored(stored, self._sign)
        self._go_on(trial, stored)
        return trial

    @property
    def lost(self) -> bool:
        """Whether there are trials to let go of."""
        return bool(self._writer.lost)

    def let_go(self) -> list[int]:
        """Trials that are not this tuner's any more, each once."""
        numbers, self._writer.lost = sorted(self._writer.lost), set()
        for number in numbers:
            self._written.pop(number, None)
        return numbers

    def load(self) -> list[Trial]:
        """All trials by number, to look at."""
        if self._is_closed:
            return self.read(self._storage, self._name)
        return [restored(stored, self._sign) for stored in self._writer.load_trials()]
