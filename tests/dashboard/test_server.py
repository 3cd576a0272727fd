"""The dashboard's answers: what pages show, and whom the server refuses."""

from __future__ import annotations

import json
import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs starlette: ./scripts/install dashboard")

from starlette.testclient import TestClient

from rlplat import catalog
from rlplat.catalog import flat
from rlplat.dashboard import pages as module
from rlplat.dashboard.export import export
from rlplat.dashboard.pages import Pages, differences
from rlplat.dashboard.server import make_app
from rlplat.dashboard.serving import Servers
from tests.dashboard.made_runs import learning, make_run

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed in (1, 2):
        make_run(tmp_path / f"ppo-{seed}", learning(30, episode_return_mean=float(seed)), seed=seed)
    make_run(tmp_path / "dqn", learning(10), algo="dqn", policy={"hidden_sizes": [8]})
    make_run(tmp_path / MARKUP, [])
    (tmp_path.parent / "secret").mkdir(exist_ok=True)
    make_run(tmp_path.parent / "secret" / tmp_path.name, [])
    return tmp_path


@pytest.fixture
def client(root: Path) -> TestClient:
    return TestClient(make_app(Pages(root), Servers(), is_local=True), base_url="http://localhost:8265")


def test_runs_are_listed_with_groups_of_seeds(client: TestClient) -> None:
    rows = {row["run"]: row for row in client.get("/api/runs").json()["runs"]}
    assert set(rows) == {"ppo-1", "ppo-2", "dqn", MARKUP}
    assert rows["ppo-1"]["group"] == rows["ppo-2"]["group"] != rows["dqn"]["group"]
    assert rows["ppo-1"]["env_steps"] == 30 * 1024 and rows[MARKUP]["env_steps"] is None


def test_a_tree_that_takes_long_is_walked_once_for_all_pages(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks, clock = [], [0.0]

    def find(directory: Path) -> Any:
        walks.append(clock[0])
        clock[0] += 2.0
        return catalog.find(directory)

    monkeypatch.setattr(module, "find", find)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    pages = Pages(root)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: pages.runs(), range(8)))
    assert walks == [0.0] and all(each is answers[0] for each in answers)
    for seconds in (17.0, 2.0):
        clock[0] += seconds
        pages.runs()
    assert walks == [0.0, 21.0]


def test_a_run_that_grows_comes_and_goes_is_seen(
    client: TestClient, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_QUICK_S", math.inf)  # the first look imports
    client.get("/api/runs")
    with open(root / "dqn" / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"env_steps": 77, "episode_return_mean": 5.0}) + "\n")
    shutil.rmtree(root / "ppo-1")
    make_run(root / "new", [])
    rows = {row["run"]: row for row in client.get("/api/runs").json()["runs"]}
    assert set(rows) == {"new", "ppo-2", "dqn", MARKUP} and rows["dqn"]["env_steps"] == 77


def test_only_new_rows_travel(client: TestClient, root: Path) -> None:
    first = client.get("/api/metrics?run=dqn").json()
    assert first["reset"] and first["columns"]["env_steps"][-1] == 10240
    nothing = client.get(f"/api/metrics?run=dqn&cursor={first['cursor']}").json()
    assert not nothing["reset"] and nothing["columns"] == {}
    with open(root / "dqn" / "metrics.jsonl", "a") as file:
        file.write('{"env_steps": 11264, "eval/return_mean": 3.0}\n{"env_st')
    later = client.get(f"/api/metrics?run=dqn&cursor={first['cursor']}").json()
    assert later["columns"] == {"env_steps": [11264], "eval/return_mean": [3.0]}
    one = client.get("/api/metrics?run=dqn&names=env_steps,nothing").json()["columns"]
    assert one["env_steps"] == [*first["columns"]["env_steps"], 11264] and one["nothing"] == [None] * 11


