"""The user's code that settings name: where its files are, at the start of a run and whenever it is read again.

located("./my_env.py:MyEnv")                    # "/home/me/project/my_env.py:MyEnv", as configs have it
names_in(settings)                              # every name of code in the settings of an algorithm
code = record_code(names, Path("runs/a"))       # what config.yaml says: files, folders from the run, digests
settings, notes = find_code(settings, code, Path("runs/a"))     # with the files where they are now, and what to tell
folder_of(["/home/me/project/my_env.py:MyEnv", "CartPole-v1"])  # what a cluster of several machines is sent
found_in_copy(Path("/home/me/my_env.py"))       # in a worker there: the copy in the folder that it was given

A name is `./file.py:Class` or `pkg.mod:Class`; what stands before the colon is called its home.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rlplat
from rlplat.paths import current_folder, user_path

# ---------------------------------------------------------------- names

PLACES = ("env", "env_kwargs", "policy", "callbacks", "multi_agent")
"""Settings of an algorithm that may name code."""


def home_of(name: str) -> str:
    """`./file.py` or `pkg.mod` of a name of code, or the name where it is a module's; empty for what is none
    (`CartPole-v1`, `<a MyEnv object>`)."""
    home, colon, _ = name.rpartition(":")
    if not colon:
        return name if "." in name and all(part.isidentifier() for part in name.split(".")) else ""
    return home if not name.startswith("<") else ""


def is_file(home: str) -> bool:
    return home.endswith(".py") or os.sep in home


def located(name: str) -> str:
    """The name with its file as an absolute path, links resolved; a module's name as it is."""
    home = home_of(name)
    if not is_file(home):
        return name
    return f"{os.path.realpath(user_path(home))}:{name.rpartition(':')[2]}"


