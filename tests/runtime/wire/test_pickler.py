"""Values and exceptions out and back: the type, the attributes and the class are those that were sent."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pickle
import subprocess
import sys
import textwrap
import threading
import types
import urllib.error
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pydantic
import pytest

from rlplat.errors import TaskError
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.errors import describe_error, to_exception
from rlplat.runtime.wire.pickler import dumps

STANDARD = (
    "builtins", "argparse", "asyncio", "binascii", "bz2", "concurrent.futures", "configparser", "copy", "csv",
    "ctypes", "dataclasses", "email.errors", "enum", "fractions", "ftplib", "getopt", "gzip", "html.parser",
    "http.client", "http.cookies", "imaplib", "importlib.metadata", "ipaddress", "json", "locale", "lzma", "mailbox",
    "multiprocessing", "netrc", "nntplib", "optparse", "pickle", "plistlib", "poplib", "queue", "re", "resource",
    "select", "shelve", "shutil", "smtplib", "socket", "sqlite3", "ssl", "statistics", "struct", "subprocess",
    "tarfile", "tempfile", "threading", "tokenize", "tomllib", "traceback", "unittest", "urllib.error", "uuid",
    "wave", "xml.dom", "xml.etree.ElementTree", "xml.sax", "zipfile", "zlib", "zoneinfo",
)  # fmt: skip
PACKAGES = (
    "cloudpickle", "gymnasium.error", "msgspec", "numpy.exceptions", "numpy.linalg", "psutil", "pydantic", "starlette",
    "yaml", "zmq",
)  # fmt: skip
ARGUMENTS: tuple[tuple[Any, ...], ...] = (
    ("text",), (), (2, "text"), (2, "text", "file"), ("utf-8", b"ab\xff", 2, 3, "bad byte"), ("ab\xff", 2, 3, "bad"),
    ("text", [ValueError("one"), KeyError("two")]), ("text", ("file", 1, 2, "line", 1, 3)), (1, b"text"), ("a", "b"),
    (b"part", 10), ("a", "b", 3), ("a", 1, "b", 2),
)  # fmt: skip


def exceptions() -> list[BaseException]:
    """One of each class in these modules that can be made from some simple arguments."""
    made: dict[type, BaseException] = {}
    for name in (*STANDARD, *PACKAGES):
        try:
            module = importlib.import_module(name)
        except ImportError:  # of another version of Python
            continue
        for kind in vars(module).values():
            if (
                not inspect.isclass(kind)
                or not issubclass(kind, Exception)
                or kind in made
                or kind is urllib.error.HTTPError
            ):
                continue
            for args in ARGUMENTS:
                try:
                    made[kind] = kind(*args)
                    break
                except Exception:
                    continue
    return list(made.values())


def fields(error: BaseException) -> dict[str, Any]:
    """All that can be read of it, built-in attributes (`errno`, `reason`, `value`) included."""
    names = [name for name in dir(error) if not name.startswith("_") and name not in ("args", "cause", "add_note")]
    return {name: value for name in names if hasattr(error, name) and not callable(value := getattr(error, name))}


def back(error: BaseException) -> BaseException:
    return to_exception(describe_error(error, "task f"))


@pytest.mark.filterwarnings("ignore")
def test_exceptions_of_libraries_arrive_as_their_classes_with_their_attributes() -> None:
    made = exceptions()
    assert len(made) > 150
    wrong = {}
    for error in made:
        got = back(error)
        lost = {
            name: (value, getattr(got, name, "missing"))
            for name, value in fields(error).items()
            if repr(getattr(got, name, "missing")) != repr(value)
        }
        if not isinstance(got, type(error)) or lost:
            wrong[f"{type(error).__module__}.{type(error).__qualname__}"] = (type(got).__mro__[:3], lost)
    assert wrong == {}


class Prefixed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class KeywordOnly(ValueError):
    def __init__(self, *, code: int) -> None:
        super().__init__("no")
        self.code = code


class TwoFields(OSError):
    def __init__(self, field: str, message: str) -> None:
        super().__init__(13, message, "a file")
        self.field = field


class NewTakesMore(Exception):
    def __new__(cls, a: int, b: int) -> NewTakesMore:
        return super().__new__(cls, a)

    def __init__(self, a: int, b: int) -> None:
        self.b = b


class WithSlots(Exception):
    __slots__ = ("place",)

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place


class HoldsALock(Exception):
    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what, self.lock = what, threading.Lock()


class OwnPickling(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__("own")
        self.sum = a + b

    def __reduce__(self) -> Any:
        return OwnPickling, (self.sum, 0)


class ItsOwnArgument(Exception):
    def __init__(self) -> None:
        super().__init__()
        self.me = self


class Model(pydantic.BaseModel):
    x: int


@pytest.mark.parametrize(
    "error",
    [Prefixed(7), KeywordOnly(code=7), TwoFields("age", "negative"), NewTakesMore(1, 2), WithSlots("here"),
     OwnPickling(1, 2),
     urllib.error.HTTPError("http://x", 404, "not found", {}, None), urllib.error.URLError(OSError(111, "refused")),
     ExceptionGroup("all", [Prefixed(1), KeywordOnly(code=2)])],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_exceptions_whose_constructor_takes_other_arguments(error: Exception) -> None:
    got: Any = back(error)
    assert isinstance(got, type(error)) and isinstance(got, TaskError)
    names = [
        name for name in ("code", "field", "errno", "filename", "b", "place", "sum", "reason") if hasattr(error, name)
    ]
    assert [repr(getattr(got, name)) for name in names] == [repr(getattr(error, name)) for name in names]
    assert repr(got.cause.args) == repr(error.args) or type(error) is OwnPickling
    assert str(got.cause) == str(error)
    again = pickle.loads(dumps(got))  # a task that got it raises it once more
    assert isinstance(again, type(error))
    value = codec.unpack(codec.pack([error]).data)[0]  # as a value, not raised
    assert type(value) is type(error) and str(value) == str(error)


def test_a_final_class_is_raised_as_it_is() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        Model(x="no")  # type: ignore[arg-type]
    got = back(caught.value)
    assert isinstance(got, pydantic.ValidationError)
    assert got.errors()[0]["type"] == "int_parsing" and "task f raised" in got.__notes__[0]


def test_what_cannot_be_pickled_of_an_exception_is_left_out() -> None:
    got: Any = back(HoldsALock("it"))
    assert isinstance(got, HoldsALock) and got.what == "it" and not hasattr(got, "lock")
    own: Any = back(ItsOwnArgument())
    assert isinstance(own, ItsOwnArgument) and own.cause.me.me is own.cause.me


def test_an_exception_that_cannot_be_pickled_at_all_says_so() -> None:
    class Never(Exception):
        def __reduce__(self) -> Any:
            raise RuntimeError("no")

    got = back(Never("x"))
    assert type(got) is TaskError and "Never (which cannot be pickled" in str(got)


SCRIPT = """
import dataclasses, enum, functools, sys, typing, collections, abc
import numpy as np
import rlplat
from typing import NamedTuple

