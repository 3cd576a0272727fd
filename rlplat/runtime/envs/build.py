"""Build what a runtime environment needs: a program that the node runs once for each.

    python -m rlplat.runtime.envs.build ENV VENV ARCHIVE...     prints what pip prints; exit code 0 when all is there

An archive is a snapshot of a folder that has come from another machine, unpacked in place of its name less `.tar`.

A venv is `<cache>/envs/<hash>`, made by one process at a time under a lock, and counts as absent until its file
`complete` is there: a venv cannot be renamed, because its scripts name its path. It sees the packages of the driver's
environment beneath its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from rlplat.paths import user_path
from rlplat.runtime.envs.spec import ARCHIVE, Env, fingerprint, unpack


def cache_folder() -> Path:
    named = os.environ.get("RLPLAT_CACHE_DIR")
    return user_path(named or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "rlplat")


def venv_folder(env: Env) -> Path | None:
    """Where the venv of this environment is or is to be; None when it needs none."""
    tool = "pip" if "pip" in env else "uv"
    if tool not in env:
        return None
    packages, options = env[tool]["packages"], env[tool]["options"]
    local = [fingerprint(package) for package in packages if package.startswith(os.sep)]
    identity: Any = (tool, packages, options, local, sys.version, sys.prefix)
    return cache_folder() / "envs" / hashlib.blake2b(repr(identity).encode(), digest_size=12).hexdigest()


def is_complete(venv: Path) -> bool:
    return (venv / "complete").exists()


def venv_python(venv: Path) -> str:
    return str(venv / "bin" / "python")


def build(env: Env, venv: Path) -> None:
    """Make the venv unless it is there. CalledProcessError when pip fails."""
    venv.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(f"{venv}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete(venv):
            return
        shutil.rmtree(venv, ignore_errors=True)
        try:
            _make(venv)
            _install(venv, env)
        except BaseException:
            shutil.rmtree(venv, ignore_errors=True)
            raise
        draft = venv / "complete.draft"
        draft.write_text(json.dumps(env, indent=1))
        draft.rename(venv / "complete")


def _make(venv: Path) -> None:
    has_pip = _run([sys.executable, "-c", "import pip"], is_quiet=True) == 0
    command = [sys.executable, "-m", "venv", "--system-site-packages", str(venv)]
    _check(command if not has_pip else [*command, "--without-pip"])
    # A venv of a venv sees the base installation only: add what this interpreter sees.
    folders = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    [site] = venv.glob("lib/python*/site-packages")
    (site / "_rlplat_driver.pth").write_text(
        "import site; " + "; ".join(f"site.addsitedir({folder!r})" for folder in folders) + "\n"
    )


def _install(venv: Path, env: Env) -> None:
    python = venv_python(venv)
    tool = "pip" if "pip" in env else "uv"
    requirements = venv / "requirements.txt"
    requirements.write_text("".join(f"{package}\n" for package in env[tool]["packages"]))
    rest = [*env[tool]["options"], "-r", str(requirements)]
    if tool == "pip":
        _check([python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *rest])
    else:
        uv = shutil.which("uv")
        if uv is None:
            raise FileNotFoundError(
                "runtime_env['uv'] needs the program uv, and there is none on PATH: pip install uv, or use 'pip'"
            )
        _check([uv, "pip", "install", "--python", python, *rest])


def _check(command: list[str]) -> None:
    code = _run(command)
    if code:
        raise subprocess.CalledProcessError(code, command)


def _run(command: list[str], is_quiet: bool = False) -> int:
    output = subprocess.DEVNULL if is_quiet else None
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode


def main() -> None:
    try:
        env, venv, *archives = sys.argv[1:]
        for archive in archives:
            unpack(os.path.realpath(archive), archive.removesuffix(ARCHIVE))
        if venv:
            build(json.loads(env), Path(venv))
    except subprocess.CalledProcessError as error:
        print(f"`{' '.join(error.cmd)}` ended with code {error.returncode}", flush=True)
        sys.exit(1)
    except (OSError, tarfile.TarError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
