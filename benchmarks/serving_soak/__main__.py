"""A served policy under everything that happens to one: does it lose a request, a session, memory, a descriptor?

    rlplat train --algo ppo --env CartPole-v1 --set policy.core=lstm --stop.env-steps 4000 --out runs/lstm
    python -m benchmarks.serving_soak runs/lstm --minutes 30 --markdown soak.md

Two replicas; 1,024 sessions in 32 clients, and 32 keep-alive connections without sessions, half of which repeat nothing
(clients.py). Three phases share the time: nothing changes; rolling updates, updates that fail, scale 2 to 1 to 2; kill
-9 of a replica. All the while callers leave in the middle of a request. At the end a minute of four times what an
application can do. Every action of a session is compared with that of the agent itself.

While a replica is killed the clients with sessions pause, so that the sessions that it has are counted exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import hardware
from benchmarks.process_memory import descendants
from benchmarks.serving_soak.clients import DEADLINE_S, NUM_THREADS, PLAIN, SESSIONS_EACH, Load
from rlplat import serve
from rlplat.errors import RlplatError
from rlplat.paths import expanded
from rlplat.serve import Running
from rlplat.serve.policies.server import PolicyServer
from rlplat.serve.policies.serving import policy_application, serve_policy

PHASES = {"steady": 0.4, "changes": 0.35, "kills": 0.25}
"""Shares of the time."""
GROWTH_MIB, REFUSAL_S = 5.0, 0.005
PAUSE_S = 3.0
"""Between two groups of callers that leave while nothing changes."""
DONE = "steps", "requests of the client", "requests that repeat nothing"


class DoesNotStart(PolicyServer):
    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("this version does not start")


@serve.deployment(max_concurrency=1, max_queued=40)
class HundredPerSecond:
    """40 wait 0.4 s: the queue is no longer than the deadline."""

    def __call__(self, request: Any) -> str:
        time.sleep(0.01)
        return "done"


# ---------------------------------------------------------------- what is looked at


def gauge(running: Running, name: str, replica: str = "") -> float:
    """The sum over all replicas, or that of one."""
    with urllib.request.urlopen(f"{running.url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if not replica or f'replica="{replica}"' in line)


def replicas_of(running: Running) -> dict[str, int]:
    """Process ids by name, of those that are ready."""
    [deployment] = running.status()["deployments"].values()
    return {name: each["pid"] for name, each in deployment["replicas"].items() if each["state"] == "ready"}


def resident_mib(pid: int) -> float:
    """Without the object store, which processes share."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return (int(lines["VmRSS"].split()[0]) - int(lines["RssShmem"].split()[0])) / 1024


