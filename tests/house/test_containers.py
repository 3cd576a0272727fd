"""Dockerfiles and the devcontainer, where no daemon runs: instructions, sources, stages, extras, commands."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from rlplat.cli.completion import options_of, parser_of

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / "Dockerfile", ROOT / ".devcontainer" / "Dockerfile"]
KNOWN = {"FROM", "WORKDIR", "RUN", "COPY", "ARG", "USER", "ENTRYPOINT", "CMD", "ENV"}


def instructions(file: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", file.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_dockerfile_is_sound(file: Path) -> None:
    stages: set[str] = set()
    user = "root"
    ignored = (ROOT / ".dockerignore").read_text().split()
    for name, value in instructions(file):
        assert name in KNOWN
        words = shlex.split(value)
        if name == "FROM":
            assert ":" in words[0] and not words[0].endswith(":latest"), "a version that stays"
            stages |= {words[2]} if words[1:2] == ["AS"] else set()
            user = "root"
        elif name == "USER":
            user = words[0]
        elif name == "COPY" and words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages
        elif name == "COPY":
            for source in words[:-1]:
                assert (ROOT / source).exists() and source not in ignored, source
        elif name in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(word, str) for word in json.loads(value)), "a list: signals reach the program"
    assert user != "root"


def test_the_image_copies_what_the_wheel_is_made_of_and_names_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = {
        word for name, value in instructions(ROOT / "Dockerfile") for word in value.split()[:-1] if name == "COPY"
    }
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {
        *wheel["packages"],
        *wheel["force-include"],
        project["project"]["readme"],
        "LICENSE",
        "pyproject.toml",
    }
    assert needed <= copied
    page = (ROOT / "docs" / "docker.md").read_text()
    for text in ((ROOT / "Dockerfile").read_text(), page):
        for extras in re.findall(r"EXTRAS=([\w,]+)", text):
            assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])


def test_the_devcontainer_is_json_and_names_what_is_there() -> None:
    settings = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert (ROOT / ".devcontainer" / settings["build"]["dockerfile"]).is_file()
    assert (ROOT / settings["postCreateCommand"].split()[0]).is_file()
    assert ("USER", settings["remoteUser"]) in instructions(FILES[1])


def test_the_pages_commands_are_ours() -> None:
    page = re.sub(r"\\\n\s*", " ", (ROOT / "docs" / "docker.md").read_text())
    runs = [line for line in page.splitlines() if line.startswith("$ docker run")]
    assert len(runs) >= 4
    for line in runs:
        words = shlex.split(line)
        command, *arguments = words[words.index("rlplat") + 1 :]
        parser = parser_of(command)
        assert parser is not None
        assert {each for each in arguments if each.startswith("--")} <= set(options_of(parser))
