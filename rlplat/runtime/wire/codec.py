"""Values and code to bytes and back: pickle 5 for data, cloudpickle only where code may hide.

Plain values take the C pickler (0.4 µs); anything that could hold a class or function of the user's script goes
through cloudpickle, which ships those by value. Buffers of at least `OUT_OF_BAND_BYTES` stay out of the
stream, so that they can be copied once into shared memory and mapped from there.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import itertools
import pickle
import struct
import sys
import threading
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlplat.errors import RlplatError, SerializationError
from rlplat.given.say import say
from rlplat.runtime.process.signals import is_of_handler
from rlplat.runtime.refs import ObjectRef, collecting_refs
from rlplat.runtime.wire.pickler import Pickler, dumps

if TYPE_CHECKING:
    from rlplat.runtime.wire.signatures import Signature

OUT_OF_BAND_BYTES = 64 * 1024
_MAX_BYTES = 512 << 20
"""Of code, or of values, inside one message: no receiver takes a frame of more than 1 GiB."""
_HEAVY_BYTES = 10_000_000
"""Of code: what is larger is named."""
_SCALARS = frozenset({int, float, bool, str, bytes, type(None)})
_PLAIN = _SCALARS | {ObjectRef}
NO_ARGS = pickle.dumps(((), {}), protocol=5)
NONE = pickle.dumps(None, protocol=5)


@dataclass(slots=True)
class Packed:
    data: bytes
    buffers: list[pickle.PickleBuffer]
    refs: list[ObjectRef]
    """Every ref that the value contains, once for each occurrence."""
    has_tensors: bool = False
    """Frameworks' tensors know no read-only memory: who reads the value gets memory that it may write."""

    def is_large(self) -> bool:
        """Whether it belongs into shared memory."""
        return bool(self.buffers) or len(self.data) > OUT_OF_BAND_BYTES


def _is_plain(value: Any, depth: int = 4) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if not depth:  # deeper, or a cycle: the general pickler takes it
        return False
    if kind is tuple or kind is list:
        return len(value) <= 16 and all(_is_plain(part, depth - 1) for part in value)
    if kind is dict:
        return len(value) <= 16 and all(
            _is_plain(key, depth - 1) and _is_plain(part, depth - 1) for key, part in value.items()
        )
    return kind.__name__ == "ndarray" and kind.__module__ == "numpy" and not value.dtype.hasobject


def pack_scalars(args: tuple) -> bytes | None:
    """`(args, {})` pickled when all of `args` are small scalars (the common case, at little cost), else None."""
    if not args:
        return NO_ARGS
    for arg in args:
        kind = type(arg)
        if kind not in _SCALARS or ((kind is bytes or kind is str) and len(arg) > OUT_OF_BAND_BYTES):
            return None
    data = pickle.dumps((args, {}), protocol=5)
    return data if len(data) <= OUT_OF_BAND_BYTES else None


def pack_scalar(value: Any) -> bytes | None:
    """A result pickled when it is a small scalar, else None."""
    if value is None:
        return NONE
    kind = type(value)
    if kind not in _SCALARS or ((kind is bytes or kind is str) and len(value) > OUT_OF_BAND_BYTES):
        return None
    data = pickle.dumps(value, protocol=5)
    return data if len(data) <= OUT_OF_BAND_BYTES else None


