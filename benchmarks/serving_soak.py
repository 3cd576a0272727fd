"""A served policy under everything that happens to one: does it lose a request, a session, memory, a descriptor?

    rlplat train --algo ppo --env CartPole-v1 --set policy.core=lstm --stop.env-steps 2000 --out runs/lstm
    python -m benchmarks.serving_soak runs/lstm --minutes 30

Two replicas; 32 clients with a session each (rlplat.serve.Client, which repeats a step by its number) and 32 plain
keep-alive connections that repeat nothing, in a process of their own. Meanwhile, again and again: a rolling update,
scale 2 to 1 to 2, 50 clients that leave in the middle of a request, kill -9 of a replica. Every action of a session is
compared with that of the agent itself.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import rlplat
from rlplat.serve import Client, Refused, Running
from rlplat.serve.policies.serving import policy_application, serve_policy

STEPS = 50
"""Of a session."""
PLAIN = {"obs": [0.01, -0.02, 0.03, 0.04], "state": "initial"}


# ---------------------------------------------------------------- the clients' process


def act_in_sessions(url: str, agent: Any, seed: int, is_over: threading.Event, counts: Counter[str]) -> None:
    rng = np.random.default_rng(seed)
    with Client(url, retry_s=60.0) as client:
        while not is_over.is_set():
            state = agent.initial_state()
            try:
                with client.session() as session:
                    for obs in rng.normal(size=(STEPS, 4)).astype(np.float32):
                        action = session.act(obs.tolist())
                        with _AGENT:
                            expected, state = agent.act(obs, state=state)
                        counts["steps"] += 1
                        counts["wrong actions"] += bool(action != expected)
                counts["sessions ended"] += 1
            except Refused as refusal:
                is_lost = refusal.code == "session-lost"
                counts["sessions lost" if is_lost else f"failed: {refusal.code}"] += 1
            except Exception as error:
                counts[f"failed: {type(error).__name__}"] += 1


_AGENT = threading.Lock()


def ask_plainly(url: str, is_over: threading.Event, counts: Counter[str]) -> None:
    """Without repeating: what breaks is counted."""
    address = url.removeprefix("http://")
    body = json.dumps(PLAIN)
    connection = http.client.HTTPConnection(address, timeout=60)
    while not is_over.is_set():
        try:
            connection.request("POST", "/v1/act", body)
            answer = connection.getresponse()
            answer.read()
            counts["requests" if answer.status == 200 else f"failed: {answer.status}"] += 1
        except (OSError, http.client.HTTPException):
            counts["connections broken"] += 1
            connection.close()
    connection.close()


def clients(url: str, run: str) -> None:
    """Until a line arrives on stdin; then the counts are printed."""
    counts: Counter[str] = Counter()
    is_over = threading.Event()
    agent = rlplat.load(run)
    agent.act([0.0] * 4, state=agent.initial_state())  # what is made on first use
    threads = [
        threading.Thread(target=act_in_sessions, args=(url, agent, n, is_over, counts)) for n in range(32)
    ]
    threads += [threading.Thread(target=ask_plainly, args=(url, is_over, counts)) for _ in range(32)]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    is_over.set()
    for thread in threads:
        thread.join()
    print(json.dumps(counts))


# ---------------------------------------------------------------- the server's process


def gauge(running: Running, name: str, replica: str = "") -> float:
    """The sum over all replicas, or that of one."""
    with urllib.request.urlopen(f"{running.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'replica="{replica}' in line)


def leave_in_the_middle(running: Running) -> None:
    address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
    body = json.dumps(PLAIN).encode()
    head = b"POST /v1/act HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for n in range(50):
        with socket.create_connection(address) as connection:
            connection.sendall((head + body)[: 20 + 4 * n])


def kill_one(running: Running, deployment: str) -> float:
    """The sessions that it had."""
    replicas = running.status()["deployments"][deployment]["replicas"]
    name, pid = next((name, each["pid"]) for name, each in replicas.items() if each["state"] == "ready")
    sessions = gauge(running, "rlplat_serve_sessions", name)
    os.kill(pid, signal.SIGKILL)
    while name in running.status()["deployments"][deployment]["replicas"]:
        time.sleep(0.02)
    return sessions


def of_process(pid: int | str = "self") -> tuple[float, int]:
    """(resident MiB, open descriptors)"""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{pid}/fd"))


def soak(run: Path, minutes: float) -> None:
    with serve_policy(run, port=0, num_replicas=2) as running:
        deployment = next(iter(running.status()["deployments"]))
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serving_soak", str(run), "--clients-of", running.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as load:
            end, rounds, killed_sessions, first = time.monotonic() + 60 * minutes, 0, 0.0, (0.0, 0)
            while time.monotonic() < end or not rounds:
                running.update(policy_application(run, num_replicas=2)[0])
                running.scale(deployment, 1)
                running.scale(deployment, 2)
                leave_in_the_middle(running)
                killed_sessions += kill_one(running, deployment)
                running.scale(deployment, 2)  # waits until it is replaced
                rounds += 1
                if rounds == 1:
                    first = of_process()
                    print(f"after a round: {first[0]:.1f} MiB, {first[1]} descriptors", flush=True)
            out, _ = load.communicate("\n")
        time.sleep(1.0)
        last = of_process()
        left = {name: gauge(running, f"rlplat_serve_{name}") for name in ("running", "waiting", "sessions")}
        pids = [each["pid"] for each in running.status()["deployments"][deployment]["replicas"].values()]
        replicas = ["{:.1f} MiB, {} descriptors".format(*of_process(pid)) for pid in pids]
    for name, count in sorted(json.loads(out).items()):
        print(f"{name:<28}{count:>10,}")
    print(f"{'rounds':<28}{rounds:>10,}")
    print(f"{'sessions in killed replicas':<28}{killed_sessions:>10,.0f}")
    growth = f"{last[0] - first[0]:+.1f} MiB, {last[1] - first[1]:+d} descriptors since the first round"
    print(f"server at the end: {last[0]:.1f} MiB, {last[1]} descriptors: {growth}")
    print(f"replicas: {'; '.join(replicas)}")
    print(f"left: {left}")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a recurrent run of CartPole-v1")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients-of", metavar="URL", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = build_parser().parse_args()
    if options.clients_of:
        clients(options.clients_of, str(options.run))
    else:
        soak(options.run, options.minutes)


if __name__ == "__main__":
    main()
