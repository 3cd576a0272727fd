"""`rlplat dashboard`: runs, curves, trials, the running cluster and servers in a browser."""

from __future__ import annotations

import argparse
import os
import sys

from rlplat.cli.parser import command
from rlplat.errors import ConfigError, MissingExtra, UsageError
from rlplat.listening import in_url, is_loopback, listen, read_token

_HELP = """\
Show runs, experiments, the running cluster and servers in a browser. It only reads, and nothing on the page comes
from another machine.

directory@DIR?runs  where the runs are
--host HOST:127.0.0.1  address to listen on
--port N:8265  0: any free one
--token-file FILE  a secret that callers must know; needed beyond loopback
--export FILE  write one HTML file instead, and end
--runs NAME+  with --export: only these runs (default: all)

examples:
  rlplat dashboard                                   the runs in ./runs
  rlplat dashboard /data/runs --port 9000
  rlplat dashboard --export page.html --runs ppo-1 ppo-2     one file to send to a colleague
  rlplat dashboard --host 0.0.0.0 --token-file token.txt     from other machines
"""


@command("dashboard", _HELP)
def run(options: argparse.Namespace) -> int:
    if options.runs and options.export is None:
        raise UsageError("--runs goes with --export FILE; the page itself lets you choose runs")
    if options.export is not None and not options.export.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {options.export.parent}: --export {options.export}")
    if not options.directory.is_dir():
        raise ConfigError(f"there is no directory {options.directory}: where are the runs? rlplat dashboard DIR")
    token = read_token(options.token_file) if options.token_file else ""
    is_local = is_loopback(options.host)
    if not is_local and not token:
        raise UsageError(
            f"--host {options.host} can be reached from other machines: give a secret by --token-file FILE"
        )
    try:
        from rlplat.dashboard import server
        from rlplat.dashboard.pages import Pages
        from rlplat.dashboard.serving import Servers
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "dashboard", "rlplat dashboard") from None
    pages = Pages(options.directory)
    if options.export is not None:
        from rlplat.dashboard.export import export

        runs = options.runs or [row["run"] for row in pages.runs()["runs"] if row["kind"] == "run"]
        options.export.write_text(export(pages, runs), encoding="utf-8")
        print(f"{len(runs)} runs are in {options.export}")
        return 0
    listener = listen(options.host, options.port)
    port = listener.getsockname()[1]
    secret = "/?token=..." if token else ""
    try:
        print(
            f"the dashboard of {options.directory} is at http://{in_url(options.host, port)}{secret}; Ctrl-C ends it",
            file=sys.stderr,
        )
        servers = Servers(os.environ.get("RLPLAT_SERVE_TOKEN", ""))
        server.serve(server.make_app(pages, servers, token=token, is_local=is_local), listener)
    except KeyboardInterrupt:
        pass
    return 0
