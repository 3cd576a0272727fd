"""Bodies of `/v1/act`: from bytes to what a policy takes, and back. What does not fit is a 4xx that says what does.

{"obs": [0.1, 0, 0, 0], "greedy": false, "outputs": ["log_prob", "value"]}        one observation
{"obs": {"camera": [...], "speed": [[0.3], [0.1]]}, "mask": [[true, false], ...]}   many, by leaf
raw rows, application/octet-stream                                                  many, without JSON
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from rlplat.config import closest
from rlplat.errors import BadObservation
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import obs_rows
from rlplat.rl.run.agent_spaces import AgentSpaces
from rlplat.rl.spaces import ObsSpec
from rlplat.serve.policies.engine import Acted
from rlplat.serve.refusals import Refused

OUTPUTS = ("log_prob", "value", "state")


class ActRequest(msgspec.Struct, forbid_unknown_fields=True):
    obs: Any
    mask: Any = None
    greedy: bool | msgspec.UnsetType = msgspec.UNSET
    """True where nothing says otherwise: the address of a WebSocket may."""
    outputs: list[str] = []
    session: str | None = None
    seq: int | None = None
    reset: bool = False
    """Of a session: this observation begins an episode."""
    state: Any = None
    """Of a recurrent policy, where the caller keeps it; `"initial"` where an episode begins."""


class _Query(msgspec.Struct, forbid_unknown_fields=True):
    """The options of raw rows, in their address."""

    greedy: bool = True
    outputs: str = ""
    """Names, joined by commas."""
    session: str | None = None
    seq: int | None = None
    reset: bool = False


class ConnectionQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The options of a WebSocket, in its address."""

    session: str = ""
    greedy: bool = True


class Rows(msgspec.Struct):
    """A request that was read and checked."""

    rows: Obs
    num_rows: int
    is_batch: bool
    greedy: bool
    outputs: list[str]
    session: str | None = None
    seq: int | None = None
    reset: bool = False
    state: Array | None = None
    gives_state: bool = False

    def digest(self) -> bytes:
        """Of what the answer of a session's step depends on: the observation, its mask, `greedy` and `reset`."""
        found = hashlib.blake2b(f"{self.greedy}{self.reset}".encode(), digest_size=16)
        for path, leaf in self.rows.items() if isinstance(self.rows, dict) else [("", self.rows)]:
            found.update(f"{path} {leaf.dtype} {leaf.shape}".encode())
            found.update(np.ascontiguousarray(leaf).tobytes())
        return found.digest()


_ELSEWHERE = {
    **dict.fromkeys(("observation", "observations", "input", "inputs", "instances", "x"), "obs"),
    "action_mask": "mask",
    "deterministic": "greedy",
}
"""What other servers and libraries call a field."""
_DECODER = msgspec.json.Decoder(ActRequest)


def bad(code: str, message: str, status: int = 400) -> Refused:
    return Refused(status, code, message)


def decoded(
    decode: Callable[..., Any], body: Any, what: str = "the body", kind: type[msgspec.Struct] = ActRequest
) -> Any:
    """`decode(body)`, of msgspec."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise bad("bad-request", f"{what} does not fit: {_with_hint(str(error), kind)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad("bad-json", f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise bad("bad-json", f"{what} is nested too deeply") from None


def options_of(query: bytes) -> dict[str, str]:
    """Of a request's address."""
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))


def refuse_query(query: bytes) -> None:
    """Of a request in JSON, whose options are in its body: those in its address would be ignored."""
    for name in options_of(query):
        if name in ActRequest.__struct_fields__:
            raise bad("bad-request", f"{name} is in the address; in JSON it is a field of the body")


def connection_query(query: bytes) -> ConnectionQuery:
    kind = ConnectionQuery
    found: ConnectionQuery = decoded(
        partial(msgspec.convert, type=kind, strict=False), options_of(query), "the query", kind
    )
    return found


def read_json(
    body: bytes,
    spaces: AgentSpaces,
    state_size: int,
    max_rows: int,
    session: str | None = None,
    greedy: bool = True,
) -> Rows:
    """session, greedy: those of the connection by which the body came."""
    request = decoded(_DECODER.decode, body)
    if request.greedy is msgspec.UNSET:
        request.greedy = greedy
    if session is not None:
        if request.session not in (None, session):
            raise bad("bad-request", "this connection is a session already: omit session")
        request.session = session
    return read_request(request, spaces, state_size, max_rows)


def _with_hint(complaint: str, kind: type[msgspec.Struct]) -> str:
    """With the field that was meant and all that there are, where msgspec names an unknown one."""
    found = re.search(r"unknown field `([^`]*)`", complaint)
    if found is None:
        return complaint
    fields = kind.__struct_fields__
    meant = _ELSEWHERE.get(found[1].lower())
    hint = f"; did you mean '{meant}'?" if meant in fields else closest(found[1], fields)
    return f"unknown field '{found[1]}'{hint} (fields: {', '.join(fields)})"


