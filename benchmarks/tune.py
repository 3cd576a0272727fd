"""The tuner's own price: trials/s of a function that only reports, beside Ray Tune and Optuna; and its growth.

    ./scripts/bench tune --peer ray --peer optuna --markdown benchmarks/results/tune.md
    ./scripts/bench tune --rows flat

Every figure comes from a fresh process; the peers take turns. Columns: rlplat (journal storage in a new directory),
`--peer ray` (Ray Tune, function API, actors reused, its logger callbacks and progress table off) and `--peer optuna`
(`study.optimize` in one process and thread: no isolation, no directory; in memory, and on its own journal file).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Report, Sample, add_output_options, hardware, summarize

PACKAGES = ("rlplat", "optuna", "ray", "numpy", "pyzmq")
NUM_REPORTS = 10
RATE = "1,000 trials x 10 reports, random search, trials/s"
RATE_ASHA = "the same with ASHA, trials/s"
RATE_TPE = "200 trials x 10 reports, TPE, trials/s"
RATE_JOURNAL = "Optuna on a journal file: 1,000 trials x 10 reports, random search, trials/s"
MEMORY = "RSS of the tuner's process after that, MiB"
NOTES = (
    "The trial is `for step in range(10): report(loss=...)`: nothing but reports.",
    "rlplat and Ray run trials in worker processes on 2 CPUs; Optuna calls the function in its own thread: it pays for "
    "no isolation: no crash, hang or memory limit of a trial is survived there.",
    "Trials/s are without starting the cluster.",
    "Every report is a round trip to the tuner, in rlplat as in Ray.",
    "Ray: `RAY_AIR_NEW_OUTPUT=0`, `TUNE_DISABLE_AUTO_CALLBACK_LOGGERS=1`, `verbose=0`, `reuse_actors=True`; "
    "only 200 trials in the row with ASHA and 40 in the row with TPE, for the time that they take.",
)
CHECKPOINTS = (100, 300, 1_000, 3_000, 10_000)


def trial(config: dict[str, Any], report: Any) -> None:
    for step in range(NUM_REPORTS):
        report(loss=(config["a"] - 0.3) ** 2 + config["b"] / (1 + step))


# ---------------------------------------------------------------- one process each


def rlplat_rates(num_trials: int, directory: str) -> dict[str, float]:
    import rlplat
    from rlplat import tune

    rlplat.init(num_cpus=2)
    rates = {}
    space = {"a": tune.uniform(0, 1), "b": tune.uniform(0, 1)}
    for row, count, settings in (
        (RATE, num_trials, {}),
        (RATE_ASHA, num_trials, {"scheduler": {"name": "asha", "max_progress": NUM_REPORTS}}),
        (RATE_TPE, num_trials // 5, {"searcher": "tpe"}),
    ):
        started = time.perf_counter()
        tune.run(
            trial,
            space,
            metric="loss",
            mode="min",
            num_samples=count,
            out=f"{directory}/{len(rates)}",
            progress=False,
            **settings,
        )
        rates[row] = count / (time.perf_counter() - started)
        if row == RATE:
            rates[MEMORY] = rss_mib()
    rlplat.shutdown()
    return rates


def ray_rates(num_trials: int, directory: str) -> dict[str, float]:
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1", RAY_DEDUP_LOGS="0")
    import logging

    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    def ray_trial(config: dict[str, Any]) -> None:
        trial(config, lambda **metrics: tune.report(metrics))

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    space = {"a": tune.uniform(0, 1), "b": tune.uniform(0, 1)}
    rates = {}
    for row, count, settings in (
        (RATE, num_trials, {}),
        (RATE_ASHA, num_trials // 5, {"scheduler": ASHAScheduler(max_t=NUM_REPORTS)}),
        (RATE_TPE, num_trials // 25, {"search_alg": OptunaSearch()}),
    ):
        tuner = tune.Tuner(
            tune.with_resources(ray_trial, {"cpu": 1}),
            param_space=space,
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=count, reuse_actors=True, **settings),
            run_config=tune.RunConfig(storage_path=directory, name=str(len(rates)), verbose=0),
        )
        started = time.perf_counter()
        tuner.fit()
        rates[row] = count / (time.perf_counter() - started)
        if row == RATE:
            rates[MEMORY] = rss_mib()
    ray.shutdown()
    return rates


def optuna_rates(num_trials: int, directory: str) -> dict[str, float]:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(running: Any) -> float:
        config = {"a": running.suggest_float("a", 0, 1), "b": running.suggest_float("b", 0, 1)}
        step = 0
        last = 0.0

        def report(loss: float) -> None:
            nonlocal step, last
            last = loss
            running.report(loss, step)
            step += 1
            if running.should_prune():
                raise optuna.TrialPruned

        trial(config, report)
        return last

    rates = {}
    journal = JournalStorage(JournalFileBackend(f"{directory}/optuna.journal"))
    random, asha = optuna.samplers.RandomSampler(seed=1), optuna.pruners.SuccessiveHalvingPruner()
    never = optuna.pruners.NopPruner()
    for row, count, sampler, pruner, storage in (
        (RATE, num_trials, random, never, None),
        (RATE_ASHA, num_trials, random, asha, None),
        (RATE_TPE, num_trials // 5, optuna.samplers.TPESampler(seed=1), never, None),
        (RATE_JOURNAL, num_trials, random, never, journal),
    ):
        study = optuna.create_study(sampler=sampler, pruner=pruner, storage=storage)
        started = time.perf_counter()
        study.optimize(objective, n_trials=count)
        rates[row] = count / (time.perf_counter() - started)
        if row == RATE:
            rates[MEMORY] = rss_mib()
    return rates


def flatness(num_trials: int, directory: str) -> dict[str, float]:
    """One experiment; at each of CHECKPOINTS the tuner's memory and its time per report since the last."""
    import rlplat
    from rlplat import tune
    from rlplat.tune.experiment import Experiment

    rlplat.init(num_cpus=2)
    figures: dict[str, float] = {}
    spent = {"s": 0.0, "reports": 0}
    perform = Experiment.handle

    def timed(self: Any, event: Any) -> Any:
        started = time.perf_counter()
        actions = perform(self, event)
        spent["s"] += time.perf_counter() - started
        spent["reports"] += 1
        ended = self.roster.num_ended
        if ended in CHECKPOINTS and f"{ended}" not in seen:
            seen.add(f"{ended}")
            figures[f"RSS after {ended:,} trials, MiB"] = rss_mib()
            figures[f"one decision up to {ended:,} trials, µs"] = spent["s"] / spent["reports"] * 1e6
            now = time.perf_counter()
            figures[f"trials/s up to {ended:,} trials"] = (ended - spent["ended"]) / (now - spent["at"])
            spent.update(s=0.0, reports=0, ended=ended, at=now)
        return actions

    seen: set[str] = set()
    spent |= {"ended": 0, "at": time.perf_counter()}
    Experiment.handle = timed  # type: ignore[method-assign]
    tune.run(
        trial,
        {"a": tune.uniform(0, 1), "b": tune.uniform(0, 1)},
        metric="loss",
        mode="min",
        num_samples=num_trials,
        scheduler={"name": "asha", "max_progress": NUM_REPORTS, "reduction_factor": 2},
        out=f"{directory}/flat",
        progress=False,
    )
    rlplat.shutdown()
    return figures


def rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


MEASURES = {"rlplat": rlplat_rates, "ray": ray_rates, "optuna": optuna_rates, "flat": flatness}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=("rates", "flat"), default=["rates", "flat"])
    parser.add_argument("--in-process", nargs=3, metavar=("MEASURE", "TRIALS", "DIR"), help=argparse.SUPPRESS)
    add_output_options(parser, ["ray", "optuna"])
    options = parser.parse_args()
    if options.in_process:
        measure, count, directory = options.in_process
        print("\n" + json.dumps(MEASURES[measure](int(count), directory)))
        return
    peers = ["rlplat", *dict.fromkeys(options.peer)]
    info = hardware(PACKAGES)
    samples: list[Sample] = []
    for _ in range(1 if options.quick else options.repeats):
        if "rates" in options.rows:
            for peer in peers:
                started = time.perf_counter()
                figures = fresh_process(peer, 20 if options.quick else 1_000)
                whole = time.perf_counter() - started
                samples += [Sample(peer, row, "", row.rpartition(" ")[2], value) for row, value in figures.items()]
                print(f"{peer}: {whole:.1f} s", file=sys.stderr)
        if "flat" in options.rows:
            figures = fresh_process("flat", 300 if options.quick else CHECKPOINTS[-1])
            samples += [Sample("rlplat", row, "", "", value) for row, value in figures.items()]
    rows = summarize(samples)
    higher = {row.row for row in rows if "trials/s" in row.row}
    notes = ["a --quick run: the figures mean nothing"] if options.quick else []
    Report("Tuning: the tuner's own price", peers, rows, higher, info, [*notes, *NOTES]).publish(
        options.json, options.markdown
    )


def fresh_process(measure: str, num_trials: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable,
            "-m",
            "benchmarks.tune",
            "--in-process",
            measure,
            str(num_trials),
            directory,
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise SystemExit(f"{measure} failed:\n{done.stdout}\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