def test_a_run_says_what_it_has_and_why_it_does_not_learn(client: TestClient, root: Path) -> None:
    (root / "dqn" / "videos").mkdir()
    for name in ("eval_5000.mp4", "eval_300.mp4", "play.mp4"):
        (root / "dqn" / "videos" / name).write_bytes(b"film")
    info = client.get("/api/run?run=dqn").json()
    assert [video["env_steps"] for video in info["videos"]] == [300, 5000, None]
    assert "algo: " in info["config"] and info["hints"] == []
    assert client.get("/video?run=dqn&file=play.mp4").content == b"film"
    assert "every mean return is 1" in client.get("/api/run?run=ppo-1").json()["hints"][0]["symptom"]


def test_the_log_is_told_from_an_offset_in_whole_lines(client: TestClient, root: Path) -> None:
    first = client.get("/api/log?run=dqn").json()
    assert first == {"offset": 13, "text": "started\ndone\n"}
    with open(root / "dqn" / "log.txt", "a") as file:
        file.write("more\nhalf")
    assert client.get("/api/log?run=dqn&offset=13").json() == {"offset": 18, "text": "more\n"}
    (root / "dqn" / "log.txt").write_text("x" * 99 + "\n" + "y" * 99_999 + "\nend\n")
    assert client.get("/api/log?run=dqn").json()["text"] == "end\n"


def test_seeds_are_one_curve_and_settings_that_differ_are_named(client: TestClient) -> None:
    found = client.get("/api/compare?run=ppo-1&run=ppo-2&run=dqn").json()
    assert [curve["runs"] for curve in found["curves"]] == [["ppo-1", "ppo-2"], ["dqn"]]
    assert set(found["curves"][0]["middle"]) == {1.5} and set(found["curves"][0]["num_runs"]) == {2}
    two, one = found["groups"]
    assert (two["runs"], two["iqm"], two["mean_interval"]) == (2, 1.5, [1.0, 2.0]) and one["runs"] == 1
    [pair] = found["better"]
    assert (pair["a"], pair["b"]) == (two["label"], one["label"])
    assert pair["p"] == 0 and one["worst"] > two["best"]
    assert found["differences"]["seed"] == {"ppo-1": 1, "ppo-2": 2, "dqn": 0}
    assert found["differences"]["policy.hidden_sizes"] == {"ppo-1": None, "ppo-2": None, "dqn": [8]}
    assert "env" not in found["differences"] and "learner/entropy" in found["names"]


def test_flat_and_differences() -> None:
    assert flat({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
    assert differences({"x": {"a": 1, "b": 2}, "y": {"a": 1.0, "b": 2}}) == {"a": {"x": 1, "y": 1.0}}


@pytest.mark.parametrize(
    "path",
    ["/api/run?run=nothing", "/api/run?run=../secret", "/api/run?run=/etc", "/api/run", "/api/log?run=..",
     "/api/metrics?run=%00", "/api/experiment?run=dqn", "/video?run=dqn&file=../config.yaml", "/video?run=dqn",
     "/api/compare?run=dqn&run=../secret", f"/api/run?run={'a' * 5000}", "/video?run=%00", f"/video?run={'a/' * 3000}"],
)  # fmt: skip
def test_what_is_not_a_run_below_the_directory_is_not_found(client: TestClient, root: Path, path: str) -> None:
    answer = client.get(path.replace("secret", f"secret/{root.name}"))
    assert answer.status_code in (400, 404) and len(answer.text) < 500


@pytest.mark.parametrize("path", ["/static/../pages.py", "/static/%2e%2e/pages.py", "/static//etc/passwd", "/api/no"])
def test_files_of_others_are_not_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "log.txt"])
def test_links_and_pipes_in_a_run_are_not_followed(client: TestClient, root: Path, name: str, kind: str) -> None:
    """Whoever may write into a shared folder of runs could show any file of this user."""
    secret, planted = root.parent / "secret" / "passwords", root / "dqn" / name
    secret.write_text("root:x:0:0\n")
    planted.unlink(missing_ok=True)
    if kind == "link":
        planted.symlink_to(secret)
    else:
        os.mkfifo(planted)
    assert "dqn" not in {row["run"] for row in client.get("/api/runs").json()["runs"]}
    for page in ("run", "metrics", "log", "compare"):
        answer = client.get(f"/api/{page}?run=dqn")
        assert answer.status_code == 404 and "root:x" not in answer.text, page


