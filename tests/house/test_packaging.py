"""What is shipped: the sdist and the wheel that is built from it, installed elsewhere, train without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

pytest.importorskip("hatchling", reason="needs hatchling: ./scripts/install dev")

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist, as an index would have both."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (sdist,) = folder.glob("rlplat-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # none before Python 3.11.4
        archive.extractall(folder)
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=unpacked)
    (found,) = folder.glob("rlplat-*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel, and the packages of this one but for rlplat."""
    home = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    others = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "others.pth").write_text("\n".join(others))
    return home / "bin" / "python"


def test_the_wheel_holds_the_algorithms_under_one_name_the_configs_and_the_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"rlplat"}
    assert len(names) == len(set(names))
    for source, shipped in (("algorithms", "rlplat/algorithms"), ("configs", "rlplat/configs")):
        files = {p.relative_to(ROOT / source) for p in (ROOT / source).rglob("*.*") if p.is_file()}
        expected = {f"{shipped}/{path.as_posix()}" for path in files if "__pycache__" not in path.parts}
        assert expected <= set(names) and expected
    assert "rlplat/py.typed" in names


def test_the_wheel_trains_where_the_user_has_an_algorithms_folder(python: Path, tmp_path: Path) -> None:
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "__init__.py").write_text("raise ImportError('the wrong algorithms')\n")
    (tmp_path / "train.py").write_text(
        "import rlplat\n"
        "run = rlplat.train('es', env='CartPole-v1', out='runs/one', stop={'env_steps': 300}, num_rollout_workers=0)\n"
        "from rlplat.algorithms.es import ES\n"
        "print(rlplat.__file__, ES.__module__, run.directory)\n"
    )
    said = run(python, "train.py", cwd=tmp_path)
    home, module, directory = said.splitlines()[-1].split()
    assert Path(home).is_relative_to(python.parents[1]) and module == "rlplat.algorithms.es"
    assert (tmp_path / directory / "checkpoints").is_dir()
    assert "num_rollout_workers" in (tmp_path / directory / "config.yaml").read_text()


def test_a_top_level_algorithms_is_not_taken_for_ours() -> None:
    done = subprocess.run([sys.executable, "-c", "import algorithms.ppo"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "from rlplat.algorithms.ppo import PPO" in done.stderr
