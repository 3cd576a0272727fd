"""Data-parallel training: rlplat's TorchTrainer, plain DistributedDataParallel under torchrun, Ray Train, Fabric.

    python -m benchmarks.data_parallel --peer torchrun --peer ray --peer fabric --repeats 5 --markdown FILE

Each figure of each repeat is a fresh process (`data_parallel_programs`, `data_parallel_tuning`); peers take turns, and
never run at once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.data_parallel_programs import STARTED
from benchmarks.measure import ROOT, Report, Sample, add_output_options, hardware, summarize

ROWS = {
    ("rate", 1): ("ResNet on CIFAR-shaped data, 1 rank", "samples/s"),
    ("rate", 2): ("ResNet on CIFAR-shaped data, 2 ranks", "samples/s"),
    ("spin", 1): ("steps that take 10 ms, 1 rank", "samples/s"),
    ("start", 2): ("start of the program to the first step, 2 ranks", "s"),
    ("construct", 2): ("TorchTrainer(...) to the first step, on a running cluster, 2 ranks", "s"),
    ("restart", 2): ("a rank killed, to the next step, 2 ranks", "s"),
    ("tune", 1): ("a ConvNet tuned with ASHA, 30 trials that are trainers with a rank", "trials/s"),
    ("tune_loop", 1): ("the same, trials that are plain loops", "trials/s"),
}
ONLY = dict.fromkeys(("construct", "restart", "tune", "tune_loop"), ("rlplat", "ray"))
"""Rows that some peers have not."""
TIMEOUT_S = 1800


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.data_parallel", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=sorted({row for row, _ in ROWS}), help="only these")
    parser.add_argument("--realtime", action="store_true", help="run under `chrt -f 10`: nothing else gets the CPUs")
    add_output_options(parser, ["torchrun", "ray", "fabric"])
    return parser


def measure(peer: str, row: str, ranks: int, *, is_quick: bool, is_realtime: bool) -> float:
    """One figure, by a fresh process; RuntimeError with its output where it printed none."""
    python = [sys.executable, "-m"]
    size = "quick" if is_quick else "full"
    program = ["benchmarks.data_parallel_programs", peer, row, str(ranks), size]
    if row.startswith("tune"):
        program = ["benchmarks.data_parallel_tuning", peer, row, size]
    if peer in ("torchrun", "fabric"):
        restarts = ["--max-restarts", "1" if row == "restart" else "0", "--monitor-interval", "0.1"]
        python += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *restarts, "-m"]
    command = [*(["chrt", "-f", "10"] if is_realtime else []), *python, *program]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RLPLAT_BENCH_FOLDER": folder,
            STARTED: str(time.time()),
        }
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("figure ")]
    if not lines:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return float(lines[-1].split()[1])


def main(arguments: Sequence[str] | None = None) -> None:
    options = build_parser().parse_args(arguments)
    peers = ["rlplat", *options.peer]
    samples = []
    for _ in range(1 if options.quick else options.repeats):
        for (row, ranks), (text, unit) in ROWS.items():
            if options.rows and row not in options.rows:
                continue
            for peer in peers:
                if peer in ONLY.get(row, peers):
                    value = measure(peer, row, ranks, is_quick=options.quick, is_realtime=options.realtime)
                    samples.append(Sample(peer, text, "", unit, value))
                    print(f"{peer}: {text}: {value:.4g} {unit}", file=sys.stderr, flush=True)
    notes = [
        "ResNet-18's shape with an eighth of its channels; 16 samples and one thread for each rank; float32.",
        "`start` is from the start of the interpreter, imports included.",
        "Fabric is lightning-fabric, under torchrun as well.",
        "`construct`: from the call on. rlplat's cluster has imported torch before (`preload`); Ray's ranks import it.",
        "Ray Train as it is by default, `restart` with FailureConfig(max_failures=1).",
        "torchrun --max-restarts 1 on gloo could not connect its new ranks here: no `restart` of it.",
        "`tune`, `tune_loop`: from the start of the interpreter to the end of the experiment; at most 2 trials at a "
        "time, ASHA's rungs at 1, 3 and 9 of 10 epochs; Ray with reuse_actors=True and without its loggers.",
    ]
    if options.realtime:
        notes.append("Under `chrt -f 10`: other processes of the machine wait.")
    higher = {text for text, unit in ROWS.values() if unit != "s"}
    rows = summarize(samples)
    report = Report(
        "Data-parallel training",
        peers,
        rows,
        higher,
        hardware(["rlplat", "torch", "ray", "lightning-fabric"]),
        notes,
    )
    report.publish(options.json, options.markdown)


if __name__ == "__main__":
    main()