def test_linked_videos_are_not_shown(client: TestClient, root: Path) -> None:
    videos = root / "dqn" / "videos"
    videos.mkdir()
    (videos / "eval_1.mp4").symlink_to("/etc/passwd")
    assert client.get("/api/run?run=dqn").json()["videos"] == []
    assert client.get("/video?run=dqn&file=eval_1.mp4").status_code == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 421), ({"Host": "evil.example:8265"}, 421), ({"Origin": "http://evil.example"}, 403),
     ({"Origin": "http://localhost:8265"}, 200), ({}, 200)],
)  # fmt: skip
def test_pages_of_other_sites_are_refused(client: TestClient, headers: dict[str, str], status: int) -> None:
    assert client.get("/api/runs", headers=headers).status_code == status


def test_it_only_reads(client: TestClient, root: Path) -> None:
    before = sorted((str(path), path.stat().st_mtime_ns) for path in root.rglob("*"))
    for path in ("/", "/api/runs", "/api/run?run=dqn", "/api/metrics?run=dqn", "/api/compare?run=dqn"):
        assert client.get(path).status_code == 200
    assert client.post("/api/runs").status_code == client.delete("/").status_code == 405
    assert sorted((str(path), path.stat().st_mtime_ns) for path in root.rglob("*")) == before


def test_a_token_is_asked_for_once_and_a_cookie_that_does_not_tell_it_is_kept(root: Path) -> None:
    """Of two dashboards on a host each keeps its own."""
    cookies: Any = None
    for port, token in ((8265, "s3cret"), (8266, "0ther")):
        app = make_app(Pages(root), Servers(), token=token)
        with TestClient(app, base_url=f"http://anywhere:{port}", cookies=cookies) as client:
            assert client.get("/api/runs").status_code == client.get("/?token=wrong").status_code == 401
            assert client.get(f"/?token={token}").status_code == 200
            assert client.get("/api/runs").status_code == 200
            cookies = client.cookies
    assert len(cookies) == 2 and not {"s3cret", "0ther"} & set(cookies.values())


