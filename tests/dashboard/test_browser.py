"""The command and its pages in a real browser (headless Chromium), with no network but this machine's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlplat
from rlplat import serve
from rlplat.cli import main
from rlplat.serve.policies.serving import serve_policy
from tests.dashboard.made_runs import learning, make_run
from tests.serve.calling import OBS, train

pytest.importorskip("starlette", reason="needs starlette: ./scripts/install dashboard")
pytestmark = pytest.mark.process
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt install chromium")
MARKUP = "<b>x & y"


def page(url: str, home: Path) -> str:
    """The page after its scripts have run, and no error on its console."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
         "--virtual-time-budget=5000", "--window-size=1200,3000", f"--user-data-dir={home}",
         "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", url],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert done.returncode == 0 and errors == [], errors or done.stderr[-500:]
    return done.stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        make_run(root / f"ppo-{seed}", learning(30, **{"learner/approx_kl": 0.2}), seed=seed)
    make_run(root / MARKUP, learning(12), algo="dqn")
    return root


@contextlib.contextmanager
def dashboard_of(root: Path, **environment: str) -> Iterator[str]:
    command = [sys.executable, "-m", "rlplat.cli", "dashboard", str(root), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "the dashboard of" in line, line + process.stderr.read()
        yield line.split(" is at ")[1].split(";")[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0 and process.stderr.read() == ""


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with dashboard_of(root) as address:
        yield address


@needs_browser
@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("#/", ["ppo-1", "&lt;b&gt;x &amp; y", "30,720", "environment"]),
        ("#/run/ppo-1", ["KL of 0.2", "learner/entropy", "uplot", "started\ndone", "learning_rate: 0.0003"]),
        (
            "#/compare/ppo-1|ppo-2|%3Cb%3Ex%20%26%20y",
            ["n = 2", "interquartile mean", "uplot", "&lt;b&gt;x", "P(", "IQM"],
        ),
        ("#/run/gone", ["there is no run 'gone'"]),
        ("#/cluster", ["Cluster"]),
        ("#/serving", ["Serving"]),
    ],
)
def test_pages_show_what_there_is(address: str, tmp_path: Path, fragment: str, expected: list[str]) -> None:
    text = page(f"{address}/{fragment}", tmp_path)
    assert [word for word in expected if word not in text] == []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[str]:
    """The address of a dashboard beside one server, of a recurrent agent that has answered in two sessions."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("served")
    train(folder / "demo", policy={"core": "lstm"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))  # where servers say that they run: no others are here
        rlplat.init(num_cpus=2, num_gpus=0)
        with (
            serve_policy(folder / "demo", port=0) as running,
            dashboard_of(root, TMPDIR=str(folder)) as address,
        ):
            with serve.Client(running.url) as client, client.session() as one, client.session() as other:
                for _ in range(20):
                    one.act(OBS), other.act(OBS)
                yield address
        rlplat.shutdown()


@needs_browser
def test_a_server_is_shown_with_its_rates_and_sessions(served: str, tmp_path: Path) -> None:
    text = page(f"{served}/#/serving", tmp_path)
    assert [word for word in ("demo-", "uplot", "p95", "sessions", "<b>2</b>", "42 requests") if word not in text] == []


@needs_browser
def test_an_exported_page_needs_no_server(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert main(["dashboard", str(root), "--export", str(file), "--runs", "ppo-1", MARKUP]) == 0
    assert "30,720" in page(f"file://{file}", tmp_path / "home")
    text = page(f"file://{file}#/run/%3Cb%3Ex%20%26%20y", tmp_path / "home")
    assert "uplot" in text and "learner/entropy" in text


def test_what_cannot_be_shown_or_must_not_is_one_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, words in (
            ([str(tmp_path / "no")], "there is no directory"),
            ([str(tmp_path), "--runs", "a"], "--runs goes with --export FILE"),
            ([str(tmp_path), "--export", str(tmp_path / "no" / "a.html")], "there is no directory"),
            ([str(root), "--port", port], f"port {port} of 127.0.0.1 is in use"),
            ([str(root), "--host", "0.0.0.0"], "give a secret by --token-file FILE"),
            ([str(root), "--token-file", str(tmp_path / "no")], "cannot read the token"),
            ([str(root), "--export", str(tmp_path / "x.html"), "--runs", "no"], "there is no run 'no'"),
        ):
            assert main(["dashboard", *arguments]) == 2
            error = capsys.readouterr().err
            assert words in error and error.count("\n") == 1, error
