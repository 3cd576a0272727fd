"""The scripts: they parse, they are executable, and the install refuses an old Python with the fix."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [ROOT / ".ci" / "run", *sorted((ROOT / "scripts").iterdir())]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_executable_and_parse(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(script)], check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what scripts/install looks at, and a PATH with nothing but the usual tools."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "install", tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "dirname", "cat", "cksum", "mkdir", "flock", "rm", "tail", "sed", "tr"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    return tmp_path


def fake_python(checkout: Path, *, version_is_fine: bool, pip_works: bool) -> None:
    """A `python3` that notes its arguments; `-m venv DIR` copies it to DIR/bin/python."""
    python = checkout / "tools" / "python3"
    cp = shutil.which("cp")
    python.write_text(
        f"""#!/bin/sh
echo "$*" >>{checkout}/calls
case "$*" in
    "-c"*) [ {int(version_is_fine)} = 1 ] ;;
    "--version") echo Python 3.99 ;;
    "-m venv"*) mkdir -p "$3/bin" && {cp} "$0" "$3/bin/python" ;;
    *pip*) echo "ERROR: no matching distribution"; [ {int(pip_works)} = 1 ] ;;
esac
"""
    )
    python.chmod(0o755)


def install(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(checkout / "tools"), **variables}
    script = str(checkout / "scripts" / "install")
    return subprocess.run([script, *arguments], env=environment, capture_output=True, text=True)


def test_an_old_python_is_refused_with_the_fix(checkout: Path) -> None:
    fake_python(checkout, version_is_fine=False, pip_works=True)
    done = install(checkout)
    assert done.returncode == 2
    assert "Python 3.11 or newer" in done.stderr and "RLPLAT_PYTHON=" in done.stderr


def test_a_failed_install_shows_the_log_and_is_done_again(checkout: Path) -> None:
    fake_python(checkout, version_is_fine=True, pip_works=False)
    done = install(checkout)
    assert done.returncode == 1
    assert "ERROR: no matching distribution" in done.stderr
    assert not (checkout / ".venv" / "installed").exists()

    fake_python(checkout, version_is_fine=True, pip_works=True)
    shutil.copy(checkout / "tools" / "python3", checkout / ".venv" / "bin" / "python")
    assert install(checkout).returncode == 0
    assert (checkout / ".venv" / "installed").exists()


def test_while_pip_works_its_newest_line_is_told_now_and_then(checkout: Path) -> None:
    fake_python(checkout, version_is_fine=True, pip_works=True)
    python, real = checkout / "tools" / "python3", shutil.which("sleep")
    working = f'*pip*) echo "  Downloading torch (201.3 MB)"; {real} 0.5'
    python.write_text(python.read_text().replace("*pip*) echo", f"{working}; echo"))
    (checkout / "tools" / "sleep").write_text(f"#!/bin/sh\nexec {real} 0.1\n")
    (checkout / "tools" / "sleep").chmod(0o755)
    done = install(checkout)
    assert done.returncode == 0, done.stderr
    assert "rlplat: 10 s so far: Downloading torch (201.3 MB)\n" in done.stderr


def test_the_second_use_does_nothing_until_the_requirements_change(checkout: Path) -> None:
    fake_python(checkout, version_is_fine=True, pip_works=True)
    assert install(checkout, "dev").returncode == 0
    calls = (checkout / "calls").read_text()
    assert "install --no-compile -c" in calls and "[torch,atari,box2d,video,dev]" in calls
    for arguments in ((), ("dev",)):  # the dev install holds what the plain one does
        done = install(checkout, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
    assert (checkout / "calls").read_text() == calls

    with open(checkout / "constraints.txt", "a") as file:
        file.write("# changed\n")
    assert install(checkout).returncode == 0
    assert (checkout / "calls").read_text() != calls


def test_where_python_may_not_keep_what_it_compiles_the_install_does(checkout: Path) -> None:
    """Else every start would compile torch: 5 s and not 2."""
    fake_python(checkout, version_is_fine=True, pip_works=True)
    assert install(checkout, PYTHONDONTWRITEBYTECODE="1").returncode == 0
    calls = (checkout / "calls").read_text()
    assert "install --compile -c" in calls and "--no-compile" not in calls


def test_extras_are_added_to_those_that_are_there_and_stay_when_the_requirements_change(
    checkout: Path,
) -> None:
    fake_python(checkout, version_is_fine=True, pip_works=True)
    assert install(checkout).returncode == 0
    calls = (checkout / "calls").read_text()
    assert "torch" not in calls and calls.rstrip().endswith(f"-e {checkout}")  # rlplat alone
    assert install(checkout, "tune", "mujoco").returncode == 0
    assert "[tune,mujoco]" in (checkout / "calls").read_text()
    calls = (checkout / "calls").read_text()
    assert install(checkout, "mujoco").returncode == 0
    assert (checkout / "calls").read_text() == calls

    with open(checkout / "constraints.txt", "a") as file:
        file.write("# changed\n")
    assert install(checkout).returncode == 0
    added = (checkout / "calls").read_text().removeprefix(calls)
    assert "[tune,mujoco]" in added
