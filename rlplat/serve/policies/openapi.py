"""The OpenAPI description of a policy server, from its spaces."""

from __future__ import annotations

from typing import Any

import rlplat
from rlplat.serve.policies.acting import ServedPolicy
from rlplat.serve.policies.inference_protocol import described


def openapi(server: ServedPolicy) -> dict[str, Any]:
    agent = server.agent
    spaces, size = agent.spaces, agent.state_size
    action = _one_or_many(spaces.action_space)
    properties: dict[str, Any] = {
        "obs": {**_one_or_many(spaces.observation_space), "description": "one observation, or many"},
        "greedy": _of("boolean", "the most likely action; false draws one", default=True),
        "outputs": _of("array", items={"enum": ["log_prob", "value", "state"]}),
        "session": _of(["string", "null"], "from POST /v1/sessions"),
        "seq": _of(["integer", "null"], "number of this step in the session", minimum=1),
        "reset": _of("boolean", "this observation begins an episode", default=False),
    }
    if size:
        state = _of("array", items=_of("number"), minItems=size, maxItems=size)
        properties["state"] = {"oneOf": [{"const": "initial"}, state, _of("array", items=state)]}
    if spaces.has_mask:
        size = spaces.spec.action.mask_size
        mask = _of("array", items=_of("boolean"), minItems=size, maxItems=size)
        properties["mask"] = {"oneOf": [mask, _of("array", items=mask)]}
    answered = {
        "action": action,
        "log_prob": _of(["number", "array"]),
        "value": _of(["number", "array"]),
        "seq": _of("integer"),
        "env_steps": _of("integer", "for how many the weights were trained"),
    }
    request = _of("object", required=["obs"], additionalProperties=False, properties=properties)
    answer = _of("object", required=["action", "env_steps"], properties=answered)
    has_raw = server.raw is not None and not server.raw.problem
    raw = {"application/octet-stream": {"schema": _of("string", format="binary")}} if has_raw else {}
    error = {"description": "why not", "content": _json({"$ref": "#/components/schemas/Error"})}
    refusals = dict.fromkeys(("400", "409", "410", "413", "415", "422", "503", "504"), error)
    act = {
        "summary": "the action for one observation, or those for many",
        "requestBody": {"required": True, "content": {**_json(request), **raw}},
        "responses": {
            "200": {"description": "the action", "content": {**_json(answer), **raw}},
            **refusals,
        },
    }
    end = {
        "summary": "end it",
        "parameters": [{"name": "session", "in": "path", "required": True, "schema": _of("string")}],
        "responses": {"204": {"description": "it is ended"}, "410": error},
    }
    looks = {
        "/v1/policy": "what is served",
        "/health/live": "the process answers",
        "/health/ready": "a forward pass succeeds",
        "/metrics": "for Prometheus",
    }
    paths, schemas = described(server.model, refusals)
    said = _of("object", properties={"code": _of("string"), "message": _of("string")})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"rlplat policy {server.model}",
            "version": rlplat.__version__,
            "description": f"{agent.checkpoint.info.algorithm}, {agent.checkpoint.info.env}: {spaces.spec}",
        },
        "paths": {
            "/v1/act": {"post": act},
            "/v1/sessions": {"post": _asked("open a session", "201", "its id")},
            "/v1/sessions/{session}": {"delete": end},
            **{path: {"get": _asked(summary, "200", "it is")} for path, summary in looks.items()},
            **paths,
        },
        "components": {"schemas": {**schemas, "Error": _of("object", properties={"error": said})}},
    }


def _of(kind: str | list[str], description: str = "", **more: Any) -> dict[str, Any]:
    return {"type": kind, **more, **({"description": description} if description else {})}


def _asked(summary: str, status: str, answer: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {status: {"description": answer}}}


def _one_or_many(space: Any) -> dict[str, Any]:
    return {"oneOf": [schema_of(space), schema_of(space, True)]}


def schema_of(space: Any, is_batch: bool = False) -> dict[str, Any]:
    """JSON Schema of one value of a gymnasium space, or of many: then every array has an axis more."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, dict):
        properties = {key: schema_of(part, is_batch) for key, part in parts.items()}
        return {"type": "object", "required": list(parts), "properties": properties}
    if parts is not None:
        items = [schema_of(part, is_batch) for part in parts]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if is_batch:
        return {"type": "array", "items": schema_of(space), "minItems": 1}
    if hasattr(space, "start") and hasattr(space, "n") and not space.shape:
        low = int(space.start)
        return {"type": "integer", "minimum": low, "maximum": low + int(space.n) - 1}
    number: dict[str, Any] = {"type": "number" if space.dtype.kind == "f" else "integer"}
    for size in reversed(space.shape):
        number = {"type": "array", "items": number, "minItems": int(size), "maxItems": int(size)}
    return number


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
