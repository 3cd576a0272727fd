"""Random programs: what the driver and its tasks and actors do, decided by seeds, and what must come of it.

A task is named by a number; all that it does follows from that number, on every attempt alike, so `expected` can say
without running it what its value is. The value of a task is an int; a ref, or a list of refs, stands for the sum of
what they lead to (`absorb`). `Failure` is expected of what raises by itself.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from random import Random
from typing import Any

import rlplat
from rlplat.errors import ActorDied, DeadlineExceeded, GetTimeout, RlplatError, TaskCancelled, TaskError
from rlplat.runtime.refs import ObjectRef
from tests.simulation.world import Violation, current

_MODULUS = 1_000_003
_LARGE = 1 << 17
"""Bytes of a value that stays where it was made."""
RETRIED = "-retried"
"""At the end of an actor's name: its calls may run again after a restart."""
FUNCTION_KINDS = ("leaf", "leaf", "leaf", "spawn", "spawn", "spawn_refs", "fail", "put", "actor", "hand_on")


@dataclass
class History:
    """What happened, for the checks: kept by the world, outside of the processes."""

    num_callers: int = 0
    calls: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """(actor, caller) -> sequence numbers in the order in which they ran."""
    errors: list[str] = field(default_factory=list)
    crashes_asked: int = 0
    kills: int = 0
    found_by_name: dict[str, None] = field(default_factory=dict)
    """Actors that somebody looked up: nobody lent them the handle."""


@dataclass(frozen=True)
class Failure:
    """The task raises of itself."""


@dataclass(frozen=True)
class Anything:
    """A value or an error: the call is ended by somebody, perhaps in time."""


def _history() -> History:
    return current().history  # type: ignore[attr-defined,no-any-return]


def _new_caller() -> str:
    history = _history()
    history.num_callers += 1
    return f"caller{history.num_callers}"


def compute(seconds: float) -> None:
    """User code at work: other processes run meanwhile."""
    if seconds > 0:
        process = current().running
        assert process is not None
        process.sleep(seconds)


def absorb(value: Any) -> int:
    """The number that a value stands for."""
    if isinstance(value, int):
        return value
    if isinstance(value, bytes):
        return len(value) - _LARGE
    if isinstance(value, ObjectRef):
        return absorb(rlplat.get(value))
    return sum(absorb(each) for each in value) % _MODULUS


# ---------------------------------------------------------------- tasks


@dataclass(frozen=True)
class Plan:
    """All that a task will do."""

    kind: str
    compute_s: float
    num_children: int
    children: tuple[int, ...]
    is_chain: bool
    """Each child gets the one before as an argument."""


def plan_of(number: int, depth: int) -> Plan:
    random = Random(number * 31 + depth)
    kind = random.choice(FUNCTION_KINDS)
    if depth == 0 and kind not in ("fail", "put"):
        kind = "leaf"
    if kind == "fail" and random.random() < 0.5:
        kind = "leaf"
    children = tuple(random.randrange(1 << 30) for _ in range(random.randint(1, 3)))
    compute_s = random.choice((0.0, 0.0, 0.0005, 0.003, 0.02))
    return Plan(kind, compute_s, len(children), children, random.random() < 0.4)


@rlplat.remote
def task(number: int, depth: int, *deps: Any) -> Any:
    plan = plan_of(number, depth)
    compute(plan.compute_s)
    own = (number + 7 * sum(absorb(dep) for dep in deps)) % _MODULUS
    if plan.kind == "fail":
        raise ValueError(f"task {number} fails")
    if plan.kind == "put":
        return [rlplat.put(own)]
    if plan.kind == "hand_on":
        return [rlplat.put(own), *(dep for dep in deps if isinstance(dep, ObjectRef))]
    if plan.kind in ("spawn", "spawn_refs"):
        refs: list[Any] = []
        for child in plan.children:
            refs.append(task.remote(child, depth - 1, *(refs[-1:] if plan.is_chain else [])))
        if plan.kind == "spawn":
            compute(plan.compute_s)
            return (own + absorb(rlplat.get(refs))) % _MODULUS
        return [*refs, rlplat.put(own)]
    if plan.kind == "actor":
        return (own + _use_own_actor(plan)) % _MODULUS
    return own


def _use_own_actor(plan: Plan) -> int:
    caller = _new_caller()
    account = Account.remote(caller)
    refs = [account.add.remote(caller, seq, child % 1000) for seq, child in enumerate(plan.children)]
    return absorb(rlplat.get(refs[-1]))


