"""What simulators and a training send each other: MessagePack maps in WebSocket messages, checked before they are used.

    training    welcome {protocol, spaces, free_envs, max_frame_bytes}, then
    simulator   join {protocol, num_envs}
    training    joined {seeds}
    simulator   reset {obs}                                            and for each
    training    actions {actions}
    simulator   step {obs, rewards, terminated, truncated, final_obs}  or again reset
    training    error {message}, end {}: and the connection is closed

So protocol 1, in which the training acts. In protocol 2 simulators act: what follows `joined` is then

    training    policy {version, num_steps, record, onnx}              and for each
    simulator   fragment {version, continues, obs, outputs, rewards, terminated, truncated, final_obs, next_obs}

Arrays are {dtype, shape, data}, little-endian and in C order, with a row for each environment of the connection; those
of an observation or action by path, "" where there is one.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

PROTOCOL, LOCAL_PROTOCOL = 1, 2
MAX_FRAME_BYTES = 256 * 2**20
DTYPES = frozenset("float16 float32 float64 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())
Leaves = dict[str, tuple[str, tuple[int, ...]]]
"""(dtype, shape of one row) by path."""


class BadFrame(ValueError):
    """Says what is wrong with it; the simulator gets the message."""


class Packed(msgspec.Struct):
    """An array."""

    dtype: str
    shape: list[int]
    data: bytes


class Join(msgspec.Struct, tag_field="type", tag="join"):
    protocol: int
    num_envs: int


class Reset(msgspec.Struct, tag_field="type", tag="reset"):
    obs: dict[str, Packed]


class Advance(msgspec.Struct, tag_field="type", tag="step"):
    obs: dict[str, Packed]
    rewards: Packed
    terminated: Packed
    truncated: Packed
    final_obs: dict[str, Packed] | None = None


class Fragment(msgspec.Struct, tag_field="type", tag="fragment"):
    """T steps of N environments, time first: arrays [T, N, ...], but for next_obs [N, ...] and final_obs [K, ...]."""

    version: int
    """Of the policy that acted."""
    continues: bool
    """Whether the first step follows the last one of the fragment before."""
    obs: dict[str, Packed]
    outputs: dict[str, Packed]
    """What the policy frame asked for (`record`)."""
    rewards: Packed
    terminated: Packed
    truncated: Packed
    next_obs: dict[str, Packed]
    """What is observed after the last step, by whom the next action is for."""
    final_obs: dict[str, Packed] | None = None
    """The last observations of the K episodes that were truncated, in order of time, then environment."""


class EnvFragment(msgspec.Struct):
    """What a `Fragment` says of one environment, as arrays [T, ...]."""

    version: int
    continues: bool
    obs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_obs: dict[str, np.ndarray]
    """[...]"""
    final_obs: dict[str, np.ndarray]
    """[K, ...]: of its K truncated episodes"""


class Rows(msgspec.Struct):
    """What a `Reset` or `Advance` says, as arrays."""

    obs: dict[str, np.ndarray]
    is_reset: bool
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: dict[str, np.ndarray]


_decoder = msgspec.msgpack.Decoder(Join | Reset | Advance | Fragment)


def encode(kind: str, **content: Any) -> bytes:
    return msgspec.msgpack.encode({"type": kind, **content})


def decode(data: bytes | str) -> Join | Reset | Advance | Fragment:
    """BadFrame for whatever is not one of them."""
    if isinstance(data, str):
        raise BadFrame("a frame is a binary message, and this is a text")
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"not a frame of protocol {PROTOCOL} or {LOCAL_PROTOCOL}: {error}") from None


def read_rows(frame: Reset | Advance, leaves: Leaves, num_rows: int) -> Rows:
    """BadFrame that names the array, what was expected and what came."""
    obs = _read_obs("obs", frame.obs, leaves, (num_rows,))
    if isinstance(frame, Reset):
        zeros = np.zeros(num_rows, np.bool_)
        return Rows(obs, True, np.zeros(num_rows, np.float32), zeros, ~zeros, obs)
    rewards = _read("rewards", frame.rewards, "float32", (num_rows,))
    terminated, truncated = (
        _read(name, packed, "bool", (num_rows,))
        for name, packed in (("terminated", frame.terminated), ("truncated", frame.truncated))
    )
    final_obs = obs
    if (terminated | truncated).any():
        if frame.final_obs is None:
            raise BadFrame("final_obs is missing: the last observations of the episodes that ended in this step")
        final_obs = _read_obs("final_obs", frame.final_obs, leaves, (num_rows,))
    return Rows(obs, False, rewards, terminated, truncated, final_obs)


def read_fragment(frame: Fragment, leaves: Leaves, outputs: Leaves, num_steps: int, num_rows: int) -> list[EnvFragment]:
    """One for each environment. BadFrame that names the array, what was expected and what came."""
    shape = (num_steps, num_rows)
    obs = _read_obs("obs", frame.obs, leaves, shape)
    found = _read_obs("outputs", frame.outputs, outputs, shape)
    rewards = _read("rewards", frame.rewards, "float32", shape)
    terminated = _read("terminated", frame.terminated, "bool", shape)
    truncated = _read("truncated", frame.truncated, "bool", shape)
    if (terminated & truncated).any():
        raise BadFrame("terminated and truncated are both true of a step: of one that terminated, send truncated false")
    next_obs = _read_obs("next_obs", frame.next_obs, leaves, (num_rows,))
    num_cut = int(truncated.sum())
    final_obs = {path: each[:0, 0] for path, each in obs.items()}
    if num_cut:
        if frame.final_obs is None:
            raise BadFrame("final_obs is missing: the last observations of the episodes that were truncated")
        final_obs = _read_obs("final_obs", frame.final_obs, leaves, (num_cut,))
    env_of_cut = np.nonzero(truncated)[1]
    return [
        EnvFragment(
            frame.version,
            frame.continues,
            {path: each[:, i] for path, each in obs.items()},
            {name: each[:, i] for name, each in found.items()},
            rewards[:, i],
            terminated[:, i],
            truncated[:, i],
            {path: each[i] for path, each in next_obs.items()},
            {path: each[env_of_cut == i] for path, each in final_obs.items()},
        )
        for i in range(num_rows)
    ]


def pack_array(array: np.ndarray) -> dict[str, Any]:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": little.tobytes()}


def _read_obs(what: str, obs: dict[str, Packed], leaves: Leaves, rows: tuple[int, ...]) -> dict[str, np.ndarray]:
    if obs.keys() != leaves.keys():
        raise BadFrame(f"{what} has the arrays {sorted(obs)}; expected {sorted(leaves)}")
    return {
        path: _read(f"{what}/{path}" if path else what, obs[path], dtype, (*rows, *shape))
        for path, (dtype, shape) in leaves.items()
    }


def _read(name: str, packed: Packed, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    expected = f"expected {dtype}{list(shape)}"
    if packed.dtype != dtype or packed.shape != list(shape) or packed.dtype not in DTYPES:
        raise BadFrame(f"{name} is {packed.dtype}{packed.shape}; {expected}")
    kind = np.dtype(dtype)
    size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if len(packed.data) != size:
        raise BadFrame(f"{name} has {len(packed.data)} bytes; {expected}, which are {size}")
    array = np.frombuffer(packed.data, kind.newbyteorder("<")).astype(kind).reshape(shape)
    if kind.kind == "f" and not np.isfinite(array).all():
        raise BadFrame(f"{name} has NaN or infinite numbers")
    return array