class Plain:
    __slots__ = ("a", "__weakref__", "__hidden")
    def __init__(self): self.a = 1; self.__hidden = 2
    def key(self): return self.a, self.__hidden, hasattr(self, "__dict__")
class Child(Plain):
    __slots__ = "b"
    def __init__(self): super().__init__(); self.b = 3
    def key(self): return super().key(), self.b
class Open(Plain):
    def __init__(self): super().__init__(); self.c = 4
    def key(self): return super().key(), self.c
@dataclasses.dataclass(slots=True)
class Point:
    a: int = 1
    b: list = dataclasses.field(default_factory=list)
    def key(self): return self.a, self.b, hasattr(self, "__dict__")
@dataclasses.dataclass(slots=True, frozen=True, order=True)
class Frozen:
    a: int = 1
    def key(self): return self.a, hash(self), self < Frozen(2)
class WithSlotMeta(abc.ABC):
    __slots__ = ("x",)
    def __init__(self): self.x = 1
    def key(self): return self.x
class Pair(NamedTuple):
    a: int = 1
    def key(self): return tuple(self)
class Colour(enum.Enum):
    RED = 1
    def key(self): return self.name, self is Colour.RED
class Flagged(enum.IntFlag):
    A = 1
    B = 2
    def key(self): return int(self | Flagged.B)
