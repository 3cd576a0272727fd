"""Every exception that rlplat raises on purpose.

RlplatError
├── UsageError                 bad command, config, resources: exit code 2, one message, no traceback
│   ├── ConfigError            unknown key or bad value in a config, a flag or a Python call
│   │   └── OptionError        ... in a verb: `init`, `remote`, `.options` (also a builtin ValueError)
│   │       ├── OptionTypeError    ... a value of the wrong type (also a builtin TypeError)
│   │       └── AlreadyInitialized ... a second `init` (also a builtin RuntimeError)
│   ├── EnvNotFound            no environment of that name (with suggestions)
│   ├── BadObservation         what a loaded agent was given to act on does not fit (also a builtin ValueError)
│   ├── MissingExtra           an optional package is not installed (names the extra)
│   ├── InfeasibleResources    no node could ever satisfy the demand (also a builtin ValueError)
│   ├── CheckpointError        a checkpoint is damaged, or belongs to something else
│   └── NotInitialized         a verb was used before `rlplat.init()`, or after `shutdown()`
├── EnvError                   an environment raised, hung or broke its contract
├── NonFiniteError             NaN or infinity in observations, rewards, losses or gradients
└── RuntimeFault               the distributed runtime reports a failure
    ├── TaskError              user code raised; also an instance of the user's own exception class
    ├── SerializationError     a value cannot be pickled, names the attribute path (also a builtin TypeError)
    ├── WorkerCrashed          the process that ran the task died, and retries are used up
    │   └── OutOfMemory        ... because it was over its memory limit, or the machine was short of memory
    ├── ActorDied              the actor's process ended, or its constructor raised
    │   └── NoSuchActor        `get_actor` of a name that no living actor has (also a builtin ValueError)
    ├── PendingCallsLimitExceeded  an actor has as many calls of this process waiting as its `max_pending_calls`
    ├── OwnerDied              the process that owned the object is gone, and the object with it
    ├── ObjectLost             the object's bytes are gone although its owner lives
    ├── ObjectStoreFull        shared memory is full
    ├── ObjectRebuildFailed    the task that made a lost object ran again, and failed
    ├── TaskCancelled          the task was cancelled
    ├── DeadlineExceeded       the task's `timeout_s` ran out (also a builtin TimeoutError)
    ├── PlacementGroupRemoved  a task or an actor was to run in a placement group that is gone
    ├── RuntimeEnvFailed       the runtime environment of a task or an actor could not be set up
    ├── Deadlock               an actor waits for a call to itself, which it could only run afterwards
    ├── NodeLost               the node process ended under the driver
    └── GetTimeout             `get(timeout=)` ran out (also a builtin TimeoutError)
"""

from __future__ import annotations

import json
import os


class RlplatError(Exception):
    """The root: `except RlplatError` catches whatever rlplat raises on purpose."""


class UsageError(RlplatError):
    """The caller can fix it; the command line prints the message alone and exits with 2."""


class ConfigError(UsageError):
    pass


class OptionError(ConfigError, ValueError):
    pass


class OptionTypeError(OptionError, TypeError):
    pass


class AlreadyInitialized(OptionError, RuntimeError):
    pass


class EnvNotFound(UsageError):
    pass


class BadObservation(UsageError, ValueError):
    pass


class MissingExtra(UsageError):
    """An optional package is absent.

    `MissingExtra("ale-py", "atari", "Pong")` reads: Pong needs ale-py: pip install 'rlplat[atari]', and in a checkout:
    Pong needs ale-py: ./scripts/install atari.
    """

    def __init__(self, package: str, extra: str, needed_by: str) -> None:
        super().__init__(package, extra, needed_by)
        self.package, self.extra, self.needed_by = package, extra, needed_by

    def __str__(self) -> str:
        return f"{self.needed_by} needs {self.package}: {how_to_install(self.extra)}"


def how_to_install(extra: str) -> str:
    """The command that adds an extra of rlplat's to this installation."""
    script = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scripts", "install")
    if not os.path.exists(script):
        return f"pip install '{_installed_from()}[{extra}]'"
    path = min(script, os.path.relpath(script), key=len)
    return f"{path if path.startswith((os.sep, '..')) else os.path.join('.', path)} {extra}"


def _installed_from() -> str:
    """The wheel's file, where rlplat was installed from one that is still there: a registry may have none."""
    from importlib import metadata
    from urllib.parse import unquote, urlparse

    try:
        written = metadata.distribution("rlplat").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return "rlplat"
    url = urlparse(json.loads(written)["url"]) if written else None
    path = unquote(url.path) if url is not None and url.scheme == "file" else ""
    return path if os.path.isfile(path) else "rlplat"


class InfeasibleResources(UsageError, ValueError):
    pass


class CheckpointError(UsageError):
    pass


class NotInitialized(UsageError):
    pass


class EnvError(RlplatError):
    pass


class NonFiniteError(RlplatError):
    pass


class RuntimeFault(RlplatError):
    pass


class TaskError(RuntimeFault):
    """A task or an actor call raised.

    The message holds the remote traceback. What `get` raises is an instance of a class made on the
    spot that derives from `TaskError` *and* from the user's exception class, so both `except` forms work;
    `cause` is the user's exception itself (None when it could not be pickled).
    """

    cause: BaseException | None = None

    def as_instanceof_cause(self) -> TaskError:
        """For code written for Ray: what `get` raises is an instance of the cause's class already."""
        return self


class SerializationError(RuntimeFault, TypeError):
    pass


class WorkerCrashed(RuntimeFault):
    pass


class OutOfMemory(WorkerCrashed):
    pass


class ActorDied(RuntimeFault):
    pass


class NoSuchActor(ActorDied, ValueError):
    pass


class PendingCallsLimitExceeded(RuntimeFault):
    pass


class OwnerDied(RuntimeFault):
    pass


class ObjectLost(RuntimeFault):
    pass


class ObjectStoreFull(RuntimeFault):
    pass


class TaskCancelled(RuntimeFault):
    pass


class ObjectRebuildFailed(RuntimeFault):
    pass


class DeadlineExceeded(RuntimeFault, TimeoutError):
    pass


class PlacementGroupRemoved(RuntimeFault):
    pass


class RuntimeEnvFailed(RuntimeFault):
    pass


class Deadlock(RuntimeFault):
    pass


class NodeLost(RuntimeFault):
    pass


class GetTimeout(RuntimeFault, TimeoutError):
    pass
