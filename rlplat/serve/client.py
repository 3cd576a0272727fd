"""A client of `rlplat serve`: for simulators, robots, other programs. It needs neither torch nor the runtime.

    client = Client("http://127.0.0.1:8000")
    action = client.act(obs)
    with client.session() as session:                # of a recurrent agent, or to number the steps
        action = session.act(obs)

A request is repeated while the server cannot be reached, or is busy, for up to `retry_s`. The steps of a session are
numbered: one that is repeated gets the answer that was given, and the state of the session moves once.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np

from rlplat.errors import ConfigError
from rlplat.serve.refusals import Refused

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class Client:
    """One connection, which is kept open; for one thread."""

    def __init__(self, url: str, *, token: str = "", timeout_s: float = 30.0, retry_s: float = 30.0) -> None:
        """timeout_s: for one answer; retry_s: how long a request is repeated, 0: not at all."""
        parts = urlsplit(url if "//" in url else f"//{url}")
        if parts.scheme not in ("", "http", "https") or not parts.hostname:
            raise ConfigError(f"{url} is no address of a server; expected http://HOST:PORT")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout_s)
        self._prefix = parts.path.rstrip("/")
        """Of a proxy that passes on what is below it."""
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._retry_s = retry_s
        self.url = url

    def act(self, obs: Any, *, mask: Any = None, greedy: bool = True, outputs: Sequence[str] = ()) -> Any:
        """The action, or with outputs (`log_prob`, `value`) the whole answer as a dict. One observation or many, as
        with `rlplat.load(RUN).act`. Refused, with the server's status, code and message, for what does not fit."""
        answer = self.request("POST", "/v1/act", _body(obs, mask, greedy, outputs))
        return answer if outputs else answer["action"]

    def act_on_rows(self, rows: Any, *, greedy: bool = True, outputs: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Many observations of one array, sent and answered as raw bytes: [N, ...] in the dtype of the space ->
        arrays by name (`action` and the outputs)."""
        query = urlencode({"greedy": int(greedy), "outputs": ",".join(outputs)})
        array = np.ascontiguousarray(rows)
        body = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        answer, headers = self._repeat("POST", f"/v1/act?{query}", body, {"content-type": "application/octet-stream"})
        arrays, at = {}, 0
        for each in headers["x-arrays"].split(";"):
            name, _, kind = each.partition(":")
            dtype, _, shape = kind.rstrip("]").partition("[")
            sizes = [int(size) for size in shape.split(",") if size]
            count = int(np.prod(sizes, dtype=np.int64))
            arrays[name] = np.frombuffer(answer, np.dtype(dtype).newbyteorder("<"), count, at).reshape(sizes)
            at += arrays[name].nbytes
        return arrays

    def session(self) -> ClientSession:
        """Begin an episode whose state the server keeps."""
        return ClientSession(self)

    def policy(self) -> dict[str, Any]:
        """What is served: `env`, `spaces`, `env_steps`, ..."""
        about: dict[str, Any] = self.request("GET", "/v1/policy")
        return about

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Any request, with JSON; repeated as said above."""
        data = None if body is None else json.dumps(body, default=_plain).encode()
        answer, _ = self._repeat(method, path, data, {"content-type": "application/json"})
        return json.loads(answer) if answer else None

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repeat(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[bytes, dict[str, str]]:
        give_up = time.monotonic() + self._retry_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return self._once(method, path, data, {**headers, **self._headers})
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                failure: Exception = error
            except Refused as refusal:
                if refusal.status != 503:
                    raise
                failure = refusal
            left = give_up - time.monotonic()
            if left <= 0:
                raise failure
            time.sleep(min(left, pause * random.uniform(0.5, 1.0)))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _once(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[bytes, dict[str, str]]:
        self._connection.request(method, self._prefix + path, data, headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status < 400:
            return body, {name.lower(): value for name, value in answer.getheaders()}
        try:
            error = json.loads(body)["error"]
            raise Refused(answer.status, error["code"], error["message"])
        except (ValueError, KeyError, TypeError):
            raise Refused(answer.status, "failed", body[:200].decode("utf-8", "replace")) from None


class ClientSession:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._seq = 0
        self._begins = False
        self._given_up: dict[str, Any] | None = None
        """The step whose answer never came: nobody knows whether the server has done it."""
        self.id: str = client.request("POST", "/v1/sessions")["session"]

    def act(self, obs: Any, *, mask: Any = None, greedy: bool = True, outputs: Sequence[str] = ()) -> Any:
        """As `Client.act`, for one observation. Refused with the code `session-lost` where its replica died: then the
        state is gone, and a new session begins a new episode. A step whose answer did not come in time counts: the next
        call does it first where the server has not."""
        if self._given_up is not None:
            self._step(self._given_up)
        body = _body(obs, mask, greedy, outputs)
        body.update(session=self.id, seq=self._seq + 1, reset=self._begins)
        try:
            answer = self._step(body)
        finally:  # refused, it was not done
            self._begins = self._begins and self._given_up is None and self._seq < body["seq"]
        return answer if outputs else answer["action"]

    def _step(self, body: dict[str, Any]) -> Any:
        try:
            answer = self._client.request("POST", "/v1/act", body)
        except Refused as refusal:
            # 5xx: too late, or after a try whose answer was lost: it may have been done.
            self._given_up = body if refusal.status >= 500 else None
            raise
        except BaseException:  # Ctrl-C too
            self._given_up = body
            raise
        self._given_up, self._seq = None, body["seq"]
        return answer

    def reset(self) -> None:
        """The next observation begins an episode."""
        self._begins = True

    def close(self) -> None:
        try:
            self._client.request("DELETE", f"/v1/sessions/{self.id}")
        except Refused as refusal:
            if refusal.status != 410:  # it is gone already
                raise

    def __enter__(self) -> ClientSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _body(obs: Any, mask: Any, greedy: bool, outputs: Sequence[str]) -> dict[str, Any]:
    body = {"obs": obs, "greedy": greedy, "outputs": list(outputs)}
    return body if mask is None else {**body, "mask": mask}


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")
