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
    """One `events.out.tfevents.*` file; the x axis is `env_steps`, every other finite figure is a scalar."""

    def __init__(self, directory: Path, *, resumed_at: int | None = None) -> None:
        """resumed_at: env steps of the checkpoint that the run goes on from; TensorBoard hides what an earlier
        file says beyond it."""
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        self._file = Appender(
            directory
            / f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        )
        self._file.append(_framed(_event(now, 0) + _bytes_field(3, b"brain.Event:2")))
        if resumed_at is not None:
            session_log = _bytes_field(7, _varint_field(1, _SESSION_START))
            self._file.append(_framed(_event(now, resumed_at + 1) + session_log))

    def write(self, record: Record) -> None:
        values = b""
        for name, value in record.items():
            number = finite_or_none(value)
            if name != _X_AXIS and isinstance(number, int | float):
                scalar = (
                    _bytes_field(1, name.encode())
                    + b"\x15"
                    + struct.pack("<f", min(max(number, -3e38), 3e38))
                )
                values += _bytes_field(1, scalar)
        if values:
            self._file.append(_framed(_event(time.time(), int(record[_X_AXIS])) + _bytes_field(5, values)))

    def close(self) -> None:
        self._file.close()


def _event(wall_time_s: float, step: int) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time_s) + _varint_field(2, step)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _varint_field(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _bytes_field(field: int, data: bytes) -> bytes:
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
