"""docs/serving.md and its reference: applications are served, the client's program runs against a trained agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

import rlplat
from rlplat import serve
from rlplat.cli import main
from rlplat.serve.files.applications import load_application
from rlplat.serve.policies.serving import serve_policy
from tests.house.test_docs import ROOT, blocks
from tests.serve.calling import request, train

CLIENT, APPLICATION = blocks(ROOT / "docs" / "serving.md", "python")
MODELS, TENSORFLOW = blocks(ROOT / "docs" / "serving-reference.md", "python")


@pytest.mark.process
@pytest.mark.usefixtures("torch_cluster")
def test_the_clients_program_runs_against_a_served_agent(tmp_path: Path, capsys: Any) -> None:
    train(tmp_path / "demo")
    with serve_policy(tmp_path / "demo", port=0) as running:
        exec(CLIENT.replace("http://127.0.0.1:8000", running.url), names := {})
        assert capsys.readouterr().out.splitlines()[-1] == "CartPole-v1"
        assert names["action"] in (0, 1) and set(names["answer"]) == {
            "action",
            "log_prob",
            "value",
            "env_steps",
        }
        client = names["client"]
        rows = np.zeros((3, 4), np.float32)
        arrays = client.act_on_rows(rows, outputs=["value"])
        agent = rlplat.load(tmp_path / "demo")
        assert arrays["action"].tolist() == agent.act(rows).tolist() and arrays["value"].shape == (3,)
        with pytest.raises(serve.Refused, match="expected float32") as refused:
            client.act([1.0])
        assert refused.value.status == 422
        client.close()


@pytest.mark.process
def test_the_applications_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APPLICATION)
    Path("models.py").write_text(MODELS)
    with serve.run(load_application("app.py:app"), port=0) as running:
        for point, expected in ((0.2, 0), (2.9, 1)):
            assert request(running.url, "POST", "/", [point])[:2] == (200, {"class": expected})
    with serve.run(load_application("models.py:app"), port=0) as running:
        for model, status, expected in (("steep", 200, 12.0), ("flat", 200, 1.5), ("round", 404, None)):
            answer = request(running.url, "POST", "/", 3, {"x-model-id": model})
            assert answer[0] == status and (answer[1] == expected or answer[1]["error"]["code"] == "no-model")
    assert not rlplat.is_initialized()


@pytest.mark.process
@pytest.mark.slow
def test_the_tensorflow_model_is_served() -> None:
    pytest.importorskip("tensorflow")
    names: dict[str, Any] = {}
    exec("import numpy as np\nfrom rlplat import serve\n" + TENSORFLOW, names)
    with serve.run(names["Doubler"].bind(), port=None) as running:
        assert running.handle.remote(21.0).result(60) == 42.0


def test_what_is_no_application_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text("from rlplat import serve\nthree = 3\napp = serve.deployment(lambda: 1).bind()\n")
    for where, text in (
        ("nothing.py:app", "there is no file nothing.py"),
        ("wrong.py:ap", "did you mean 'app'"),
        ("wrong.py:three", "is int; expected an application"),
        ("no.such.module:app", "there is no module 'no.such.module'"),
    ):
        assert main(["serve", where, "--port", "0"]) == 2
        assert text in capsys.readouterr().err
    assert "wrong" not in sys.modules
