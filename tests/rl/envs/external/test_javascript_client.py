"""`client.js`: the documented bytes, and steps against a listening environment. Needs node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("websockets")

from rlplat.rl.envs.external import client
from tests.rl.envs.external.test_external import VECTOR, in_thread, training

NODE = shutil.which("node")
CLIENT = Path(client.__file__).with_name("client.js")
FRAMES = Path(__file__).parent / "frames.json"

pytestmark = [pytest.mark.process, pytest.mark.skipif(NODE is None, reason="node is not installed")]
assert training  # a fixture


def node(folder: Path, program: str, *arguments: str) -> str:
    """What a program beside client.js prints."""
    shutil.copy(CLIENT, folder / "client.mjs")
    (folder / "main.mjs").write_text(program)
    done = subprocess.run(
        [NODE or "", "--experimental-websocket", "--no-warnings", folder / "main.mjs", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CONFORMANCE = """
import assert from "node:assert";
import { readFileSync } from "node:fs";
import { pack, unpack } from "./client.mjs";
const plain = (value) =>
  value instanceof Uint8Array ? Buffer.from(value).toString("hex")
  : Array.isArray(value) ? value.map(plain)
  : value !== null && typeof value === "object"
    ? Object.fromEntries(Object.entries(value).map(([key, each]) => [key, plain(each)]))
  : value;
let count = 0;
for (const { name, from, frame, hex } of JSON.parse(readFileSync(process.argv[2]))) {
  const bytes = new Uint8Array(Buffer.from(hex, "hex"));
  assert.deepStrictEqual(plain(unpack(bytes)), frame, name);
  if (from === "simulator") assert.strictEqual(Buffer.from(pack(unpack(bytes))).toString("hex"), hex, name);
  assert.throws(() => unpack(bytes.subarray(0, -1)), RangeError, name);
  count += 1;
}
const values = JSON.parse(process.argv[3]);
const packed = new Uint8Array(Buffer.from(process.argv[4], "hex"));
assert.deepStrictEqual(unpack(packed), values);
assert.deepStrictEqual(unpack(pack(values)), values);
console.log(count);
"""


def test_frames_are_the_documented_bytes(tmp_path: Path) -> None:
    values = [
        None,
        True,
        False,
        -1,
        0,
        127,
        128,
        255,
        256,
        70_000,
        -200,
        -70_000,
        2**40,
        0.5,
        "é" * 40,
        [1] * 20,
    ]
    values = [*values, {str(index): index for index in range(20)}, "x" * 300, [0] * 300]
    text = msgspec.json.encode(values).decode()
    printed = node(tmp_path, CONFORMANCE, str(FRAMES), text, msgspec.msgpack.encode(values).hex())
    assert int(printed) == len(msgspec.json.decode(FRAMES.read_bytes()))


PROGRAM = """
import { Simulators } from "./client.mjs";
const training = await Simulators.connect(process.argv[2], 2);
const obs = (time) => Float32Array.of(0, time, 1, time);
const said = [await training.reset(obs(0), [2, 2])];
said.push(await training.step(obs(1), [2, 2], [0.5, 1.5], [false, true], [false, false], obs(9)));
console.log(training.seeds.length, said.map((actions) => actions[""].data.join(",")).join(" "));
try {
  await training.step(Float32Array.of(1), [1, 1], [0, 0], [false, false], [false, false]);
} catch (error) {
  console.log(error.message);
}
"""


def test_steps_go_both_ways_and_a_wrong_one_is_refused_by_name(training: Any, tmp_path: Path) -> None:
    there = training(VECTOR, num_envs=2)
    simulator = in_thread(lambda: node(tmp_path, PROGRAM, there.address))
    assert np.array_equal(there.obs.result(30), [[0, 0], [1, 0]])
    step = there.env.step(np.array([0, 2]))
    assert np.array_equal(step.obs, [[0, 1], [1, 1]]) and np.array_equal(step.rewards, [0.5, 1.5])
    assert step.terminated.tolist() == [False, True] and np.array_equal(step.final_obs[1], [1, 9])
    last = in_thread(lambda: there.env.step(np.array([1, 1])))
    first, second = simulator.result(30).splitlines()
    assert first == "2 1,3 2,2", "seeds; actions, counted from the space's start"
    assert second.startswith("obs is float32[1, 1]; expected float32[2, 2]")
    there.env.close()
    assert isinstance(last.exception(30), Exception)
