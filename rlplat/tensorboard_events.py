"""TensorBoard event files, written directly: the format is two small protobuf messages in length-prefixed records.

Importing tensorboard takes a quarter of a second and may pull TensorFlow in; only looking at the curves needs it
(`pip install 'rlplat[log]'; tensorboard --logdir runs`). Record: uint64 length, masked CRC-32C of those 8 bytes, data,
masked CRC-32C of the data, little endian. Messages: tensorflow/core/util/event.proto and framework/summary.proto.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

from rlplat.metrics import Appender, Record, finite_or_none

_X_AXIS = "env_steps"
_SESSION_START = 1


class TensorboardWriter:
    """One `events.out.tfevents.*` file; the x axis is `env_steps`, every other finite figure is a scalar. Figures of an
    evaluation are at the env steps of its weights."""

    def __init__(self, directory: Path, *, resumed_at: int | None = None) -> None:
        """resumed_at: env steps of the checkpoint that the run goes on from; TensorBoard hides what an earlier
        file says beyond it."""
        directory.mkdir(parents=True, exist_ok=True)
        self._file = Appender(directory / event_file_name())
        self._file.append(version_record())
        if resumed_at is not None:
            self._file.append(purge_record(resumed_at + 1))

    def write(self, record: Record) -> None:
        step = int(record[_X_AXIS])
        evaluated = {name: value for name, value in record.items() if name.startswith("eval/")}
        others = {name: value for name, value in record.items() if name not in evaluated and name != _X_AXIS}
        of_weights = evaluated.get("eval/env_steps")
        for at, figures in ((step, others), (step if of_weights is None else int(of_weights), evaluated)):
            if values := scalars(figures):
                self._file.append(summary_record(time.time(), at, values))

    def close(self) -> None:
        self._file.close()


def event_file_name() -> str:
    """Of a file that no other process, and none before, has written."""
    return f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"


def version_record() -> bytes:
    """The first record of a file."""
    return _framed(_event(time.time(), 0) + bytes_field(3, b"brain.Event:2"))


def purge_record(step: int) -> bytes:
    """From here on TensorBoard hides what was said before of this step and those beyond."""
    return _framed(_event(time.time(), step) + bytes_field(7, varint_field(1, _SESSION_START)))


def summary_record(wall_time_s: float, step: int, values: bytes) -> bytes:
    """values: the fields of a Summary message, from `scalars`."""
    return _framed(_event(wall_time_s, step) + bytes_field(5, values))


def scalars(record: Record) -> bytes:
    """Every finite figure of the record; empty where there is none."""
    values = b""
    for name, value in record.items():
        number = finite_or_none(value)
        if isinstance(number, int | float):
            simple_value = b"\x15" + struct.pack("<f", min(max(number, -3e38), 3e38))
            values += bytes_field(1, bytes_field(1, name.encode()) + simple_value)
    return values


def _event(wall_time_s: float, step: int) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time_s) + varint_field(2, step)


def double_field(field: int, number: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def varint_field(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def bytes_field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # CRC-32C (Castagnoli), reflected
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
