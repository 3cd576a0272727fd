"""Whether the head of a Ray cluster answers: needs no Ray."""

from __future__ import annotations

import socket
import sys

import pytest

import rlplat
from rlplat.errors import OptionError
from rlplat.runtime.ray import watch
from rlplat.runtime.ray.watch import HeadWatch, why_silent
from tests.patience import soon


def test_a_head_that_goes_is_told_in_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(watch, "PERIOD_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert why_silent(address) == ""
        head_watch = HeadWatch(address)
        assert not head_watch.lost
    assert soon(lambda: head_watch.lost != "")
    head_watch.close()
    assert f"the head of the Ray cluster at {address} does not answer any more" in head_watch.lost
    assert head_watch.lost in capsys.readouterr().err


def test_a_watch_that_is_closed_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    HeadWatch("127.0.0.1:9").close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:10001", "somewhere"])
def test_an_address_without_a_cluster_is_refused_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rlplat.runtime.ray.backend", FakeBackendModule)
    with pytest.raises(OptionError, match=r"no Ray cluster answers there \(.*address='auto'"):
        rlplat.init(backend="ray", address=address)
    assert not rlplat.is_initialized()


class FakeBackendModule:
    """In place of the module that imports Ray."""

    RayBackend = None
