"""A run in an experiment tracker: a copy of its directory, made by a process of its own (docs/tracking.md).

    rlplat track runs/demo --to wandb             or mlflow, trackio, aim, or a tracker of your own

The run directory is the truth and the training knows nothing of the copy. From bottom to top: `tracker.py` is what a
tracker does, `history.py` which rows of metrics.jsonl come next, `copying.py` moves them, `sidecar.py` is the process.
"""
