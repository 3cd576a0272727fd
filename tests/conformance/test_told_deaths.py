"""Deaths of actors are told: to who asked, and in one line where nobody waits for a call."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied
from tests.patience import soon


class Mortal:
    def __init__(self, is_sound: bool = True, is_born: bool = True) -> None:
        if not is_sound:
            raise ValueError("unsound")
        if not is_born:
            os._exit(3)

    def die(self) -> None:
        os._exit(3)

    def leave(self) -> None:
        rlplat.exit_actor()

    def lives(self) -> bool:
        return True


def told(actor: Any) -> tuple[list[Exception], threading.Event]:
    errors: list[Exception] = []
    came = threading.Event()

    def hear(error: Exception) -> None:
        errors.append(error)
        came.set()

    actor.on_death(hear)
    return errors, came


def test_an_end_that_was_meant_is_told_to_who_asked_before_and_after(backend: str) -> None:
    for end in (rlplat.kill, lambda actor: actor.leave.remote()):
        actor = rlplat.remote(Mortal).remote()
        assert rlplat.get(actor.lives.remote())
        errors, came = told(actor)
        end(actor)
        late, came_late = told(actor) if came.wait(60) else ([], came)
        assert came_late.wait(60)
        assert [type(error) for error in (*errors, *late)] == [ActorDied] * 2


def test_a_failed_constructor_is_told(backend: str) -> None:
    actor = rlplat.remote(Mortal).remote(False)
    errors, came = told(actor)
    assert came.wait(60)
    assert "could not be created" in str(errors[0]) and "unsound" in str(errors[0])


def test_only_the_last_death_of_one_that_restarts_is_told(cluster: None) -> None:
    actor = rlplat.remote(Mortal).options(max_restarts=1).remote()
    errors, came = told(actor)
    for _ in range(2):
        assert not errors
        assert rlplat.get(actor.lives.remote(), timeout=60)
        with pytest.raises(ActorDied):
            rlplat.get(actor.die.remote(), timeout=60)
    assert came.wait(60) and "exited with code 3" in str(errors[0])


def test_another_process_that_has_a_handle_may_ask(cluster: None) -> None:
    class Watcher:
        def watch(self, actors: list[Any]) -> None:
            self.actor = actors[0]
            self.errors, self.came = told(self.actor)

        def heard(self) -> str:
            assert self.came.wait(60)
            return str(self.errors[0])

    watcher, actor = rlplat.remote(Watcher).remote(), rlplat.remote(Mortal).remote()
    rlplat.get(watcher.watch.remote([actor]))
    with pytest.raises(ActorDied):
        rlplat.get(actor.die.remote(), timeout=60)
    assert "exited with code 3" in rlplat.get(watcher.heard.remote(), timeout=60)


def test_a_class_may_have_a_method_of_that_name(backend: str) -> None:
    class Own:
        def on_death(self) -> int:
            return 7

    assert rlplat.get(rlplat.remote(Own).remote().on_death.remote()) == 7


def test_a_callback_that_raises_is_shown_and_the_next_is_called(
    cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    actor = rlplat.remote(Mortal).remote()
    actor.on_death(lambda error: {}["nothing"])
    _, came = told(actor)
    rlplat.kill(actor)
    assert came.wait(60) and "KeyError" in capsys.readouterr().err


@pytest.mark.parametrize("ends", ["crash", "birth", "constructor", "kill", "leave", "waited for", "watched"])
def test_a_death_that_nobody_waits_for_is_one_line(cluster: None, ends: str, capfd: pytest.CaptureFixture[str]) -> None:
    actor = rlplat.remote(Mortal).remote(ends != "constructor", ends != "birth")
    came = told(actor)[1] if ends == "watched" else None
    if ends == "kill":
        rlplat.kill(actor)
    elif ends == "leave":
        actor.leave.remote()
    elif ends == "waited for":
        with pytest.raises(ActorDied):
            rlplat.get(actor.die.remote(), timeout=60)
    elif ends not in ("constructor", "birth"):
        actor.die.remote()
    said = ""

    def has_said() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "rlplat: actor Mortal" in said

    if ends in ("crash", "birth", "constructor"):
        assert soon(has_said)
        assert ("died: " in said) is (ends != "constructor") and "Traceback" not in said.partition("rlplat: actor")[0]
    else:
        if came is not None:
            assert came.wait(60)
        with pytest.raises(ActorDied):
            rlplat.get(actor.lives.remote(), timeout=60)
        assert not has_said()
    sys.stderr.flush()