def expected(number: int, depth: int, *deps: int | Failure) -> int | Failure:
    """What absorbing the result of `task` gives."""
    plan = plan_of(number, depth)
    if any(isinstance(dep, Failure) for dep in deps):
        return Failure()
    own = (number + 7 * sum(dep for dep in deps if isinstance(dep, int))) % _MODULUS
    if plan.kind == "fail":
        return Failure()
    if plan.kind in ("spawn", "spawn_refs"):
        before: list[int | Failure] = []
        for child in plan.children:
            before.append(expected(child, depth - 1, *(before[-1:] if plan.is_chain else [])))
        if any(isinstance(each, Failure) for each in before):
            return Failure()
        return (own + sum(each for each in before if isinstance(each, int))) % _MODULUS
    if plan.kind == "actor":
        return (own + sum(child % 1000 for child in plan.children)) % _MODULUS
    return own


@rlplat.remote
def poison(number: int) -> int:
    """Kills its worker, each time."""
    _history().crashes_asked += 1
    compute(0.001)
    current().exit_here("was ended by SIGABRT")
    return 0


@rlplat.remote
def use_actor(number: int, account: Any, num_calls: int) -> int:
    """Calls an actor of somebody else's."""
    caller = _new_caller()
    refs = [account.add.remote(caller, seq, 0) for seq in range(num_calls)]
    compute(0.001)
    for ref in refs:
        rlplat.get(ref)
    return number


def _find(name: str) -> Any:
    """A handle by name; its actor may be on its way out, with nobody who keeps it."""
    account = rlplat.get_actor(name)
    _history().found_by_name[account._actor_id] = None
    return account


@rlplat.remote
def call_named(number: int, name: str) -> int:
    """Finds an actor by its name."""
    account = _find(name)
    rlplat.get(account.add.remote(_new_caller(), 0, 1))
    return number


@rlplat.remote
def pass_on(number: int, refs: list[Any], account: Any, waits: bool) -> int:
    """Gives refs that it has borrowed to an actor, which keeps them."""
    kept = account.keep.remote(refs)
    compute(0.001 * (number % 3))
    if waits:
        rlplat.get(kept)
    return number


@rlplat.remote
def pair(number: int) -> Any:
    return number % _MODULUS, [rlplat.put(number % _MODULUS)]


@rlplat.remote
def large(number: int, *deps: Any) -> bytes:
    compute(0.001)
    return bytes(_LARGE + (number + sum(absorb(dep) for dep in deps)) % _LARGE)


# ---------------------------------------------------------------- actors


@rlplat.remote
class Account:
    """Adds up what it is given, and holds refs for others."""

    def __init__(self, name: str, *deps: Any) -> None:
        process = current().running
        assert process is not None
        self._name = f"{name}@{process.name}"
        self._sum = sum(absorb(dep) for dep in deps)
        self._kept: list[Any] = []

    def add(self, caller: str, seq: int, amount: Any) -> int:
        _history().calls.setdefault((self._name, caller), []).append(seq)
        compute(0.0004 * (seq % 3))
        self._sum += absorb(amount)
        return self._sum

    def keep(self, refs: list[Any]) -> int:
        self._kept.extend(refs)
        return len(self._kept)

    def give(self) -> list[Any]:
        return self._kept

    def hand_to(self, other: Any) -> None:
        """What it keeps, another actor keeps as well."""
        other.keep.remote(list(self._kept))

    def forget(self) -> None:
        self._kept = []

    def fail(self) -> None:
        raise KeyError("the actor's method fails")

    def die(self) -> None:
        _history().crashes_asked += 1
        current().exit_here("exited with 3")


# ---------------------------------------------------------------- the driver


