"""`ExperimentSpec`: one experiment, settled; what `tune.run(...)` and a file in YAML both become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlplat.tune.search import Searcher

Mode = Literal["max", "min"]


@dataclass(frozen=True)
class ExperimentSpec:
    trainable: Any
    """An algorithm's name ("ppo"), "./file.py:name", "pkg.mod:name", or the function, generator function or class."""
    space: Mapping[str, Any]
    """A trial's config: constants, and domains (`tune.uniform(0, 1)`, in YAML `{uniform: [0, 1]}`), at any depth."""
    metric: tuple[str, ...] = ()
    """What is to be the largest or smallest, by name; several: several objectives. Algorithms: episode_return_mean."""
    mode: tuple[Mode, ...] = ()
    """"max" or "min", one for each metric."""
    num_samples: int = 1
    """Trials; with grids: how often the whole grid."""
    stop: Mapping[str, float] = field(default_factory=dict)
    """A trial is complete when one of these metrics reaches this (`step`: reports; `wall_s`: seconds it ran)."""
    resources: Mapping[str, float] | None = None
    """Of one trial in all, its own actors included: {"cpu": 1, "gpu": 0}. None: one CPU; an algorithm's config says
    how many."""
    searcher: Searcher = field(default_factory=Searcher)
    scheduler: Any = "fifo"
    """A name, {"name": ..., settings}, or a `TrialScheduler`."""
    max_concurrent: int | None = None
    """Trials at once; None: as many as the cluster has room for."""
    seed: int = 0
    seeds_per_trial: int = 1
    """Each config runs so many times side by side in its trial, with different seeds; metrics are their means."""
    max_failures: int = 2
    """How often a trial that crashed or hung begins again from its checkpoint before it counts as failed."""
    max_silence_s: float | None = None
    """A trial that does not report for so long counts as hung; None: never."""
    checkpoint_period: int | None = None
    """Reports between checkpoints of a trial; None: as often as costs at most a tenth of its time."""
    time_budget_s: float | None = None
    """After so many seconds no trial begins, and those that run are ended at their next report."""
    name: str = ""
    out: Path = Path()
    """The experiment's directory."""
    storage: str = ""
    """Empty: `<out>/study.journal`; postgresql://user@host/database."""