def pack(value: Any, what: str = "the value") -> Packed:
    """Pickle `value`. `what` names it in the error: "argument 2 of train_step", "the result of f"."""
    if type(value).__name__ == "ndarray" and type(value).__module__ == "numpy":
        data = _pack_array(value)
        if data is not None:
            return Packed(data, [], [])
    if (type(value) is bytes or type(value) is bytearray) and len(value) >= OUT_OF_BAND_BYTES:
        value = _LargeBytes(value)
    buffers: list[pickle.PickleBuffer] = []
    has_tensors = False

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < OUT_OF_BAND_BYTES:
            return True
        buffers.append(buffer)
        return False

    with collecting_refs() as refs:
        try:
            if type(value) is _LargeBytes or _is_plain(value):
                data = pickle.dumps(value, protocol=5, buffer_callback=keep_in_band)
            else:
                _tensors.were_packed = False
                stream = io.BytesIO()
                _pickler_class()(stream, protocol=5, buffer_callback=keep_in_band).dump(value)
                data = stream.getvalue()
                has_tensors = _tensors.were_packed
        except RlplatError:
            raise
        except Exception as error:
            if is_of_handler(error):
                raise
            raise SerializationError(
                f"{what} cannot be pickled: {_culprit(value)} ({type(error).__name__}: {error}). "
                "Make it inside the task or actor, or leave it out with __getstate__."
            ) from error
    return Packed(data, buffers, refs, has_tensors)


def is_out_of_band(array: Any) -> bool:
    """Whether pickling this array leaves its memory, as it is, out of the stream."""
    try:
        return memoryview(array).nbytes > OUT_OF_BAND_BYTES and not array.dtype.hasobject
    except ValueError:  # dates and times
        return False


def pack_inline(value: Any, what: str = "the value") -> tuple[bytes, list[ObjectRef]]:
    """`value` as one stream of bytes, however large, and the refs in it."""
    packed = pack(value, what)
    if packed.buffers:
        with collecting_refs():
            return dumps(value), packed.refs
    return packed.data, packed.refs


def check_fits(what: str, sizes: Iterable[int], way_out: str) -> None:
    """Refuse values that are to travel inside one message and are too long for any."""
    num_bytes = sum(sizes)
    if num_bytes > _MAX_BYTES:
        raise SerializationError(
            f"{what} cannot be sent: {num_bytes / 1e6:.0f} MB in one message, and {_MAX_BYTES / 1e6:.0f} MB is the "
            f"most. {way_out}"
        )


def unpack(data: Any, buffers: Any = ()) -> Any:
    if data == NONE:
        return None
    if data[0] == _ARRAY:
        return _unpack_array(data)
    return pickle.loads(data, buffers=buffers)


# ---------------------------------------------------------------- small arrays: pickle takes ten times as long

_ARRAY = 0x41
"""First byte of an array's own form; a pickle of protocol 5 begins with 0x80."""
_ARRAY_CHARS = frozenset("?bBhHiIlLqQefdFD")
_headers: dict[tuple[str, tuple[int, ...]], bytes] = {}
_forms: dict[bytes, tuple[str, tuple[int, ...]]] = {}


def _pack_array(array: Any) -> bytes | None:
    """`A`, dtype, number of axes, padding to 8, axes (int64), elements in C order; None: pickle has to do."""
    dtype = array.dtype
    if array.nbytes > OUT_OF_BAND_BYTES or dtype.isbuiltin != 1 or dtype.char not in _ARRAY_CHARS:
        return None
    if not array.flags.c_contiguous:
        return None
    form = (dtype.char, array.shape)
    header = _headers.get(form)
    if header is None:
        header = struct.pack(f"<ccB5x{array.ndim}q", b"A", form[0].encode(), array.ndim, *array.shape)
        if len(_headers) < 10_000:  # shapes without end are no reason to keep them all
            _headers[form] = header
    return header + array.tobytes()


def _unpack_array(data: bytes) -> Any:
    """A writable array of its own."""
    import numpy as np

    header = bytes(data[: 8 + 8 * data[2]])
    form = _forms.get(header)
    if form is None:
        _, char, _, *shape = struct.unpack(f"<ccB5x{data[2]}q", header)
        form = (char.decode(), tuple(shape))
        if len(_forms) < 10_000:
            _forms[header] = form
    return np.ndarray(form[1], form[0], bytearray(data), len(header))


# ---------------------------------------------------------------- bytes and tensors, out of band


