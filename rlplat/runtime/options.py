"""The options of tasks, actors and methods (`.options(...)`), checked where they are given."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import msgspec

from rlplat.errors import OptionError, OptionTypeError
from rlplat.runtime.core.resources import check_amount, check_custom, check_gpus, check_resources, check_text
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.values import DYNAMIC, STREAMING, CallOptions, class_names


@dataclass(frozen=True)
class Options:
    """How a task or an actor is to be run; what `.options(...)` changes."""

    num_cpus: float | None = None
    """CPUs held while it runs; None: 1 for a task, 0 for an actor."""
    num_gpus: float = 0
    resources: dict[str, float] = field(default_factory=dict)
    """Custom resources by name."""
    memory: int = 0
    """Bytes that the process may hold (RSS) before it is killed as out of memory; 0: no limit of its own."""
    num_returns: int = 1
    """Refs that a call returns (0: it returns None, and its result is dropped); `STREAMING` and `DYNAMIC` (users write
    the words): as many as the generator yields."""
    generator_backpressure: int = 64
    """Streaming: how many values a generator may be ahead of its consumer; 0: any number."""
    timeout_s: float | None = None
    """Tasks: seconds from submission until `DeadlineExceeded`."""
    name: str | None = None
    """Actors: the name for `get_actor`. Tasks: what messages call it."""
    namespace: str | None = None
    """Actors: where the name counts; None: the namespace of this process."""
    get_if_exists: bool = False
    """Actors: a taken name gives the handle of the actor that has it."""
    lifetime: Literal["detached"] | None = None
    """Actors: "detached" ones outlive their handles and their creator; they end by `kill` or with the cluster."""
    max_concurrency: int | None = None
    """Actors: how many calls may run at once, in threads or coroutines; None: 1, and 1,000 with `async def` methods."""
    concurrency_groups: dict[str, int] = field(default_factory=dict)
    """Actors: further pools of calls, name to size; `@rlplat.method(concurrency_group=...)` picks one."""
    max_retries: int = 3
    """Tasks: how often to run again when the worker process dies; -1: for ever."""
    max_calls: int = 0
    """Tasks: after so many calls of the function its worker process ends, and a new one runs the next; 0: never."""
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    """Tasks: also run again when the function raises (any exception, or one of these classes)."""
    max_restarts: int = 0
    """Actors: how often to start again when the process dies; -1: for ever."""
    max_task_retries: int = 0
    """Actors: how often a call that was lost with the process runs again after the restart; -1: for ever."""
    max_pending_calls: int = -1
    """Actors: of how many calls a process may await the results at once; the next is `PendingCallsLimitExceeded`;
    -1: of any number."""
    exactly_once: bool = False
    """Actors: a call that is repeated after a restart takes effect once (see docs/runtime.md for what that needs)."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    """`env_vars`, `working_dir`, `py_modules`, `pip` or `uv`: what the process is to find around it."""
    placement_group: Any = "default"
    """A `PlacementGroup` whose reserved resources are used; None: none; "default": that of a parent which captures its
    children, or none."""
    placement_group_bundle_index: int = -1
    """Which bundle of it; -1: any that has room."""
    placement_group_capture_child_tasks: bool | None = None
    """Whether tasks and actors that this one submits run in its group as well; None: as in the parent."""
    scheduling_strategy: Any = None
    """"DEFAULT", "SPREAD", or an object of `placement`: `PlacementGroup...` or `NodeAffinitySchedulingStrategy`."""

    def demand(self, default_cpus: float) -> dict[str, float]:
        """Resources by name, zeros left out."""
        cpus = default_cpus if self.num_cpus is None else self.num_cpus
        return {k: v for k, v in {"CPU": cpus, "GPU": self.num_gpus, **self.resources}.items() if v}


_AT_LEAST = {
    "memory": 0, "generator_backpressure": 0, "timeout_s": 0,
    "max_concurrency": 1, "num_returns": 0, "max_calls": 0,
    "max_retries": -1, "max_restarts": -1, "max_task_retries": -1, "max_pending_calls": -1,
}  # fmt: skip
_WHOLE = (
    "num_returns", "max_concurrency", "generator_backpressure", "max_retries", "max_restarts", "memory", "max_calls",
    "max_task_retries", "max_pending_calls",
)  # fmt: skip
_MOST = (1 << 63) - 1
"""Of whole numbers: what a message carries."""
_TEXTS = ("name", "namespace", "concurrency_group")
_FLAGS = ("get_if_exists", "exactly_once", "placement_group_capture_child_tasks")
_RETURNS = {"streaming": STREAMING, "dynamic": DYNAMIC}
_OF_TASKS = {
    "num_returns",
    "generator_backpressure",
    "timeout_s",
    "max_retries",
    "retry_exceptions",
    "max_calls",
}
_OF_ACTORS = {
    "namespace", "get_if_exists", "lifetime", "max_concurrency", "concurrency_groups", "max_restarts",
    "max_task_retries", "max_pending_calls", "exactly_once",
}  # fmt: skip


def merge_options(options: Any, changes: dict[str, Any], what: str) -> Any:
    """`options` with checked changes; None stands for an option's default."""
    is_call = isinstance(options, CallOptions)
    known = options.__struct_fields__ if is_call else [field.name for field in fields(options)]
    defaults = type(options)()
    for key, value in changes.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(known)}"
            raise OptionError(f"unknown option {key!r} for {what}; {hint}")
        if value is None and key != "placement_group":  # there it is a value of its own
            # (As many refs as the function says: a generator's default is another.)
            changes = changes | {key: getattr(options if key == "num_returns" else defaults, key)}
        elif key == "num_returns" and isinstance(value, str):
            if value not in _RETURNS:
                raise OptionTypeError(f"num_returns must be a whole number, 'streaming' or 'dynamic', not {value!r}")
            changes = changes | {key: _RETURNS[value]}
        elif (least := _AT_LEAST.get(key)) is not None:
            if isinstance(value, bool) or not isinstance(value, int if key in _WHOLE else (int, float)):
                raise OptionTypeError(f"{key} must be a {'whole ' if key in _WHOLE else ''}number, not {value!r}")
            if not value >= least:
                raise OptionError(f"{key} must be at least {least}, not {value!r}")
            if key in _WHOLE and value > _MOST:
                raise OptionError(f"{key} must be at most {_MOST}, not {value!r}")
        elif key in ("num_cpus", "num_gpus"):
            check_amount(key, value)
            if key == "num_gpus":
                check_gpus(key, value)
        elif key in _TEXTS:
            check_text(key, value)
        elif key in _FLAGS and not isinstance(value, bool):
            raise OptionTypeError(f"{key} must be True or False, not {value!r}")
        elif key == "retry_exceptions" and not isinstance(value, bool):
            classes = _exception_classes(value)
            changes = changes | {key: tuple(class_names(each)[0] for each in classes) if is_call else classes}
        elif key == "concurrency_groups" and not isinstance(value, dict):
            raise OptionTypeError(f"{key} must be a dict of sizes by name, not {value!r}")
        elif key == "resources":
            check_resources(key, value)
            check_custom(key, value)
        elif key == "runtime_env":
            from rlplat.runtime.envs.spec import checked

            changes = changes | {key: checked(value)}
        elif key == "lifetime" and value == "non_detached":
            changes = changes | {key: None}
        elif key == "lifetime" and value != "detached":
            raise OptionError(f"lifetime must be None, 'detached' or 'non_detached', not {value!r}")
    return msgspec.structs.replace(options, **changes) if is_call else replace(options, **changes)


