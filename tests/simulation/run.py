"""One seed: a random cluster, a random program, random faults; the invariants after each event."""

from __future__ import annotations

import gc
import traceback
from dataclasses import dataclass, field
from random import Random

from rlplat.runtime.wire import messages
from tests.simulation.cluster import Cluster, simulated
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


def run_seed(seed: int, *, keep_trace: bool = False, about_loans: bool = False) -> Outcome:
    """`about_loans`: a program that passes refs on all the time, and processes that die doing it."""
    world = World(seed, keep_trace=keep_trace)
    history = world.history = History()  # type: ignore[attr-defined]
    outcome = Outcome(seed)
    gc.disable()  # refs are dropped when the program drops them, never when the collector feels like it
    try:
        with simulated(world):
            try:
                _run(world, history, outcome, about_loans)
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


def _run(world: World, history: History, outcome: Outcome, about_loans: bool) -> None:
    random = Random(seed_of(world.seed, "shape"))
    world.delay_s = random.choice((0.0001, 0.0005, 0.005))
    totals = {"node": {"CPU": float(random.randint(1, 4)), "GPU": 0.0}}
    for number in range(random.choice((0, 0, 0, 1, 2))):
        totals[f"node{number + 2}"] = {"CPU": float(random.randint(1, 3)), "GPU": 0.0}
    cluster = Cluster(world, totals, num_spares=random.randint(1, 3))
    num_cpus = int(totals["node"]["CPU"])
    invariants = Invariants(world, cluster, history)
    with_faults = random.random() < 0.7 or about_loans
    num_steps = random.randint(4, 20) + 10 * about_loans
    driver = Driver(Random(seed_of(world.seed, "program")), num_cpus, num_steps, with_faults, about_loans)
    if with_faults:
        _plan_faults(world, cluster, Random(seed_of(world.seed, "faults")), about_loans)
    world.after_event = invariants.check
    cluster.begin()
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
    others = [name for name in cluster.totals if name != "node"]
    for node in others:
        kind, at = random.random(), random.expovariate(1 / 0.1)
        if kind < 0.3:
            world.after(at, lambda node=node: cluster.crash_node(node), what="a node crashes")  # type: ignore[misc]
        elif kind < 0.8:
            seconds = random.choice((0.01, 0.5, 2.0, 20.0))
            world.after(at, lambda node=node, s=seconds: cluster.cut_off(node, s), what="a cut")  # type: ignore[misc]


def _crash_after_sending(world: World, cluster: Cluster, numbers: set[int], loans: set[int]) -> None:
    """Workers die when they have just sent a frame to another client, the n-th of all, or the n-th with news of a ref
    that is passed on. It may arrive or be lost, and so may what they have sent to others before."""
    num_sent = num_loans = 0

    def sent(sender: str, receiver: str, frame: bytes) -> None:
        nonlocal num_sent, num_loans
        if not sender.startswith("w") or receiver == "node":
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