class _LargeBytes:
    """Pickled, it is bytes (or a bytearray) again, which are copied once on either side."""

    def __init__(self, value: bytes | bytearray) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        return type(self._value), (pickle.PickleBuffer(self._value),)


_tensors = threading.local()
_torch_pickler: Any = None
_has_torch_warned = False


def _pickler_class() -> Any:
    """Ours; where torch is imported, one that leaves large CPU tensors out of the stream as well."""
    global _torch_pickler
    torch = sys.modules.get("torch")
    if _torch_pickler is None and getattr(torch, "Tensor", None) is not None:
        table = {torch.Tensor: _reduce_tensor}  # type: ignore[union-attr]
        maps = ChainMap(table, *Pickler.dispatch_table.maps)
        _torch_pickler = type("TorchPickler", (Pickler,), {"dispatch_table": maps})
    return _torch_pickler or Pickler


def _reduce_tensor(tensor: Any) -> Any:
    """A large dense tensor on the CPU, as numpy sees it; any other as torch would have it."""
    torch = sys.modules["torch"]
    num_bytes = tensor.numel() * tensor.element_size()
    if _is_part(tensor, torch, num_bytes):  # torch would send the memory of the whole
        return _rebuild_part, (tensor.detach().clone(), tensor.requires_grad)
    if (
        num_bytes < OUT_OF_BAND_BYTES
        or tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.untyped_storage().nbytes() < num_bytes  # expanded: it is smaller than it looks
    ):
        return tensor.__reduce_ex__(5)
    plain, dtype = tensor.detach(), ""
    try:
        array = plain.numpy()
    except TypeError:  # bfloat16 and such
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(plain.element_size())
        if whole is None:
            return tensor.__reduce_ex__(5)
        array, dtype = plain.view(whole).numpy(), str(plain.dtype).removeprefix("torch.")
    _tensors.were_packed = True
    return _rebuild_tensor, (array, dtype, tensor.requires_grad)


