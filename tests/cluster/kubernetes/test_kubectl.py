"""`rlplat up`, `submit` and `down` on Kubernetes, with a stand-in for kubectl: what it is given, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlplat.cli import main

Write = Callable[[str], Path]
LAB = (
    "provider: kubernetes\nnum_cpus: 4\n"
    "kubernetes: {image: 'me/train:1', ray_version: 2.60.0, memory: 8Gi, namespace: rl, context: test}\n"
)
KUBECTL = """#!/bin/sh
echo "$*" >> "$0.calls"
cat > "$0.stdin"
[ -e "$0.refuses" ] && { cat "$0.refuses" >&2; exit 1; }
[ "$3" = create ] && echo rayjob.ray.io/lab-x7k2p || echo done
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


def calls(kubectl: Path) -> list[str]:
    return kubectl.with_name("kubectl.calls").read_text().splitlines()


@pytest.mark.process
def test_up_submit_and_down_are_kubectl(kubectl: Path, write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(write(LAB))
    assert main(["up", path]) == 0
    assert yaml.safe_load(kubectl.with_name("kubectl.stdin").read_text())["kind"] == "RayCluster"
    assert main(["submit", path, "--", "rlplat", "train"]) == 0
    assert "job lab-x7k2p: kubectl --context=test --namespace=rl logs -f job/lab-x7k2p" in capfd.readouterr().out
    assert yaml.safe_load(kubectl.with_name("kubectl.stdin").read_text())["kind"] == "RayJob"
    assert main(["down", path]) == 0
    of_lab = "app.kubernetes.io/managed-by=rlplat,app.kubernetes.io/instance=lab"
    assert calls(kubectl) == [
        "--context=test --namespace=rl apply -f -",
        "--context=test --namespace=rl create -f - -o name",
        f"--context=test --namespace=rl delete rayjobs.ray.io,rayclusters.ray.io --ignore-not-found -l {of_lab}",
    ]


@pytest.mark.process
def test_what_kubectl_refuses_is_said_in_its_words_with_the_fix(
    kubectl: Path, write: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = 'error: no matches for kind "RayCluster" in version "ray.io/v1"'
    kubectl.with_name("kubectl.refuses").write_text(refused)
    assert main(["up", str(write(LAB))]) == 2
    said = capfd.readouterr().err
    assert refused in said and "install its operator, 1.5.1 or later" in said


@pytest.mark.process
def test_without_kubectl_there_is_one_message_and_the_manifest_can_still_be_made(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(write(LAB))
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in (["up", path], ["down", path], ["submit", path, "--", "true"]):
        assert main(command) == 2
        assert "there is no kubectl on this machine" in capfd.readouterr().err
    for command, kind in (
        (["up", path, "--dry-run"], "RayCluster"),
        (["submit", path, "--dry-run", "--", "x"], "RayJob"),
    ):
        assert main(command) == 0
        assert yaml.safe_load(capfd.readouterr().out)["kind"] == kind


@pytest.mark.parametrize(
    ("text", "command", "said"),
    [
        (LAB, ["status"], "kubectl --context=test --namespace=rl get"),
        (LAB, ["jobs"], "the rest is kubectl's"),
        (LAB, ["submit", "--wait", "--", "true"], "--wait is not for provider: kubernetes"),
        ("provider: local\n", ["up", "--dry-run"], "--dry-run is for provider: kubernetes or sky"),
        ("provider: local\n", ["submit", "--dry-run", "--", "x"], "--dry-run is for provider: kubernetes or sky"),
        (LAB.replace("image", "imag"), ["up"], "unknown key 'kubernetes.imag'"),
        (LAB.replace("memory: 8Gi", "memory: 8Gi, program_gpus: 1"), ["submit", "--", "x"], "no node type has GPU 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_message(
    write: Write, text: str, command: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([command[0], str(write(text)), *command[1:]]) == 2
    found = capfd.readouterr()
    assert said in found.err and "Traceback" not in found.err and found.out == ""
