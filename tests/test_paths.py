"""Paths as users write them, and addresses of other places."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlplat
from rlplat import cli, tune
from rlplat.errors import ConfigError
from rlplat.paths import expanded, user_path


@pytest.mark.parametrize("read", [expanded, user_path])
def test_a_file_address_is_a_path(read: object) -> None:
    for address in ("file:///runs/a%20b", "file:/runs/a b", "file://localhost/runs/a b", "FILE:///runs/a b"):
        assert read(address) == Path("/runs/a b")  # type: ignore[operator]


@pytest.mark.parametrize(
    "address", ["s3://bucket/x", "gs://b", "hf://user/agent", "https://x/y", "file://host/x", "s3:///x"]
)
def test_other_addresses_are_refused(address: str) -> None:
    for read in (expanded, user_path):
        with pytest.raises(ConfigError, match=address):
            read(address)


def test_names_with_colons_are_paths() -> None:
    for name in ("a:b", "./s3://x", "file.py:train", "12:30", "a:/b"):
        assert expanded(name) == Path(name)


@pytest.mark.parametrize(
    "command",
    [
        "train --algo ppo --env CartPole-v1 --out s3://b/x",
        "train --algo ppo --env CartPole-v1 --resume s3://b/x",
        "train --algo ppo --env CartPole-v1 --seeds 1-2 --out s3://b/x",
        "train s3://b/x.yaml",
        "tune --algo ppo --env CartPole-v1 --out s3://b/x",
        "tune s3://b/x --resume",
        "tune show s3://b/x",
        "record s3://b/x --out y",
        "record run --out s3://b/x",
        "export s3://b/x --out x.onnx",
        "export run --out s3://b/x.onnx",
        "evaluate s3://b/x",
        "play s3://b/x",
        "serve s3://b/x",
        "runs s3://b/x",
        "dashboard s3://b/x",
        "plot s3://b/x --out x.png",
        "plot run --out s3://b/x.png",
        "track s3://b/x",
        "timeline --out s3://b/x",
    ],
)
def test_no_command_makes_a_folder_of_an_address(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()) == 2
    assert "s3://b" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_no_verb_of_python_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for out in ("s3://b/x", "file://b/x"):
        with pytest.raises(ConfigError, match=out):
            rlplat.train("ppo", "CartPole-v1", out=out)
        with pytest.raises(ConfigError, match=out):
            tune.run("ppo", {"env": "CartPole-v1"}, out=out)
    assert not list(tmp_path.iterdir())