def _is_part(tensor: Any, torch: Any, num_bytes: int) -> bool:
    """Whether it is a slice of a larger tensor."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    return bool(num_bytes < tensor.untyped_storage().nbytes() and tensor.grad_fn is None)


def _rebuild_part(tensor: Any, requires_grad: bool) -> Any:
    return tensor.requires_grad_() if requires_grad else tensor


def _rebuild_tensor(array: Any, dtype: str, requires_grad: bool) -> Any:
    import numpy as np

    torch: Any = importlib.import_module("torch")
    global _has_torch_warned
    if not _has_torch_warned:
        # It does so once per process, of any array that numpy calls read-only; memory below a tensor never is.
        _has_torch_warned = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.from_numpy(np.frombuffer(bytes(8)))
    tensor = torch.from_numpy(array)
    if dtype:
        tensor = tensor.view(getattr(torch, dtype))
    return tensor.requires_grad_() if requires_grad else tensor


def buffers_here(packed: Packed) -> list[Any]:
    """For unpacking in the process that packed: read-only, or copies where a tensor may be written."""
    views = [memoryview(buffer) for buffer in packed.buffers]
    return [bytearray(view) if packed.has_tensors else view.toreadonly() for view in views]


def dump_code(code: RemoteCode) -> None:
    """Fill `blob` and `key` of a function or class that is to run elsewhere."""
    if code.blob is None:
        try:
            with collecting_refs() as refs:
                blob = dumps(code.target)
        except Exception as error:
            if is_of_handler(error):
                raise
            culprit = _culprit(code.target)
            raise SerializationError(
                f"{code.name} cannot be sent to a worker: {culprit} cannot be pickled "
                f"({type(error).__name__}: {error}). Create it inside {code.name}."
            ) from error
        if len(blob) > _MAX_BYTES:
            raise SerializationError(
                f"{code.name} cannot be sent to a worker: it carries {len(blob) / 1e6:.0f} MB, of its closure or of "
                "global variables. Pass large values as arguments, or refs to them from rlplat.put."
            )
        if len(blob) > _HEAVY_BYTES:
            say(
                f"warning: {code.name} carries {len(blob) / 1e6:.0f} MB, of its closure or of global variables, to "
                "each worker anew. Pass large values as arguments, or refs to them from rlplat.put"
            )
        code.key = hashlib.blake2b(blob, digest_size=8).hexdigest()
        if code.max_calls:  # the same function without it, or with another, is another one to its workers
            code.key += f".{code.max_calls}"
        code.blob, code.refs = blob, refs


def _picklable(value: Any) -> bool:
    with collecting_refs():
        try:
            dumps(value)
        except Exception:
            return False
    return True


def _culprit(value: Any, path: str = "", depth: int = 8) -> str:
    """The deepest part that cannot be pickled, as an attribute path: `self.env._lock (_thread.lock)`."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts = [(f"{path}[{key!r}]", item) for key, item in list(value.items())[:200]]
    elif isinstance(value, (list, tuple)):
        parts = [(f"{path}[{index}]", item) for index, item in enumerate(value[:200])]
    elif callable(value) and getattr(value, "__closure__", None):
        names = value.__code__.co_freevars
        parts = [(f"closure variable {n!r}", c.cell_contents) for n, c in zip(names, value.__closure__, strict=True)]
    elif isinstance(value, type):
        parts = [(f"{path or value.__name__}.{key}", item) for key, item in list(vars(value).items())[:200]]
        parts = [(name, item) for name, item in parts if not name.endswith(("__dict__", "__weakref__"))]
    elif hasattr(value, "__dict__"):
        parts = [(f"{path}.{key}", item) for key, item in list(vars(value).items())[:200]]
    if callable(value) and hasattr(value, "__globals__"):
        parts += [
            (f"global variable {name!r}", value.__globals__[name])
            for name in value.__code__.co_names
            if name in value.__globals__
        ]
    if depth:
        for name, part in parts:
            if not _picklable(part):
                return _culprit(part, name, depth - 1)
    kind = type(value)
    return f"{path.lstrip('.') or 'it'} of type {kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True)
class Raised:
    """Takes the place of the values that a generator had still to make."""

    error: Exception


def split_returns(value: Any, num_returns: int, what: str) -> list[Any]:
    """The values of a call, as Python unpacks them into so many names. A generator's are those that it yields: one that
    raises, or ends too early, keeps those that it has made, and the error (`Raised`) is the rest."""
    is_generator = inspect.isgenerator(value)
    if num_returns == 1 and not is_generator:
        return [value]
    what = f"{what} has num_returns={num_returns} but"
    if not isinstance(value, Iterable):
        raise TypeError(f"{what} returned one {type(value).__name__}")
    made: list[Any] = []
    try:
        made.extend(itertools.islice(value, num_returns + 1))
    except Exception as raised:
        if not 0 < len(made) < num_returns:
            raise
        return made + [Raised(raised)] * (num_returns - len(made))
    if len(made) == num_returns:
        return made
    if not is_generator:
        raise ValueError(f"{what} returned {len(value) if isinstance(value, Sized) else 'not so many'} values")
    error = ValueError(f"{what} yielded {f'more than {num_returns}' if len(made) > num_returns else len(made)} values")
    if not 0 < len(made) < num_returns:
        raise error
    return made + [Raised(error)] * (num_returns - len(made))


@dataclass(eq=False)
class RemoteCode:
    """A function or class to run elsewhere; pickled once, on first use."""

    target: Callable[..., Any]
    name: str
    blob: bytes | None = None
    key: str | None = None
    """Hash of `blob`: what workers remember it by."""
    max_calls: int = 0
    signature: Signature | None = None
    """Worked out at the first call."""
    refs: list[ObjectRef] = field(default_factory=list)
    """Refs (and those of actor handles) that the function closes over: held as long as the function."""