def test_the_page_asks_for_nothing_from_elsewhere(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    texts = [client.get(path).text for path in ("/", "/static/app.js", "/static/style.css")]
    texts = [text.replace("http://www.w3.org/2000/svg", "") for text in texts]  # a name, which nobody asks for
    assert not any("http://" in text or "https://" in text for text in texts)
    sizes = [len(client.get(f"/static/{name}").content) for name in ("uPlot.iife.min.js", "uPlot.min.css")]
    assert sum(sizes) + sum(map(len, texts)) < 300_000


def test_an_experiment_has_its_trials(root: Path, client: TestClient) -> None:
    path = root / "exp"
    make_run(path / "trials" / "00001", [])
    (path / "experiment.yaml").write_text("metric: accuracy\nmode: max\nnum_samples: 2\nconfig: {}\ntrainable: t\n")
    (path / "results.csv").write_text("trial,state,config/a,accuracy\n0,complete,0.1,0.5\n1,complete,0.2,0.75\n")
    found = client.get("/api/experiment?run=exp").json()
    assert found["best"] == 0.75 and found["trials"] == 2
    assert [row["run"] for row in found["rows"]] == ["", "exp/trials/00001"]


@pytest.mark.parametrize(
    ("damaged", "num_rows"),
    [(b"trial,state,accuracy\n0,complete,0.5\n1,\xff\xfe,\n2,com", 3), (b"accuracy\n0.5\n", 0), (b"\0\n\0", 0),
     (b"trial,accuracy\n0,0.5,,,7\nx,9\n", 1), (b"trial,state,accuracy\n0,complete," + b"9" * 200_000, 0)],
)  # fmt: skip
def test_a_damaged_table_of_trials_hides_no_other_run(
    root: Path, client: TestClient, damaged: bytes, num_rows: int
) -> None:
    (root / "exp").mkdir()
    (root / "exp" / "experiment.yaml").write_text("metric: accuracy\nmode: max\n")
    (root / "exp" / "results.csv").write_bytes(damaged)
    rows = {row["run"]: row for row in client.get("/api/runs").json()["runs"]}
    assert set(rows) == {"ppo-1", "ppo-2", "dqn", MARKUP, "exp"}
    assert rows["exp"]["best"] == (0.5 if num_rows else None)
    assert len(client.get("/api/experiment?run=exp").json()["rows"]) == num_rows


def test_an_exported_page_holds_its_data_and_no_markup_of_a_name(root: Path) -> None:
    make_run(root / "</script><script>alert(1)", [])
    page = export(Pages(root), ["dqn", MARKUP, "</script><script>alert(1)"])
    assert "alert(1)" in page and "</script><script>alert(1)" not in page and MARKUP not in page
    assert "/static/" not in page.replace("static/uPlot", "")
    assert '"env_steps": 10240' in page


@pytest.mark.parametrize("damaged", ["nan", "name", "table", "count"])
def test_one_damaged_run_does_not_hide_the_others(root: Path, client: TestClient, damaged: str) -> None:
    if damaged == "nan":
        run = make_run(root / "other", learning(3))
        with open(run / "metrics.jsonl", "a") as file:
            file.write('{"env_steps": 9, "episode_return_mean": NaN}\n')
        assert client.get("/api/run?run=other").json()["episode_return_mean"] is None
    elif damaged == "name":
        make_run(root / os.fsdecode(b"caf\xe9"), learning(3))
    else:
        (root / "other").mkdir()
        (root / "other" / "experiment.yaml").write_text(f"num_samples: {'.inf' if damaged == 'count' else 3}\n")
        (root / "other" / "results.csv").write_bytes(b"\xff\xfe\n" if damaged == "table" else b"")
    answer = client.get("/api/runs")
    assert answer.status_code == 200 and len(answer.json()["runs"]) == 5


def test_numbers_that_json_cannot_hold_do_not_break_a_page(root: Path, client: TestClient) -> None:
    make_run(root / "nan", learning(20, episode_return_mean=math.nan))
    with open(root / "nan" / "metrics.jsonl", "a") as file:
        file.write('{"env_steps": 1, "episode_return_mean": 1e999}\n{"env_steps": 999999999999999999999}\n')
        file.write(f'{{"env_steps": 1{"0" * 400}, "episode_return_mean": 1}}\n')
    for path in ("/api/runs", "/api/metrics?run=nan", "/api/compare?run=nan", "/api/run?run=nan"):
        assert client.get(path).status_code == 200, path


def test_settings_that_json_cannot_hold_can_be_compared(root: Path, client: TestClient) -> None:
    for name, value in (("low", 1.0), ("high", math.inf)):
        make_run(root / name, learning(2), max_gradient_norm=value)
    text = (root / "high" / "config.yaml").read_text()
    (root / "high" / "config.yaml").write_text(text.replace("Infinity", ".inf") + "started: 2026-11-24\n")
    found = client.get("/api/compare?run=low&run=high").json()["differences"]
    assert found["max_gradient_norm"] == {"low": 1.0, "high": "inf"}
    assert found["started"] == {"low": None, "high": "2026-11-24"}


def test_a_curve_is_read_again_when_its_file_has_changed_and_only_then(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(root)
    read: list[Path] = []
    real = pages._all_rows
    monkeypatch.setattr(pages, "_all_rows", lambda path: read.append(path) or real(path))
    first = pages.compare(["ppo-1", "ppo-2"], "episode_return_mean", "env_steps")
    assert pages.compare(["ppo-1", "ppo-2"], "episode_return_mean", "env_steps") == first
    assert len(read) == 2
    with open(root / "ppo-1" / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"env_steps": 40 * 1024, "episode_return_mean": 9.0, "new/name": 1}) + "\n")
    again = pages.compare(["ppo-1", "ppo-2"], "episode_return_mean", "env_steps")
    assert [path.name for path in read[2:]] == ["ppo-1"]
    assert again["curves"][0]["x"][-1] == 40 * 1024 and "new/name" in again["names"]
