"""For a simulator: asks a running training for actions. One file: numpy and websockets, nothing of rlplat; copy it.

    with Simulator("ws://127.0.0.1:9900") as training:
        action = training.begin(obs)
        while True:
            obs, reward, terminated, truncated = step_my_simulator(action)
            action = training.step(obs, reward, terminated, truncated)      # None where the episode has ended
            if action is None:
                action = training.begin(reset_my_simulator())

Several simulators of one process go through one connection, with a row each: `Simulators`. The frames are described in
docs/external-simulators.md. Where the connection breaks, both connect again; the episode is cut there.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import Any

import numpy as np

PROTOCOL = 1
END = "the training has ended"


class Refused(Exception):
    """The training says what is wrong with a frame, or has no place for another simulator."""


class Ended(Exception):
    """The training has ended (or has not been there for `patience_s` seconds)."""


class Simulators:
    """`num_envs` environments in lock step: arrays [num_envs, ...], by path for Dict and Tuple spaces."""

    def __init__(
        self,
        address: str = "ws://127.0.0.1:9900",
        num_envs: int = 1,
        *,
        token: str | None = None,
        patience_s: float = 60.0,
    ) -> None:
        """token: of a training beyond this machine, by default $RLPLAT_EXTERNAL_TOKEN; patience_s: how long to try to
        connect, at first and again."""
        self.address, self.num_envs, self.patience_s = address, num_envs, patience_s
        self._token = os.environ.get("RLPLAT_EXTERNAL_TOKEN", "") if token is None else token
        self.spaces: dict[str, Any] = {}
        """{"observation": ..., "action": ...} as in the training's file of spaces."""
        self.seeds: list[int] = []
        """One for each environment, from the training's seed: with them a run can be repeated."""
        self._socket: Any = None
        self._connection = contextlib.ExitStack()
        self._is_closed = False
        self._connect()

    def reset(self, obs: Any) -> Any:
        """Episodes begin everywhere, with these observations -> actions. Episodes that had not ended are cut."""
        return self._exchange({"type": "reset", "obs": _arrays(obs)}, obs)

    def step(self, obs: Any, rewards: Any, terminated: Any, truncated: Any, final_obs: Any = None) -> Any:
        """-> the next actions. Where an episode ended, `obs` is the first observation of the next one and `final_obs`
        the last one of that; other rows of `final_obs` are not looked at."""
        frame = {
            "type": "step",
            "obs": _arrays(obs),
            "rewards": _array(np.asarray(rewards, np.float32)),
            "terminated": _array(np.asarray(terminated, np.bool_)),
            "truncated": _array(np.asarray(truncated, np.bool_)),
        }
        if final_obs is not None:
            frame["final_obs"] = _arrays(final_obs)
        return self._exchange(frame, obs)

    def close(self) -> None:
        self._is_closed = True
        self._connection.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _connect(self) -> None:
        """Again and again for `patience_s`, then it has ended."""
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        deadline, pause = time.monotonic() + self.patience_s, 0.05
        while True:
            try:
                self._connection.close()
                connecting = connect(
                    self.address, additional_headers=headers, compression=None, max_size=None, proxy=None
                )
                self._socket = self._connection.enter_context(connecting)
                return self._join()
            except InvalidStatus as error:
                raise Refused(f"{self.address}: {error.response.body.decode().strip()}") from None
            except (OSError, EOFError, WebSocketException) as error:
                if time.monotonic() + pause > deadline:
                    raise Ended(f"no training answers at {self.address}: {error}") from None
            time.sleep(pause)
            pause = min(1.0, 2 * pause)

    def _join(self) -> None:
        welcome = self._receive()
        if welcome["protocol"] != PROTOCOL:
            raise Refused(f"the training speaks protocol {welcome['protocol']}, this client {PROTOCOL}")
        self.spaces = welcome["spaces"]
        self._socket.send(pack({"type": "join", "protocol": PROTOCOL, "num_envs": self.num_envs}))
        self.seeds = self._receive()["seeds"]

    def _exchange(self, frame: dict[str, Any], obs: Any) -> Any:
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                self._socket.send(pack(frame))
                return self._actions(self._receive())
            except ConnectionClosed as error:
                if (
                    self._is_closed or error.rcvd is not None
                ):  # it took leave; a connection that breaks does not
                    raise Ended("this client was closed" if self._is_closed else END) from None
                self._connect()
                frame = {"type": "reset", "obs": _arrays(obs)}  # what led here is not known to the other side

    def _receive(self) -> dict[str, Any]:
        frame: dict[str, Any] = unpack(self._socket.recv())
        if frame["type"] == "error":
            raise Refused(frame["message"])
        if frame["type"] == "end":
            raise Ended(END)
        return frame

    @staticmethod
    def _actions(frame: dict[str, Any]) -> Any:
        actions = {path: _read(each) for path, each in frame["actions"].items()}
        return actions[""] if list(actions) == [""] else actions