def read_request(
    request: ActRequest, spaces: AgentSpaces, state_size: int, max_rows: int, *, takes_state: bool = True
) -> Rows:
    """takes_state: of the form in which it came, which has a place for a state."""
    for name in request.outputs:
        if name not in OUTPUTS or (name == "state" and not state_size):
            there = ", ".join(OUTPUTS if state_size else OUTPUTS[:2])
            raise bad("bad-request", f"outputs names {name!r:.50}; expected some of {there}")
    try:
        rows, is_batch = spaces.read(request.obs, request.mask)
    except BadObservation as error:
        raise bad("bad-observation", str(error), 422) from None
    except (RecursionError, OverflowError, ValueError, TypeError) as error:
        raise bad("bad-observation", f"the observation is no array of numbers: {error}", 422) from None
    num_rows = obs_rows(rows)
    if num_rows > max_rows:
        raise bad("too-many-rows", f"the request has {num_rows:,} observations; at most {max_rows:,} go in one", 413)
    gives_state = takes_state and (request.state is not None or "state" in request.outputs)
    is_given = request.state not in (None, "initial")
    state = read_state(request.state, num_rows, is_batch, state_size) if is_given else None
    session, seq = request.session, request.seq
    if session is not None and gives_state:
        raise bad("bad-request", "session and state exclude each other: the state of a session is in the server")
    if session is not None and num_rows != 1:
        raise bad("bad-request", f"a session is one episode: expected one observation, got {num_rows}")
    if seq is not None and session is None:
        raise bad("bad-request", "seq numbers the steps of a session, and no session is given")
    if seq is not None and not 1 <= seq < 2**63:
        raise bad("bad-request", f"seq counts from 1, got {seq}")
    return Rows(
        rows, num_rows, is_batch, request.greedy is not False, request.outputs, session, seq, request.reset, state,
        gives_state,
    )  # fmt: skip


def read_state(state: Any, num_rows: int, is_batch: bool, size: int) -> Array:
    expected = f"float32[{num_rows}, {size}]" if is_batch else f"float32[{size}]"
    if not size:
        raise bad("bad-request", "a state is given, but this policy has none (policy.core is none)")
    try:
        array = np.asarray(state)
    except ValueError:
        raise bad("bad-state", f'state is no array; expected {expected} or "initial"', 422) from None
    shape = (num_rows, size) if is_batch else (size,)
    if array.dtype.kind not in "iuf" or array.shape != shape:
        raise bad("bad-state", f'state has shape {array.shape}; expected {expected} or "initial"', 422)
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise bad("bad-state", "state holds NaN or infinity", 422)
    return array.reshape(num_rows, size)


class RawRows:
    """The binary form, where an observation is one array without a mask: rows of it, little endian, nothing else."""

    def __init__(self, spaces: AgentSpaces) -> None:
        spec = spaces.spec.obs
        self._spaces = spaces
        self.problem = ""
        if not isinstance(spec, ObsSpec):
            self.problem = f"observations are {spaces.spec}: several arrays; send JSON, or the Open Inference Protocol"
            return
        space = spaces.observation_space
        self.dtype = np.dtype(space.dtype).newbyteorder("<")
        self.shape = tuple(space.shape)
        self.row_bytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def request(self, body: bytes, options: dict[str, str], state_size: int, max_rows: int) -> Rows:
        """options: those of a query."""
        asked = decoded(partial(msgspec.convert, type=_Query, strict=False), options, "the query", _Query)
        outputs = [name for name in asked.outputs.split(",") if name]
        given = {"greedy": asked.greedy, "session": asked.session, "seq": asked.seq, "reset": asked.reset}
        request = ActRequest(self.read(body), outputs=outputs, **given)
        return read_request(request, self._spaces, state_size, max_rows, takes_state=False)

    def read(self, body: bytes) -> Array:
        """[N, ...] of the space's dtype."""
        if self.problem:
            raise bad("no-binary-form", self.problem, 415)
        if not body or len(body) % self.row_bytes:
            raise bad(
                "bad-length",
                f"the body has {len(body)} bytes; expected N times {self.row_bytes}: rows of "
                f"{self.dtype.name}{list(self.shape)}",
            )
        array = np.frombuffer(body, self.dtype).reshape(-1, *self.shape)
        return array.astype(self.dtype.newbyteorder("="), copy=False)


def action_bytes(acted: Acted, outputs: list[str], spaces: AgentSpaces) -> tuple[bytes, str]:
    """(raw little-endian arrays one after the other, what they are): `action:int64[256];log_prob:float32[256]`."""
    action = spaces.actions(acted.actions, True)
    if not isinstance(action, np.ndarray):
        raise bad("no-binary-form", f"actions are {spaces.spec.action}: several arrays; send JSON", 415)
    arrays = {"action": action}
    columns = {"log_prob": acted.log_probs, "value": acted.values, "state": acted.state}
    arrays.update({name: columns[name] for name in outputs})
    body, names = [], []
    for name, array in arrays.items():
        little, dtype_name = _little_endian(array.dtype)
        body.append(np.ascontiguousarray(array, little).tobytes())
        names.append(f"{name}:{dtype_name}[{','.join(map(str, array.shape))}]")
    return b"".join(body), ";".join(names)


@cache
def _little_endian(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], str]:
    """(the same, little endian, its name): numpy takes longer to make them than to copy a row."""
    return dtype.newbyteorder("<"), dtype.name


def answer_of(request: Rows, acted: Acted, spaces: AgentSpaces) -> dict[str, Any]:
    """JSON values; of one observation without the leading axis."""
    answer: dict[str, Any] = {"action": plain(spaces.actions(acted.actions, request.is_batch))}
    columns = {"log_prob": acted.log_probs, "value": acted.values, "state": acted.state}
    names = [*request.outputs, "state"] if request.gives_state and "state" not in request.outputs else request.outputs
    for name in names:
        column = columns[name]
        answer[name] = (column if request.is_batch else column[0]).tolist()
    if request.seq is not None:
        answer["seq"] = request.seq
    answer["env_steps"] = acted.env_steps
    return answer


def plain(value: Any) -> Any:
    """An action as JSON: arrays become lists, a Dict's and a Tuple's parts each by itself."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
