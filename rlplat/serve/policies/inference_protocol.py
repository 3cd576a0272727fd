"""The Open Inference Protocol, version 2 (REST): what KServe, Triton and MLServer speak.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol

Inputs: every array of the observation by its path (`obs` where there is one alone), `action_mask` where the policy has
masks; the first axis is rows. Outputs: `action` (or one for each part of it: `action/0`), and `log_prob`, `value`
where asked.
"""

from __future__ import annotations

from functools import reduce
from operator import getitem
from typing import Any

import msgspec
import numpy as np

import rlplat
from rlplat.acting import Keys, box_values
from rlplat.export.contract import nested
from rlplat.rl.envs.gym_spaces import walk
from rlplat.serve.policies.acting import ServedPolicy
from rlplat.serve.policies.bodies import ActRequest, Rows, bad, decoded, read_request
from rlplat.serve.refusals import Refused, require_method

DTYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class _Described(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Tensor(msgspec.Struct, omit_defaults=True):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any]
    parameters: dict[str, Any] = {}


class _Wanted(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Infer(msgspec.Struct):
    inputs: list[_Tensor]
    id: str | None = None
    parameters: dict[str, Any] = {}
    outputs: list[_Wanted] = []


class _Inferred(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_Tensor]
    id: str | None = None


class _Server(msgspec.Struct):
    name: str
    version: str
    extensions: list[str] = []


class _Model(msgspec.Struct):
    name: str
    platform: str
    inputs: list[_Described]
    outputs: list[_Described]
    versions: list[str] = []


class _Live(msgspec.Struct):
    live: bool = True


class _Ready(msgspec.Struct):
    ready: bool = True


class _ModelReady(msgspec.Struct):
    name: str
    ready: bool = True


_DECODER = msgspec.json.Decoder(_Infer)


def described(model: str, refusals: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The paths and the schemas of the protocol, for OpenAPI. refusals: the answers of each that are errors."""
    answers = {
        "/v2": _Server,
        "/v2/health/live": _Live,
        "/v2/health/ready": _Ready,
        f"/v2/models/{model}": _Model,
        f"/v2/models/{model}/ready": _ModelReady,
        f"/v2/models/{model}/infer": _Inferred,
    }
    template = "#/components/schemas/{name}"
    (request, *refs), schemas = msgspec.json.schema_components([_Infer, *answers.values()], ref_template=template)
    paths: dict[str, Any] = {}
    for path, ref in zip(answers, refs, strict=True):
        answer = {"description": "it is", "content": {"application/json": {"schema": ref}}}
        operation = {"summary": "Open Inference Protocol 2", "responses": {"200": answer, **refusals}}
        if path.endswith("/infer"):
            body = {"required": True, "content": {"application/json": {"schema": request}}}
            paths[path] = {"post": {**operation, "requestBody": body}}
        else:
            paths[path] = {"get": operation}
    return paths, schemas


class InferenceProtocol:
    def __init__(self, server: ServedPolicy) -> None:
        self._server = server
        spaces = server.agent.spaces
        self._leaves = [(name or "obs", *more) for name, *more in _leaves(spaces.observation_space)]
        """(name, keys, space) of every array of an observation."""

    async def answer(self, method: str, path: str, body: bytes) -> msgspec.Struct:
        server = self._server
        parts = path.strip("/").split("/")[1:]
        require_method(method, "POST" if parts[-1:] == ["infer"] else "GET", path)
        match parts:
            case []:
                return _Server("rlplat", rlplat.__version__)
            case ["health", "live"]:
                return _Live()
            case ["health", "ready"]:
                await server.check()
                return _Ready()
            case ["models", name, *rest]:
                if name != server.model:
                    raise Refused(404, "unknown-model", f"there is no model {name!r:.100}; there is {server.model!r}")
                if rest == []:
                    return self._metadata()
                if rest == ["ready"]:
                    await server.check()
                    return _ModelReady(server.model)
                if rest == ["infer"]:
                    return await self._infer(body)
        raise Refused(404, "not-found", f"there is nothing at {path:.200}; /v2/models/{server.model}/infer infers")

    def _metadata(self) -> _Model:
        spaces = self._server.agent.spaces
        inputs = [_described(name, space.dtype, space.shape) for name, _, space in self._leaves]
        if spaces.has_mask and all(name != "action_mask" for name, _, _ in self._leaves):
            inputs.append(_described("action_mask", np.dtype(bool), (spaces.spec.action.mask_size,)))
        outputs = [_described(name, space.dtype, space.shape) for name, _, space in _actions(spaces)]
        for name in ("log_prob", "value"):
            outputs.append(_described(name, np.dtype(np.float32), ()))
        platform = f"rlplat_{self._server.agent.checkpoint.info.algorithm}"
        return _Model(self._server.model, platform, inputs, outputs)

    async def _infer(self, body: bytes) -> _Inferred:
        server = self._server
        asked: _Infer = decoded(_DECODER.decode, body)
        request = self._read(asked)
        acted = await server.act(request)
        spaces = server.agent.spaces
        action = spaces.actions(acted.actions, True)
        outputs = [_written(name, np.asarray(reduce(getitem, keys, action))) for name, keys, _ in _actions(spaces)]
        columns = {"log_prob": acted.log_probs, "value": acted.values}
        outputs += [_written(name, columns[name]) for name in request.outputs]
        if asked.outputs:
            names = {each.name for each in asked.outputs}
            outputs = [each for each in outputs if each.name in names]
        return _Inferred(server.model, str(acted.env_steps), outputs, asked.id)

    def _read(self, asked: _Infer) -> Rows:
        server = self._server
        spaces = server.agent.spaces
        given = {tensor.name: tensor for tensor in asked.inputs}
        if len(given) < len(asked.inputs):
            raise bad("bad-request", "two inputs have the same name")
        names = [name for name, _, _ in self._leaves]
        known = [*names, "action_mask"] if spaces.has_mask and "action_mask" not in names else names
        for name in given:
            if name not in known:
                raise bad("bad-input", f"unknown input {name!r:.100}; expected {', '.join(known)}", 422)
        for name in names:
            if name not in given:
                raise bad("bad-input", f"the input {name!r} is missing; expected {', '.join(known)}", 422)
        observation = nested([(keys, _array(given[name])) for name, keys, _ in self._leaves])
        mask = _array(given["action_mask"]) if "action_mask" in given and "action_mask" not in names else None
        parameters = asked.parameters
        greedy, session, seq = (parameters.get(name) for name in ("greedy", "session", "seq"))
        for name, value, kind in (("greedy", greedy, bool), ("session", session, str), ("seq", seq, int)):
            if value is not None and type(value) is not kind:
                raise bad("bad-request", f"parameters.{name} is {value!r:.50}; expected {kind.__name__}")
        possible = [*(name for name, _, _ in _actions(spaces)), "log_prob", "value"]
        wanted = [each.name for each in asked.outputs]
        for name in wanted:
            if name not in possible:
                raise bad("bad-request", f"unknown output {name!r:.100}; there are {', '.join(possible)}")
        columns: list[str] = [name for name in ("log_prob", "value") if name in wanted]
        request = ActRequest(observation, mask, greedy is not False, columns, session, seq)
        rows = read_request(request, spaces, server.agent.state_size, server.max_rows_per_request)
        if not rows.is_batch:
            raise bad(
                "bad-shape",
                "the first axis of every input is rows: one observation has the shape [1, ...]",
                422,
            )
        return rows


def _leaves(space: Any) -> list[tuple[str, Keys, Any]]:
    """(name, keys, space) of every array: Dict and Tuple spaces by path."""
    return [("/".join(map(str, keys)), keys, leaf) for keys, leaf in walk(space)]


def _actions(spaces: Any) -> list[tuple[str, Keys, Any]]:
    return [(f"action/{name}" if name else "action", *more) for name, *more in _leaves(spaces.action_space)]


def _array(tensor: _Tensor) -> np.ndarray:
    dtype = DTYPES.get(tensor.datatype)
    if dtype is None:
        raise bad(
            "bad-datatype",
            f"{tensor.name} has datatype {tensor.datatype!r:.50}; there are {', '.join(DTYPES)}",
            422,
        )
    try:
        if min(tensor.shape, default=0) < 0:  # numpy would fill them in
            raise ValueError("has sizes below 0")
        return box_values(np.asarray(tensor.data).reshape(tensor.shape), dtype)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise bad(
            "bad-tensor",
            f"the data of {tensor.name} is not {tensor.datatype} of shape {tensor.shape}: it {error}",
            422,
        ) from None


def _described(name: str, dtype: Any, shape: tuple[int, ...]) -> _Described:
    return _Described(name, _NAMES[np.dtype(dtype).name], [-1, *shape])


def _written(name: str, array: np.ndarray) -> _Tensor:
    return _Tensor(name, list(array.shape), _NAMES[array.dtype.name], array.ravel().tolist())