@functools.lru_cache(maxsize=3)
def square(x): return x * x
class Cached:
    def __init__(self): self.n = 0
    @functools.cached_property
    def once(self): self.n += 1; return self.n
    @functools.lru_cache
    def more(self, x): return x + 1
    @staticmethod
    @functools.lru_cache(maxsize=None, typed=True)
    def still(x): return x
    @classmethod
    @functools.cache
    def of(cls, x): return cls.__name__, x
    def key(self):
        typed = Cached.still.cache_parameters()["typed"]
        return self.once, self.once, self.more(1), self.still(2), self.of(3), typed
class Generic(typing.Generic[typing.TypeVar("T")]):
    __slots__ = ("v",)
    def __init__(self): self.v = 5
    def key(self): return self.v
class Wrong(Exception):
    def __init__(self, *, code): super().__init__(f"code {code}"); self.code = code
    def key(self): return self.code, self.args

@rlplat.remote
def key_and_back(x): return x.key(), x, type(x) is type(x).__mro__[0]
@rlplat.remote
def use(x): return square(x), square.cache_parameters()["maxsize"]
@rlplat.remote
def fail(): raise Wrong(code=7)
@rlplat.remote
class Actor:
    @functools.lru_cache
    def more(self, x): return x + 1

rlplat.init(num_cpus=1)
kinds = Plain, Child, Open, Point, Frozen, WithSlotMeta, Pair, Cached, Generic
for value in (*(kind() for kind in kinds), Colour.RED, Flagged.A, Wrong(code=2)):
    there, here, _ = rlplat.get(key_and_back.remote(value))
    assert there == value.key() or type(value) is Frozen, (value, there, value.key())
    assert type(here) is type(value), (type(here), type(value))
    assert here.key() == value.key(), (value, here.key())
assert rlplat.get(use.remote(3)) == (9, 3)
assert rlplat.get(Actor.remote().more.remote(1)) == 2
try:
    rlplat.get(fail.remote())
except Wrong as error:
    assert error.code == 7, error
rlplat.shutdown()
print("fine")
"""


@pytest.mark.process
def test_classes_of_the_script_itself(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "fine", done.stderr[-2000:]


def test_a_class_that_cannot_be_pickled_is_named_with_its_attribute() -> None:
    space: dict[str, Any] = {"__name__": "__main__", "threading": threading}
    exec("class Holder:\n    lock = threading.Lock()\ndef f(): return Holder", space)
    with pytest.raises(Exception, match=r"'Holder'\.lock of type _thread\.lock"):
        codec.dump_code(codec.RemoteCode(space["f"], "f"))


class PassesOn:
    """A wrapper, as of an environment: what it does not have is asked of what it holds."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class PassesOnFromSlots:
    __slots__ = ("inner",)
    __getattr__ = PassesOn.__getattr__

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class ListThatPassesOn(list):
    __getattr__ = PassesOn.__getattr__


class SaysItsState(PassesOn):
    def __getstate__(self) -> dict[str, Any]:
        return {"inner": "said"}


@pytest.mark.parametrize("kind", [PassesOn, PassesOnFromSlots, SaysItsState, ListThatPassesOn])
def test_an_object_that_asks_another_for_its_attributes(kind: Any) -> None:
    """Python's own way asks the new object for `__setstate__`, which asks for what it has not got yet, without end."""
    made = kind(["a"])
    if kind is ListThatPassesOn:
        made.inner = ["a"]
    inner = pickle.loads(dumps(made)).inner
    assert inner == ("said" if kind is SaysItsState else ["a"])


def test_an_application_of_a_web_framework() -> None:
    """Made at the top of a file, as its documentation does: starlette's State is such an object."""
    app = pytest.importorskip("fastapi").FastAPI()
    app.state.answer = 42
    app.get("/answer")(lambda: app.state.answer)
    assert pickle.loads(dumps(app)).state.answer == 42


@pytest.mark.parametrize("size", [8, 40_000])
def test_a_slice_of_a_tensor_sends_its_rows_only(size: int) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(1_000_000, dtype=torch.float32)
    part = whole[100 : 100 + size].requires_grad_()
    packed = codec.pack({"part": part})
    assert len(packed.data) + sum(buffer.raw().nbytes for buffer in packed.buffers) < 4 * size + 2000
    got = codec.unpack(packed.data, codec.buffers_here(packed))["part"]
    assert torch.equal(got, part) and got.requires_grad
    strided = codec.pack([whole.reshape(1000, 1000)[:10, ::2].t()])
    assert len(strided.data) + sum(buffer.raw().nbytes for buffer in strided.buffers) < 25_000


