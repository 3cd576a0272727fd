"""The user's code by name: "pkg.mod:Class" or "./file.py:Class".

A file becomes one module of its own in a process, with a name that no other file has, so that runs of two projects
can live side by side; what lies beside it can be imported, as with `python file.py`. One with relative imports is
imported as part of its package: `./pkg/envs.py` as `pkg.envs`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from rlplat.config import closest
from rlplat.errors import ConfigError, RlplatError
from rlplat.given.raised_at import raised_here
from rlplat.paths import current_folder, user_path
from rlplat.rl.user_code import found_in_copy, home_of, is_file, is_installed, look_here_too


def load_class(path: str) -> Any:
    """What "pkg.mod:Class" or "./file.py:Class" names; ConfigError where there is none, or its module raises.

    Modules are also looked for in the current directory: worker processes have the driver's.
    """
    home, attribute = _parts(path)
    try:
        module = load_module(home)
    except ConfigError as error:
        raise ConfigError(str(error) if is_file(home) else f"'{path}': {error}") from None
    except RlplatError:
        raise
    except Exception as error:
        raise ConfigError(f"'{path}': {import_problem(error, path)}") from error
    found = attribute_of(module, attribute)
    if found is None:
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise _lacks(path, home, attribute, known)
    return found


def require_class(path: str) -> None:
    """ConfigError where a name leads to nothing, without running what it names (a network's module imports torch):
    the file is there, is Python, and defines the class."""
    home, attribute = _parts(path)
    file = _source_of(home)
    if file is None:  # nothing that could be read: built in, or made when it is imported
        load_class(path)
        return
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        raise ConfigError(f"'{path}': {import_problem(error, path)}") from None
    names = _defined_in(tree)
    if names is not None and attribute.partition(".")[0] not in names:
        raise _lacks(path, home, attribute, names)


def _lacks(path: str, home: str, attribute: str, known: Iterable[str]) -> ConfigError:
    where = str(_seen(Path(home))) if is_file(home) else f"'{path}': '{home}'"
    return ConfigError(f"{where} has no '{attribute}'{closest(attribute, known)}")


def _seen(path: Path) -> Path:
    """From the current directory, where it is below that."""
    here = current_folder()
    return path.relative_to(here) if here is not None and path.is_relative_to(here) else path


def load_module(home: str) -> ModuleType:
    """The module of a file (`./file.py`) or of a dotted name. ConfigError where there is none; what it raises itself
    is not touched."""
    if is_file(home):
        return _import_file(user_path(home).resolve())
    look_here_too(home)
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name and not f"{home}.".startswith(f"{error.name}."):
            raise  # the module is there, something that it imports is not
        raise ConfigError(
            f"there is no module '{home}'{f': no module {error.name!r}' if error.name != home else ''}; the current "
            f"directory and the installed packages were searched, or name a file: ./{home.replace('.', '/')}.py:NAME"
        ) from None


def import_problem(error: BaseException, path: str) -> str:
    """`importing it raised ImportError: ...`, with the line and the fix. path: the name of what was imported."""
    if isinstance(error, SyntaxError):
        place = f" in line {error.lineno} of {error.filename}" if error.lineno else ""
        return f"it is not Python: {error.msg}{place}"
    text = f"importing it raised {type(error).__name__}: {error}{raised_here(error)}"
    if isinstance(error, ImportError) and "relative import" in str(error):
        file = Path(home_of(path) or path)
        name = f"{file.parent.name or 'pkg'}.{file.stem}:{path.rpartition(':')[2]}"
        return f"{text}; name it as part of its package, from the folder above that: {name}"
    return f"{text}; fix the module"


def attribute_of(module: ModuleType, attribute: str) -> Any:
    """`Class` or `Outer.Inner` of a module; None where there is none."""
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found


def made_of(named: Any, setting: str, *arguments: Any) -> tuple[str, Any]:
    """(name, object) of `./file.py:Class`, or of {`./file.py:Class`: {keyword: value}}, which is made with them; the
    class itself in the place of its name will do.

    arguments: positional ones, before those. What the class itself raises is a ConfigError that names `setting`.
    """
    given, keywords = _given_and_keywords(named, setting)
    is_name = isinstance(given, str)
    name = given if is_name else f"{given.__module__}:{getattr(given, '__qualname__', given)}"
    try:
        return name, (load_class(given) if is_name else given)(*arguments, **keywords)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None
    except Exception as error:
        given = f"with {keywords}" if keywords else "without arguments"
        raise ConfigError(f"{setting}: making {name} ({given}) raised {type(error).__name__}: {error}") from error


def _given_and_keywords(named: Any, setting: str) -> tuple[Any, dict[str, Any]]:
    given, keywords = next(iter(named.items())) if isinstance(named, dict) and len(named) == 1 else (named, {})
    if not (isinstance(given, str) or callable(given)) or not isinstance(keywords, dict):
        raise ConfigError(
            f"{setting}: {named!r} is neither pkg.module:Class or ./file.py:Class nor "
            "{./file.py:Class: {argument: value}}"
        )
    return given, keywords


def _parts(path: str) -> tuple[str, str]:
    home, attribute = home_of(path), path.rpartition(":")[2]
    if not home or not attribute or ":" not in path:
        raise ConfigError(f"'{path}' names no class: write pkg.module:Class or ./file.py:Class")
    return home, attribute


def _source_of(home: str) -> Path | None:
    """The file of a module, found without importing it (only the packages around it); ConfigError where there is
    none."""
    if is_file(home):
        return _existing(user_path(home).resolve())
    if home == "__main__":
        file = Path(getattr(sys.modules[home], "__file__", None) or "my_code.py").name
        raise ConfigError(
            f"__main__ is another module in every process: name the file, ./{file}:NAME, with what it runs under "
            'if __name__ == "__main__"; what a notebook defines goes into a file first (%%writefile)'
        )
    look_here_too(home)
    try:
        spec = importlib.util.find_spec(home)
    except ModuleNotFoundError:
        spec = None
    except Exception as error:  # of a package around it
        raise ConfigError(f"'{home}': {import_problem(error, home)}") from error
    if spec is None:
        load_module(home)  # says what is missing
        return None
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _defined_in(tree: ast.Module) -> list[str] | None:
    """Names that a module has when it is imported; None where they cannot be told from its text."""
    names: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.append(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.append(name)
            case ast.alias(name="*"):
                return None
            case ast.alias(name=name, asname=asname):
                names.append(asname or name.partition(".")[0])
            case ast.Call(func=ast.Name(id="globals" | "exec" | "setattr")):
                return None
    return None if "__getattr__" in names else names


# ---------------------------------------------------------------- files


_loaded: dict[Path, tuple[str, str]] = {}
"""(name of the module, digest of the text) by file."""


def forget_changed() -> None:
    """Where a run begins or is loaded: files that were edited since this process has loaded them are loaded again.
    Within a run a file stays what it was."""
    for path, (_, digest) in list(_loaded.items()):
        with suppress(OSError):
            if hashlib.sha256(found_in_copy(path).read_bytes()).hexdigest() != digest:
                del _loaded[path]


def _existing(path: Path) -> Path:
    file = found_in_copy(path)
    if not file.is_file():
        near = closest(path.name, [other.name for other in path.parent.glob("*.py")]) if path.parent.is_dir() else ""
        seen = _seen(path)
        raise ConfigError(
            f"there is no file {seen}{near}{f' (looked from {current_folder()})' if seen != path else ''}"
        )
    if file.suffix != ".py":
        raise ConfigError(f"{path} is not a Python file; its name must end in .py")
    return file


def _import_file(path: Path) -> ModuleType:
    """path: absolute, links resolved."""
    if path in _loaded and _loaded[path][0] in sys.modules:
        return sys.modules[_loaded[path][0]]
    file = _existing(path)
    text = file.read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    level, tops = _imports(text)
    if level and level < len(file.parents):
        name = _import_in_package(file, level)
    else:
        name = f"rlplat_file_{path.stem}_{hashlib.sha256(f'{path} {digest}'.encode()).hexdigest()[:12]}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        with _first_on_path(file.parent, tops):
            _run(spec)
    _loaded[path] = (name, digest)
    return sys.modules[name]


def _imports(text: bytes) -> tuple[int, set[str]]:
    """(the most dots of its relative imports, the first names of the others)."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return 0, set()  # running it says what is wrong
    level, tops = 0, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            level = max(level, node.level)
            tops |= {node.module.partition(".")[0]} if node.module and not node.level else set()
        elif isinstance(node, ast.Import):
            tops |= {alias.name.partition(".")[0] for alias in node.names}
    return level, tops


def _import_in_package(file: Path, level: int) -> str:
    """As part of the outermost folder around it with an __init__.py, or of as many as its imports go up. Returns the
    name of the module."""
    folders = [file.parent, *file.parent.parents]
    depth = next(index for index, folder in enumerate(folders) if not (folder / "__init__.py").is_file())
    depth = max(depth, level)
    root, inner = folders[depth], [folder.name for folder in reversed(folders[:depth])]
    top = inner[0]
    if not all(part.isidentifier() for part in inner) or not _is_free(top, root):
        top = f"rlplat_package_{hashlib.sha256(str(folders[depth - 1]).encode()).hexdigest()[:12]}"
        _open_package(top, folders[depth - 1])
    name = ".".join([top, *inner[1:], *([] if file.stem == "__init__" else [file.stem])])
    with _first_on_path(root, set()), _first_on_path(file.parent, set()):
        importlib.import_module(name)
    _by_value(sys.modules[top])
    return name


def _is_free(top: str, root: Path) -> bool:
    """Whether this folder of `root` may have its own name: no other module has it."""
    if top in sys.modules:
        places = [*getattr(sys.modules[top], "__path__", [])]
    else:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            return False
        if spec is None:
            return True
        places = [*(spec.submodule_search_locations or [])]
    return bool(places) and Path(places[0]).resolve() == root / top


def _open_package(name: str, folder: Path) -> None:
    """The package in a folder under another name than the folder's."""
    if name in sys.modules:
        return
    first = folder / "__init__.py"
    spec = (
        importlib.util.spec_from_file_location(name, first, submodule_search_locations=[str(folder)])
        if first.is_file()
        else ModuleSpec(name, None, is_package=True)
    )
    assert spec is not None
    spec.submodule_search_locations = [str(folder)]
    _run(spec)


def _run(spec: ModuleSpec) -> None:
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _by_value(module)
    if spec.loader is None:
        return
    try:
        spec.loader.exec_module(module)
    except BaseException:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[spec.name]
        raise


def _by_value(module: ModuleType) -> None:
    """What is sent to other processes carries its code: none of them can import it by this name."""
    cloudpickle.register_pickle_by_value(module)
    if rays := sys.modules.get("ray.cloudpickle"):  # a copy, with a list of its own
        rays.register_pickle_by_value(module)


@contextmanager
def _first_on_path(folder: Path, tops: set[str]) -> Iterator[None]:
    """The folder comes first on sys.path meanwhile and last afterwards.

    tops: what will be imported. Modules of these names that lie in the folder, and that another folder has loaded
    already, are loaded again from this one, and given back afterwards: each file has its own neighbours.
    """
    others: dict[str, ModuleType] = {}
    for top in tops - set(sys.stdlib_module_names):
        own = next((file for file in (folder / f"{top}.py", folder / top / "__init__.py") if file.is_file()), None)
        loaded = getattr(sys.modules.get(top), "__file__", None)
        if own is None or not loaded or is_installed(loaded):
            continue
        if Path(loaded).resolve() != own.resolve():
            names = [name for name in sys.modules if name == top or name.startswith(f"{top}.")]
            others |= {name: sys.modules.pop(name) for name in names}
    was_there = str(folder) in sys.path
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if not was_there:
            sys.path.append(str(folder))
        sys.modules.update(others)
