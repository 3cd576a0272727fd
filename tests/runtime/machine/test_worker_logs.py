"""The folders of sessions on disk: made, kept, pruned."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlplat.runtime.machine import worker_logs


def test_two_clusters_that_start_at_once_may_prune_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is faster: ours is made where it belongs all the same."""
    (tmp_path / "rlplat-1-1-old").mkdir()

    def removed_meanwhile(path: Path) -> bool:
        path.rmdir()
        return True

    monkeypatch.setattr(worker_logs, "is_abandoned", removed_meanwhile)
    monkeypatch.setattr(worker_logs, "default_root", lambda: tmp_path)
    folder = worker_logs.make_session_folder("rlplat-2-2-new", None)
    assert folder == tmp_path / "rlplat-2-2-new"
    assert (folder / "logs").is_dir()
