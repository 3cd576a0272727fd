"""A study in a PostgreSQL database: `StudyWriter` over the tables of Optuna's `RDBStorage`.

    writer = DatabaseWriter("postgresql://user@host/database", "demo", ["max"], say=print)
    writer.set_intermediate_value(...)       # in memory
    writer.sync()                            # one round trip, one transaction: all of it is in the database

Optuna's own writes take five round trips for one intermediate value. Here a turn's worth of them becomes a few upserts
that travel together, and since they are upserts under ids that were reserved before, they can be sent again when nobody
knows whether the server had taken them: a server that goes away is waited for, and nothing is lost or doubled.

One tuner per study: it holds an advisory lock as long as its connection lives. Several
studies share a database.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import optuna
from optuna.study import StudyDirection
from optuna.trial import TrialState

from rlplat.errors import ConfigError
from rlplat.tune.storage.journal_writer import METRIC_NAMES, StoredStudy, StoredTrial
from rlplat.tune.storage.postgres import Server, ServerError, drivers_errors, limited, line_of

T = TypeVar("T")

_LOCK_GRACE_S = 2.0
"""How long the connection of a tuner that was just killed may take to vanish."""
LOCKS = 0x726C7000
"""First half of our advisory locks' keys; the second is a study's id, or 0 for the tables themselves."""
_TIMES_ARE_UTC = int(optuna.__version__.partition(".")[0]) >= 5


class DatabaseWriter:
    def __init__(
        self,
        url: str,
        name: str,
        directions: Sequence[str],
        *,
        resume: bool,
        say: Callable[[str], None] = print,
    ) -> None:
        """Makes the tables and the study where they are not there; a study without a single report is not there, unless
        `resume`. ConfigError: the server cannot be reached, or another tuner is at this study."""
        self._server = Server(url, say)
        self._name = name
        self._connection = self._server.connect()  # only a server that goes away after this is waited for
        try:
            refusal = self._server.patiently(lambda: self._open(directions, resume))
        except ServerError as error:
            raise ConfigError(f"{self._server.place}: {line_of(error)}") from None
        if refusal is not None:
            raise refusal
        self._ids: dict[int, int] = {}
        """Optuna's trial ids by number, of trials that have not ended."""
        self._free_ids: list[int] = []
        self._waiting: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {table: {} for table in _UPSERTS}
        """What `sync` will write: table -> key -> the rest of the row."""

    def _open(self, directions: Sequence[str], resume: bool) -> ConfigError | None:
        """Once more from the start where the server went away in the middle: what was made is found. Returns a refusal,
        which nobody needs to wait for."""
        if self._connection.closed:
            self._connection = self._server.connect()
        try:
            self._query("SELECT pg_advisory_lock(%s, 0)", LOCKS)  # two that make the tables at once fail
            self._storage = self._server.optuna_storage()
            ways = [
                StudyDirection.MAXIMIZE if way == "max" else StudyDirection.MINIMIZE for way in directions
            ]
            known = self._query("SELECT study_id FROM studies WHERE study_name = %s", self._name)
            self.is_new = not known
            if known:
                self._study_id = known[0][0]
                self._lock()
                if not resume and self._is_abandoned():  # its first tuner was refused, or killed at once
                    with drivers_errors():
                        self._storage.delete_study(self._study_id)
                    self.is_new = True
            if self.is_new:
                with drivers_errors():
                    self._study_id = _silently(lambda: self._storage.create_new_study(ways, self._name))
                self._lock()
            self._query("SELECT pg_advisory_unlock(%s, 0)", LOCKS)
            study = read_study(self._connection, self._study_id, self._name)
            self.directions, self._study_attrs = study.directions, study.user_attrs
        except ConfigError as refusal:
            self._connection.close()
            return refusal
        except BaseException:
            self._connection.close()  # with its locks
            raise
        return None

    def create_trial(
        self, number: int, params: dict[str, float], distributions: dict[str, str],
        user_attrs: dict[str, Any], system_attrs: dict[str, Any],
    ) -> None:  # fmt: skip
        if not self._free_ids:
            self._free_ids = self._server.patiently(self._reserve_ids)
        trial_id = self._ids[number] = self._free_ids.pop(0)
        self._waiting["trials"][(trial_id,)] = (number, self._study_id, "RUNNING", _now(), None)
        for name, value in params.items():
            self._waiting["trial_params"][trial_id, name] = (value, distributions[name])
        for key, value in user_attrs.items():
            self.set_user_attr(number, key, value)
        for key, value in system_attrs.items():
            self.set_system_attr(number, key, value)

    def set_intermediate_value(self, number: int, step: int, value: float) -> None:
        self._waiting["trial_intermediate_values"][self._ids[number], step] = _stored(value)

    def set_user_attr(self, number: int, key: str, value: Any) -> None:
        self._waiting["trial_user_attributes"][self._ids[number], key] = (json.dumps(value),)

    def set_system_attr(self, number: int, key: str, value: Any) -> None:
        self._waiting["trial_system_attributes"][self._ids[number], key] = (json.dumps(value),)

    def finish_trial(self, number: int, state: TrialState, values: Sequence[float] | None) -> None:
        trial_id = self._ids.pop(number)
        for objective, value in enumerate(values or ()):
            self._waiting["trial_values"][trial_id, objective] = _stored(value)
        begun = self._waiting["trials"].get((trial_id,), (number, self._study_id, None, None, None))
        self._waiting["trials"][(trial_id,)] = (*begun[:2], state.name, begun[3], _now())

    def set_study_attr(self, key: str, value: Any) -> None:
        self._study_attrs[key] = value
        self._waiting["study_user_attributes"][self._study_id, key] = (json.dumps(value),)

    def set_metric_names(self, names: Sequence[str]) -> None:
        self._waiting["study_system_attributes"][self._study_id, METRIC_NAMES] = (json.dumps(list(names)),)

    def study_attrs(self) -> dict[str, Any]:
        return dict(self._study_attrs)

    def load_trials(self) -> list[StoredTrial]:
        self.sync()
        self._ids, trials = self._server.patiently(lambda: read_trials(self._connected(), self._study_id))
        return trials

    def sync(self, wait: bool = False) -> None:
        if not any(self._waiting.values()):
            return
        self._server.patiently(self._send)
        for rows in self._waiting.values():
            rows.clear()

    def close(self) -> None:
        try:
            self.sync()
        finally:
            self._connection.close()

    # ------------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """All statements in one message, which PostgreSQL runs as one transaction."""
        with self._connected().cursor() as cursor:
            statements = []
            for (
                table,
                rows,
            ) in self._waiting.items():  # in the order of `_UPSERTS`: trials before what refers to them
                if rows:
                    values = [cursor.mogrify("%s", ((*key, *rest),)).decode() for key, rest in rows.items()]
                    statements.append(_UPSERTS[table].format(",".join(values)))
            if statements:
                with limited(self._connection):
                    cursor.execute(";".join(statements))

    def _connected(self) -> Any:
        """The connection; a new one, with the lock, where the server has ended it."""
        if self._connection.closed:
            self._connection = self._server.connect()
            try:
                self._lock()
            except BaseException:
                self._connection.close()
                raise
        return self._connection

    def _lock(self) -> None:
        self._hold("pg_try_advisory_lock", LOCKS, self._study_id)

    def _hold(self, function: str, kind: int, key: int) -> None:
        deadline = time.monotonic() + _LOCK_GRACE_S
        while not self._query(f"SELECT {function}(%s, %s)", kind, key)[0][0]:
            if time.monotonic() > deadline:
                holders = self._query(
                    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
                    "WHERE locktype = 'advisory' AND classid = %s AND objid = %s",
                    kind,
                    key,
                )
                who = f": {holders[0][0]}" if holders else ""
                raise ConfigError(
                    f"the experiment {self._name!r} in {self._server.place} is still going{who}"
                )
            time.sleep(0.05)

    def _is_abandoned(self) -> bool:
        return not (
            self._query(
                "SELECT 1 FROM trial_intermediate_values JOIN trials USING (trial_id) WHERE study_id = %s LIMIT 1",
                self._study_id,
            )
        )

    def _reserve_ids(self) -> list[int]:
        self._connected()
        rows = self._query(
            "SELECT nextval(pg_get_serial_sequence('trials', 'trial_id')) FROM generate_series(1, 100)"
        )
        return [row[0] for row in rows]

    def _query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(text, values)
            return list(cursor.fetchall())