class Simulator(Simulators):
    """One environment: observations and actions without rows."""

    def begin(self, obs: Any) -> Any:
        """An episode begins with this observation -> the first action."""
        if self._ended is None:
            return self._one(self.reset(self._row(obs)))
        (rewards, terminated, truncated, final_obs), self._ended = self._ended, None
        return self._one(Simulators.step(self, self._row(obs), rewards, terminated, truncated, final_obs))

    _ended: Any = None
    """The last step of an episode, which is sent with the first observation of the next one."""

    def step(self, obs: Any, reward: float, terminated: bool, truncated: bool = False) -> Any:  # type: ignore[override]
        """What the last action led to -> the next action; None where the episode has ended: call `begin`."""
        if terminated or truncated:
            self._ended = ([reward], [terminated], [truncated], self._row(obs))
            return None
        return self._one(Simulators.step(self, self._row(obs), [reward], [False], [False]))

    @staticmethod
    def _row(obs: Any) -> Any:
        if isinstance(obs, dict):
            return {path: np.asarray(each)[None] for path, each in obs.items()}
        return np.asarray(obs)[None]

    @staticmethod
    def _one(actions: Any) -> Any:
        return {path: each[0] for path, each in actions.items()} if isinstance(actions, dict) else actions[0]


def pack(value: Any) -> bytes:
    """MessagePack of None, booleans, integers, floats, texts, bytes, lists and dicts."""
    if value is None or value is True or value is False:
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return struct.pack(">Bq", 0xD3, value) if not 0 <= value < 128 else bytes([value])
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, str):
        text = value.encode()
        return struct.pack(">BI", 0xDB, len(text)) + text
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    if isinstance(value, dict):
        parts = [pack(each) for pair in value.items() for each in pair]
        return struct.pack(">BI", 0xDF, len(value)) + b"".join(parts)
    if isinstance(value, list | tuple):
        return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(pack, value))
    raise TypeError(f"{type(value).__name__} has no place in a frame")


def unpack(data: bytes) -> Any:
    """What any MessagePack writer makes of such values."""
    value, end = _unpack(data, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes behind a frame")
    return value


_NUMBERS = {
    0xCA: "f",
    0xCB: "d",
    0xCC: "B",
    0xCD: "H",
    0xCE: "I",
    0xCF: "Q",
    0xD0: "b",
    0xD1: "h",
    0xD2: "i",
    0xD3: "q",
}
_SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8, "b": 1, "h": 2, "i": 4, "q": 8, "f": 4, "d": 8}
_BYTES = {0xC4: "B", 0xC5: "H", 0xC6: "I"}
_TEXTS = {0xD9: "B", 0xDA: "H", 0xDB: "I"}
_LISTS = {0xDC: "H", 0xDD: "I"}
_DICTS = {0xDE: "H", 0xDF: "I"}


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    head, at = data[at], at + 1
    if head < 0x80:
        return head, at
    if head >= 0xE0:
        return head - 0x100, at
    if head in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[head], at
    if head in _NUMBERS:
        return _number(data, at, _NUMBERS[head])
    if head in _BYTES or head in _TEXTS or 0xA0 <= head < 0xC0:
        size, at = (head & 0x1F, at) if head < 0xC0 else _number(data, at, (_BYTES | _TEXTS)[head])
        found = data[at : at + size]
        if len(found) < size:
            raise ValueError("a frame that is cut")
        return (found if head in _BYTES else found.decode()), at + size
    if head in _LISTS or 0x90 <= head < 0xA0:
        size, at = (head & 0x0F, at) if head < 0xC0 else _number(data, at, _LISTS[head])
        items = []
        for _ in range(size):
            item, at = _unpack(data, at)
            items.append(item)
        return items, at
    if head in _DICTS or head < 0x90:
        size, at = (head & 0x0F, at) if head < 0xC0 else _number(data, at, _DICTS[head])
        pairs = {}
        for _ in range(size):
            key, at = _unpack(data, at)
            pairs[key], at = _unpack(data, at)
        return pairs, at
    raise ValueError(f"byte {head:#x} in a frame")


def _number(data: bytes, at: int, form: str) -> tuple[Any, int]:
    size = _SIZES[form]
    return struct.unpack(f">{form}", data[at : at + size])[0], at + size


def _array(array: np.ndarray) -> dict[str, Any]:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": little.tobytes()}


def _arrays(obs: Any) -> dict[str, Any]:
    leaves = obs if isinstance(obs, dict) else {"": obs}
    return {path: _array(np.asarray(each)) for path, each in leaves.items()}


def _read(each: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(each["dtype"])
    array: np.ndarray = (
        np.frombuffer(each["data"], dtype.newbyteorder("<")).astype(dtype).reshape(each["shape"])
    )
    return array
