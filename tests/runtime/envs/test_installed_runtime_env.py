"""Runtime environments where rlplat lies in site-packages, as a wheel's files do, beside other packages."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.process
def test_an_environment_s_packages_come_before_those_beside_rlplat(tmp_path: Path) -> None:
    """And what a worker starts inherits no path."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "rlplat").symlink_to(ROOT / "rlplat")
    (packages / "others.pth").write_text("\n".join(p for p in sys.path if Path(p).name == "site-packages"))
    (packages / "versioned.py").write_text("VALUE = 'of the driver'\n")
    inner, info = tmp_path / "versioned-2.0-py3-none-any.whl", "versioned-2.0.dist-info"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("versioned.py", "VALUE = 'of the environment'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: versioned\nVersion: 2.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    (tmp_path / "run.py").write_text(
        "import os, rlplat\n"
        "def look():\n"
        "    import versioned\n"
        "    return versioned.VALUE, os.environ.get('PYTHONPATH'), rlplat.__file__\n"
        "rlplat.init(num_cpus=1, num_gpus=0)\n"
        "plain = rlplat.remote(look)\n"
        f"own = plain.options(runtime_env={{'pip': [{str(inner)!r}]}})\n"
        "print(rlplat.get([own.remote(), plain.remote()]))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["RLPLAT_CACHE_DIR"] = str(tmp_path / "cache")
    command = [home / "bin" / "python", "run.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    here = str(packages / "rlplat" / "__init__.py")
    expected = [("of the environment", None, here), ("of the driver", None, here)]
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == expected
