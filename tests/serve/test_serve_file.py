"""serve.yaml: what it may say, what is changed when it changes, and the commands around it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from rlplat.cli import main
from rlplat.errors import ConfigError
from rlplat.serve.deployments import deployment, parts_of, with_options
from rlplat.serve.files.settings import Adjust, Change, Wanted, changes, read_applications
from tests.serve.calling import request

PROGRAM = """
import os
import helper
from rlplat import serve

@serve.deployment
class Adder:
    def __init__(self): self.add = 0
    def reconfigure(self, config): self.add = config["add"]
    async def __call__(self, request): return {"sum": VALUE + helper.MORE + self.add, "pid": os.getpid()}

app = Adder.bind()
"""


def read(folder: Path, text: str) -> dict[str, Wanted]:
    (folder / "serve.yaml").write_text(text)
    return read_applications(folder / "serve.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("applications: {a: {app: x.py:app, prot: 1}}", r"'applications.a.prot' in .*serve.yaml:1; .*'port'"),
        ("aplications: {}", r"'aplications'.*'applications'"),
        ("applications: {a: {port: 1}}", "either app: .* or run:"),
        ("applications: {a: {app: x.py:app, run: y}}", "either app: .* or run:"),
        ("applications: {a: {app: x.py:app, follow: true}}", "follow is for run"),
        ("applications: {a: {app: x.py:app, canary: {share: 0.1}}}", "canary needs app, and has share"),
        ("applications: {a: {app: x.py:app, canary: {share: 1.0, app: y.py:app}}}", "canary.share"),
        (
            "applications: {a: {run: x, canary: {share: 0.1, app: y.py:app}}}",
            "canary needs run or checkpoint",
        ),
        ("applications: {a: {app: x.py:app, canary: {share: 0.1, app: y.py}}}", "a.canary: app is 'y.py'"),
        ("applications: {a: {app: x.py}}", "expected FILE.py:NAME"),
        (
            "applications: {a: {app: x.py:app, deployments: {M: {num_replica: 2}}}}",
            r"deployments.M.num_replica' in .*serve.yaml:1; .*num_replicas'",
        ),
        *(
            (
                f"applications: {{a: {{app: x.py:app, deployments: {{M: {{{options}}}}}}}}}",
                f"M.{key}' in .*serve.yaml:1",
            )
            for options, key in (
                ("num_replicas: 0", "num_replicas"),
                ("num_replicas: two", "num_replicas"),
                ("max_queued: true", "max_queued"),
                ("autoscale: {target_ongoing: [2]}", "autoscale.target_ongoing"),
                ("autoscale: 4", "autoscale"),
                ("batch: {many: often}", "batch.many"),
                ("batch: {max_size: 2.5}", "batch.max_size"),
                ("resources: gpu", "resources"),
            )
        ),
        ("applications: {a: {app: x.py:app}, b: {app: y.py:app}}", "a and b have the same port 8000"),
    ],
)
def test_a_wrong_file_is_one_message_with_the_key(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_paths_are_from_the_files_folder_and_the_code_is_part_of_it(tmp_path: Path) -> None:
    text = "applications: {a: {app: x.py:app}, b: {run: runs/demo, port: 8001}}"
    (tmp_path / "x.py").write_text("one")
    first = read(tmp_path, text)
    assert first["a"].settings.app == f"{tmp_path}/x.py:app" and first["b"].settings.run == f"{tmp_path}/runs/demo"
    assert changes(first, read(tmp_path, text)) == {}
    (tmp_path / "x.py").write_text("two")
    assert changes(first, read(tmp_path, text)) == {"a": Change.UPDATE}


APP = "{app: x.py:app, port: 1, deployments: {M: {num_replicas: 2, user_config: {k: 1}}}}"
RUN = "{run: r, port: 2, replicas: 1}"


def with_canary(application: str, canary: str) -> str:
    return application[:-1] + f", canary: {{share: 0.1, {canary}}}}}"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (with_canary(APP, "app: y.py:app"), APP, Change.CHANGE_CANARY),
        (with_canary(APP, "app: y.py:app"), APP.replace("x.py", "y.py"), Change.UPDATE),
        (with_canary(RUN, "run: s"), RUN, Change.CHANGE_CANARY),
        (with_canary(RUN, "run: s"), RUN.replace("run: r", "run: s"), Change.UPDATE),
        (
            with_canary(RUN, "checkpoint: best"),
            RUN.replace("run: r", "run: r, checkpoint: best"),
            Change.UPDATE,
        ),
        (
            with_canary(RUN, "run: s"),
            RUN.replace("run: r", "run: s").replace("port: 2", "port: 3"),
            Change.RESTART,
        ),
    ],
)
def test_a_canary_is_ended_or_promoted(before: str, after: str, expected: Any, tmp_path: Path) -> None:
    first, second = (read(tmp_path, f"applications: {{a: {each}}}") for each in (before, after))
    assert changes(first, second) == {"a": expected}


def test_the_canary_by_itself_is_what_it_is_promoted_to(tmp_path: Path) -> None:
    first = read(tmp_path, f"applications: {{a: {with_canary(RUN, 'run: s, checkpoint: best')}}}")
    after = RUN.replace("run: r", "run: s, checkpoint: best")
    assert first["a"].canary == read(tmp_path, f"applications: {{a: {after}}}")["a"]


@pytest.mark.parametrize(
    ("app", "run", "expected"),
    [
        (APP, RUN, {}),
        (APP.replace("num_replicas: 2", "num_replicas: 3"), RUN, {"a": Adjust({"M": 3}, {})}),
        (APP.replace("k: 1", "k: 2"), RUN, {"a": Adjust({}, {"M": {"k": 2}})}),
        (APP.replace("num_replicas: 2", "num_cpus: 1"), RUN, {"a": Change.UPDATE}),
        (APP.replace("num_replicas: 2", "autoscale: {max_replicas: 3}"), RUN, {"a": Change.UPDATE}),
        (APP.replace("x.py", "y.py"), RUN, {"a": Change.UPDATE}),
        (APP.replace("port: 1", "port: 3"), RUN, {"a": Change.RESTART}),
        (APP, RUN.replace("replicas: 1", "replicas: 2"), {"r": Adjust({"": 2}, {})}),
        (APP, RUN.replace("run: r", "run: s"), {"r": Change.RESTART}),
        (RUN.replace("port: 2", "port: 1"), RUN, {"a": Change.RESTART}),
        (with_canary(APP, "app: y.py:app"), RUN, {"a": Change.CHANGE_CANARY}),
        (with_canary(APP.replace("x.py", "y.py"), "app: z.py:app"), RUN, {"a": Change.UPDATE}),
        (APP, with_canary(RUN, "checkpoint: best"), {"r": Change.CHANGE_CANARY}),
        (APP, with_canary(RUN.replace("run: r", "run: s"), "checkpoint: best"), {"r": Change.RESTART}),
        (None, RUN, {"a": Change.STOP}),
    ],
)
def test_what_differs_is_changed_and_nothing_else(app: str, run: str, expected: Any, tmp_path: Path) -> None:
    before = read(tmp_path, f"applications: {{a: {APP}, r: {RUN}}}")
    after = read(tmp_path, f"applications: {{{f'a: {app}, ' if app else ''}r: {run}}}")
    assert changes(before, after) == expected
    assert changes({}, after) == dict.fromkeys(after, Change.START)


def test_options_reach_every_deployment_of_an_application() -> None:
    inner = deployment(name="inner")(lambda: 1)
    shared = inner.bind()
    outer = deployment(name="outer")(type("Outer", (), {}))
    app = outer.bind(shared, [shared], key={"k": shared})
    parts = {part.name: part for part in parts_of(with_options(app, {"inner": {"num_replicas": 3}}))}
    assert set(parts) == {"inner", "outer"} and parts["inner"].deployment.options_.num_replicas == 3
    with pytest.raises(ConfigError, match=r"no deployment 'iner'.*'inner'"):
        with_options(app, {"iner": {}})
    with pytest.raises(ConfigError, match="several deployments are named inner"):
        with_options(outer.bind(inner.bind(), inner.bind()), {"inner": {}})


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port: int = each.getsockname()[1]
        return port


@pytest.mark.process
def test_deploy_starts_changes_and_ends_what_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file, port = str(tmp_path / "serve.yaml"), free_port()

    def deploy(value: int, options: str) -> list[str]:
        (tmp_path / "x.py").write_text(PROGRAM.replace("VALUE", str(value)))
        (tmp_path / "serve.yaml").write_text(
            f"applications: {{a: {{app: x.py:app, port: {port}, deployments: {{Adder: {options}}}}}}}"
        )
        assert main(["serve", "deploy", file]) == 0
        return capsys.readouterr().out.splitlines()

    other = tmp_path / "other"  # each program has its own module `helper` beside it
    other.mkdir()
    (tmp_path / "helper.py").write_text("MORE = 0")
    (other / "helper.py").write_text("MORE = 4")

    def asked() -> Any:
        return request(f"http://127.0.0.1:{port}", "GET", "/")[1]

    assert main(["serve", "status", file]) == 2 and "is not served" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()  # who only asked leaves nothing
    try:
        assert deploy(1, "{user_config: {add: 10}}") == ["a: started"]
        first = asked()
        assert first["sum"] == 11
        assert deploy(1, "{user_config: {add: 10}}") == ["nothing differs"]
        assert deploy(1, "{user_config: {add: 10}, num_replicas: 2}") == ["a: adjusted"]
        assert main(["serve", "status", file, "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
        server = status["pid"]
        replicas = status["applications"]["a"]["deployments"]["Adder"]["replicas"]
        pids = {each["pid"] for each in replicas.values()}
        assert len(pids) == 2 and first["pid"] in pids, "nothing was replaced"
        (other / "new.py").write_text(PROGRAM.replace("VALUE", "1"))
        canary = "{user_config: {add: 10}, num_replicas: 2}}, canary: {share: 0.5, app: other/new.py:app"
        assert deploy(1, canary) == ["a: canary changed"]
        assert [asked()["sum"] for _ in range(8)].count(15) in (
            4,
            5,
        )  # of each replica's connections the half
        assert deploy(1, "{user_config: {add: 10}, num_replicas: 2}") == ["a: canary changed"]
        assert {asked()["sum"] for _ in range(8)} == {11} and asked()["pid"] in pids
        assert deploy(2, "{user_config: {add: 10}, num_replicas: 2}") == ["a: updated"]
        second = asked()
        assert second["sum"] == 12 and second["pid"] not in pids
        (tmp_path / "x.py").write_text("app = None")
        assert main(["serve", "deploy", file]) == 2 and "expected an application" in capsys.readouterr().err
        assert asked()["sum"] == 12, "what ran stays"
        assert main(["serve", file]) == 2 and "is served already" in capsys.readouterr().err
    finally:
        assert main(["serve", "shutdown", file]) == 0
    with contextlib.suppress(ChildProcessError):  # of this process here; of no process after a command
        os.waitpid(server, 0)
    with pytest.raises(ConnectionRefusedError):
        asked()
    assert main(["serve", "deploy", file]) == 2
    assert "expected an application" in capsys.readouterr().err
