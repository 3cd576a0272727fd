"""What the tests of serving share: HTTP by the standard library, trained agents of a second's training."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import rlplat
from rlplat.serve.running import Running

OBS = [0.01, -0.2, 0.03, 0.4]

SMALL: dict[str, Any] = {
    "num_rollout_workers": 0,
    "rollout_length": 32,
    "num_envs_per_worker": 2,
    "evaluation": {"episodes": 1, "period": 64},
    "stop": {"env_steps": 64, "episode_return_mean": None},
}


def train(out: Any, env: str = "CartPole-v1", **settings: Any) -> None:
    rlplat.train("ppo", env=env, out=str(out), **SMALL, **settings)


def request(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    """(status, body: decoded where it is JSON, headers by lower-case name); a body that is no bytes is sent as JSON."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        is_json = found.get("content-type") == "application/json" and text
        return answer.status, json.loads(text) if is_json else text, found
    finally:
        connection.close()


def act(running: Running, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    status, answer, _ = request(running.url, "POST", "/v1/act", body, headers)
    return status, answer


def refusal(running: Running, body: Any, headers: dict[str, str] | None = None) -> tuple[int, str, str]:
    status, answer = act(running, body, headers)
    return status, answer["error"]["code"], answer["error"]["message"]