def renamed(settings: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """A copy of an algorithm's settings in which every name of code is `rename(name)`: of the algorithm itself, the
    environment, its wrappers, networks, callbacks. What is malformed stays, for the complaint about it."""

    def listed(values: Any) -> Any:
        if isinstance(values, list | tuple):
            return [listed(each) for each in values]
        if isinstance(values, Mapping):
            return {rename(key) if isinstance(key, str) else key: value for key, value in values.items()}
        return rename(values) if isinstance(values, str) else values

    def in_arguments(value: Any) -> Any:
        """Of classes, functions and members of an Enum (argument_values.py)."""
        if isinstance(value, list):
            return [in_arguments(inner) for inner in value]
        if not isinstance(value, Mapping):
            return value
        if list(value) == ["python/name"]:
            return {"python/name": rename(value["python/name"])}
        return {key: in_arguments(inner) for key, inner in value.items()}

    def network(section: Any) -> Any:
        if not isinstance(section, Mapping):
            return section
        names = {key: rename(section[key]) for key in ("custom", "encoder") if isinstance(section.get(key), str)}
        return {**section, **names}

    values = dict(settings)
    for key in ("algo", "env"):
        if type(values.get(key)) is str:  # an `EnvObject` carries what it names
            values[key] = rename(values[key])
    for key in ("env_kwargs", "callbacks"):
        values |= {key: in_arguments(values[key])} if key in values else {}
    kwargs = values.get("env_kwargs")
    if isinstance(kwargs, Mapping) and "wrappers" in kwargs:
        values["env_kwargs"] = {**kwargs, "wrappers": listed(kwargs["wrappers"])}
    if "policy" in values:
        values["policy"] = network(values["policy"])
    if "callbacks" in values:
        values["callbacks"] = listed(values["callbacks"])
    agents = values.get("multi_agent")
    policies = agents.get("policies") if isinstance(agents, Mapping) else None
    if isinstance(agents, Mapping) and isinstance(policies, Mapping):
        changed = {
            name: {**each, "policy": network(each["policy"])}
            if isinstance(each, Mapping) and "policy" in each
            else each
            for name, each in policies.items()
        }
        values["multi_agent"] = {**agents, "policies": changed}
    return values


def renamed_in_space(config: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """`renamed` for a search space: every text in those places that names something in a file, in domains too, and
    what `sample_from` names."""

    def walk(value: Any, is_code: bool) -> Any:
        if isinstance(value, str):
            return rename(value) if is_code and is_file(home_of(value)) else value
        if isinstance(value, list):
            return [walk(inner, is_code) for inner in value]
        if isinstance(value, dict):
            return {
                walk(key, is_code): walk(inner, is_code or key in ("sample_from", "python/name"))
                for key, inner in value.items()
            }
        return value

    return {key: walk(value, str(key).partition(".")[0] in PLACES) for key, value in config.items()}


def names_in(settings: Mapping[str, Any]) -> list[str]:
    """Every name in the places where settings may name code, each once: `CartPole-v1` and `mlp` too."""
    names: dict[str, None] = {}

    def note(name: str) -> str:
        names[name] = None
        return name

    renamed(settings, note)
    return [name for name in names if name]


# ---------------------------------------------------------------- a run knows its files


def record_code(names: Iterable[str], directory: Path) -> dict[str, dict[str, str]]:
    """By home, what finds the user's files again: {"sha256": of the file, "from_run": the file's path from the run's
    directory}, of a module also {"folder": on sys.path}, and `from_run` is that folder's. Installed packages, which are
    found anyway, are left out.
    """
    run = os.path.realpath(directory)
    recorded: dict[str, dict[str, str]] = {}
    for home in dict.fromkeys(filter(None, map(home_of, names))):
        if is_file(home):
            if digest := _digest(Path(home)):
                recorded[home] = {"sha256": digest, "from_run": os.path.relpath(home, run)}
            continue
        look_here_too(home)
        if (found := _own_module(home)) is not None:
            file, folder = found
            recorded[home] = {
                "sha256": _digest(file),
                "folder": str(folder),
                "from_run": os.path.relpath(folder, run),
            }
    return recorded


def find_code(
    settings: Mapping[str, Any], recorded: Mapping[str, Any], directory: Path
) -> tuple[dict[str, Any], list[str]]:
    """(the settings of a run with every file's path as it is now, a line each about what is not as it was).

    A file that is as it was is taken, first at its place beside the run, then at its old place; else the one at the old
    place, or beside the run, with a line. Folders of modules become part of sys.path.
    """
    rename, notes = finder(names_in(settings), recorded, directory)
    return renamed(settings, rename), notes


def finder(
    names: Iterable[str], recorded: Mapping[str, Any], directory: Path
) -> tuple[Callable[[str], str], list[str]]:
    """What `find_code` renames with, for names wherever they stand."""
    run, notes, now = Path(os.path.realpath(directory)), [], {}
    for home in dict.fromkeys(filter(None, map(home_of, names))):
        entry = recorded.get(home) if isinstance(recorded, Mapping) else None
        if isinstance(entry, Mapping) and is_file(home):
            now[home], note = _found_file(Path(home), entry, run)
        elif isinstance(entry, Mapping):
            note = _found_module(home, entry, run)
        elif is_file(home) and not os.path.isabs(os.path.expanduser(home)):
            now[home], note = _found_of_old_run(home, run)
        elif not is_file(home):
            look_here_too(home)
            found = _own_module(home)
            note = f"the run does not say where the module {home} lies: {found[0]} is used" if found else ""
        else:
            note = ""
        notes += [note] if note else []

    def rename(name: str) -> str:
        home = home_of(name)  # (a module's keeps its name)
        return f"{now[home]}:{name.rpartition(':')[2]}" if home in now else name

    return rename, notes


def _found_file(old: Path, entry: Mapping[str, Any], run: Path) -> tuple[Path, str]:
    digest, beside = entry.get("sha256"), Path(os.path.realpath(run / str(entry.get("from_run", ""))))
    there = [path for path in dict.fromkeys((beside, old)) if path.is_file()]
    same = [path for path in there if _digest(path) == digest]
    if same:
        other = next((path for path in there if path != same[0] and path == beside), None)
        return same[0], f"the run's file {same[0]} is used; {other} is another one" if other else ""
    if not there:
        places = " nor ".join(dict.fromkeys((str(old), str(beside))))
        return old, f"the file that the run was trained with is neither {places}"
    path = old if old in there else beside
    return path, f"{path} has changed since the run began"


def _found_module(home: str, entry: Mapping[str, Any], run: Path) -> str:
    """Makes the run's own module the one that an import finds, where it can."""
    digest, old = entry.get("sha256"), Path(str(entry.get("folder", "")))
    beside = Path(os.path.realpath(run / str(entry.get("from_run", ""))))
    files = {folder: _file_in(folder, home) for folder in dict.fromkeys((beside, old))}
    there = [folder for folder, file in files.items() if file is not None]
    same = [folder for folder in there if _digest(files[folder]) == digest]
    if not there:
        if _own_module(home) is None and _origin(home) is None:
            return f"the run's module {home} is neither in {old} nor in {beside}"
        return f"the run's module {home} was in {old} and is not there any more: {_origin(home)} is used"
    folder = same[0] if same else old if old in there else beside
    file = files[folder]
    changed = "" if same else f"{file} has changed since the run began"
    origin = _origin(home)
    if origin is None:
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    elif os.path.realpath(origin) != os.path.realpath(str(file)):
        if home.partition(".")[0] in sys.modules:
            if _digest(Path(origin)) == digest:
                return ""
            return f"{home} is {origin} in this program, not {file} of the run"
        sys.path.insert(0, str(folder))
        return changed or f"{home} is {file} of the run, not {origin}"
    return changed


def _found_of_old_run(home: str, run: Path) -> tuple[Path, str]:
    """A relative name without a record, of a run of before: where it always was looked for, then above the run."""
    here = current_folder()
    for folder in ([Path(here)] if here else []) + [*run.parents][:3]:
        if (path := folder / home).is_file():
            return Path(os.path.realpath(path)), f"the run does not say where {home} lies: {path} is used"
    return Path(home), ""


def _digest(path: Path | None) -> str:
    """Of the file's bytes; empty where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path else ""
    except OSError:
        return ""


def _file_in(folder: Path, module: str) -> Path | None:
    """The file of a module under a folder of sys.path."""
    stem = folder.joinpath(*module.split("."))
    candidates = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def look_here_too(module: str) -> None:
    """The `rlplat` command, unlike `python -m`, has not got the current directory on sys.path: it comes last, for what
    is nowhere else."""
    here = current_folder()
    if here is not None and here not in sys.path and _spec(module.partition(".")[0]) is None:
        sys.path.append(here)


def _spec(top: str) -> ModuleSpec | None:
    if top in sys.modules:
        return getattr(sys.modules[top], "__spec__", None) or ModuleSpec(top, None)
    try:
        return find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None


def _origin(module: str) -> str | None:
    """The file that an import of this module would run, without running it; None where there is none."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return str(loaded)
    top = module.partition(".")[0]
    spec = _spec(top)
    if spec is None:
        return None
    if top == module:
        return spec.origin
    for place in spec.submodule_search_locations or ():
        if file := _file_in(Path(place).parent, module):
            return str(file)
    return None


def _own_module(module: str) -> tuple[Path, Path] | None:
    """(file, folder on sys.path) of a module that is the user's; None for an installed one, or Python's."""
    top = module.partition(".")[0]
    if top in ("rlplat", "__main__") or top in sys.stdlib_module_names:
        return None
    origin = _origin(module)
    if not origin or not os.path.isfile(origin) or is_installed(origin):
        return None
    file = Path(os.path.realpath(origin))
    depth = len(module.split(".")) + (file.name == "__init__.py")
    return file, file.parents[depth - 1]


def is_installed(origin: str) -> bool:
    return "site-packages" in origin or "dist-packages" in origin


# ---------------------------------------------------------------- on other machines


def folder_of(names: Iterable[str]) -> str | None:
    """The folder with all files and modules of the user's that these names lead to; None where they name none."""
    folders = {folder for name in names if (folder := _folder(home_of(name))) is not None}
    return os.path.commonpath(folders) if folders else None


def _folder(home: str) -> str | None:
    if is_file(home):
        return str(Path(os.path.realpath(user_path(home))).parent)
    if not home:
        return None
    look_here_too(home)
    found = _own_module(home)
    if found is not None:
        return str(found[1])
    here, top = current_folder(), home.partition(".")[0]  # a namespace package has no file
    return here if here is not None and os.path.isdir(os.path.join(here, top)) and not _origin(top) else None


def found_in_copy(path: Path) -> Path:
    """The file itself; in a worker on a machine that does not have it, the copy of it below the current directory."""
    here = current_folder()
    if path.is_file() or here is None:
        return path
    if not (rlplat.is_initialized() and rlplat.get_runtime_context().is_worker):
        return path
    copies = (Path(here).joinpath(*path.parts[start:]) for start in range(1, len(path.parts)))
    return next((copy for copy in copies if copy.is_file()), path)
