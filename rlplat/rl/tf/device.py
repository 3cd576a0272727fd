"""Where and in which precision TensorFlow computes: `learner.device`, `learner.precision`, threads, determinism."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.policies.spec import PolicySpec, cpu_share
from rlplat.rl.tf import tf

CPU, GPU = "/CPU:0", "/GPU:0"


def set_up(num_threads: int, spec: PolicySpec, *, deterministic: bool = False) -> None:
    """Threads of TensorFlow in this process, and GPU memory taken as it is needed.

    num_threads 0: one for an MLP (kernels are over before threads wake), else all CPUs. TensorFlow starts its threads
    with the first operation: in a process that has computed with it already (`num_rollout_workers=0`), they stay.
    """
    if num_threads == 0:
        num_threads = 1 if not spec.has_images else cpu_share(1)
    with contextlib.suppress(RuntimeError):  # "cannot be modified after initialization"
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_threads)
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def resolve_device(device: str, spec: PolicySpec) -> str:
    """TensorFlow's name for `learner.device`. `auto`: for image encoders the GPU that the runtime gave this process, if
    any; else the CPU."""
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    if device == "cuda" and not has_gpu:
        raise ConfigError(
            "learner.device=cuda, but TensorFlow sees no GPU in the learner's process; set learner.num_gpus=1 so that "
            "it is given one and install tensorflow[and-cuda] (rlplat[tf] brings the CPU build), or learner.device=auto"
        )
    on_gpu = device == "cuda" or (device == "auto" and spec.has_images and has_gpu)
    return GPU if on_gpu else CPU


def resolve_precision(precision: str, spec: PolicySpec, device: str) -> tf.DType:
    """The dtype of an encoder's arithmetic (parameters, heads and losses are float32 always).

    `auto`: bfloat16 for convolutions where the hardware multiplies it natively, float32 for MLPs, which are too small
    to gain anything.
    """
    if precision == "float32" or (precision == "auto" and not spec.has_large_images):
        return tf.float32
    if precision == "bfloat16":
        if not spec.has_images:
            raise ConfigError("learner.precision=bfloat16 is for image encoders; use auto or float32 with an MLP")
        return tf.bfloat16
    return tf.bfloat16 if has_fast_bfloat16(device) else tf.float32


def has_fast_bfloat16(device: str) -> bool:
    """Whether the device multiplies bfloat16 natively (CPU: AVX512_BF16 or AMX; GPU: Ampere and later)."""
    if device == GPU:
        details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
        return bool(details.get("compute_capability", (0, 0))[0] >= 8)
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False  # the slower, always right answer
    return "avx512_bf16" in flags or "amx_bf16" in flags


@contextlib.contextmanager
def seeded(seed: np.random.SeedSequence) -> Iterator[None]:
    """Within, networks are initialised from this seed: TensorFlow's generator, and Python's, which Keras draws from."""
    number = int(seed.generate_state(1)[0])
    python_state = random.getstate()
    random.seed(number)
    tf.random.set_seed(number)
    try:
        yield
    finally:
        random.setstate(python_state)
