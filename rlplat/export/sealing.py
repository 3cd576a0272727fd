"""A checksum inside an ONNX file, so that a cut file or a flipped bit is seen before the file is used.

Protocol buffers that are written one after another are merged when they are read: behind the model stands one more
entry of its metadata, `rlplat.sha256`, and every reader of ONNX takes it as such.
"""

from __future__ import annotations

import hashlib

from rlplat.errors import CheckpointError

KEY = "rlplat.sha256"
_METADATA_PROPS = 14  # the field's number in onnx.ModelProto


def seal(model: bytes) -> bytes:
    """model: a serialized ModelProto -> the same with its checksum."""
    return model + _entry(hashlib.sha256(model).hexdigest())


def is_sealed(data: bytes) -> bool:
    """Whether it ends as `seal` ends a file."""
    return data[-_LENGTH:-64] == _entry("0" * 64)[:-64]


def require_whole(data: bytes, file: str) -> None:
    """CheckpointError where the bytes are not those that were sealed."""
    if data != seal(data[:-_LENGTH]):
        raise CheckpointError(f"{file} is damaged: its checksum is not that of its bytes; export it again")


def _entry(digest: str) -> bytes:
    pair = b"".join(bytes([number << 3 | 2, len(text)]) + text.encode() for number, text in ((1, KEY), (2, digest)))
    return bytes([_METADATA_PROPS << 3 | 2, len(pair)]) + pair


_LENGTH = len(_entry("0" * 64))
