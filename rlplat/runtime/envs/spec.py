"""Runtime environments: what a worker finds around it. Checked and prepared in the driver, applied in the worker.

    checked(env)            the user's dictionary in normal form; OptionError names what is wrong with it
    merged(parent, child)   as Ray merges: the child's fields replace the parent's, `env_vars` join
    prepared(env, folder)   directories replaced by snapshots in `folder`
    key_and_spec(env)       what is sent to nodes: JSON, in which a snapshot goes by its name alone
    placed(spec, folder)    there: the environment, with snapshots in `folder` of that machine
    apply(env)              in the worker, before any code of the user's: variables, directory, sys.path

`working_dir` and `py_modules` are snapshots, as in Ray: a copy made when a function or class with that environment is
first used, so that later edits do not change a run under way and workers cannot write into the source. An unchanged
directory is copied once. Without a `working_dir` workers run in the driver's own directory, in place.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import types
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rlplat.errors import OptionError, OptionTypeError
from rlplat.runtime.machine.session import SPILL_LINK
from rlplat.runtime.wire.messages import NODE

KEYS = ("env_vars", "working_dir", "py_modules", "excludes", "pip", "uv", "config")
_ELSEWHERE = {
    "conda": "pip or uv",
    "container": "a container around the whole program",
    "image_uri": "a container around the whole program",
    "py_executable": "pip or uv",
    "worker_process_setup_hook": "rlplat.init(preload=[...])",
}
"""Keys of Ray's that are not here, and what to use."""
_MOST_BYTES = 500 << 20
_MOST_SPEC_BYTES = 128 << 10
"""The order to start a worker is a packet of a local socket (208 KiB by default); one variable has 128 KiB at most."""
_NEVER_COPIED = ("__pycache__", ".git", ".hg", ".svn", "*.pyc")
_READ_AT_START = re.compile(r"(PYTHON|LD_|OMP_|OPENBLAS_|MKL_|NUMEXPR_|MALLOC_|KMP_|GLIBC_|TZ$)")
"""Variables that a process, or a library that the zygote has loaded, reads only once: such a worker is not forked."""

NOT_CODE = (".git", ".venv", "venv", "__pycache__", "runs", "checkpoints", "*.mp4", "*.safetensors")
"""What is not sent to other machines with the user's code."""
ARCHIVE = ".tar"
Env = dict[str, Any]


# ---------------------------------------------------------------- in the driver


def checked(env: Any) -> Env:
    """`env` in normal form: absolute paths, options as lists. OptionError when it cannot be meant."""
    if not isinstance(env, dict):
        raise OptionTypeError(f"runtime_env must be a dictionary, not {type(env).__name__}")
    for key in env:
        if key in KEYS:
            continue
        if key in _ELSEWHERE:
            raise OptionError(f"runtime_env: {key!r} does not exist in rlplat: use {_ELSEWHERE[key]}")
        import difflib

        close = difflib.get_close_matches(str(key), KEYS, 1)
        raise OptionError(
            f"unknown key {key!r} in runtime_env; "
            + (f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(KEYS)}")
        )
    if env.get("pip") and env.get("uv"):
        raise OptionError("runtime_env: give either 'pip' or 'uv', not both")
    checks = {
        "env_vars": _env_vars,
        "working_dir": _working_dir,
        "py_modules": _py_modules,
        "excludes": lambda value: _strings("excludes", value),
        "pip": lambda value: _packages("pip", value),
        "uv": lambda value: _packages("uv", value),
        "config": _config,
    }
    return {key: checks[key](value) for key, value in env.items() if value not in (None, "", [], {})}


