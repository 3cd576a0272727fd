"""The networks on TensorFlow: same parameters, same numbers, same checkpoints as rl/torch (docs/frameworks.md).

Everything that computes with TensorFlow takes it from here, `from rlplat.rl.tf import tf`, so that one place decides
how it is imported: late (it takes seconds), with one message where it is missing, without a word on the terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from rlplat.errors import MissingExtra
from rlplat.given.triton_first import before_tensorflow

_NOISE = (b"I0000 ", b"WARNING: All log messages before absl::InitializeLog()")


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """TensorFlow's libraries say on file descriptor 2 that they use oneDNN, before any log level can hold them back
    (tensorflow issue 100442); what others wrote there meanwhile is passed on."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            kept.seek(0)
            for line in kept:
                if not line.startswith(_NOISE):
                    os.write(2, line)


# 3: what cannot be done raises an exception anyway; what is logged as an error is that an optimisation was left out.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
before_tensorflow()
with _without_noise():
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise  # it is installed, something that it needs is not
        raise MissingExtra("tensorflow", "tf", "framework=tf") from None

__all__ = ["tf"]
