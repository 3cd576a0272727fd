"""What the verbs refuse raises as in Ray (`ValueError`, `TypeError`, `AttributeError`), and as rlplat's own class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied, ConfigError, NoSuchActor, OptionError, OptionTypeError


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
