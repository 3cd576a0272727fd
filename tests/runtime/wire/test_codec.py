"""Values to bytes and back: which pickler, what stays out of band, and errors as data."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

from rlplat import errors
from rlplat.errors import GetTimeout, SerializationError, TaskError
from rlplat.runtime import refs
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.errors import describe_error, to_exception
from rlplat.runtime.wire.values import ErrorInfo


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


@pytest.mark.parametrize(
    ("value", "is_plain"),
    [
        (1, True),
        ("x", True),
        ([1, (2.0, None), {"a": b"b"}], True),
        (np.zeros(3), True),
        (list(range(100)), False),
        (np.array([object()]), False),
        (len, False),
        (Point(1), False),
        ({"f": print}, False),
        (True, True),
        (Point, False),
    ],
)
def test_only_plain_data_takes_the_short_way(value: Any, is_plain: bool) -> None:
    assert codec._is_plain(value) is is_plain


@pytest.mark.parametrize(
    "value",
    [[1, {"a": (None, 2.5)}], "text", 10**30, {1, 2}, range(4), np.arange(5), [np.float32(1)]],
    ids=repr,
)
def test_round_trip(value: Any) -> None:
    packed = codec.pack(value)
    np.testing.assert_equal(codec.unpack(packed.data, packed.buffers), value)


def test_classes_and_functions_of_a_script_travel_by_value() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("class Local:\n    answer = 42\ndef f(x):\n    return x + Local.answer", namespace)
    data = codec.pack([namespace["f"], namespace["Local"]()]).data
    namespace.clear()
    f, local = codec.unpack(data)
    assert (f(1), local.answer) == (43, 42)


@pytest.mark.parametrize(("num_bytes", "num_buffers"), [(codec.OUT_OF_BAND_BYTES - 1, 0), (codec.OUT_OF_BAND_BYTES, 1)])
def test_large_buffers_stay_out_of_the_stream(num_bytes: int, num_buffers: int) -> None:
    packed = codec.pack({"a": np.zeros(num_bytes, np.uint8)})
    assert len(packed.buffers) == num_buffers
    assert (len(packed.data) < 1000) is (num_buffers == 1)


def test_refs_inside_are_listed_once_for_each_object() -> None:
    ref, equal = (refs.ObjectRef("driver", 7, lambda key: None) for _ in range(2))
    assert codec.pack([ref, {"another": equal}, Point(1)]).refs == [ref, equal]
    assert codec.pack([ref, ref]).refs == [ref]  # pickle's memo: one object there, too
    assert codec.pack(1).refs == []


def test_collecting_refs_can_be_nested_and_ends() -> None:
    ref = refs.ObjectRef("driver", 7, lambda key: None)
    with refs.collecting_refs() as outer:
        with refs.collecting_refs() as inner:
            pickle.dumps(ref)
        pickle.dumps([ref])
    assert (len(inner), len(outer)) == (1, 1)
    with pytest.raises(SerializationError):
        pickle.dumps(ref)


class Nested:
    def __init__(self) -> None:
        self.fine = 1
        self.inner = {"key": [0, threading.Lock()]}


def test_the_culprit_is_named_by_its_path() -> None:
    with pytest.raises(
        SerializationError,
        match=r"argument 2 of f cannot be pickled: inner\['key'\]\[1\] of type _thread\.lock",
    ):
        codec.pack(Nested(), "argument 2 of f")


def test_a_cycle_does_not_trap_the_search_for_the_culprit() -> None:
    cycle: list[Any] = [threading.Lock()]
    cycle.append(cycle)
    with pytest.raises(SerializationError, match="lock"):
        codec.pack(cycle)


def test_code_is_pickled_once_and_keyed_by_content() -> None:
    one, two = RemoteCode(lambda: 1, "one"), RemoteCode(lambda: 2, "two")
    codec.dump_code(one)
    codec.dump_code(two)
    blob = one.blob
    codec.dump_code(one)
    assert one.blob is blob
    assert one.key != two.key


def thrown(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("error", [ValueError("v"), KeyError("k"), OSError(2, "no"), SystemError()], ids=repr)
def test_an_exception_crosses_as_text_and_as_itself(error: Exception) -> None:
    info = describe_error(thrown(error), "task f (pid 1)")
    arrived = to_exception(info)
    assert isinstance(arrived, type(error))
    assert isinstance(arrived, TaskError)
    assert str(arrived).startswith(f"task f (pid 1) raised {type(error).__name__}")
    assert type(arrived.cause) is type(error)
    assert arrived.cause.args == error.args


class Explosive(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("do not pickle me")


class Deceitful(Exception):
    def __reduce__(self) -> Any:
        return SystemExit, ("gotcha",)


@pytest.mark.parametrize("error", [Explosive("boom"), Deceitful("boom")], ids=repr)
def test_an_exception_that_pickles_badly_leaves_its_text(error: Exception) -> None:
    arrived = to_exception(describe_error(thrown(error), "task f"))
    assert isinstance(arrived, (TaskError, SystemExit))
    assert "boom" in str(arrived)
    assert isinstance(arrived, TaskError)


@pytest.mark.parametrize("size", [codec.OUT_OF_BAND_BYTES - 100, codec.OUT_OF_BAND_BYTES, 1_000_000])
def test_a_large_exception_keeps_its_class(size: int) -> None:
    arrived = to_exception(describe_error(thrown(KeyError(b"x" * size)), "task f"))
    assert isinstance(arrived, KeyError)
    assert isinstance(arrived.cause, KeyError) and arrived.cause.args == (b"x" * size,)  # type: ignore[attr-defined]


def test_of_a_huge_exception_the_beginning_and_the_end_of_the_text_travel() -> None:
    info = describe_error(thrown(ValueError("first" + "x" * 9_000_000 + "last")), "task f")
    assert info.exception == b"" and info.classes[0] == "builtins.ValueError"
    assert len(info.message) < 1_100_000
    assert "task f raised ValueError" in info.message and "first" in info.message
    assert info.message.endswith("last") and " characters are left out ..." in info.message


def test_code_that_carries_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_MAX_BYTES", 1_000_000)
    table = bytes(2_000_000)
    code = RemoteCode(lambda: table, "look_up")
    with pytest.raises(SerializationError, match=r"look_up cannot be sent .* carries 2 MB.*rlplat\.put"):
        codec.dump_code(code)


def test_code_that_carries_much_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_HEAVY_BYTES", 1_000_000)
    table = bytes(2_000_000)
    code = RemoteCode(lambda: table, "look_up")
    for _ in range(2):
        codec.dump_code(code)
    said = capsys.readouterr().err
    assert said.count("warning: look_up carries 2 MB") == 1 and "rlplat.put" in said


def test_rlplats_own_errors_keep_class_and_gain_a_note() -> None:
    arrived = to_exception(describe_error(thrown(GetTimeout("late")), "task f"))
    assert type(arrived) is GetTimeout
    assert any("task f" in note for note in arrived.__notes__)


@pytest.mark.parametrize("kind", ["ActorDied", "WorkerCrashed", "OwnerDied", "NodeLost"])
def test_faults_are_made_from_their_name(kind: str) -> None:
    arrived = to_exception(ErrorInfo(kind, "why"))
    assert type(arrived) is getattr(errors, kind)
    assert str(arrived) == "why"


def test_an_error_of_an_error_keeps_the_users_class() -> None:
    """A task that got another task's error: the class survives two journeys."""
    first = to_exception(describe_error(thrown(ValueError("root")), "task inner"))
    second = to_exception(describe_error(thrown(first), "task outer"))
    assert isinstance(second, ValueError)
    assert isinstance(second, TaskError)
    assert "task outer" in str(second)
    assert "root" in str(second)


