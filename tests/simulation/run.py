"""One seed: a random cluster, a random program, random faults; the invariants after each event."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from rlplat.runtime.wire import messages
from tests.simulation.cluster import Cluster, SimMachine, simulated
from tests.simulation.invariants import Invariants
from tests.simulation.workload import Driver, History
from tests.simulation.world import World


@dataclass
class Outcome:
    seed: int
    failure: str = ""
    """What did not hold; "" when everything did."""
    details: str = ""
    num_events: int = 0
    num_crashes: int = 0
    num_results: int = 0
    num_errors: int = 0
    virtual_s: float = 0.0
    trace: list[str] = field(default_factory=list)


def run_seed(
    seed: int, *, keep_trace: bool = False, about_loans: bool = False, about_machines: bool = False
) -> Outcome:
    """`about_loans`: a program that passes refs on all the time, and processes that die doing it. `about_machines`: two
    or three, and the network between them."""
    world = World(seed, keep_trace=keep_trace)
    history = world.history = History()  # type: ignore[attr-defined]
    outcome = Outcome(seed)
    gc.disable()  # refs are dropped when the program drops them, never when the collector feels like it
    try:
        with simulated(world), session_folders(world):
            try:
                _run(world, history, outcome, about_loans, about_machines)
            except BaseException as error:
                outcome.failure = f"{type(error).__name__}: {error}"
                outcome.details = traceback.format_exc()
                world.note(f"FAILED: {outcome.failure}")
            finally:
                world.close()
    finally:
        gc.enable()
    outcome.num_events, outcome.virtual_s = world.num_events, world.now - 100.0
    outcome.trace = world.trace or []
    return outcome


@contextlib.contextmanager
def session_folders(world: World) -> Iterator[None]:
    """For session folders, in which a transport looks for who is on its machine."""
    world.folder = tempfile.mkdtemp(prefix="sim-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        yield
    finally:
        shutil.rmtree(world.folder)


def _run(world: World, history: History, outcome: Outcome, about_loans: bool, about_machines: bool) -> None:
    random = Random(seed_of(world.seed, "shape"))
    world.delay_s = random.choice((0.0001, 0.0005, 0.005))
    totals = [{"CPU": float(random.randint(1, 4)), "GPU": 0.0}]
    for _ in range(random.choice((1, 2) if about_machines else (0, 0, 0, 1, 2))):
        totals.append({"CPU": float(random.randint(1, 3)), "GPU": 0.0})
    cluster = Cluster(world, totals, num_spares=random.randint(1, 3))
    num_cpus = int(totals[0]["CPU"])
    invariants = Invariants(world, cluster, history)
    with_faults = random.random() < 0.7 or about_loans
    num_steps = random.randint(4, 20) + 10 * about_loans
    driver = Driver(
        Random(seed_of(world.seed, "program")), num_cpus, num_steps, with_faults, about_loans, about_machines
    )
    world.after_event = invariants.check
    cluster.begin()
    if about_machines and random.random() < 0.8:
        world.run(lambda: len(cluster.node.machines()) == len(cluster.machines))
    if with_faults:
        _plan_faults(world, cluster, Random(seed_of(world.seed, "faults")), about_loans)
    cluster.start_driver(driver)
    world.run()
    invariants.check_end(driver.is_done)
    world.run()
    world.still_alive()  # what the collector found is dropped in the next rounds
    world.run()
    invariants.check_clean()
    outcome.num_crashes = cluster.num_crashes + history.crashes_asked
    outcome.num_results, outcome.num_errors = driver.num_results, driver.num_errors


def _plan_faults(world: World, cluster: Cluster, random: Random, about_loans: bool) -> None:
    """At random moments, most of them while the program is young."""

    def crash() -> None:
        workers = cluster.workers()
        if workers:
            cluster.crash(random.choice(workers))

    for _ in range(random.choice((1, 1, 2, 3, 6))):
        world.after(random.expovariate(1 / 0.06), crash, what="a crash")
    if random.random() < 0.6 or about_loans:
        numbers = {random.randint(1, 60) for _ in range(random.randint(1, 3))}
        loans = {random.randint(1, 12) for _ in range(random.randint(1, 4))}
        if random.random() < 0.4 and not about_loans:
            loans.clear()
        _crash_after_sending(world, cluster, numbers, loans)
    for machine in cluster.machines:
        for _ in range(random.choice((0, 1, 1, 2))):
            fault = _fault_of(cluster, machine, random)
            world.after(random.expovariate(1 / 0.1), fault, what=f"a fault of {machine.name}")


def _fault_of(cluster: Cluster, machine: SimMachine, random: Random) -> Callable[[], None]:
    seconds = random.choice((0.01, 0.5, 2.0, 4.9, 6.0, 9.0, 20.0))
    directions = random.choice((("up", "down"), ("up", "down"), ("up",), ("down",)))
    one_hears, other_hears = random.choice(((True, True), (True, False), (False, True), (False, False)))
    kind = random.choice(("cut", "cut", "break", "crash", "off", "hang", "head hangs"))

    def strike() -> None:
        node = machine.node
        if kind == "cut":
            machine.cut(seconds, directions)
        elif kind == "head hangs":
            cluster.node.hang(seconds)
        elif node is None:
            return
        elif kind == "break":
            cluster.world.note(f"the connection of {node.name} BREAKS: {one_hears}, {other_hears}")
            node.trunk.break_off(one_hears, other_hears)  # type: ignore[attr-defined]
        elif kind == "crash":
            node.crash()
        elif kind == "off":
            node.power_off(one_hears)
        else:
            node.hang(seconds)

    return strike


def _crash_after_sending(world: World, cluster: Cluster, numbers: set[int], loans: set[int]) -> None:
    """Workers die when they have just sent a frame to another client, the n-th of all, or the n-th with news of a ref
    that is passed on. It may arrive or be lost, and so may what they have sent to others before."""
    num_sent = num_loans = 0

    def sent(sender: str, receiver: str, frame: bytes) -> None:
        nonlocal num_sent, num_loans
        if not sender.startswith("w") or receiver.startswith("n"):
            return
        num_sent += 1
        is_last = num_sent in numbers
        if loans and any(type(message) is messages.Lent for message in messages.decode(frame)):
            num_loans += 1
            is_last = is_last or num_loans in loans
        if is_last:
            world.after(0.0, lambda: cluster.crash(sender), what=f"{sender} crashes after sending")

    world.on_sent = sent


def seed_of(seed: int, what: str) -> str:
    return f"{seed}/{what}"
