"""Counters and histograms of a replica, and their text for Prometheus.

    metrics = Metrics("model-0")
    metrics.count("rlplat_serve_requests_total", {"path": "/v1/act", "status": "200"})
    metrics.observe("rlplat_serve_request_seconds", {"path": "/v1/act"}, 0.0013)
    text = exposition([metrics.lines(), lines_of_another_replica])

Which replica answers a scrape is chance: it asks the others for their lines, which bear the labels `replica` and
`version`: each deploy of a deployment has a higher number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

HELP = {
    "rlplat_serve_requests_total": ("counter", "Requests that were answered."),
    "rlplat_serve_request_seconds": (
        "histogram",
        "From a request's first byte in the replica to its answer.",
    ),
    "rlplat_serve_running": ("gauge", "Requests that run now."),
    "rlplat_serve_waiting": ("gauge", "Requests that wait for a slot."),
    "rlplat_serve_connections": ("gauge", "Open connections."),
    "rlplat_serve_rows_total": ("counter", "Observations that were acted on."),
    "rlplat_serve_batches_total": ("counter", "Forward passes."),
    "rlplat_serve_sessions": ("gauge", "Sessions whose state is kept."),
    "rlplat_serve_weights_env_steps": ("gauge", "Env steps that the weights were trained for."),
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    def __init__(self, replica: str, version: int = 0) -> None:
        self._own: Labels = (("replica", replica), ("version", str(version)))
        self._values: dict[tuple[str, Labels], float] = {}
        self._buckets: dict[tuple[str, Labels], list[int]] = {}

    def count(self, name: str, labels: Labels = (), by: float = 1) -> None:
        key = (name, labels)
        self._values[key] = self._values.get(key, 0) + by

    def set(self, name: str, value: float, labels: Labels = ()) -> None:
        self._values[name, labels] = value

    def observe(self, name: str, labels: Labels, seconds: float) -> None:
        key = (name, labels)
        buckets = self._buckets.get(key)
        if buckets is None:
            buckets = self._buckets[key] = [0] * (len(BUCKETS_S) + 1)
        buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self._values[name, labels] = self._values.get(key, 0.0) + seconds

    def lines(self) -> list[str]:
        """Without HELP and TYPE; a family's name is in front of the first `{`, `_bucket`, `_sum` or `_count`."""
        lines = []
        for (name, labels), value in self._values.items():
            own = (*labels, *self._own)
            buckets = self._buckets.get((name, labels))
            if buckets is None:
                lines.append(f"{name}{_shown(own)} {_digits(value)}")
                continue
            total = 0
            for bound, number in zip((*map(str, BUCKETS_S), "+Inf"), buckets, strict=True):
                total += number
                lines.append(f"{name}_bucket{_shown((*own, ('le', bound)))} {total}")
            lines.append(f"{name}_sum{_shown(own)} {value!r}")
            lines.append(f"{name}_count{_shown(own)} {total}")
        return lines


def exposition(replicas: Iterable[list[str]]) -> str:
    """The text of a scrape: every family once, with the lines of all replicas."""
    lines = [line for each in replicas for line in each]
    text = []
    for name, (kind, meaning) in HELP.items():
        starts = tuple(f"{name}{end}{{" for end in ("", "_bucket", "_sum", "_count"))
        if own := [line for line in lines if line.startswith(starts)]:
            text += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *own]
    return "\n".join(text) + "\n"


def _digits(value: float) -> str:
    """All of them: a counter that is rounded does not rise, and its rate is wrong."""
    return repr(float(value)).removesuffix(".0")


def _shown(labels: Labels) -> str:
    escaped = ((key, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for key, value in labels)
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"
