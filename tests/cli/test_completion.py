"""The TAB key: words for every command, and scripts that a shell takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlplat.cli import COMMANDS, HIDDEN, main
from rlplat.cli.completion import SCRIPTS, candidates, options_of, parser_of


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_completes_its_options(command: str) -> None:
    parser = parser_of(command)
    assert parser is not None
    assert candidates([command, "--"]) == options_of(parser) != []
    assert candidates([command, "--hel"]) == ["--help"]


def test_options_are_those_that_the_parser_takes() -> None:
    parser = parser_of("train")
    assert parser is not None
    assert set(options_of(parser)) == {each for each in parser._option_string_actions if each.startswith("--")}


def test_words_depend_on_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("demo", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert candidates(["evaluate", ""]) == ["runs/demo", "runs/other"]
    assert candidates(["train", "--resume", "runs/d"]) == ["runs/demo"]
    assert {"a3c", "dqn", "es", "ppo"} <= set(candidates(["train", "--algo", ""]))
    assert candidates(["train", "ppo/Cart"]) == ["ppo/CartPole-v1"]
    assert "CartPole-v1" in candidates(["train", "--algo", "ppo", "--env", "C"])
    assert candidates(["track", "runs/demo", "--to", "w"]) == ["wandb"]
    assert candidates(["tr"]) == ["track", "train"] and candidates([]) == sorted(COMMANDS.keys() - HIDDEN)
    assert candidates(["train", "--seed", ""]) == candidates(["nonsense", ""]) == []


def test_an_unknown_shell_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "is one of bash, fish, zsh" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_shell_takes_the_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    command = tmp_path / "rlplat"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rlplat.cli "$@"\n')
    command.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    test = {
        "bash": 'eval "$(rlplat completion bash)"; COMP_WORDS=(rlplat tra); COMP_CWORD=1; _rlplat; '
        "echo -n ${COMPREPLY[@]} ''; COMP_WORDS=(rlplat train --fra); COMP_CWORD=2; _rlplat; echo ${COMPREPLY[@]}",
        "zsh": 'eval "$(rlplat completion zsh)"; [ -n "$_comps[rlplat]" ] && echo track train --framework',
        "fish": "rlplat completion fish | source; echo (complete -C 'rlplat tra') (complete -C 'rlplat train --fra')",
    }[shell]
    done = subprocess.run(
        [shell, "-c", test], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["track", "train", "--framework"], done.stderr
