"""Those that wait for themselves or for each other (fault catalogue 66)."""

from __future__ import annotations

from typing import Any

import pytest

import rlplat
from rlplat.errors import Deadlock
from tests.faults.programs import next_line, program


def narcissus(**options: Any) -> Any:
    class Narcissus:
        def set(self, box: list) -> None:
            self.me = box[0]

        def f(self) -> int:
            return 1

        @rlplat.method(num_returns=2)
        def pair(self) -> tuple[int, int]:
            return 1, 2

        def look(self) -> int:
            return rlplat.get(self.me.f.remote())

        def look_twice(self) -> int:
            return rlplat.get(self.me.pair.remote()[1])

        def glance(self) -> list:
            return [self.me.f.remote()]

    actor = rlplat.remote(Narcissus).options(**options).remote()
    rlplat.get(actor.set.remote([actor]))
    return actor


def test_an_actor_that_waits_for_itself_is_told_so(cluster: None) -> None:
    actor = narcissus()
    for call in (actor.look, actor.look_twice):
        with pytest.raises(Deadlock, match=r"Narcissus waits in one of its calls for the result of .*self\.method\(\)"):
            rlplat.get(call.remote(), timeout=60)
    assert rlplat.get(actor.f.remote(), timeout=60) == 1
    (ref,) = rlplat.get(actor.glance.remote(), timeout=60)  # to call itself is fine, to wait is not
    assert rlplat.get(ref, timeout=60) == 1
    rlplat.kill(actor)


def test_an_actor_with_room_for_two_calls_may_wait_for_itself(cluster: None) -> None:
    actor = narcissus(max_concurrency=2)
    assert rlplat.get(actor.look.remote(), timeout=60) == 1
    rlplat.kill(actor)


IMPATIENT_NODE = """
import subprocess
import rlplat
popen = subprocess.Popen

def impatient(command, **options):
    # A node that looks for cycles every 0.2 s.
    assert command[1] == "-c", command
    code = "import rlplat.runtime.core.node.wait_graph as graph; graph.ROUND_S = 0.2; " + command[2]
    return popen([*command[:2], code, *command[3:]], **options)

subprocess.Popen = impatient
"""


@pytest.mark.process
def test_a_cycle_of_waits_is_reported() -> None:
    script = """
rlplat.init(num_cpus=2, num_gpus=0)

class Left:
    def meet(self, box):
        self.other = box[0]
    def ask(self):
        return rlplat.get(self.other.answer.remote())
    def answer(self):
        return rlplat.get(self.other.ask.remote())

class Right(Left):
    pass

left, right = rlplat.remote(Left).remote(), rlplat.remote(Right).remote()
rlplat.get([left.meet.remote([right]), right.meet.remote([left])])
stuck = left.ask.remote()
print("running", flush=True)
input()
rlplat.kill(right)
try:
    rlplat.get(stuck, timeout=60)
except rlplat.errors.ActorDied:
    print("free")
rlplat.shutdown()
"""
    with program(IMPATIENT_NODE + "import rlplat.errors" + script) as driver:
        assert driver.process.stderr is not None
        lines = [next_line(driver.process.stderr) for _ in range(4)]
        code, out, errors = driver.finish("\n")
    assert "these wait for each other" in lines[0]
    assert any("Left (w" in line and "waits for Right.answer" in line for line in lines[1:3]), lines
    assert any("Right (w" in line and "waits for Left.ask" in line for line in lines[1:3]), lines
    assert (code, out) == (0, "free\n"), errors
    assert "wait for each other" not in errors  # once is enough


def test_nested_tasks_need_no_cpu_of_their_own(cluster: None) -> None:
    @rlplat.remote
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + rlplat.get(depth.remote(n - 1))

    assert rlplat.get([depth.remote(6) for _ in range(3)], timeout=60) == [6, 6, 6]