@pytest.mark.parametrize(("value", "words"), [((1, 2, 3), "3 values"), (5, "one int"), ([1], "1 values")])
def test_a_wrong_number_of_returns_is_explained(value: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"num_returns=2 but returned {words}"):
        codec.split_returns(value, 2, "f")


@pytest.mark.parametrize("value", [(1, 2), [1, 2], np.array([1, 2]), {1: "a", 2: "b"}, {1, 2}, range(1, 3)])
def test_several_returns_are_unpacked_as_by_python(value: Any) -> None:
    assert codec.split_returns(value, 2, "f") == [1, 2]


@pytest.mark.parametrize("dtype", ["?", "b", "u1", "i2", "f2", "f4", "i8", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (2, 3, 4)])
def test_small_arrays_have_a_form_of_their_own(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(int(np.prod(shape))) % 2).astype(dtype).reshape(shape)
    packed = codec.pack(array)
    assert packed.data[:1] == b"A"
    back = codec.unpack(packed.data)
    assert back.dtype == array.dtype and back.shape == shape and np.array_equal(back, array)
    assert back.flags.writeable and back.flags.aligned and type(back) is np.ndarray


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3).T,
        np.arange(3).astype(">i4"),
        np.array(["a", "bc"]),
        np.array(["2026-01-01"], "M8[D]"),
        np.array([(1, 2.0)], "i4,f8"),
        np.array([None, {}], object),
        np.ma.masked_array([1, 2], [True, False]),
    ],
)
def test_other_arrays_are_pickled(array: np.ndarray) -> None:
    back = codec.unpack(codec.pack(array).data)
    assert back.dtype == array.dtype and back.flags.f_contiguous == array.flags.f_contiguous
    assert str(back) == str(array)


@pytest.mark.parametrize(
    "value", [b"x" * (codec.OUT_OF_BAND_BYTES + 1), "x" * (codec.OUT_OF_BAND_BYTES + 1)], ids=["bytes", "str"]
)
def test_large_text_and_bytes_are_not_pickled_to_find_out_that_they_are_large(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec.pickle, "dumps", lambda *_, **__: pytest.fail("it was pickled"))
    assert codec.pack_scalar(value) is None
    assert codec.pack_scalars((1, value)) is None