def _env_vars(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise OptionTypeError(f"runtime_env['env_vars'] must be a dictionary, not {type(value).__name__}")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise OptionTypeError(
                f"runtime_env['env_vars'][{name!r}] must be text, not {text!r} ({type(text).__name__}): "
                "write it as a string"
            )
        if "=" in name or "\0" in name + text or not name:
            raise OptionError(f"runtime_env['env_vars']: {name!r} cannot be a variable's name")
    return dict(value)


def _working_dir(value: Any) -> str:
    path = _path("runtime_env['working_dir']", value)
    if not os.path.isdir(path):
        raise OptionError(f"runtime_env['working_dir']: there is no directory {path}")
    return path


def _py_modules(value: Any) -> list[str]:
    if isinstance(value, (str, os.PathLike, types.ModuleType)):
        raise OptionTypeError("runtime_env['py_modules'] must be a list of paths or modules: put it into [...]")
    found = []
    for each in value:
        if isinstance(each, types.ModuleType):
            paths = list(getattr(each, "__path__", ())) or [each.__file__]
            if not paths[0]:
                raise OptionError(f"runtime_env['py_modules']: module {each.__name__!r} has no file")
            each = paths[0]
        path = _path("runtime_env['py_modules']", each)
        if not os.path.isdir(path) and not (os.path.isfile(path) and path.endswith((".py", ".whl"))):
            raise OptionError(f"runtime_env['py_modules']: there is no directory, .py file or wheel at {path}")
        found.append(path)
    return found


def _path(where: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise OptionTypeError(f"{where} must be a path, not {value!r}")
    text = os.fspath(value)
    if "://" in text:
        raise OptionError(f"{where}: {text!r} is no local path, and only those can be used on one machine")
    return os.path.abspath(os.path.expanduser(text))


def _packages(tool: str, value: Any) -> Env:
    """Requirements and options of pip or uv, from a list, a requirements file, or Ray's dictionary."""
    import shlex

    options: list[str] = []
    if isinstance(value, dict):
        known = ("packages", f"{tool}_install_options" if tool == "pip" else "uv_pip_install_options")
        for key in value:
            if key not in (*known, "pip_check", "uv_check", "pip_version", "uv_version"):
                raise OptionError(f"runtime_env[{tool!r}]: unknown key {key!r}; known: {', '.join(known)}")
        options = _strings(f"{tool}_install_options", value.get(known[1], []))
        value = value.get("packages", [])
    if isinstance(value, (str, os.PathLike)):
        path = _path(f"runtime_env[{tool!r}]", value)
        if not os.path.isfile(path):
            raise OptionError(f"runtime_env[{tool!r}]: there is no requirements file {path}")
        base = os.path.dirname(path)
        lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in Path(path).read_text().splitlines()]
        value = [
            re.sub(
                r"^(-r|-c|--requirement|--constraint)[\s=]+(\S+)",
                lambda m: f"{m[1]} {os.path.join(base, m[2])}",
                line,
            )
            for line in lines
            if line
        ]
    packages = []
    for line in _strings(tool, value):
        if line.startswith("-"):
            options += shlex.split(line)
        elif line.startswith((".", "~", os.sep)):
            packages.append(_path(f"runtime_env[{tool!r}]", line))
            if not os.path.exists(packages[-1]):
                raise OptionError(f"runtime_env[{tool!r}]: there is nothing at {packages[-1]}")
        else:
            packages.append(line)
    return {"packages": packages, "options": options}


def _strings(where: str, value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise OptionTypeError(f"runtime_env[{where!r}] must be a list of strings, not {value!r}")
    return list(value)


def _config(value: Any) -> Env:
    if not isinstance(value, dict) or set(value) - {"setup_timeout_seconds", "eager_install"}:
        raise OptionError(f"runtime_env['config'] knows 'setup_timeout_seconds' only, not {value!r}")
    return {key: value[key] for key in value if key == "setup_timeout_seconds"}


def merged(parent: Env, child: Env) -> Env:
    """The environment of what a process with `parent` submits with `child`."""
    if not parent or not child:
        return child or parent
    both = {**parent, **child}
    if "env_vars" in parent and "env_vars" in child:
        both["env_vars"] = {**parent["env_vars"], **child["env_vars"]}
    if "pip" in child:
        both.pop("uv", None)
    elif "uv" in child:
        both.pop("pip", None)
    return both


def prepared(env: Env, folder: str) -> Env:
    """`env` with snapshots in place of directories; what lies in `folder` is one already."""
    made = {key: value for key, value in env.items() if key != "excludes"}
    excludes = env.get("excludes", [])
    if "working_dir" in env:
        made["working_dir"] = _snapshot(env["working_dir"], "", folder, excludes)
    if "py_modules" in env:
        made["py_modules"] = [_snapshot(path, os.path.basename(path), folder, excludes) for path in env["py_modules"]]
    return made


def key_and_spec(env: Env) -> tuple[str, str]:
    spec = json.dumps(_with_folders(env, os.path.basename), sort_keys=True)
    if len(spec) > _MOST_SPEC_BYTES:
        raise OptionError(
            f"a runtime_env of {len(spec):,} bytes: workers can be started with {_MOST_SPEC_BYTES:,} at most. Put "
            "large values of env_vars into a file, or pass them as arguments"
        )
    return hashlib.blake2b(spec.encode(), digest_size=8).hexdigest(), spec


def placed(spec: str, folder: str) -> Env:
    return _with_folders(json.loads(spec), lambda name: os.path.join(folder, name))


def _with_folders(env: Env, change: Callable[[str], str]) -> Env:
    made = dict(env)
    if "working_dir" in env:
        made["working_dir"] = change(env["working_dir"])
    if "py_modules" in env:
        made["py_modules"] = [change(path) for path in env["py_modules"]]
    return made


def segment_of(snapshot: str) -> str:
    """The name under which its archive lies among the large values of the program's machine."""
    return f"s-{NODE}-{os.path.basename(snapshot)}"


def archive(snapshot: str, session: str) -> None:
    """As one file, which machines that do not have it pull."""
    disk = os.path.join(session, SPILL_LINK)
    path = os.path.join(disk if os.path.isdir(disk) else session, segment_of(snapshot))
    if os.path.exists(path):
        return
    draft = f"{path}.{os.getpid()}"
    with tarfile.open(draft, "w") as tar:
        tar.add(snapshot, "")
    os.rename(draft, path)


def unpack(path: str, folder: str) -> None:
    """The snapshot of an archive, which goes. Of several processes that want it one works, and the others wait."""
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(folder):
            return
        draft = f"{folder}.{os.getpid()}"
        with tarfile.open(path) as tar:
            tar.extraction_filter = getattr(tarfile, "tar_filter", None)  # none before Python 3.11.4
            tar.extractall(draft)
        os.rename(draft, folder)
        os.unlink(path)


def _snapshot(path: str, name: str, folder: str, excludes: list[str]) -> str:
    """A copy of the directory or file as `name` in a new folder, which is returned; the same one for equal contents."""
    if path.startswith(folder + os.sep):
        return path
    files = list(_files(path, excludes))
    size = sum(size for _, size, _ in files)
    if size > _MOST_BYTES:
        raise OptionError(
            f"runtime_env: {path} holds {size / 1e6:,.0f} MB, and at most {_MOST_BYTES / 1e6:,.0f} MB are copied: name "
            "what is not needed in 'excludes', or leave working_dir out (workers run in the driver's directory anyway)"
        )
    digest = hashlib.blake2b(repr((path, name, files)).encode(), digest_size=8).hexdigest()
    target = os.path.join(folder, digest)
    if os.path.isdir(target):
        return target
    os.makedirs(folder, mode=0o700, exist_ok=True)
    draft = f"{target}.{os.getpid()}"
    try:
        place = os.path.join(draft, name)
        if path.endswith(".whl"):
            import zipfile

            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(draft)  # names that would lead out of it are made harmless there
        elif os.path.isfile(path):
            os.makedirs(draft)
            shutil.copy2(path, place)
        else:
            shutil.copytree(path, place, symlinks=True, ignore=_ignore(path, excludes))
        os.rename(draft, target)
    except Exception as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not os.path.isdir(target):  # else: another process was faster
            raise OptionError(f"runtime_env: {path} could not be copied to {folder}: {error}") from None
    return target


def _is_left_out(relative: str, excludes: list[str]) -> bool:
    name = os.path.basename(relative)
    if any(fnmatch(name, pattern) for pattern in _NEVER_COPIED):
        return True
    return any(
        fnmatch(relative, pattern.strip("/")) or ("/" not in pattern.strip("/") and fnmatch(name, pattern.strip("/")))
        for pattern in excludes
    )  # fmt: skip


def _ignore(top: str, excludes: list[str]) -> Any:
    def ignore(folder: str, names: list[str]) -> list[str]:
        base = os.path.relpath(folder, top)
        return [n for n in names if _is_left_out(os.path.normpath(os.path.join(base, n)), excludes)]

    return ignore


def _files(path: str, excludes: list[str]) -> Iterator[tuple[str, int, int]]:
    """(name, bytes, time of change) of every file that is copied."""
    if os.path.isfile(path):
        status = os.stat(path)
        yield "", status.st_size, status.st_mtime_ns
        return
    for folder, folders, names in os.walk(path):
        base = os.path.relpath(folder, path)
        folders[:] = sorted(n for n in folders if not _is_left_out(os.path.normpath(os.path.join(base, n)), excludes))
        for name in sorted(names):
            relative = os.path.normpath(os.path.join(base, name))
            if not _is_left_out(relative, excludes):
                status = os.lstat(os.path.join(folder, name))
                yield relative, status.st_size, status.st_mtime_ns


def fingerprint(path: str) -> list[Any]:
    """Of a local package: changes when its files do."""
    return list(_files(path, ["build", "*.egg-info"]))  # what building it leaves there


# ---------------------------------------------------------------- in the worker


def needs_own_process(env: Env) -> bool:
    """Whether a fork of the zygote, which has imported numpy, would come too late for it."""
    return any(_READ_AT_START.match(name) for name in env.get("env_vars", {}))


def environment(env: Env, outer: dict[str, str]) -> dict[str, str]:
    """The environment variables of a worker: `env_vars` may refer to outer ones as ${NAME}."""
    made = dict(outer)
    for name, text in env.get("env_vars", {}).items():
        made[name] = re.sub(r"\$\{(\w+)\}", lambda match: outer.get(match[1], ""), text)
    paths = search_path(env)
    if paths:  # processes that the worker starts find the same modules
        made["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [made.get("PYTHONPATH")])])
    return made


def search_path(env: Env) -> list[str]:
    return [*([env["working_dir"]] if "working_dir" in env else []), *env.get("py_modules", [])]


def apply(env: Env, has_variables: bool) -> None:
    """Make this process one of that environment (one that was executed in it has its variables already)."""
    if not has_variables:
        os.environ.update(environment(env, dict(os.environ)))
    if "working_dir" in env:
        os.chdir(env["working_dir"])
    sys.path[:0] = search_path(env)
