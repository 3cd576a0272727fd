"""For a simulator: gets actions of a running training. One file: numpy and websockets, nothing of rlplat; copy it.

    with Simulator("ws://127.0.0.1:9900") as training:
        action = training.begin(obs)
        while True:
            obs, reward, terminated, truncated = step_my_simulator(action)
            action = training.step(obs, reward, terminated, truncated)      # None where the episode has ended
            if action is None:
                action = training.begin(reset_my_simulator())

Several simulators of one process go through one connection, with a row each: `Simulators`. The frames are described in
docs/external-simulators.md. Where the connection breaks, both connect again; the episode is cut there.

Where the training says so (inference: local), it sends its policy as an ONNX file instead of every action: the same
program then acts by itself, and needs onnxruntime, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import time
from typing import Any

import numpy as np

PROTOCOL, LOCAL_PROTOCOL = 1, 2
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
        self._local: LocalPolicy | None = None
        self._socket: Any = None
        self._connection = contextlib.ExitStack()
        self._is_closed = False
        self._connect()

    def reset(self, obs: Any) -> Any:
        """Episodes begin everywhere, with these observations -> actions. Episodes that had not ended are cut."""
        if self._local:
            self._local.cut()
            return self._act(obs)
        return self._exchange({"type": "reset", "obs": _arrays(obs)}, obs)

    def step(self, obs: Any, rewards: Any, terminated: Any, truncated: Any, final_obs: Any = None) -> Any:
        """-> the next actions. Where an episode ended, `obs` is the first observation of the next one and `final_obs`
        the last one of that; other rows of `final_obs` are not looked at."""
        if self._local:
            return self._act(obs, self._local.answered(obs, rewards, terminated, truncated, final_obs))
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
        protocol = welcome["protocol"]
        if protocol not in (PROTOCOL, LOCAL_PROTOCOL):
            raise Refused(f"the training speaks protocol {protocol}, this client {PROTOCOL} and {LOCAL_PROTOCOL}")
        self.spaces = welcome["spaces"]
        self._socket.send(pack({"type": "join", "protocol": protocol, "num_envs": self.num_envs}))
        self.seeds = self._receive()["seeds"]
        self._local = LocalPolicy(self.num_envs, self.seeds[0]) if protocol == LOCAL_PROTOCOL else None

    def _exchange(self, frame: dict[str, Any], obs: Any) -> Any:
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                self._socket.send(pack(frame))
                return self._actions(self._receive())
            except ConnectionClosed as error:
                self._connect_again(error)
                frame = {"type": "reset", "obs": _arrays(obs)}  # what led here is not known to the other side

    def _act(self, obs: Any, fragment: dict[str, Any] | None = None) -> Any:
        """The next actions by the policy that is here; first, where a fragment is complete, it is sent, and a policy
        received."""
        from websockets.exceptions import ConnectionClosed

        while True:
            assert self._local is not None
            try:
                if fragment is not None:
                    self._socket.send(pack(fragment))
                if fragment is not None or not self._local.is_there:
                    self._local.use(self._receive())
                return self._alone(self._local.act(obs))
            except ConnectionClosed as error:
                self._connect_again(error)
                fragment = None  # lost: the other side may have other weights by now

    def _connect_again(self, error: Any) -> None:
        if self._is_closed or error.rcvd is not None:  # it took leave; a connection that breaks does not
            raise Ended("this client was closed" if self._is_closed else END) from None
        self._connect()

    def _receive(self) -> dict[str, Any]:
        frame: dict[str, Any] = unpack(self._socket.recv())
        if frame["type"] == "error":
            raise Refused(frame["message"])
        if frame["type"] == "end":
            raise Ended(END)
        return frame

    @classmethod
    def _actions(cls, frame: dict[str, Any]) -> Any:
        return cls._alone({path: _read(each) for path, each in frame["actions"].items()})

    @staticmethod
    def _alone(actions: dict[str, Any]) -> Any:
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


class LocalPolicy:
    """Acts by a policy that the training sent, and records until a fragment is complete.

    local.use(frame)
    actions = local.act(obs)
    fragment = local.answered(obs, rewards, terminated, truncated, final_obs)       # None until it is complete
    """

    def __init__(self, num_envs: int, seed: int) -> None:
        self._num_envs, self._rng = num_envs, np.random.default_rng(seed)
        self._session: Any = None
        self._inputs: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._starts = np.ones(num_envs, np.bool_)
        self._state: np.ndarray | None = None
        self._continues = False
        self._steps: list[dict[str, Any]] = []
        """Complete ones."""
        self._decided: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None = None
        """(observations, what is recorded) of a step whose outcome is not known yet."""

    @property
    def is_there(self) -> bool:
        return self._session is not None

    def use(self, frame: dict[str, Any]) -> None:
        """From the next step on, which is the first one of a fragment."""
        self._version, self._num_steps, self._record = frame["version"], frame["num_steps"], frame["record"]
        if frame["onnx"] is not None:
            self._open(frame["onnx"])

    def act(self, obs: Any) -> dict[str, np.ndarray]:
        """-> actions by path."""
        leaves = {path: np.asarray(each) for path, each in (obs if isinstance(obs, dict) else {"": obs}).items()}
        feeds = {name: self._input(name, leaves) for name in self._inputs}
        found = dict(zip(self._wanted, self._session.run(self._wanted, feeds), strict=True))
        known = feeds | found
        # Copies: a simulator may write its next observation into the same memory.
        kept = {path: np.array(each) for path, each in leaves.items()}
        self._decided = kept, {name: known[name] for name in self._record}
        self._state = found.get("state_out")
        self._starts = np.zeros(self._num_envs, np.bool_)
        return {name.partition("/")[2]: found[name] for name in self._action_names}

    def answered(
        self, obs: Any, rewards: Any, terminated: Any, truncated: Any, final_obs: Any
    ) -> dict[str, Any] | None:
        """What came of the last actions; see `Simulators.step`."""
        assert self._decided is not None, "reset() comes first"
        terminated = np.asarray(terminated, np.bool_)
        truncated = np.asarray(truncated, np.bool_) & ~terminated
        self._end(rewards, terminated, truncated, final_obs)
        self._starts = terminated | truncated
        if len(self._steps) < self._num_steps:
            return None
        steps, self._steps = self._steps, []
        followed, self._continues = self._continues, True
        final = [step["final_obs"] for step in steps if step["truncated"].any()]
        return {
            "type": "fragment",
            "version": self._version,
            "continues": followed,
            **{
                part: {name: _array(np.stack([step[part][name] for step in steps])) for name in steps[0][part]}
                for part in ("obs", "outputs")
            },
            **{
                name: _array(np.stack([step[name] for step in steps]))
                for name in ("rewards", "terminated", "truncated")
            },
            "next_obs": _arrays(obs),
            "final_obs": {path: _array(np.concatenate([f[path] for f in final])) for path in final[0]}
            if final
            else None,
        }

    def cut(self) -> None:
        """Episodes begin everywhere: those that had not ended are truncated at what was observed last. The action that
        was to follow never had an outcome, and is forgotten."""
        decided, self._decided = self._decided, None
        self._starts = np.ones(self._num_envs, np.bool_)
        if decided is None:
            return
        if not self._steps:
            self._continues = False
            return
        last = self._steps.pop()
        truncated = ~last["terminated"] & ~last["truncated"]
        # Those that had ended already began where they are now: they have made no step, and keep their end.
        self._decided = last["obs"], last["outputs"]
        final = {path: each.copy() for path, each in decided[0].items()}
        cut = np.flatnonzero(last["truncated"])
        if len(cut):
            for path, each in final.items():
                each[cut] = last["final_obs"][path]
        self._end(last["rewards"], last["terminated"], truncated | last["truncated"], final)

    def _end(self, rewards: Any, terminated: np.ndarray, truncated: np.ndarray, final_obs: Any) -> None:
        """The step that was decided on is complete."""
        assert self._decided is not None
        (obs, outputs), self._decided = self._decided, None
        if truncated.any() and final_obs is None:
            raise Refused("final_obs is missing: the last observations of the episodes that ended in this step")
        final = final_obs if isinstance(final_obs, dict) else {"": final_obs}
        self._steps.append(
            {
                "obs": obs,
                "outputs": outputs,
                "rewards": np.asarray(rewards, np.float32).reshape(self._num_envs),
                "terminated": terminated.reshape(self._num_envs),
                "truncated": truncated.reshape(self._num_envs),
                "final_obs": {path: np.array(each)[truncated] for path, each in final.items()}
                if truncated.any()
                else {},
            }
        )

    def _input(self, name: str, leaves: dict[str, np.ndarray]) -> np.ndarray:
        dtype, shape = self._inputs[name]
        if name == "noise":
            return self._rng.standard_normal((self._num_envs, *shape), dtype=np.float32)
        if name == "starts":
            return self._starts
        if name == "state_in":
            zeros = np.zeros((self._num_envs, *shape), np.float32)
            return zeros if self._state is None else np.where(self._starts[:, None], zeros, self._state)
        path = name if name == "action_mask" else name.partition("/")[2]
        array = leaves.get(path)
        if array is None:
            raise Refused(f"obs has the arrays {sorted(leaves)}; expected is also {path!r}")
        if name == "action_mask":
            array = array.astype(np.bool_)
        if array.dtype != dtype or array.shape != (self._num_envs, *shape):
            expected = f"{dtype}{[self._num_envs, *shape]}"
            raise Refused(f"{name} is {array.dtype}{list(array.shape)}; expected {expected}")
        return array

    def _open(self, model: bytes) -> None:
        """model: an ONNX file that ends with the SHA-256 of all before its last entry, as the training writes it."""
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else it calls its maker
        try:
            import onnxruntime
        except ImportError:
            raise Refused(
                "the training sends its policy instead of actions (inference: local), which needs onnxruntime here: "
                "pip install onnxruntime"
            ) from None
        if hashlib.sha256(model[:-_SEAL_BYTES]).hexdigest().encode() != model[-64:]:
            raise Refused(f"the policy of version {self._version} came here damaged: its checksum is another one")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class for each cause
            raise Refused(
                f"onnxruntime {onnxruntime.__version__} cannot read the policy of version {self._version}: {error}"
            ) from None
        kinds = {"float": "float32", "double": "float64"}
        for each in session.get_inputs():
            kind = each.type.removeprefix("tensor(").removesuffix(")")
            self._inputs[each.name] = np.dtype(kinds.get(kind, kind)), tuple(each.shape[1:])
        outputs = [each.name for each in session.get_outputs()]
        self._action_names = [name for name in outputs if name == "action" or name.startswith("action/")]
        recorded = [name for name in self._record if name in outputs]
        states = ["state_out"] if "state_out" in outputs else []
        self._wanted = list(dict.fromkeys([*self._action_names, *recorded, *states]))
        self._session = session


_SEAL_BYTES = 83
"""Of the entry with the checksum at the end of a policy."""


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
    array: np.ndarray = np.frombuffer(each["data"], dtype.newbyteorder("<")).astype(dtype).reshape(each["shape"])
    return array
