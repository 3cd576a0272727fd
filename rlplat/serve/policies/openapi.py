"""The OpenAPI description of a policy server, from its spaces."""

from __future__ import annotations

from typing import Any

import rlplat
from rlplat.serve.policies.acting import ServedPolicy
from rlplat.serve.policies.inference_protocol import described


def openapi(server: ServedPolicy) -> dict[str, Any]:
    agent = server.agent
    spaces = agent.spaces
    obs, action = schema_of(spaces.observation_space), schema_of(spaces.action_space)
    properties: dict[str, Any] = {
        "obs": {
            "oneOf": [obs, schema_of(spaces.observation_space, True)],
            "description": "one observation, or many",
        },
        "greedy": {
            "type": "boolean",
            "default": True,
            "description": "the most likely action; false draws one",
        },
        "outputs": {"type": "array", "items": {"enum": ["log_prob", "value", "state"]}},
        "session": {"type": ["string", "null"], "description": "from POST /v1/sessions"},
        "seq": {
            "type": ["integer", "null"],
            "minimum": 1,
            "description": "number of this step in the session",
        },
        "reset": {"type": "boolean", "default": False, "description": "this observation begins an episode"},
    }
    if agent.state_size:
        state = {
            "type": "array",
            "items": {"type": "number"},
            "minItems": agent.state_size,
            "maxItems": agent.state_size,
        }
        properties["state"] = {"oneOf": [{"const": "initial"}, state, {"type": "array", "items": state}]}
    if spaces.has_mask:
        size = spaces.spec.action.mask_size
        mask = {"type": "array", "items": {"type": "boolean"}, "minItems": size, "maxItems": size}
        properties["mask"] = {"oneOf": [mask, {"type": "array", "items": mask}]}
    request = {"type": "object", "required": ["obs"], "additionalProperties": False, "properties": properties}
    many = schema_of(spaces.action_space, True)
    answer = {
        "type": "object",
        "required": ["action", "env_steps"],
        "properties": {
            "action": {"oneOf": [action, many]},
            "log_prob": {"type": ["number", "array"]},
            "value": {"type": ["number", "array"]},
            "seq": {"type": "integer"},
            "env_steps": {"type": "integer", "description": "for how many the weights were trained"},
        },
    }
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    raw = {} if server.raw is None or server.raw.problem else binary
    error = {"description": "why not", "content": _json({"$ref": "#/components/schemas/Error"})}
    refusals = dict.fromkeys(("400", "409", "410", "413", "415", "422", "503", "504"), error)
    paths, schemas = described(server.model, refusals)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"rlplat policy {server.model}",
            "version": rlplat.__version__,
            "description": f"{agent.checkpoint.info.algorithm}, {agent.checkpoint.info.env}: {spaces.spec}",
        },
        "paths": {
            "/v1/act": {
                "post": {
                    "summary": "the action for one observation, or those for many",
                    "requestBody": {"required": True, "content": {**_json(request), **raw}},
                    "responses": {
                        "200": {"description": "the action", "content": {**_json(answer), **raw}},
                        **refusals,
                    },
                }
            },
            "/v1/sessions": {
                "post": {"summary": "open a session", "responses": {"201": {"description": "its id"}}}
            },
            "/v1/sessions/{session}": {
                "delete": {
                    "summary": "end it",
                    "parameters": [
                        {"name": "session", "in": "path", "required": True, "schema": {"type": "string"}}
                    ],
                    "responses": {"204": {"description": "it is ended"}, "410": error},
                }
            },
            **{
                path: {"get": {"summary": summary, "responses": {"200": {"description": "it is"}}}}
                for path, summary in (
                    ("/v1/policy", "what is served"),
                    ("/health/live", "the process answers"),
                    ("/health/ready", "a forward pass succeeds"),
                    ("/metrics", "for Prometheus"),
                )
            },
            **paths,
        },
        "components": {
            "schemas": {
                **schemas,
                "Error": {
                    "type": "object",
                    "properties": {
                        "error": {
                            "type": "object",
                            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
                        }
                    },
                },
            }
        },
    }


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