DYNAMIC = """
import importlib.util, multiprocessing, sys, types
import rlplat
class Own: pass
def main():
    made = types.ModuleType("made")
    exec("class Made: pass", made.__dict__)
    sys.modules["made"] = made
    spec = importlib.util.spec_from_file_location("loaded", "there.py")
    loaded = sys.modules["loaded"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    rlplat.init(num_cpus=1, num_gpus=0)
    back = rlplat.remote(lambda value: value)
    for kind in (Own, made.Made, loaded.Loaded):
        assert type(rlplat.get(back.remote(kind()))) is kind
    assert rlplat.get(rlplat.remote(loaded.answer).remote()) == 42
    sys.path.append("late")
    import later
    try:
        rlplat.get(back.remote(later.Later()))
    except ModuleNotFoundError as error:
        assert "PYTHONPATH" in str(error)
    print(__name__)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=main)
    process.start()
    process.join()
"""


@pytest.mark.process
def test_modules_that_no_search_finds(tmp_path: Path) -> None:
    """Made by hand or from a file, or the program of a process that multiprocessing has started (`__mp_main__`)."""
    (tmp_path / "there.py").write_text("class Loaded: pass\ndef answer(): return 42\n")
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "later.py").write_text("class Later: pass\n")
    (tmp_path / "program.py").write_text(DYNAMIC)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "__mp_main__\n", done.stderr


def test_cached_functions_that_can_be_imported_go_by_name() -> None:
    assert codec.unpack(codec.pack(inspect.getattr_static(functools, "lru_cache")).data) is functools.lru_cache
    blob = codec.pack([_cached_here]).data
    assert len(blob) < 200 and codec.unpack(blob)[0] is _cached_here


@functools.lru_cache
def _cached_here(x: int) -> int:
    return x


def test_cached_functions_of_a_module_that_goes_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a setting names, `./my_algo.py:Mine`: no other process can import it."""
    module = types.ModuleType("named_by_a_setting")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("import functools\n@functools.lru_cache(maxsize=3)\ndef double(x): return 2 * x", vars(module))
    cloudpickle.register_pickle_by_value(module)
    try:
        data = codec.pack([module.double]).data
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    monkeypatch.delitem(sys.modules, module.__name__)
    (double,) = codec.unpack(data)
    assert double(2) == 4 and double.cache_parameters()["maxsize"] == 3


def test_values_of_libraries_are_equal_again() -> None:
    import collections
    import datetime
    import decimal
    import fractions
    import ipaddress
    import uuid
    import zoneinfo

    values = [
        collections.OrderedDict(a=1), collections.Counter("aab"), collections.deque([1], 3), frozenset({1}),
        collections.defaultdict(list, {1: [2]}), datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC")),
        datetime.timedelta(3), decimal.Decimal("1.5"), fractions.Fraction(1, 3), uuid.UUID(int=7), range(3),
        ipaddress.ip_address("::1"), Path("/a"), 1 + 2j, bytearray(b"x"), Ellipsis, NotImplemented, int, len, {1, 2},
        np.dtype("f4"), np.float64(0.1), np.array([1, "x"], object), np.array([(1, 2.0)], "i4,f8"), slice(1, 2),
        np.ma.array([1, 2], mask=[0, 1]), np.datetime64("2026-01-01"), functools.partial(int, base=2), np.float32,
        dataclasses.make_dataclass("Made", ["a"])(1), inspect.signature(back), np.random.default_rng(3),
        sys.version_info[:3], type("Local", (), {"a": 1}),
    ]  # fmt: skip
    for value in values:
        packed = codec.pack([value])
        got = codec.unpack(packed.data, codec.buffers_here(packed))[0]
        assert type(got) is type(value) or type(value).__name__ == "Made"
        if isinstance(value, functools.partial):
            assert got("11") == 3
        elif isinstance(value, np.random.Generator):
            assert got.random() == np.random.default_rng(3).random()
        elif not isinstance(value, type):
            assert repr(got) == repr(value)
