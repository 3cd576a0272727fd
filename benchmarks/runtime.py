"""The runtime against its peers: latency, throughput, memory, start-up, faults.

    ./scripts/bench runtime --peer ray --peer pool --json runtime.jsonl --markdown benchmarks/results/runtime.md

Peers take turns, a whole block of rows each, in processes and on clusters of their own, as often as --repeats says: no
peer runs beside another, and a drift of the machine meets all of them. A row's figure is the median over the blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import fresh_process
from benchmarks.measure import ROOT, Report, Sample, add_output_options, hardware, summarize
from benchmarks.runtime_peers import PEERS, RAY_ENVIRONMENT
from benchmarks.runtime_rows import ROWS
from rlplat.paths import expanded

PACKAGES = ("rlplat", "pyzmq", "msgspec", "cloudpickle", "numpy", "ray")
NOTES = (
    "`bulk submission` is `rlplat.map`; its results are checked. Ray has no verb of that kind.",
    "`memory of one idle actor` and `idle` are proportional set sizes (PSS), the driver included in `idle`.",
    "`zmq` is a bare DEALER and ROUTER that spin as long; its start is `python -c 'import zmq, numpy, msgspec'`.",
    "`monarch` is torchmonarch 0.7.0 in an environment of its own (MONARCH_PYTHON): actors only.",
    "The process pool is `concurrent.futures.ProcessPoolExecutor`; what it returns comes from tasks, not actors.",
)


def main() -> None:
    options = build_parser().parse_args()
    if options.block:
        _run_block(options.block, options.rows, options.quick, options.samples)
        return
    peers = ["rlplat", *dict.fromkeys(options.peer)]
    if "monarch" in peers and not PEERS["monarch"].python:
        sys.exit("--peer monarch: MONARCH_PYTHON must name the Python of an environment with torchmonarch and msgspec")
    info = hardware(PACKAGES)
    samples: list[Sample] = []
    failures: list[str] = []
    for repeat in range(options.repeats):
        for peer in peers if repeat % 2 == 0 else peers[::-1]:
            print(f"repeat {repeat + 1} of {options.repeats}: {peer}", file=sys.stderr, flush=True)
            own_environment = PEERS[peer].python != sys.executable
            if not own_environment and (options.rows is None or any(text in "start-up" for text in options.rows)):
                samples += fresh_process.measure(peer, settle_s=0.5 if options.quick else 3.0)
            found, failed = _block_in_a_process(peer, options)
            samples += found
            failures += [text for text in failed if text not in failures]
    notes = [*NOTES, *failures]
    if options.quick:
        notes.insert(0, "a --quick run: the sizes are tiny, the figures mean nothing")
    rates = {row.name for row in ROWS if row.is_rate}
    report = Report("Runtime", peers, summarize(samples), rates, info, notes)
    report.publish(options.json, options.markdown)
    if failures:
        sys.exit(1)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.runtime",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_options(parser, [name for name in PEERS if name != "rlplat"])
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="TEXT",
        help="only rows whose names contain one of these; start-up: the fresh ones",
    )
    parser.add_argument("--block", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=expanded, help=argparse.SUPPRESS)
    return parser


def _block_in_a_process(peer: str, options: argparse.Namespace) -> tuple[list[Sample], list[str]]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "samples.jsonl"
        file.touch()
        command = [PEERS[peer].python, "-m", "benchmarks.runtime", "--block", peer, "--samples", str(file)]
        command += ["--quick"] if options.quick else []
        command += ["--rows", *options.rows] if options.rows else []
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **RAY_ENVIRONMENT, "PYTHONPATH": path})
        records = [json.loads(line) for line in file.read_text().splitlines()]
    samples = [Sample(**record) for record in records if "failure" not in record]
    failures = [record["failure"] for record in records if "failure" in record]
    if done.returncode:
        failures.append(f"{peer}: the block ended early with exit code {done.returncode}")
    return samples, failures


def _run_block(peer_name: str, wanted: list[str] | None, few: bool, file: Path) -> None:
    """In a process of its own: every row that this peer can do, once."""
    peer = PEERS[peer_name]
    verbs = peer.start()
    with open(file, "a", encoding="utf-8") as out:
        for spec in ROWS:
            if spec.needs not in peer.can or (wanted and not any(text in spec.name for text in wanted)):
                continue
            try:
                figures = spec.measure(verbs, few)
            except Exception as error:  # one row that fails must not hide the others
                text = f"{peer_name}: `{spec.name}` failed: {type(error).__name__}: {error}".splitlines()[0]
                print(json.dumps({"failure": text}), file=out, flush=True)
                continue
            for part, value in figures.items():
                sample = {
                    "peer": peer_name,
                    "row": spec.name,
                    "part": part,
                    "unit": spec.unit,
                    "value": value,
                }
                print(json.dumps(sample), file=out, flush=True)
    peer.stop()


if __name__ == "__main__":
    main()
