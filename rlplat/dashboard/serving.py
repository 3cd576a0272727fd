"""What the servers of this user on this machine (`rlplat serve`) do: rates, latencies, sessions.

    servers = Servers()
    servers.look()      # {"servers": [{"url", "pid", "error"} or {"url", "pid", "requests_per_s", "latency_ms", ...}]}

A server writes where it listens into its private folder; its `/metrics` are asked for, at most once a second whoever
looks, and rates are those of the last `WINDOW_S` seconds: of two answers the counters' difference.
"""

from __future__ import annotations

import math
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Mapping
from typing import Any

from rlplat.listening import is_loopback
from rlplat.serve.listening import running_servers

WINDOW_S = 10.0
_REUSED_S = 1.0
_ANSWER_S = 2.0
_MOST_BYTES = 8 << 20
_LINE = re.compile(r"rlplat_serve_(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Past any $http_proxy: these servers are on this machine."""

Samples = dict[tuple[str, str, str], float]
"""(name without `rlplat_serve_`, replica, bucket or status, else "") -> value."""


def parse(text: str) -> Samples:
    """The samples of a scrape; other lines are passed over."""
    found: Samples = {}
    for name, labels, value in _LINE.findall(text):
        by_name = dict(_LABEL.findall(labels))
        of = by_name.get("le") or by_name.get("status", "")
        found[name, by_name.get("replica", ""), of] = float(value)
    return found


def quantile(buckets: Mapping[float, float], q: float) -> float | None:
    """Of a histogram (upper bound -> how many at or below it): linear within its bucket, as Prometheus has it
    (`histogram_quantile`); in the last one its lower bound, as it has no upper one. None where it is empty."""
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    rank = q * buckets[bounds[-1]]
    below, low = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank and buckets[bound] > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / (buckets[bound] - below)
        below, low = buckets[bound], bound
    return low


def summary(now: Samples, before: Samples, seconds: float) -> dict[str, Any]:
    """Of all replicas, and of each (`replicas`). Rates and latencies are those between the two scrapes, None where they
    are one; a replica that was not in the one before, or has begun again, counts from 0."""
    names = sorted({replica for _, replica, _ in now})
    found = _of(names, now, before, seconds)
    found["replicas"] = [{"replica": name, **_of([name], now, before, seconds)} for name in names]
    return found


def _of(replicas: list[str], now: Samples, before: Samples, seconds: float) -> dict[str, Any]:
    def grown(key: tuple[str, str, str]) -> float:
        was = before.get(key, 0.0)
        return now[key] - was if now[key] >= was else now[key]

    def total(name: str) -> float | None:
        values = [value for (each, replica, _), value in now.items() if each == name and replica in replicas]
        return sum(values) if values else None

    buckets: dict[float, float] = {}
    rates = {"requests_total": 0.0, "rows_total": 0.0, "batches_total": 0.0}
    statuses: dict[str, float] = {}
    for key in now:
        name, replica, label = key
        if replica not in replicas:
            continue
        if name == "request_seconds_bucket":
            bound = float(label)
            buckets[bound] = buckets.get(bound, 0.0) + grown(key)
        if name in rates:
            rates[name] += grown(key)
        if name == "requests_total":
            statuses[label] = statuses.get(label, 0.0) + now[key]
    latencies = {f"p{round(100 * q)}": quantile(buckets, q) for q in (0.5, 0.95, 0.99)}
    return {
        "requests": sum(statuses.values()),
        "statuses": statuses,
        "requests_per_s": rates["requests_total"] / seconds if seconds else None,
        "rows_per_s": rates["rows_total"] / seconds if seconds and total("rows_total") is not None else None,
        "rows_per_batch": rates["rows_total"] / rates["batches_total"] if seconds and rates["batches_total"] else None,
        "latency_ms": {
            name: None if value is None or not seconds else 1000 * value for name, value in latencies.items()
        },
        **{name: total(name) for name in ("running", "waiting", "connections", "sessions")},
        "env_steps": max(
            (value for (name, replica, _), value in now.items() if name == "weights_env_steps" and replica in replicas),
            default=None,
        ),
    }  # fmt: skip


class Servers:
    """Keeps the scrapes of the last seconds. One look at a time: pages that ask meanwhile get the same answer."""

    def __init__(self, token: str = "") -> None:
        """token: what servers that have one want to be shown."""
        self._token = token
        self._scrapes: dict[str, deque[tuple[float, Samples]]] = {}
        self._lock = threading.Lock()

    def look(self) -> dict[str, Any]:
        with self._lock:
            there = running_servers()
            self._scrapes = {url: self._scrapes.get(url, deque()) for url in there}
            return {"servers": [{"url": url, "pid": pid, **self._one(url)} for url, pid in sorted(there.items())]}

    def _one(self, url: str) -> dict[str, Any]:
        scrapes = self._scrapes[url]
        if not scrapes or time.monotonic() - scrapes[-1][0] > _REUSED_S:
            request = urllib.request.Request(f"{url}/metrics")
            if self._token and is_loopback(urllib.parse.urlsplit(url).hostname or ""):
                request.add_header("Authorization", f"Bearer {self._token}")
            try:
                with _direct.open(request, timeout=_ANSWER_S) as answer:
                    text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
            except urllib.error.HTTPError as error:
                with error:
                    return {"error": _refused(error.code)}
            except OSError as error:
                return {"error": f"does not answer: {getattr(error, 'reason', None) or error}"}
            scrapes.append((time.monotonic(), parse(text)))
            while scrapes[-1][0] - scrapes[0][0] > WINDOW_S:
                scrapes.popleft()
        (first, before), (last, now) = scrapes[0], scrapes[-1]
        return summary(now, before, last - first)


def _refused(status: int) -> str:
    if status == 401:
        return "needs its token: start the dashboard with the same $RLPLAT_SERVE_TOKEN"
    return f"has no metrics: it answers {status}"
