"""What the verbs refuse raises as in Ray (`ValueError`, `TypeError`, `AttributeError`), and as rlplat's own class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied, ConfigError, NoSuchActor, OptionError, OptionTypeError
from rlplat.runtime.options import Options, merge_options
from rlplat.runtime.wire.values import CallOptions


@rlplat.remote
def task(x: int) -> int:
    return x


@rlplat.remote
class Actor:
    def method(self) -> int:
        return 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: rlplat.remote(num_cpuz=1),
        lambda: task.options(num_cpus=-1),
        lambda: task.options(num_returns="many"),
        lambda: Actor.options(lifetime="for ever"),
        lambda: Actor.options(get_if_exists=True).remote(),
        lambda: rlplat.method(no_such_option=1),
        lambda: rlplat.init(),
        lambda: rlplat.placement_group([{"CPU": 1}], strategy="ROUND"),
        lambda: rlplat.get_placement_group("nowhere"),
        lambda: task.options(placement_group_bundle_index=3).remote(1),
    ],
)
def test_a_bad_option_is_a_value_error(backend: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert isinstance(caught.value, OptionError)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(
    "call",
    [
        lambda: task.options(num_cpus="two"),
        lambda: Actor.options(max_restarts=1.5),
        lambda: task.options(retry_exceptions=[3]),
    ],
)
def test_an_option_of_the_wrong_type_is_a_type_error(backend: str, call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert isinstance(caught.value, OptionTypeError)


@pytest.mark.parametrize(
    "call",
    [
        lambda: task.options(num_returns="many"),
        lambda: task.options(runtime_env=3),
        lambda: task.options(runtime_env={"env_vars": {"A": 1}}),
        lambda: task.options(runtime_env={"pip": 3}),
        lambda: task.options(scheduling_strategy=3).remote(1),
        lambda: task.options(placement_group=3).remote(1),
        lambda: rlplat.get(3),
        lambda: rlplat.get("ref"),
        lambda: rlplat.kill(3),
        lambda: rlplat.kill(rlplat.put(1)),
    ],
)
def test_what_is_of_the_wrong_type_is_caught_as_either_error(backend: str, call: Callable[[], Any]) -> None:
    for kind in (ValueError, TypeError):
        with pytest.raises(kind):
            call()


def test_an_option_of_the_other_kind_is_refused_where_it_is_written(backend: str) -> None:
    """It would be ignored: nothing would be retried, restarted or named."""

    def function() -> None: ...

    class Class:
        def method(self) -> None: ...

    values: dict[str, Any] = {"lifetime": "detached", "namespace": "n", "concurrency_groups": {"io": 1}}
    of_actors = "namespace get_if_exists lifetime max_concurrency concurrency_groups max_restarts max_task_retries"
    for option in (*of_actors.split(), "exactly_once"):
        for make in (lambda o: rlplat.remote(**o)(function), lambda o: task.options(**o)):
            with pytest.raises(ValueError, match=f": {option} is for actors, and this is a function$"):
                make({option: values.get(option, True if option in ("get_if_exists", "exactly_once") else 1)})
    for option in (
        "num_returns",
        "generator_backpressure",
        "timeout_s",
        "max_retries",
        "retry_exceptions",
        "max_calls",
    ):
        for make in (lambda o: rlplat.remote(**o)(Class), lambda o: Actor.options(**o)):
            with pytest.raises(ValueError, match=f": {option} is for tasks, and this is an actor class"):
                make({option: option == "retry_exceptions" or 2})


def test_names_and_resources_that_would_not_count_are_refused(backend: str) -> None:
    with pytest.raises(ValueError, match="name of an actor cannot be an empty text"):
        Actor.options(name="")
    for resources, option in (({"CPU": 1}, "num_cpus=1"), ({"GPU": 2}, "num_gpus=2")):
        with pytest.raises(ValueError, match=f"^resources: give .PU as {option}$"):
            task.options(resources=resources)
    assert rlplat.get(Actor.options(lifetime="non_detached").remote().method.remote(), timeout=10) == 1


def test_a_second_init_is_a_runtime_error_as_well(backend: str) -> None:
    with pytest.raises(RuntimeError, match="called twice"):
        rlplat.init()


def test_init_in_a_task_is_a_runtime_error_as_well(cluster: None) -> None:
    with pytest.raises(RuntimeError, match="it has a cluster"):
        rlplat.get(rlplat.remote(rlplat.init).remote(), timeout=60)


def test_a_demand_that_can_never_be_met_is_a_value_error(backend: str) -> None:
    with pytest.raises(ValueError, match="the cluster has 2"):
        task.options(num_cpus=100).remote(1)


def test_method_is_a_decorator_without_brackets_too(backend: str) -> None:
    @rlplat.remote
    class Numbers:
        @rlplat.method
        def numbers(self) -> Iterator[int]:
            yield from range(2)

        @rlplat.method
        def one(self) -> int:
            return 1

    numbers = Numbers.remote()
    assert rlplat.get(list(numbers.numbers.remote()), timeout=10) == [0, 1]
    assert rlplat.get(numbers.one.remote(), timeout=10) == 1


_HUGE = 2**63
_NO_TEXT = "\udcff"
WRONG = [
    {"name": 5}, {"name": _NO_TEXT}, {"namespace": b"here"}, {"namespace": _NO_TEXT},
    {"memory": _HUGE}, {"max_retries": _HUGE}, {"max_calls": _HUGE}, {"num_returns": _HUGE},
    {"generator_backpressure": _HUGE}, {"max_concurrency": _HUGE}, {"max_restarts": _HUGE}, {"max_task_retries": 1.5},
    {"get_if_exists": 1}, {"exactly_once": "yes"}, {"placement_group_capture_child_tasks": 1},
    {"concurrency_groups": ["io"]}, {"resources": {_NO_TEXT: 1}}, {"resources": {5: 1}},
]  # fmt: skip


def test_a_value_that_no_message_can_carry_is_refused_by_name(backend: str) -> None:
    """A call that got through with one would be waited for without end."""
    for wrong in WRONG:
        for make in (task.options, rlplat.remote):
            with pytest.raises(OptionError, match=f"^{next(iter(wrong))}.* must be .*, not "):
                make(**wrong)
    for wrong in ({"concurrency_group": 5}, {"concurrency_group": _NO_TEXT}, {"max_task_retries": _HUGE}):
        with pytest.raises(OptionError, match=f"^{next(iter(wrong))} must be .*, not "):
            rlplat.method(**wrong)
    for groups in ({_NO_TEXT: 1}, {5: 1}, {"io": _HUGE}):
        with pytest.raises(OptionError, match=r"^concurrency_groups of Actor: "):
            Actor.options(concurrency_groups=groups).remote()
    strategy = rlplat.NodeAffinitySchedulingStrategy(_NO_TEXT)
    for call in (
        lambda: rlplat.get_actor(_NO_TEXT),
        lambda: rlplat.get_actor(5),
        lambda: rlplat.get_actor("a", namespace=_NO_TEXT),
        lambda: rlplat.placement_group([{"CPU": 1}], name=_NO_TEXT),
        lambda: rlplat.placement_group([{_NO_TEXT: 1}]),
        lambda: task.options(scheduling_strategy=strategy).remote(1),
    ):
        with pytest.raises(OptionError, match="must be text"):
            call()
    assert rlplat.get(task.remote(1), timeout=10) == 1


def test_a_ref_whose_keyword_no_message_can_carry_is_refused(backend: str) -> None:
    """The call would wait for its value without end."""

    @rlplat.remote
    def keywords(**arguments: int) -> dict[str, int]:
        return arguments

    @rlplat.remote
    class Keywords:
        def __init__(self, **arguments: int) -> None:
            pass

        def take(self, **arguments: int) -> dict[str, int]:
            return arguments

    actor, ref = Keywords.remote(), rlplat.put(1)
    for call in (keywords.remote, Keywords.remote, actor.take.remote):
        with pytest.raises(OptionError, match=r"the keyword of an object ref must be text .* not 'caf\\udce9'"):
            call(**{"caf\udce9": ref})
    for call in (keywords.remote, actor.take.remote):
        assert rlplat.get(call(café=ref), timeout=10) == {"café": 1}
        if backend != "ray":
            assert rlplat.get(call(**{"caf\udce9": 2}), timeout=10) == {"caf\udce9": 2}


def test_none_is_the_default_of_every_option(backend: str) -> None:
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Options))
    refs = [task.options(**{name: None}).remote(1) for name in nothing]
    assert rlplat.get(refs, timeout=10) == [1] * len(refs)
    actor = Actor.options(**nothing).remote()
    method = actor.method.options(**dict.fromkeys(CallOptions.__struct_fields__))
    assert rlplat.get(method.remote(), timeout=10) == 1
    assert merge_options(Options(max_retries=7), nothing, "a task") == Options(placement_group=None)


def test_num_returns_none_is_as_the_function_says(backend: str) -> None:
    @rlplat.remote(num_returns=None)
    def numbers() -> Iterator[int]:
        yield from range(3)

    for each in (numbers, numbers.options(num_returns=None)):
        assert rlplat.get(list(each.remote()), timeout=10) == [0, 1, 2]


def test_an_unknown_actor_is_a_value_error(backend: str) -> None:
    with pytest.raises(ValueError, match="there is no actor named 'nobody'") as caught:
        rlplat.get_actor("nobody")
    assert isinstance(caught.value, NoSuchActor)
    assert isinstance(caught.value, ActorDied)


def test_a_taken_name_and_an_unknown_group_are_value_errors(backend: str) -> None:
    first = Actor.options(name="taken").remote()
    with pytest.raises(ValueError, match="exists already"):
        Actor.options(name="taken").remote()
    with pytest.raises(ValueError, match="no concurrency group"):
        first.method.options(concurrency_group="nowhere").remote()


def test_an_unknown_method_is_an_attribute_error(backend: str) -> None:
    with pytest.raises(AttributeError, match="did you mean 'method'"):
        Actor.remote().methud.remote()


@pytest.mark.parametrize(
    "call",
    [
        lambda: rlplat.wait(rlplat.put(1)),
        lambda: rlplat.wait([1]),
        lambda: rlplat.get([1]),
        lambda: rlplat.kill(1),
        lambda: rlplat.cancel(1),
        lambda: task(1),
        lambda: Actor(),
    ],
)
def test_what_is_no_ref_and_no_handle_is_a_type_error(backend: str, call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"rlplat|remote"):
        call()


@pytest.mark.parametrize("more", [{"num_returns": 2}, {"num_returns": 0}, {"timeout": -1}])
def test_wait_refuses_what_cannot_be(backend: str, more: Any) -> None:
    with pytest.raises(ValueError, match=r"rlplat\.wait"):
        rlplat.wait([rlplat.put(1)], **more)


def test_a_function_whose_name_is_no_utf8_is_run(backend: str) -> None:
    def g() -> int:
        return 2

    g.__name__ = g.__qualname__ = f"g{_NO_TEXT}"
    assert rlplat.get(rlplat.remote(g).remote(), timeout=10) == 2
