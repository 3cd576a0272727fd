"""The window of replies and the checkpoint of an exactly-once actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.runtime.machine.session import checkpoint_path
from rlplat.runtime.wire.codec import OUT_OF_BAND_BYTES
from rlplat.runtime.wire.values import ErrorInfo
from rlplat.runtime.worker.exactly_once import HOLD_REPLIES, HOLD_S, ExactlyOnce, Kept, Window


def test_a_call_that_ran_is_answered_from_the_window_and_each_caller_has_its_own() -> None:
    window = Window()
    assert window.asked("driver", 1, 0) is None
    window.keep("driver", 1, Kept([b"one"]))
    assert window.asked("w7", 1, 0) is None
    assert window.asked("driver", 1, 0) == Kept([b"one"])


def test_what_the_caller_has_got_is_dropped() -> None:
    window = Window()
    for seq in range(1, 6):
        window.keep("driver", seq, Kept([b"%d" % seq]))
    assert window.asked("driver", 6, 3) is None
    assert list(window.kept["driver"]) == [4, 5]
    window.forget("driver")
    window.forget("nobody")
    assert window.kept == {}


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def get_state(self) -> Any:
        return self.value

    def set_state(self, state: Any) -> None:
        self.value = state


def opened(path: Path) -> tuple[ExactlyOnce, Counter]:
    once, counter = ExactlyOnce(str(path)), Counter()
    once.open(counter)
    return once, counter


def count(once: ExactlyOnce, counter: Counter, seq: int, sent: list[int], now: float = 0.0) -> None:
    counter.value += 1
    once.finished("driver", seq, Kept([b"%d" % counter.value]), once.snapshot())
    once.hold(lambda: sent.append(seq), now)


def test_replies_leave_only_with_their_checkpoint(tmp_path: Path) -> None:
    once, counter = opened(tmp_path / "file")
    sent: list[int] = []
    count(once, counter, 1, sent)
    assert sent == []
    assert not (tmp_path / "file").exists()
    once.commit()
    assert sent == [1]
    once.commit()
    assert sent == [1]


def test_when_a_reply_leaves_its_effect_is_on_file(tmp_path: Path) -> None:
    once, counter = opened(tmp_path / "file")
    counter.value = 1
    once.finished("driver", 1, Kept([b"1"]), once.snapshot())
    seen: list[int] = []
    once.hold(lambda: seen.append(opened(tmp_path / "file")[1].value), 0.0)
    once.commit()
    assert seen == [1]


def test_the_next_incarnation_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    once, counter = opened(tmp_path / "file")
    sent: list[int] = []
    count(once, counter, 1, sent)
    once.commit()
    count(once, counter, 2, sent)  # and dies here: nobody has heard of the second call
    again, counter = opened(tmp_path / "file")
    assert counter.value == 1
    assert again.window.asked("driver", 1, 0) == Kept([b"1"])
    assert again.window.asked("driver", 2, 0) is None


STATES: list[Any] = [
    None,
    {"weights": np.arange(4.0), "step": 3},
    b"x" * (OUT_OF_BAND_BYTES + 1),
    *(np.zeros(5, dtype) for dtype in ("bool", "int8", "uint16", "float16", "float32", "complex128", "U3")),
    *(np.arange(OUT_OF_BAND_BYTES // 8 + extra, dtype="int64") for extra in (-1, 0, 1)),
    np.array(2.5),
    np.zeros((0, 3)),
    np.arange(12.0).reshape(3, 4).T,
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: f"{type(state).__name__}-{np.asarray(state).dtype}")
def test_every_state_comes_back(tmp_path: Path, state: Any) -> None:
    """Small arrays are packed in a form of their own."""
    once, counter = ExactlyOnce(str(tmp_path / "file")), Counter()
    counter.value = state
    once.open(counter)
    once.finished("driver", 1, Kept([b"1"]), once.snapshot())
    once.hold(lambda: None, 0.0)
    once.commit()
    back = opened(tmp_path / "file")[1].value
    assert type(back) is type(state)
    np.testing.assert_equal(back, state)
    assert not isinstance(state, np.ndarray) or back.dtype == state.dtype


def test_a_half_written_checkpoint_is_never_read(tmp_path: Path) -> None:
    once, counter = opened(tmp_path / "file")
    count(once, counter, 1, [])
    once.commit()
    (tmp_path / "file~").write_bytes(b"half")
    assert opened(tmp_path / "file")[1].value == 1


def test_errors_are_kept_as_replies(tmp_path: Path) -> None:
    once, _ = opened(tmp_path / "file")
    error = ErrorInfo("TaskError", "no", b"", ["builtins.ValueError"])
    once.finished("driver", 1, Kept([], error), None)
    once.hold(lambda: None, 0.0)
    once.commit()
    assert opened(tmp_path / "file")[0].window.asked("driver", 1, 0) == Kept([], error)


def test_replies_are_due_when_many_gathered_or_time_passed(tmp_path: Path) -> None:
    once, counter = opened(tmp_path / "file")
    assert not once.is_due(100.0)
    count(once, counter, 1, [], now=10.0)
    assert not once.is_due(10.0 + HOLD_S / 2)
    assert once.is_due(10.0 + HOLD_S * 2)
    for seq in range(2, HOLD_REPLIES + 1):
        count(once, counter, seq, [], now=10.0)
    assert once.is_due(10.0)


def test_without_state_nothing_is_written_and_nothing_waits(tmp_path: Path) -> None:
    once = ExactlyOnce(str(tmp_path / "file"))
    once.open(object())
    once.finished("driver", 1, Kept([b"x"]), once.snapshot())
    once.hold(lambda: None, 0.0)
    assert once.is_due(0.0)
    once.commit()
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_holds_refs_is_refused(cluster: None, tmp_path: Path) -> None:
    import rlplat

    class Holder(Counter):
        def get_state(self) -> Any:
            return [rlplat.put(1)]

    once = ExactlyOnce(str(tmp_path / "file"))
    with pytest.raises(ValueError, match="ObjectRef"):
        once.open(Holder())


def test_the_name_of_the_file_is_one_name() -> None:
    assert checkpoint_path("/s", "driver:12") == "/s/once-driver-12"