def read_database(url: str, name: str | None, say: Callable[[str], None] = print) -> StoredStudy:
    """A study, without a lock; name None: the only one. ConfigError: it is not there."""
    server = Server(url, say)
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass('studies') IS NOT NULL")
            has_tables = cursor.fetchone()[0]
            cursor.execute(
                "SELECT study_name, study_id FROM studies ORDER BY 1"
                if has_tables
                else "SELECT 1 WHERE false"
            )
            ids = dict(cursor.fetchall())
        if name not in ids and (name is not None or len(ids) != 1):
            held = f"holds {', '.join(map(repr, ids))}" if ids else "holds no experiment"
            wanted = f", not {name!r}" if name is not None else ": name one"
            raise ConfigError(f"{server.place} {held}{wanted if ids else ''}")
        name = name or next(iter(ids))
        study = read_study(connection, ids[name], name)
        study.trials = read_trials(connection, ids[name])[1]
        return study
    except ServerError as error:
        raise ConfigError(f"{server.place}: {line_of(error)}") from None
    finally:
        connection.close()


def read_study(connection: Any, study_id: int, name: str) -> StoredStudy:
    """Without its trials."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT direction FROM study_directions WHERE study_id = %s ORDER BY objective", (study_id,)
        )
        directions = ["max" if way == "MAXIMIZE" else "min" for (way,) in cursor.fetchall()]
        cursor.execute("SELECT key, value_json FROM study_user_attributes WHERE study_id = %s", (study_id,))
        return StoredStudy(name, directions, {key: json.loads(value) for key, value in cursor.fetchall()})


def read_trials(
    connection: Any, study_id: int, which: str = "", *values: Any
) -> tuple[dict[int, int], list[StoredTrial]]:
    """(Optuna's id by number of those that have not ended, all trials by number); in one transaction, so that a tuner
    that writes beside it is seen between two turns. which: SQL after the condition on the study, values: its own."""
    trials: dict[int, StoredTrial] = {}
    with connection.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            cursor.execute(
                f"SELECT trial_id, number, state FROM trials WHERE study_id = %s {which} ORDER BY 2",
                (study_id, *values),
            )
            for trial_id, number, state in cursor.fetchall():
                trials[trial_id] = StoredTrial(number, TrialState[state].is_finished())
            belongs = f"FROM {{}} JOIN trials USING (trial_id) WHERE study_id = %s {which}"
            columns = f"trial_id, step, intermediate_value, {_VALUE_TYPE}"
            cursor.execute(
                f"SELECT {columns} {belongs.format('trial_intermediate_values')}", (study_id, *values)
            )
            for trial_id, step, value, kind in cursor.fetchall():
                trials[trial_id].intermediate_values[step] = value if kind == "FINITE" else _NOT_FINITE[kind]
            for table in ("trial_user_attributes", "trial_system_attributes"):
                cursor.execute(
                    f"SELECT trial_id, key, value_json {belongs.format(table)}", (study_id, *values)
                )
                for trial_id, key, text in cursor.fetchall():
                    trial = trials[trial_id]
                    attrs = trial.user_attrs if table == "trial_user_attributes" else trial.system_attrs
                    attrs[key] = json.loads(text)
        finally:
            cursor.execute("COMMIT")
    ids = {trial.number: trial_id for trial_id, trial in trials.items() if not trial.is_finished}
    return ids, list(trials.values())


def _silently(action: Callable[[], T]) -> T:
    """Optuna logs on stderr what is no news to the user of an experiment."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return action()
    finally:
        optuna.logging.set_verbosity(verbosity)


def _upsert(table: str, key: Sequence[str], rest: Sequence[str]) -> str:
    columns = ", ".join([*key, *rest])
    changes = ", ".join(f"{column} = EXCLUDED.{column}" for column in rest)
    return (
        f"INSERT INTO {table} ({columns}) VALUES {{}} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
    )


_VALUE_TYPE = "intermediate_value_type"
_UPSERTS = {
    # A trial that ends was begun in an earlier transaction, maybe: its first time stands.
    "trials": "INSERT INTO trials (trial_id, number, study_id, state, datetime_start, datetime_complete) VALUES {} "
    "ON CONFLICT (trial_id) DO UPDATE SET state = EXCLUDED.state, datetime_complete = EXCLUDED.datetime_complete",
    "trial_params": _upsert("trial_params", ["trial_id", "param_name"], ["param_value", "distribution_json"]),
    "trial_values": _upsert("trial_values", ["trial_id", "objective"], ["value", "value_type"]),
    "trial_intermediate_values": _upsert(
        "trial_intermediate_values", ["trial_id", "step"], ["intermediate_value", _VALUE_TYPE]
    ),
    "trial_user_attributes": _upsert("trial_user_attributes", ["trial_id", "key"], ["value_json"]),
    "trial_system_attributes": _upsert("trial_system_attributes", ["trial_id", "key"], ["value_json"]),
    "study_user_attributes": _upsert("study_user_attributes", ["study_id", "key"], ["value_json"]),
    "study_system_attributes": _upsert("study_system_attributes", ["study_id", "key"], ["value_json"]),
}


_NOT_FINITE = {"NAN": math.nan, "INF_POS": math.inf, "INF_NEG": -math.inf}


def _stored(value: float) -> tuple[float | None, str]:
    """As Optuna keeps it: what SQL has no number for is a type."""
    if math.isfinite(value):
        return value, "FINITE"
    return None, "NAN" if math.isnan(value) else "INF_POS" if value > 0 else "INF_NEG"


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None) if _TIMES_ARE_UTC else datetime.now()