class Driver:
    """The driver's program: `num_steps` random steps, then everything is fetched, checked and dropped."""

    def __init__(
        self,
        random: Random,
        num_cpus: int,
        num_steps: int,
        with_faults: bool,
        about_loans: bool = False,
        about_machines: bool = False,
    ) -> None:
        self.random, self.num_cpus, self.num_steps = random, num_cpus, num_steps
        self.with_faults = with_faults
        self.is_done = False
        self.num_results = 0
        self.num_errors = 0
        self._refs: list[tuple[Any, int | Failure | Anything | None]] = []
        self._actors: list[Any] = []
        self._named_actors: dict[str, Any] = {}
        self._seq = 0
        self._cpus_for_actors = random.randint(0, 1) if num_cpus > 1 else 0
        """Kept free by tasks: an actor that holds a CPU would else starve for ever the task that needs all."""
        self._actor_cpus = 0
        self._kinds: list[Any] = [
            self._submit, self._submit, self._submit, self._submit, self._submit_nested, self._fetch, self._drop,
            self._put, self._create, self._call, self._call, self._share, self._keep, self._wait, self._pause,
            self._burst, self._pair, self._end_actor, self._try_fetch, self._group, self._spread, self._named,
            self._cancel, self._in_time, self._pass_on, self._pass_on,
        ]  # fmt: skip
        if about_loans:
            self._kinds = [
                self._create, self._create, self._put, self._submit, self._submit_nested, self._drop, self._drop,
                self._pause, self._fetch, *[self._pass_on] * 9,
            ]  # fmt: skip

        self._is_spread = about_machines
        if about_machines:
            self._kinds += [self._large, self._large, self._large]

    def __call__(self) -> None:
        for _ in range(self.num_steps):
            self.random.choice(self._kinds)()
        self.random.shuffle(self._refs)
        while self._refs:
            self._check(*self._refs.pop())
        self._actors.clear()
        for name in list(self._named_actors):
            self._end_named(name)
        self.is_done = True

    # -- steps

    def _number(self) -> int:
        return self.random.randrange(1 << 30)

    def _some(self) -> tuple[list[Any], list[int | Failure]]:
        known = [(ref, value) for ref, value in self._refs if isinstance(value, (int, Failure))]
        chosen = self.random.sample(known, min(len(known), self.random.randint(0, 2)))
        return [ref for ref, _ in chosen], [value for _, value in chosen]

    def _submit(self) -> None:
        number, depth = self._number(), self.random.randint(0, 2)
        refs, values = self._some()
        wanted = self.random.choice((1, 1, 1, 0.5, 2, 0))
        options = self._where() | {"num_cpus": min(wanted, self.num_cpus - self._cpus_for_actors)}
        if self.random.random() < 0.2:
            options["max_retries"] = self.random.randint(0, 2)
        self._refs.append((task.options(**options).remote(number, depth, *refs), expected(number, depth, *values)))

    def _where(self) -> dict[str, Any]:
        return {"scheduling_strategy": "SPREAD"} if self._is_spread and self.random.random() < 0.7 else {}

    def _large(self) -> None:
        number, (refs, values) = self._number(), self._some()
        value: int | Failure = Failure()
        if not any(isinstance(each, Failure) for each in values):
            value = (number + sum(each for each in values if isinstance(each, int))) % _LARGE
        self._refs.append((large.options(**self._where()).remote(number, *refs), value))

    def _submit_nested(self) -> None:
        """Refs inside a list: the task fetches them itself."""
        number, depth = self._number(), self.random.randint(0, 1)
        refs, values = self._some()
        total: int | Failure = Failure()
        if not any(isinstance(value, Failure) for value in values):
            total = sum(value for value in values if isinstance(value, int)) % _MODULUS
        self._refs.append((task.remote(number, depth, refs), expected(number, depth, total)))

    def _burst(self) -> None:
        for _ in range(self.random.randint(3, 12)):
            number = self._number()
            self._refs.append((task.remote(number, 0), expected(number, 0)))

    def _pair(self) -> None:
        number = self._number()
        first, second = pair.options(num_returns=2).remote(number)
        self._refs += [(first, number % _MODULUS), (second, number % _MODULUS)]

    def _put(self) -> None:
        number = self._number() % _MODULUS
        self._refs.append((rlplat.put(number), number))

    def _fetch(self) -> None:
        if self._refs:
            self._check(*self._refs.pop(self.random.randrange(len(self._refs))))

    def _try_fetch(self) -> None:
        if self._refs:
            try:
                rlplat.get(self.random.choice(self._refs)[0], timeout=self.random.choice((0, 0.001, 0.02)))
            except (GetTimeout, RlplatError, ValueError, KeyError):
                pass

    def _drop(self) -> None:
        if self._refs:
            self._refs.pop(self.random.randrange(len(self._refs)))

    def _wait(self) -> None:
        refs = [ref for ref, _ in self._refs]
        if refs:
            rlplat.wait(refs, num_returns=self.random.randint(1, len(refs)), timeout=self.random.choice((None, 0.01)))

    def _pause(self) -> None:
        compute(self.random.choice((0.001, 0.01, 0.15)))

    def _create(self) -> None:
        if len(self._actors) >= 3:
            self._actors.pop(self.random.randrange(len(self._actors)))
        name = f"account{self._number()}"
        options = self._where()
        if self._actor_cpus < self._cpus_for_actors and self.random.random() < 0.5:
            self._actor_cpus += 1  # for good: an actor that ended may still hold its CPU when the next task comes
            options["num_cpus"] = 1
        refs, _ = self._some() if self.random.random() < 0.3 else ([], [])
        options["max_restarts"] = self.random.choice((0, 0, 1, 3, -1))
        if self.random.random() < 0.4:
            options["max_task_retries"] = self.random.choice((1, 3, -1))
            name += RETRIED
        self._actors.append(Account.options(**options).remote(name, *refs))

    def _named(self) -> None:
        """Several places make, or find, the actor of one name; tasks look it up."""
        name = f"named{self.random.randint(1, 2)}"
        options: dict[str, Any] = {"name": name, "get_if_exists": True, "max_restarts": 2}
        if self.random.random() < 0.3:
            options["lifetime"] = "detached"
        if name in self._named_actors:
            try:
                account = _find(name)
            except ActorDied:
                return
        else:
            account = self._named_actors[name] = Account.options(**options).remote(f"account{self._number()}")
        self._seq += 1
        self._refs.append((account.add.remote("driver", self._seq, 1), None))
        number = self._number()
        self._refs.append((call_named.remote(number, name), None))
        if self.random.random() < 0.3:
            self._end_named(name)

    def _end_named(self, name: str) -> None:
        _history().kills += 1
        rlplat.kill(self._named_actors.pop(name))

    def _call(self) -> None:
        if not self._actors:
            return
        account = self.random.choice(self._actors)
        for _ in range(self.random.randint(1, 5)):
            self._seq += 1
            amount: Any = self.random.choice(self._refs)[0] if self._refs and self.random.random() < 0.2 else 1
            self._refs.append((account.add.remote("driver", self._seq, amount), None))

    def _share(self) -> None:
        if self._actors:
            number = self._number()
            ref = use_actor.remote(number, self.random.choice(self._actors), self.random.randint(1, 4))
            self._refs.append((ref, None))

    def _keep(self) -> None:
        """An actor holds refs for a while and gives them back."""
        if not self._actors or not self._refs:
            return
        account = self.random.choice(self._actors)
        ref, _ = self.random.choice(self._refs)
        account.keep.remote([ref])
        del ref
        if self.random.random() < 0.6:
            self._refs.append((account.give.remote(), None))
        if self.random.random() < 0.5:
            account.forget.remote()

    def _pass_on(self) -> None:
        """Refs reach an actor by way of a task or of another actor, which may die on the way; here they are dropped."""
        if not self._actors:
            return
        account, number = self.random.choice(self._actors), self._number()
        made = task.remote(number, 1) if self.random.random() < 0.5 else rlplat.put(number % _MODULUS)
        refs = [made, *self._some()[0]]  # never what `give` returned: it may come to lead to itself
        if self.random.random() < 0.7:
            self._refs.append((pass_on.remote(number, refs, account, self.random.random() < 0.5), None))
        else:
            giver = self.random.choice(self._actors)
            giver.keep.remote(refs)
            giver.hand_to.remote(account)
        del made, refs
        compute(self.random.choice((0.0, 0.001, 0.01, 0.05)))
        if self.random.random() < 0.7:
            self._refs.append((account.give.remote(), None))
        if self.random.random() < 0.3:
            account.forget.remote()

    def _end_actor(self) -> None:
        if not self._actors:
            return
        account = self._actors.pop(self.random.randrange(len(self._actors)))
        how = self.random.random()
        if how < 0.4:
            _history().kills += 1
            rlplat.kill(account)
        elif how < 0.6:
            self._refs.append((account.fail.remote(), Failure()))
        elif how < 0.7 and self.with_faults:
            self._refs.append((account.die.remote(), Failure()))
        elif how < 0.75 and self.with_faults:
            self._refs.append((poison.options(max_retries=self.random.randint(0, 2)).remote(self._number()), Failure()))

    def _group(self) -> None:
        """Tasks and an actor in a placement group, which is removed at the end or while they run."""
        if self._actor_cpus >= self._cpus_for_actors:
            return
        bundles: list[dict[str, float]] = self.random.choice(([{"CPU": 1}], [{"CPU": 0.5}, {"CPU": 0.5}]))
        strategy = self.random.choice(("PACK", "SPREAD", "STRICT_PACK"))
        group = rlplat.placement_group(bundles, strategy=strategy)
        cpus = bundles[0]["CPU"]
        refs = []
        for _ in range(self.random.randint(1, 4)):
            number = self._number()
            ref = task.options(num_cpus=cpus, placement_group=group).remote(number, 0)
            refs.append((ref, expected(number, 0)))
        if self.random.random() < 0.3:
            account = Account.options(placement_group=group).remote(f"account{self._number()}")
            refs.append((account.add.remote("driver", 1, 1), None))
            del account
        if self.random.random() < 0.5:
            rlplat.get(group.ready())
        if self.random.random() < 0.6:
            while refs:
                self._check(*refs.pop())
        _history().kills += 1
        rlplat.remove_placement_group(group)
        for ref, _ in refs:  # they may have been in time
            try:
                absorb(ref)
            except (RlplatError, ValueError):
                pass
        del ref
        refs.clear()

    def _cancel(self) -> None:
        """Tasks that wait, run or have ended are cancelled; whatever comes first counts."""
        numbers = [(self._number(), self.random.randint(0, 2)) for _ in range(self.random.randint(1, 4))]
        refs = [task.remote(number, depth) for number, depth in numbers]
        compute(self.random.choice((0.0, 0.001, 0.01)))
        for (number, depth), ref in zip(numbers, refs, strict=True):
            if self.random.random() < 0.7:
                is_forced = self.random.random() < 0.2
                _history().kills += is_forced  # of a worker, with all that it owns
                rlplat.cancel(ref, force=is_forced, recursive=self.random.random() < 0.8)
                self._refs.append((ref, Anything()))
            else:
                self._refs.append((ref, expected(number, depth)))

    def _in_time(self) -> None:
        """Tasks with deadlines that some of them miss."""
        options = task.options(timeout_s=self.random.choice((0.001, 0.01, 0.1)))
        for _ in range(self.random.randint(1, 3)):
            self._refs.append((options.remote(self._number(), self.random.randint(0, 1)), Anything()))

    def _spread(self) -> None:
        number = self._number()
        spread = task.options(scheduling_strategy="SPREAD", num_cpus=0.5)
        self._refs.append((spread.remote(number, 0), expected(number, 0)))

    # -- checks

    def _check(self, ref: Any, value: int | Failure | Anything | None) -> None:
        """The value is the right one, or the error is one that the faults of this world explain."""
        try:
            got = absorb(ref)
        except (RlplatError, ValueError, KeyError) as error:
            self._check_error(error, value)
            return
        self.num_results += 1
        if isinstance(value, Failure):
            raise Violation(f"{ref!r}: {got}, and it should have failed")
        if isinstance(value, int) and got != value:
            raise Violation(f"{ref!r}: {got} instead of {value}")

    def _check_error(self, error: BaseException, value: int | Failure | Anything | None) -> None:
        self.num_errors += 1
        history = _history()
        history.errors.append(type(error).__name__)
        text = str(error)
        if "freed already" in text:
            raise Violation(f"an object was freed while somebody held a ref: {text}") from error
        is_struck = self.with_faults or history.kills or history.crashes_asked
        if isinstance(value, (Failure, Anything)) or is_struck:
            return
        if value is None and isinstance(error, (TaskCancelled, DeadlineExceeded)):
            return  # of a task whose value it was to get
        if value is None and isinstance(error, (TaskError, ActorDied)):  # what an actor was given had failed
            if "raised ValueError" in text or "KeyError" in text or "an argument of its failed" in text:
                return
        raise Violation(f"no fault explains this error: {type(error).__name__}: {text}") from error


class _ByName:
    """Pickled code of a function or class of this file: the same bytes in each run, unlike cloudpickle's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> Any:
        return _target_of, (self._name,)


def _target_of(name: str) -> Any:
    return globals()[name]._code.target


for _name in ("task", "poison", "use_actor", "call_named", "pass_on", "pair", "large", "Account"):
    _code = globals()[_name]._code
    _code.key, _code.blob = _name, pickle.dumps(_ByName(_name))
