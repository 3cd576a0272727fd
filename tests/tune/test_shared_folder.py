"""An experiment on several machines needs a folder that all of them see."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlplat
from rlplat.errors import ConfigError
from rlplat.tune import run_experiment
from rlplat.tune.run_experiment import require_shared


def test_machines_that_do_not_see_the_folder_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rlplat.init(backend="inproc", num_cpus=1)
    try:
        monkeypatch.setattr(run_experiment, "_sees", lambda path: False)
        require_shared(tmp_path)  # one machine has its own folders
        monkeypatch.undo()
        (here,) = rlplat.nodes()
        machines = [here | {"NodeManagerHostname": name} for name in ("first", "second")]
        machines.append(here | {"NodeManagerHostname": "gone", "Alive": False})
        monkeypatch.setattr(rlplat, "nodes", lambda: machines)
        require_shared(tmp_path)  # both see it
        monkeypatch.setattr(run_experiment, "_sees", lambda path: False)
        with pytest.raises(ConfigError, match=r"is not the same folder on first, second: .*--out"):
            require_shared(tmp_path)
        assert list(tmp_path.iterdir()) == []
    finally:
        rlplat.shutdown()
