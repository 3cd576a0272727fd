"""`rlplat doctor`, the groups of `rlplat --help`, the parser that a help text becomes, and --quiet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlplat.cli import COMMANDS, doctor, main
from rlplat.cli.completion import parser_of
from rlplat.cli.exit_codes import run_and_report
from rlplat.cli.parser import parser_from
from rlplat.errors import UsageError


def test_doctor_says_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) in (0, 1)
    found = {row["what"]: row["found"] for row in json.loads(capsys.readouterr().out)}
    assert {"cores", "memory", "GPUs", "shared memory", "open files", "[torch]"} <= found.keys()
    assert not {"[dev]", "[bench]"} & found.keys()


def test_doctor_says_what_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--shm-size" in doctor.shared_memory(str(tmp_path / "none"))[2]
    monkeypatch.setattr(doctor, "LEAST_SHARED", 0)
    assert doctor.shared_memory(str(tmp_path))[2] == ""
    monkeypatch.setattr(doctor, "LEAST_SHARED", 1 << 80)
    assert "--shm-size" in doctor.shared_memory(str(tmp_path))[2]


def test_help_is_grouped_and_hides_what_is_internal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    groups = [line for line in capsys.readouterr().out.splitlines() if line.endswith(":")]
    assert len(groups) > 6 and "train:" in groups
    main(["--help"])
    assert "\n  join" not in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_each_argument_is_explained(name: str) -> None:
    parser = parser_of(name)
    assert parser is not None
    unexplained = [action.dest for action in parser._actions if not action.help]
    assert unexplained == [] or name in ("jobs", "port-forward"), unexplained
    assert {"--quiet", "--debug"} <= parser._option_string_actions.keys()


def test_a_help_text_becomes_a_parser() -> None:
    parser = parser_from(
        "x",
        """
Does x.

RUN  a run
names@[NAME=]RUN...  several
--episodes N:20  how many: 95 %,
  of each
--x {a,b}:a  which
-f --follow  go on
--filter COLUMN=VALUE*  only such
--out! FILE  where to
wait_s@--wait-s --patience-s S:1.5  how long
""",
    )
    options = parser.parse_args(
        ["r", "a=1", "b", "--out", "f", "--patience-s", "3", "--filter", "k=v", "--filter", "l=w"]
    )
    assert (options.run, options.names, options.out) == (Path("r"), ["a=1", "b"], Path("f"))
    assert (options.episodes, options.x, options.follow, options.wait_s) == (20, "a", False, 3.0)
    assert options.filter == ["k=v", "l=w"] and parser.parse_args(["r", "a", "--out", "f"]).filter == []
    assert "95 %, of each (default: 20)" in " ".join(parser.format_help().split())
    for wrong in (
        ["r", "a"],
        ["r", "a", "--out", "f", "--x", "c"],
        ["r", "a", "--out", "f", "--episodes", "many"],
    ):
        with pytest.raises(UsageError):
            parser.parse_args(wrong)


def test_quiet_prints_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    def told(arguments: list[str]) -> int:
        print("progress")
        if arguments:
            raise UsageError("no such run")
        return 0

    assert run_and_report(told, ["--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert run_and_report(told, ["x", "--quiet"]) == 2
    assert capsys.readouterr() == ("", "rlplat: no such run\n")
    assert run_and_report(told, ["--", "--quiet"]) == 2  # the program's, not ours
    assert "progress" in capsys.readouterr().out
