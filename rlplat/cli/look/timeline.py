"""`rlplat timeline`: the last calls of every worker as a trace for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rlplat.cli.look.cluster_view import chosen, looking
from rlplat.errors import ConfigError
from rlplat.paths import expanded

_HELP = """\
Write the last calls of every worker (10,000 each) and long waits as a trace.

--out PATH:rlplat-timeline.json  - for stdout
--pid PID  the cluster of this driver, when several are running
--session FOLDER  the same, by its folder in /dev/shm

examples:
  rlplat timeline                       writes rlplat-timeline.json
  rlplat timeline --out - | gzip > trace.json.gz

Open the file in https://ui.perfetto.dev (it stays on your machine) or in chrome://tracing.
"""


@looking("timeline", _HELP)
def run(options: argparse.Namespace) -> int:
    if options.out != "-" and not expanded(options.out).absolute().parent.is_dir():
        raise ConfigError(f"--out {options.out}: there is no directory {Path(options.out).parent}")
    from rlplat.state import timeline

    if options.out == "-":
        json.dump({"traceEvents": timeline(cluster=chosen(options)), "displayTimeUnit": "ms"}, sys.stdout)
        print()
        return 0
    events = timeline(cluster=chosen(options))
    with open(expanded(options.out), "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
    spans = [event for event in events if event["ph"] == "X"]
    rows = {event["tid"] for event in spans}
    length_s = max((event["ts"] + event["dur"] for event in spans), default=0.0) / 1e6
    print(f"{len(spans):,} spans in {len(rows)} rows over {length_s:.1f} s: {options.out} (open it in ui.perfetto.dev)")
    return 0