def check_kind(name: str, changes: dict[str, Any], is_actor: bool) -> None:
    """OptionError for an option of actors at a task, and the other way round: it would be ignored."""
    for key, value in changes.items():
        if value is not None and key in (_OF_TASKS if is_actor else _OF_ACTORS):
            kind, this = ("tasks", "an actor class") if is_actor else ("actors", "a function")
            of_calls = is_actor and key in CallOptions.__struct_fields__
            hint = f"; for a method: @rlplat.method({key}=...)" if of_calls else ""
            raise OptionError(f"{name}: {key} is for {kind}, and this is {this}{hint}")
    if is_actor and changes.get("name") == "":
        raise OptionError(f"{name}: the name of an actor cannot be an empty text; None is for no name")


def _exception_classes(value: Any) -> tuple[type[BaseException], ...]:
    classes = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise OptionTypeError(f"retry_exceptions must be True, False or a list of exception classes, not {each!r}")
    return classes


def check_retries(name: str, is_exactly_once: bool) -> None:
    """A call with `retry_exceptions` is none of an exactly-once actor, which answers a repeated call from its notes."""
    if is_exactly_once:
        raise OptionError(
            f"{name}: retry_exceptions runs a call again that has taken effect, and exactly_once=True says that none "
            "does: catch the exception in the method"
        )


def check_groups(class_name: str, methods: dict[str, CallOptions], groups: dict[str, int]) -> None:
    """Every concurrency group that a method names must be one of the actor's."""
    for name, size in groups.items():
        check_text(f"concurrency_groups of {class_name}: a name", name)
        if not name or not isinstance(size, int) or not 1 <= size <= _MOST:
            raise OptionError(
                f"concurrency_groups of {class_name}: a name and a whole number of at least 1 each, not "
                f"{name!r}: {size!r}"
            )
    for method, options in methods.items():
        if options.concurrency_group and options.concurrency_group not in groups:
            known = ", ".join(map(repr, groups)) or "none"
            raise OptionError(
                f"{class_name}.{method} is of the concurrency group {options.concurrency_group!r}, and the actor has "
                f"these: {known}; name it in concurrency_groups={{{options.concurrency_group!r}: 2}}"
            )


def check_group(what: str, group: str, groups: Collection[str]) -> None:
    """The concurrency group that a call names must be one of the actor's."""
    if group and group not in groups:
        known = ", ".join(map(repr, groups)) or "none"
        raise OptionError(f"{what}: there is no concurrency group {group!r} in this actor (its groups: {known})")


def check_name(options: Options) -> None:
    if options.get_if_exists and not options.name:
        raise OptionError("get_if_exists=True needs a name: .options(name=..., get_if_exists=True)")


def check_exactly_once(code: RemoteCode, options: Options) -> None:
    """Refuse an actor class that cannot keep the promise."""
    if not options.exactly_once:
        return
    if (options.max_concurrency or 1) > 1 or options.concurrency_groups:
        raise OptionError(
            f"actor {code.name}: exactly_once=True needs calls that run one after the other: leave max_concurrency "
            "and concurrency_groups out"
        )
    methods = inspect.getmembers(code.target, inspect.isfunction)
    asynchronous = [
        name for name, method in methods if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    ]
    if asynchronous:
        raise OptionError(
            f"actor {code.name}: exactly_once=True needs calls that run one after the other, and {asynchronous[0]} is "
            "an async method"
        )
    has = [hasattr(code.target, name) for name in ("get_state", "set_state")]
    if any(has) and not all(has):
        lacking = "set_state" if has[0] else "get_state"
        raise OptionError(
            f"actor {code.name} has no {lacking}(): exactly_once=True keeps its state over a restart with both "
            "get_state() and set_state(state)"
        )