@dataclass
class Memory:
    """MiB of each process, and its descriptors, over time."""

    running: Running
    period_s: float
    loads: set[int] = field(default_factory=set)
    """The clients' processes."""
    begin: float = field(default_factory=time.monotonic)
    samples: list[tuple[float, str, dict[str, tuple[float, int]]]] = field(default_factory=list)
    """(minute, phase, by process)"""

    def look(self, phase: str, *, now: bool = False) -> None:
        minute = (time.monotonic() - self.begin) / 60
        if not now and self.samples and minute - self.samples[-1][0] < self.period_s / 60:
            return
        names = {pid: name for name, pid in replicas_of(self.running).items()}
        names[os.getpid()] = "server (controller)"
        found = {}
        for pid in descendants(os.getpid()):
            if pid not in self.loads:
                with suppress(OSError, KeyError):  # it ended meanwhile
                    name = names.get(pid, f"runtime, process {pid}")
                    found[name] = resident_mib(pid), len(os.listdir(f"/proc/{pid}/fd"))
        self.samples.append((minute, phase, found))
        print(f"minute {minute:5.1f}  {phase:<8}" + _shown(found), flush=True)

    def growth(self, phases: list[str]) -> dict[str, float]:
        """Of the processes that were there all the time, from a sixth of the time on: before it they warm up."""
        samples = [(minute, found) for minute, phase, found in self.samples if phase in phases]
        first, last = samples[0][0], samples[-1][0]
        after = [found for minute, found in samples if minute >= first + (last - first) / 6]
        lasting = set.intersection(*(set(found) for found in after))
        return {name: after[-1][name][0] - after[0][name][0] for name in sorted(lasting)}

    def table(self) -> list[str]:
        lasting = set.intersection(*(set(found) for *_, found in self.samples))
        steady = {name for _, phase, found in self.samples if phase == "steady" for name in found}
        names = sorted(lasting | {name for name in steady if not name.startswith("runtime")})
        chosen = self.samples[:: max(1, len(self.samples) // 8)]
        lines = ["| minute | phase | " + " | ".join(names) + " |", "|" + "---|" * (2 + len(names))]
        for minute, phase, found in chosen if chosen[-1] is self.samples[-1] else [*chosen, self.samples[-1]]:
            cells = [f"{found[name][0]:.1f} ({found[name][1]})" if name in found else "" for name in names]
            lines.append(f"| {minute:.1f} | {phase} | " + " | ".join(cells) + " |")
        return lines


def _shown(found: dict[str, tuple[float, int]]) -> str:
    return ", ".join(f"{name} {mib:.1f} MiB {num} fds" for name, (mib, num) in sorted(found.items()))


# ---------------------------------------------------------------- what happens to it


class Soak:
    def __init__(self, run: Path, running: Running, minutes: float) -> None:
        self.run, self.running = run, running
        self.deployment = next(iter(running.status()["deployments"]))
        self.memory = Memory(running, minutes * 10)
        self.did: Counter[str] = Counter()
        self.seconds_until_full: list[float] = []

    def phase(self, name: str, minutes: float, act: Callable[[], None]) -> None:
        end, rounds = time.monotonic() + 60 * minutes, 0
        self.memory.look(name, now=True)
        while time.monotonic() < end or not rounds:
            self.leave_in_the_middle()
            act()
            rounds += 1
            self.memory.look(name, now=rounds == 1)
        self.memory.look(name, now=True)

    def leave_in_the_middle(self) -> None:
        address = ("127.0.0.1", int(self.running.url.rpartition(":")[2]))
        body = json.dumps(PLAIN).encode()
        request = b"POST /v1/act HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        for n in range(50):
            with socket.create_connection(address) as connection:
                connection.sendall(request[: 20 + 4 * n])
        self.did["callers that left in the middle"] += 50

    def count_sessions(self, sessions: Load) -> None:
        """The clients pause: what they have is what the replicas have."""
        counts = sessions.ask("pause")
        known = counts["sessions opened"] - counts["sessions ended"] - counts["sessions lost"]
        there = int(gauge(self.running, "rlplat_serve_sessions"))
        self.did["sessions too many in the replicas"] += max(0, there - known)

    def change(self, sessions: Load) -> None:
        self.running.update(policy_application(self.run, num_replicas=2))
        self.did["rolling updates"] += 1
        try:
            broken = serve.deployment(name=self.deployment, num_replicas=2)(DoesNotStart)
            self.running.update(broken.bind())
        except RlplatError:
            self.did["updates that failed"] += 1
        self.running.scale(self.deployment, 1)
        self.running.scale(self.deployment, 2)
        self.did["scaled 2 to 1 to 2"] += 1
        self.count_sessions(sessions)
        sessions.ask("resume")

    def kill(self, sessions: Load) -> None:
        self.count_sessions(sessions)
        name, pid = next(iter(replicas_of(self.running).items()))
        self.did["sessions in killed replicas"] += int(gauge(self.running, "rlplat_serve_sessions", name))
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.did["replicas killed"] += 1
        sessions.ask("resume")
        while name in replicas_of(self.running) or len(replicas_of(self.running)) < 2:
            time.sleep(0.01)
        self.seconds_until_full.append(time.monotonic() - begin)


def soak(run: Path, minutes: float) -> str:
    host = hardware(["rlplat", "torch", "uvicorn", "numpy"])
    with serve_policy(run, port=0, num_replicas=2, say=lambda text: None) as running:
        here = Soak(run, running, minutes)
        here.memory.look("idle", now=True)
        with Load("sessions", running.url, str(run)) as sessions, Load("plain", running.url) as plain:
            here.memory.loads |= {sessions.pid, plain.pid}
            counts = {"": sessions.ask("count") + plain.ask("count")}
            steps: dict[str, Callable[[], None]] = {
                "steady": lambda: time.sleep(PAUSE_S),
                "changes": lambda: here.change(sessions),
                "kills": lambda: here.kill(sessions),
            }
            for name, share in PHASES.items():
                here.phase(name, minutes * share, steps[name])
                counts[name] = sessions.ask("count") + plain.ask("count")
            counts["end"] = sessions.ask("end") + plain.ask("end")
        time.sleep(2.0)
        here.memory.look("end", now=True)
        left = {
            name: int(gauge(running, f"rlplat_serve_{name}"))
            for name in ("running", "waiting", "sessions", "connections")
        }
    with serve.run(HundredPerSecond.bind(), port=0) as running, Load("overload", running.url) as load:
        overload = load.answer()
        time.sleep(1.0)
        overload["left"] = int(sum(gauge(running, f"rlplat_serve_{name}") for name in ("running", "waiting")))
    return report(here, counts, left, overload, host)


# ---------------------------------------------------------------- what is said of it


def report(
    soak: Soak, counts: dict[str, Counter[str]], left: dict[str, int], overload: Any, host: dict[str, str]
) -> str:
    total = counts["end"]
    until_kills, did = counts["changes"], soak.did
    failed = {name: count for name, count in total.items() if name.startswith("failed")}
    early_failed = sum(count for name, count in until_kills.items() if name.startswith("failed"))
    steady = soak.memory.growth(["steady"])
    later = soak.memory.growth(["changes", "kills"])
    largest = max(*steady.values(), *later.values())
    full = sorted(soak.seconds_until_full)
    lost_early = until_kills["sessions lost"]
    verdicts = [
        (
            "rolling updates, updates that fail, scaling, callers that leave: no request fails",
            not early_failed and not until_kills["connections broken"],
            f"{sum(until_kills[each] for each in DONE):,} requests, {early_failed} failed, "
            f"{until_kills['connections broken']} connections broken",
        ),
        (
            "... and no session is lost",
            not lost_early,
            f"{until_kills['sessions opened']:,} sessions, {NUM_THREADS * SESSIONS_EACH:,} at once, {lost_early} lost",
        ),
        (
            "actions equal those of the run's agent",
            not total["wrong actions"],
            f"{total['steps']:,} steps, {total['wrong actions']} wrong, {total['ties']} differed where both actions "
            "are equally likely",
        ),
        (
            "kill -9 of a replica: with the client no request fails",
            not failed,
            f"{did['replicas killed']} killed; {', '.join(f'{n} {c}' for n, c in failed.items()) or '0 failed'}",
        ),
        (
            "... and the sessions of that replica are lost, no other",
            total["sessions lost"] == did["sessions in killed replicas"],
            f"{total['sessions lost']:,} lost, {did['sessions in killed replicas']:,} were in killed replicas",
        ),
        (
            f"no process grows by {GROWTH_MIB:g} MiB",
            largest < GROWTH_MIB,
            f"most: {largest:+.1f} MiB (steady: {_grown(steady)}; changes and kills: {_grown(later)})",
        ),
        (
            "nothing is left: requests, sessions, connections",
            left == {"running": 0, "waiting": 0, "sessions": 0, "connections": 1}
            and not did["sessions too many in the replicas"],
            f"{left} (the connection asks for this); sessions that no client knew: "
            f"{did['sessions too many in the replicas']}",
        ),
        (
            f"four times too much for a minute: what is accepted is answered within {DEADLINE_S:g} s",
            overload["200 p99"] <= DEADLINE_S and not overload["broken"] and not overload["left"],
            f"{overload['200 count']:,} accepted, p50 {overload['200 p50'] * 1e3:.0f} ms, p99 "
            f"{overload['200 p99'] * 1e3:.0f} ms; {overload['504 count']} gave up at the deadline, "
            f"{overload['broken']} broken, {overload['left']} left",
        ),
        (
            f"... and the rest refused within {1e3 * REFUSAL_S:g} ms",
            0 < overload["503 p99"] <= REFUSAL_S,
            f"{overload['503 count']:,} refused, p50 {overload['503 p50'] * 1e3:.1f} ms, p99 "
            f"{overload['503 p99'] * 1e3:.1f} ms",
        ),
    ]
    lines = [
        "## A soak",
        "",
        f"`{shlex.join(['python', '-m', 'benchmarks.serving_soak', *sys.argv[1:]])}`, {datetime.now():%Y-%m-%d}. "
        f"{NUM_THREADS * SESSIONS_EACH:,} sessions of a recurrent CartPole policy in {NUM_THREADS} clients and "
        f"{NUM_THREADS} keep-alive connections, two replicas; the clients run on the same machine.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in host.items()),
        "",
        "| promised | kept | counted |",
        "|---|---|---|",
        *(f"| {what} | {'yes' if is_kept else '**no**'} | {counted} |" for what, is_kept, counted in verdicts),
        "",
        "| what happened | times |",
        "|---|---|",
        *(f"| {name} | {count:,} |" for name, count in sorted((did + total).items())),
        "",
        f"A killed replica was replaced after {1e3 * full[len(full) // 2]:,.0f} ms (median), {1e3 * full[-1]:,.0f} ms "
        "(longest), under this load.",
        "",
        "Resident MiB, without the shared object store (descriptors):",
        "",
        *soak.memory.table(),
    ]
    return "\n".join(lines) + "\n"


def _grown(growth: dict[str, float]) -> str:
    return ", ".join(f"{name} {mib:+.1f}" for name, mib in growth.items())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving_soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=expanded, help="a recurrent run of CartPole-v1")
    parser.add_argument("--minutes", type=float, default=30.0, help="and one of overload (default: %(default)s)")
    parser.add_argument("--markdown", type=expanded, metavar="FILE", help="the report, to be committed")
    options = parser.parse_args()
    text = soak(options.run, options.minutes)
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(text)


if __name__ == "__main__":
    main()
