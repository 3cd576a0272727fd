"""A policy behind a port: what it answers is what the agent would do; what does not fit is refused with its reason."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

import rlplat
from rlplat.serve.policies.serving import serve_policy
from rlplat.serve.running import Running
from tests.serve.calling import OBS, act, refusal, request, train

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    train(runs / "demo")
    train(runs / "lstm", policy={"core": "lstm"})
    return runs


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Running]:
    rlplat.init(num_cpus=2, num_gpus=0)
    with serve_policy(runs / "demo", port=0, num_replicas=2) as running:
        yield running
    rlplat.shutdown()


@pytest.fixture(scope="module")
def recurrent(runs: Path, served: Running) -> Iterator[Running]:
    with serve_policy(runs / "lstm", port=0, num_replicas=2) as running:
        yield running


def test_one_and_many_are_answered_as_the_agent_acts(served: Running, runs: Path) -> None:
    agent = rlplat.load(runs / "demo")
    assert act(served, {"obs": OBS}) == (
        200,
        {"action": int(agent.act(OBS)), "env_steps": agent.checkpoint.info.env_steps},
    )
    batch = np.random.default_rng(1).normal(size=(300, 4)).astype(np.float32)  # more than one forward pass
    status, answer = act(served, {"obs": batch.tolist(), "outputs": ["log_prob", "value"]})
    output, _ = agent.act_on_rows(batch)
    assert status == 200 and answer["action"] == agent.act(batch).tolist()
    np.testing.assert_allclose(answer["log_prob"], output.log_probs, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(answer["value"], output.values, rtol=1e-4, atol=1e-6)


def test_sampled_actions_are_drawn(served: Running) -> None:
    _, answer = act(served, {"obs": [OBS] * 200, "greedy": False})
    assert set(answer["action"]) == {0, 1}


def test_raw_rows(served: Running, runs: Path) -> None:
    batch = np.random.default_rng(2).normal(size=(9, 4)).astype("<f4")
    status, answer, headers = request(
        served.url,
        "POST",
        "/v1/act?outputs=value",
        batch.tobytes(),
        {"content-type": "application/octet-stream"},
    )
    assert status == 200 and headers["x-arrays"] == "action:int64[9];value:float32[9]"
    assert np.frombuffer(answer[:72], "<i8").tolist() == rlplat.load(runs / "demo").act(batch).tolist()
    assert len(answer) == 72 + 36


@pytest.mark.parametrize(
    ("query", "num_bytes", "status", "text"),
    [
        ("token=x", 16, 400, "unknown field 'token' (fields: greedy, outputs, session, seq, reset)"),
        ("greedy=maybe", 16, 400, "the query does not fit"),
        ("seq=x&session=a", 16, 400, "the query does not fit"),
        ("seq=0&session=a", 16, 400, "seq counts from 1, got 0"),
        ("session=a", 32, 400, "expected one observation, got 2"),
        ("outputs=value,logits", 16, 400, "expected some of log_prob, value"),
        ("", 15, 400, "expected N times 16"),
        ("greedy=0&outputs=&reset=false", 16, 200, ""),
    ],
)
def test_raw_rows_that_do_not_fit(served: Running, query: str, num_bytes: int, status: int, text: str) -> None:
    headers = {"content-type": "application/octet-stream"}
    got, answer, _ = request(served.url, "POST", f"/v1/act?{query}", bytes(num_bytes), headers)
    assert got == status and (status == 200 or text in answer["error"]["message"]), answer


def test_options_of_a_request_in_json_are_in_its_body(served: Running) -> None:
    """Those in the address were ignored: the greedy action came in place of one that is drawn."""
    status, answer, _ = request(served.url, "POST", "/v1/act?greedy=0", {"obs": OBS})
    assert status == 400 and answer["error"]["message"] == "greedy is in the address; in JSON it is a field of the body"
    assert request(served.url, "POST", "/v1/act?of-a-proxy=1", {"obs": OBS})[0] == 200
    raw = {"content-type": "Application/Octet-Stream; charset=binary"}
    assert request(served.url, "POST", "/v1/act?greedy=0", bytes(16), raw)[0] == 200


def test_the_address_of_a_web_socket_says_whether_actions_are_drawn(served: Running) -> None:
    connect = pytest.importorskip("websockets.sync.client").connect
    url = served.url.replace("http", "ws") + "/v1/session"

    def actions(query: str, message: str | bytes) -> set[int]:
        with connect(url + query) as socket:
            socket.recv()
            found = set()
            for _ in range(40):
                socket.send(message)
                answer = socket.recv()
                found.add(answer[0] if isinstance(answer, bytes) else json.loads(answer)["action"])
            return found

    row = np.array(OBS, np.float32).tobytes()
    for message in (json.dumps({"obs": OBS}), row):
        assert actions("?greedy=False", message) == {0, 1}
        assert len(actions("?greedy=True", message)) == 1
    assert len(actions("?greedy=0", json.dumps({"obs": OBS, "greedy": True}))) == 1
    with pytest.raises(Exception, match="400") as refused, connect(url + "?sesion=a"):
        pass
    assert b"unknown field 'sesion'; did you mean 'session'?" in refused.value.response.body  # type: ignore[attr-defined]


def test_the_open_inference_protocol(served: Running, runs: Path) -> None:
    data = [*OBS, *(-x for x in OBS)]
    tensor = {"name": "obs", "shape": [2, 4], "datatype": "FP32", "data": data}
    body = {"id": "7", "inputs": [tensor], "outputs": [{"name": "action"}, {"name": "value"}]}
    status, answer, _ = request(served.url, "POST", "/v2/models/demo/infer", body)
    expected = rlplat.load(runs / "demo").act(np.array(data, np.float32).reshape(2, 4)).tolist()
    action, value = answer["outputs"]
    assert status == 200 and answer["id"] == "7" and answer["model_name"] == "demo"
    assert action == {"name": "action", "shape": [2], "datatype": "INT64", "data": expected}
    assert (value["name"], value["shape"], value["datatype"]) == ("value", [2], "FP32")
    _, about, _ = request(served.url, "GET", "/v2/models/demo")
    assert about["inputs"] == [{"name": "obs", "datatype": "FP32", "shape": [-1, 4]}]
    for wrong, code in (
        ({"inputs": []}, "bad-input"),
        ({"inputs": [{**tensor, "name": "x"}]}, "bad-input"),
        ({"inputs": [{**tensor, "datatype": "BYTES"}]}, "bad-datatype"),
        ({"inputs": [{**tensor, "shape": [3, 4]}]}, "bad-tensor"),
        ({"inputs": [{**tensor, "datatype": "UINT8"}]}, "bad-tensor"),
        ({"inputs": [{**tensor, "shape": [-1, 4]}]}, "bad-tensor"),
        ({"inputs": [tensor, tensor]}, "bad-request"),
        ({"inputs": [tensor], "parameters": {"greedy": 3}}, "bad-request"),
        (b"{", "bad-json"),
    ):
        status, answer, _ = request(served.url, "POST", "/v2/models/demo/infer", wrong)
        assert 400 <= status < 500 and answer["error"]["code"] == code, wrong
    status, answer, _ = request(served.url, "POST", "/v2/models/other/infer", body)
    assert status == 404 and "there is 'demo'" in answer["error"]["message"]


WRONG: dict[str, tuple[Any, int, str]] = {
    "shape": ({"obs": [1, 2, 3]}, 422, "shape (3,); expected float32[4]"),
    "no number": ({"obs": ["a", 1, 2, 3]}, 422, "expected float32[4]"),
    "null": ({"obs": None}, 422, "expected float32[4]"),
    "ragged": ({"obs": [[1, 2, 3, 4], [1]]}, 422, "expected float32[4]"),
    "an object": ({"obs": {"x": 1}}, 422, "expected float32[4]"),
    "beyond float32": ({"obs": [1e39, 0, 0, 0]}, 422, "observation holds 1e+39, which is not between"),
    "1e400": (b'{"obs": [1e400, 0, 0, 0]}', 400, ""),
    "NaN": (b'{"obs": [NaN, 0, 0, 0]}', 400, "not JSON"),
    "no rows": ({"obs": []}, 422, "expected float32[4]"),
    "too many rows": ({"obs": [[0, 0, 0, 0]] * 70_000}, 413, "at most 65,536"),
    "a mask": ({"obs": OBS, "mask": [True, True]}, 422, "without action masks"),
    "deep": (b'{"obs": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400, "nest"),
    "not UTF-8": (b'{"obs": "\xff\xfe"}', 400, ""),
    "cut": (b'{"obs": [1, 2', 400, "not JSON"),
    "empty": (b"", 400, "not JSON"),
    "a list": (b"[1]", 400, "does not fit"),
    "an SB3 name": (
        b'{"observation": [1]}',
        400,
        "'observation'; did you mean 'obs'? (fields: obs, mask",
    ),
    "unknown key": ({"obs": OBS, "gredy": True}, 400, "gredy"),
    "greedy": ({"obs": OBS, "greedy": "yes"}, 400, "greedy"),
    "outputs": ({"obs": OBS, "outputs": ["logits"]}, 400, "expected some of log_prob, value"),
    "state": ({"obs": OBS, "state": [1.0]}, 400, "policy.core is none"),
    "seq without session": ({"obs": OBS, "seq": 1}, 400, "no session is given"),
    "no such session": ({"obs": OBS, "session": "policy-0.abc"}, 410, "no session 'policy-0.abc'"),
    "two rows of a session": ({"obs": [OBS, OBS], "session": "a"}, 400, "expected one observation, got 2"),
    "state of a session": ({"obs": OBS, "session": "a", "state": "initial"}, 400, "exclude each other"),
    "seq of 0": ({"obs": OBS, "session": "a", "seq": 0}, 400, "seq counts from 1, got 0"),
    "long session": ({"obs": OBS, "session": "x" * 1_000_000}, 400, "at most 200 characters"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_with_its_reason(served: Running, case: str) -> None:
    body, status, text = WRONG[case]
    got = refusal(served, body)
    assert got[0] == status and text in got[2], got


@pytest.mark.skipif(shutil.which("schemathesis") is None, reason="schemathesis is not installed")
def test_the_description_says_what_the_server_does(served: Running, tmp_path: Path) -> None:
    """By a tool that makes requests of it. Left out: that all that a schema allows is accepted (raw bytes of rows)."""
    page, excluded = f"{served.url}/openapi.json", "positive_data_acceptance"
    command = ["schemathesis", "run", page, "--exclude-checks", excluded, "--max-examples", "50"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_wrong_requests_around_the_body(served: Running) -> None:
    binary = {"content-type": "application/octet-stream"}
    assert refusal(served, b"123", binary)[:2] == (400, "bad-length")
    assert refusal(served, b"", binary)[:2] == (400, "bad-length")
    assert refusal(served, np.full(4, np.nan, "<f4").tobytes(), binary)[:2] == (422, "bad-observation")
    assert refusal(served, {"obs": OBS}, {"content-encoding": "gzip"})[:2] == (415, "encoded-body")
    assert refusal(served, b"", {"content-length": "99999999999"})[:2] == (413, "too-large")
    assert request(served.url, "GET", "/v1/act")[0] == 405
    assert request(served.url, "GET", "/nothing")[0] == 404
    assert request(served.url, "POST", "/v1/act?gredy=1", OBS_BYTES, binary)[0] == 400


OBS_BYTES = np.array(OBS, "<f4").tobytes()


def test_health_metrics_and_description(served: Running, runs: Path) -> None:
    assert request(served.url, "GET", "/health/live")[1] == b"ok"
    assert request(served.url, "GET", "/health/ready")[1] == b"ready"
    for _ in range(20):
        act(served, {"obs": OBS})
    text = request(served.url, "GET", "/metrics")[1].decode()
    parser = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    requests = families["rlplat_serve_requests"].samples
    assert {sample.labels["replica"] for sample in requests} <= {"demo-0", "demo-1"}
    assert sum(sample.value for sample in requests if sample.labels["status"] == "200") >= 20
    assert families["rlplat_serve_rows"].type == "counter"
    _, page, _ = request(served.url, "GET", "/openapi.json")
    for path, operations in page["paths"].items():
        for method in {"get", "post", "delete"} - set(operations):
            status, _, headers = request(served.url, method.upper(), path)
            assert status == 405 and headers["allow"].split(", ")[0].lower() in operations, (method, path)
    infer = page["paths"]["/v2/models/demo/infer"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schemas = {f"#/components/schemas/{name}": each for name, each in page["components"]["schemas"].items()}
    assert schemas[infer["$ref"]]["required"] == ["inputs"]
    tensor = schemas[schemas[infer["$ref"]]["properties"]["inputs"]["items"]["$ref"]]
    assert tensor["required"] == ["name", "shape", "datatype", "data"]
    schema = page["paths"]["/v1/act"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["obs"]["oneOf"][0]["minItems"] == 4
    _, about, _ = request(served.url, "GET", "/v1/policy")
    assert about["env"] == "CartPole-v1" and about["checkpoint"].startswith(str(runs))


def test_a_recurrent_policy_keeps_its_state_by_session(recurrent: Running, runs: Path) -> None:
    """Through whichever replica: every request is a connection of its own, which either of the two accepts."""
    agent = rlplat.load(runs / "lstm")
    steps = np.random.default_rng(3).normal(size=(12, 4)).astype(np.float32)
    state = agent.initial_state(1)
    expected = []
    for obs in steps:
        output, state = agent.act_on_rows(obs[None], state=state)
        expected.append(float(output.values[0]))
    status, opened, _ = request(recurrent.url, "POST", "/v1/sessions")
    assert status == 201
    session = opened["session"]
    values = []
    for seq, obs in enumerate(steps.tolist(), 1):
        body = {"obs": obs, "session": session, "seq": seq, "outputs": ["value"]}
        first, again = act(recurrent, body), act(recurrent, body)
        assert first == again  # the second time the state did not move
        values.append(first[1]["value"])
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    assert refusal(recurrent, {"obs": OBS, "session": session, "seq": 20})[:2] == (409, "out-of-order")
    for other in ({"obs": OBS}, {"greedy": False}, {"reset": True}):
        assert refusal(recurrent, {**body, **other})[:2] == (409, "other-step")
    _, answer = act(recurrent, {"obs": steps[0].tolist(), "session": session, "reset": True, "outputs": ["value"]})
    assert answer["value"] == pytest.approx(expected[0], rel=1e-4, abs=1e-5)
    assert request(recurrent.url, "DELETE", f"/v1/sessions/{session}")[0] == 204
    assert refusal(recurrent, {"obs": OBS, "session": session})[:2] == (410, "session-lost")


def test_a_web_socket_is_a_session_that_can_be_continued(recurrent: Running, runs: Path) -> None:
    connect = pytest.importorskip("websockets.sync.client").connect
    agent = rlplat.load(runs / "lstm")
    steps = np.random.default_rng(4).normal(size=(6, 4)).astype(np.float32)
    state, values = agent.initial_state(1), []
    for obs in steps:
        output, state = agent.act_on_rows(obs[None], state=state)
        values.append(float(output.values[0]))
    url = recurrent.url.replace("http", "ws") + "/v1/session"
    with pytest.raises(Exception, match="404") as refused, connect(url + "s"):
        pass
    assert b"they are at /v1/session" in refused.value.response.body  # type: ignore[attr-defined]

    def ask(socket: Any, message: Any) -> Any:
        socket.send(json.dumps(message))
        return json.loads(socket.recv())

    with connect(url) as socket:
        hello = json.loads(socket.recv())
        assert hello["env"] == "CartPole-v1" and hello["state_size"] == agent.state_size
        for seq, obs in enumerate(steps[:2].tolist(), 1):
            answer = ask(socket, {"obs": obs, "seq": seq, "outputs": ["value"]})
            assert answer["value"] == pytest.approx(values[seq - 1], abs=1e-5)
        for wrong, code in (
            ({"obs": [1]}, "bad-observation"),
            ({"obs": OBS, "session": "other"}, "bad-request"),
            ({"obs": OBS, "state": "initial"}, "bad-request"),
            ({"obs": OBS, "seq": 9}, "out-of-order"),
            ([], "bad-request"),
        ):
            assert ask(socket, wrong)["error"]["code"] == code
        socket.send(b"123")
        assert json.loads(socket.recv())["error"]["code"] == "bad-length"
        socket.send(steps[2].tobytes())
        assert len(socket.recv()) == 8
    with connect(f"{url}?session={hello['session']}") as socket:  # whichever replica accepts it
        socket.recv()
        answer = ask(socket, {"obs": steps[3].tolist(), "seq": 4, "outputs": ["value"]})
        assert answer["value"] == pytest.approx(values[3], abs=1e-5)


def test_a_recurrent_policy_without_a_session_wants_the_state(recurrent: Running, runs: Path) -> None:
    assert refusal(recurrent, {"obs": OBS})[:2] == (400, "session-needed")
    _, first = act(recurrent, {"obs": OBS, "state": "initial", "outputs": ["value"]})
    _, second = act(recurrent, {"obs": OBS, "state": first["state"], "outputs": ["value"]})
    agent = rlplat.load(runs / "lstm")
    rows = np.array([OBS], np.float32)
    output, state = agent.act_on_rows(rows)
    assert first["value"] == pytest.approx(float(output.values[0]), abs=1e-5)
    output, _ = agent.act_on_rows(rows, state=state)
    assert second["value"] == pytest.approx(float(output.values[0]), abs=1e-5)
    assert refusal(recurrent, {"obs": OBS, "state": [0.0]})[:2] == (422, "bad-state")
