"""Runtime environments: what tasks and actors find around them, and who inherits what."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied, ConfigError, OptionError, RuntimeEnvFailed

pytestmark = pytest.mark.process


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Starts a cluster with a cache and logs of its own."""
    monkeypatch.setenv("RLPLAT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RLPLAT_LOG_DIR", str(tmp_path / "logs"))
    yield lambda **options: rlplat.init(num_cpus=2, num_gpus=0, **options)
    rlplat.shutdown()


def variable(name: str) -> str | None:
    return os.environ.get(name)


def imported(name: str) -> Any:
    import importlib

    return importlib.import_module(name).VALUE


def package(folder: Path, name: str, value: object) -> Path:
    """A package directory with VALUE in it."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f"VALUE = {value!r}\n")
    return folder / name


def wheel(folder: Path, name: str, value: object) -> Path:
    """A wheel, made by hand: it is a zip."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}/__init__.py", f"VALUE = {value!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"{name}/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


# ---------------------------------------------------------------- what is refused, at once and by name


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"env_var": {"A": "1"}}, "unknown key 'env_var' in runtime_env; did you mean 'env_vars'?"),
        ({"zzz": 1}, "unknown key 'zzz' in runtime_env; known keys: env_vars, working_dir"),
        ({"conda": {}}, "'conda' does not exist in rlplat: use pip or uv"),
        ({"env_vars": {"A": 1}}, r"runtime_env\['env_vars'\]\['A'\] must be text, not 1 \(int\)"),
        ({"env_vars": ["A"]}, "must be a dictionary, not list"),
        ({"working_dir": "/there/is/no/such"}, "there is no directory /there/is/no/such"),
        ({"working_dir": "s3://bucket/a.zip"}, "no local path"),
        ({"py_modules": "/x"}, r"must be a list .*put it into \[...\]"),
        ({"py_modules": ["/there/is/no/such"]}, "there is no directory, .py file or wheel at /there/is/no/such"),
        ({"pip": ["a"], "uv": ["b"]}, "either 'pip' or 'uv'"),
        ({"pip": "/no/requirements.txt"}, "there is no requirements file /no/requirements.txt"),
        ({"pip": ["./no-such-package"]}, "there is nothing at .*no-such-package"),
        ({"pip": {"package": ["a"]}}, "unknown key 'package'"),
        ("pip", "must be a dictionary, not str"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(env: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rlplat.remote(runtime_env=env)(variable)
    with pytest.raises(ConfigError, match=message):
        rlplat.init(runtime_env=env)
    assert not rlplat.is_initialized()


# ---------------------------------------------------------------- variables


def test_variables_that_are_too_large_are_refused_and_harm_no_other_task(start: Callable[..., None]) -> None:
    start()
    for size in (127_000, 132_000, 1_000_000):
        call = rlplat.remote(runtime_env={"env_vars": {"TOO_LARGE": "x" * size}})(variable)
        if size < 128 << 10:
            assert rlplat.get(call.remote("TOO_LARGE")) == "x" * size
        else:
            with pytest.raises(OptionError, match=r"a runtime_env of 1\S+ bytes: .* 131,072 at most"):
                call.remote("TOO_LARGE")
    assert rlplat.get(rlplat.remote(variable).remote("TOO_LARGE")) is None


def test_variables_of_a_task_an_actor_and_the_job(start: Callable[..., None]) -> None:
    start(runtime_env={"env_vars": {"OF_JOB": "job", "BOTH": "job"}})
    read = rlplat.remote(variable)
    mine = read.options(runtime_env={"env_vars": {"BOTH": "task"}})
    assert rlplat.get([read.remote("OF_JOB"), read.remote("BOTH")]) == ["job", "job"]
    assert rlplat.get([mine.remote("OF_JOB"), mine.remote("BOTH")]) == ["job", "task"]

    class Reader:
        def read(self, name: str) -> str | None:
            return variable(name)

        def below(self, name: str) -> Any:
            return rlplat.get(read.remote(name))

        def below_with(self, name: str) -> Any:
            return rlplat.get(read.options(runtime_env={"env_vars": {"MORE": "x"}}).remote(name))

    reader = rlplat.remote(Reader).options(runtime_env={"env_vars": {"BOTH": "actor"}}).remote()
    assert rlplat.get([reader.read.remote("OF_JOB"), reader.read.remote("BOTH")]) == ["job", "actor"]
    # What it submits inherits its environment, as in Ray.
    assert rlplat.get([reader.below.remote("BOTH"), reader.below_with.remote("BOTH")]) == ["actor", "actor"]
    assert rlplat.get(read.remote("BOTH")) == "job", "workers are not mixed up"
    assert "BOTH" not in os.environ


def test_a_variable_may_refer_to_outer_ones(start: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "/a")
    start(runtime_env={"env_vars": {"INNER": "${OUTER}:/b${NO_SUCH}"}})
    assert rlplat.get(rlplat.remote(variable).remote("INNER")) == "/a:/b"


def test_a_variable_that_is_read_at_start_counts(start: Callable[..., None], tmp_path: Path) -> None:
    """PYTHONPATH and the like come too late for a fork: such a worker is a process of its own."""
    package(tmp_path, "on_the_path", 17)
    start()
    env = {"env_vars": {"PYTHONPATH": f"{tmp_path}:${{PYTHONPATH}}", "PYTHONHASHSEED": "0"}}
    get = rlplat.remote(runtime_env=env)(lambda: (imported("on_the_path"), hash("a")))
    assert rlplat.get([get.remote() for _ in range(3)], timeout=60) == [rlplat.get(get.remote())] * 3
    assert rlplat.get(get.remote())[0] == 17


# ---------------------------------------------------------------- directories


def test_working_dir_is_a_snapshot(start: Callable[..., None], tmp_path: Path) -> None:
    source = tmp_path / "project"
    package(source, "helper_of_project", "first")
    (source / "data.txt").write_text("first")
    (source / "big.bin").write_text("left out")
    (source / ".git").mkdir()
    start(runtime_env={"working_dir": str(source), "excludes": ["*.bin"]})

    @rlplat.remote
    def look() -> tuple[str, Any, list[str]]:
        Path("written.txt").write_text("by a worker")
        names = sorted(set(os.listdir()) - {"written.txt"})
        return Path("data.txt").read_text(), imported("helper_of_project"), names

    expected = ("first", "first", ["data.txt", "helper_of_project"])
    assert rlplat.get(look.remote(), timeout=60) == expected
    (source / "data.txt").write_text("second")
    package_file = source / "helper_of_project" / "__init__.py"
    package_file.write_text("VALUE = 'second'\n")
    text, _, names = rlplat.get(look.remote())
    assert (text, names[0]) == ("first", "data.txt")
    assert not (source / "written.txt").exists(), "what workers write does not reach the source"
    # A task that asks for the directory anew gets it as it is now.
    again = look.options(runtime_env={"working_dir": str(source), "excludes": ["*.bin"]})
    assert rlplat.get(again.remote(), timeout=60) == ("second", "second", expected[2])


def test_snapshots_are_gone_at_the_end(start: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    start(runtime_env={"working_dir": str(tmp_path / "project")})
    place = rlplat.get(rlplat.remote(os.getcwd).remote(), timeout=60)
    assert place.startswith(str(tmp_path / "logs"))
    rlplat.shutdown()
    assert not os.path.exists(place)


def test_a_directory_that_is_too_large_is_refused(
    start: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlplat.runtime.envs.spec._MOST_BYTES", 1_000_000)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "weights.bin").write_bytes(bytes(2_000_000))
    start()
    task = rlplat.remote(runtime_env={"working_dir": str(tmp_path / "project")})(os.getcwd)
    with pytest.raises(ConfigError, match=r"project holds 2 MB, and at most 1 MB are copied: .*excludes"):
        task.remote()


def test_py_modules_are_directories_files_wheels_and_modules(
    start: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "single_file.py").write_text("VALUE = 3\n")
    package(tmp_path / "d", "as_a_module", 4)
    monkeypatch.syspath_prepend(str(tmp_path / "d"))
    import as_a_module  # type: ignore[import-not-found]

    modules = [
        str(package(tmp_path / "a", "of_a_directory", 1)),
        wheel(tmp_path / "b", "of_a_wheel", 2),
        tmp_path / "c" / "single_file.py",
        as_a_module,
    ]
    start()
    read = rlplat.remote(runtime_env={"py_modules": modules})(imported)
    names = ["of_a_directory", "of_a_wheel", "single_file", "as_a_module"]
    assert rlplat.get([read.remote(name) for name in names], timeout=60) == [1, 2, 3, 4]
    with pytest.raises(ModuleNotFoundError):
        rlplat.get(rlplat.remote(imported).remote("of_a_directory"))


# ---------------------------------------------------------------- pip


def test_pip_packages_are_installed_once_in_a_cached_venv(start: Callable[..., None], tmp_path: Path) -> None:
    file = wheel(tmp_path / "wheels", "installed_by_pip", 5)
    start()

    @rlplat.remote
    class Reader:
        def read(self) -> tuple[Any, str, bool]:
            import numpy  # noqa: F401  (what the driver has is there as well)

            return imported("installed_by_pip"), sys.executable, sys.prefix == os.environ["VIRTUAL_ENV"]

    env = {"pip": ["--no-index", str(file)], "env_vars": {"A": "1"}}
    value, python, is_own = rlplat.get(Reader.options(runtime_env=env).remote().read.remote(), timeout=100)
    assert (value, is_own) == (5, True)
    assert python.startswith(str(tmp_path / "cache" / "envs"))
    built = os.stat(Path(python).parents[1] / "complete").st_mtime_ns
    task = rlplat.remote(imported).options(runtime_env={**env, "env_vars": {"A": "2"}})
    assert rlplat.get(task.remote("installed_by_pip"), timeout=60) == 5
    assert os.stat(Path(python).parents[1] / "complete").st_mtime_ns == built, "it was there already"
    assert len(list((tmp_path / "cache" / "envs").glob("*/complete"))) == 1
    with pytest.raises(ModuleNotFoundError):
        rlplat.get(rlplat.remote(imported).remote("installed_by_pip"))


def test_a_requirements_file_with_a_source_package(start: Callable[..., None], tmp_path: Path) -> None:
    source = tmp_path / "src_package"
    package(source, "from_source", 6)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "from-source"\nversion = "1"\n[tool.setuptools]\npackages = ["from_source"]\n'
    )
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"# ours\n--no-index\n--no-build-isolation\n{source}  # local\n")
    start()
    read = rlplat.remote(runtime_env={"pip": str(requirements)})(imported)
    assert rlplat.get(read.remote("from_source"), timeout=100) == 6


def test_a_failed_build_fails_what_waits_with_pips_words(start: Callable[..., None], tmp_path: Path) -> None:
    start()
    env = {"pip": ["--no-index", "no-such-package-anywhere"]}
    task = rlplat.remote(variable).options(runtime_env=env)

    @rlplat.remote(runtime_env=env)
    class Actor:
        def f(self) -> None: ...

    refs = [task.remote("A") for _ in range(3)]
    actor = Actor.remote()
    call = actor.f.remote()
    for ref in refs:
        with pytest.raises(RuntimeEnvFailed, match=r"(?s)no-such-package-anywhere.*No matching distribution"):
            rlplat.get(ref, timeout=100)
    with pytest.raises((RuntimeEnvFailed, ActorDied), match="could not be set up"):
        rlplat.get(call, timeout=30)
    with pytest.raises(RuntimeEnvFailed, match="No matching distribution"):  # known, and not tried again
        rlplat.get(task.remote("A"), timeout=60)
    assert not list((tmp_path / "cache" / "envs").glob("*/complete"))
    assert rlplat.get(rlplat.remote(variable).remote("NO_SUCH")) is None
    assert rlplat.available_resources()["CPU"] >= 1


def test_an_environment_in_which_no_worker_starts_is_an_error(start: Callable[..., None]) -> None:
    start()
    broken = rlplat.remote(runtime_env={"env_vars": {"PYTHONHOME": "/there/is/no/such"}})(variable)
    message = r"(?s)three worker processes in a row ended while they started.*No module named 'encodings'"
    with pytest.raises(RuntimeEnvFailed, match=message):
        rlplat.get(broken.remote("A"), timeout=60)
    assert rlplat.get(rlplat.remote(variable).remote("NO_SUCH")) is None


def test_a_build_that_takes_too_long_is_ended(
    start: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "uv"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho resolving\nsleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    start()
    env = {"uv": ["x"], "config": {"setup_timeout_seconds": 4}}
    with pytest.raises(RuntimeEnvFailed, match=r"(?s)more than 4 s.*resolving"):
        rlplat.get(rlplat.remote(runtime_env=env)(variable).remote("A"), timeout=60)


def test_uv_installs_into_the_venv(start: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for uv, which checks its arguments and leaves a module."""
    fake = tmp_path / "bin" / "uv"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\nset -e\n[ "$1 $2 $3" = "pip install --python" ]\n'
        'site=$(ls -d "$(dirname "$(dirname "$4")")"/lib/python*/site-packages)\n'
        'grep -q some-package "$6"\necho "VALUE = 8" > "$site/some_package.py"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    start()
    read = rlplat.remote(runtime_env={"uv": ["some-package"]})(imported)
    assert rlplat.get(read.remote("some_package"), timeout=60) == 8


def test_a_builder_that_dies_leaves_nothing_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlplat.runtime.envs import build
    from rlplat.runtime.envs.spec import checked

    monkeypatch.setenv("RLPLAT_CACHE_DIR", str(tmp_path / "cache"))
    env = checked({"pip": ["--no-index", str(wheel(tmp_path, "twice_built", 1))]})
    venv = build.venv_folder(env)
    assert venv is not None
    (venv / "bin").mkdir(parents=True)  # what one that was killed left: no file `complete`
    (venv / "bin" / "python").write_text("half")
    assert not build.is_complete(venv)
    build.build(env, venv)
    assert build.is_complete(venv)
