"""`rlplat serve RUN`: a trained agent behind a port, until Ctrl-C; deploy, status and shutdown of a serve.yaml."""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys
from pathlib import Path
from typing import Any

from rlplat.cli.output import print_json
from rlplat.cli.parser import Parser, command, parser_from
from rlplat.errors import UsageError
from rlplat.listening import read_token

_HELP = """\
Put a trained agent behind a port: JSON, raw rows, WebSocket, Open Inference Protocol.

RUN  a run directory, one of its checkpoints, an exported .onnx file, an experiment of `rlplat tune`, FILE.py:NAME,
  or a serve.yaml; deploy, status or shutdown: a serve.yaml in the background (rlplat serve deploy --help)
--checkpoint NAME  latest (the newest valid one; default), best, or step_N
--policy NAME:  which one, where the run has several
--name NAME:  name of the model in /v2/models/NAME (default: the run's directory)
--host HOST:127.0.0.1  address to listen on; 127.0.0.1 is this machine only
--port N:8000  0 takes one that is free
--replicas N>0:1  processes that act
--max-rows N>0:256  rows of a forward pass at most
--follow  take newer weights of the run as they appear
--token-file FILE  its content is what callers must show (or $RLPLAT_SERVE_TOKEN); needed beyond this machine

examples:
  rlplat serve runs/demo
  rlplat serve runs/demo --checkpoint best --replicas 2 --port 8000
  rlplat serve runs/demo --follow                     newer weights of a run that trains, as they come
  rlplat serve runs/experiment                        the best trial of `rlplat tune`
  rlplat serve policy.onnx                            a file of `rlplat export`; neither torch nor the run is needed
  rlplat serve app.py:app                             an application of your own (docs/serving.md)
  rlplat serve deploy serve.yaml                      several, in the background; also: serve status, serve shutdown
  rlplat serve runs/demo --host 0.0.0.0 --token-file token.txt
then, in another terminal:
  curl -d '{"obs": [0.01, 0, 0.02, 0]}' http://127.0.0.1:8000/v1/act
"""
_FILE_HELP = {
    "deploy": "Change what runs to what the file says; where nothing runs, start it in the background.",
    "status": "What runs of the file: replicas, their processes, addresses.",
    "shutdown": "Finish the requests that run, then end all of it.",
}


def build_file_parser(verb: str) -> Parser:
    """Of `rlplat serve deploy`, `status` and `shutdown`."""
    json = "--json  everything that is known\n" if verb == "status" else ""
    waits = "--timeout-s S>0  how long it waits (default: 600 for deploy, 10 for status, 120 for shutdown)\n"
    arguments = f"FILE?serve.yaml  the file that describes the applications\n{waits}{json}"
    return parser_from(
        f"serve {verb}", f"{_FILE_HELP[verb]}\n\n{arguments}\nexample:\n  rlplat serve {verb} serve.yaml\n"
    )


@command("serve", _HELP, takes_words=True)
def run(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("deploy", "status", "shutdown"):
        return _of_file(arguments[0], build_file_parser(arguments[0]).parse_args(arguments[1:]))
    options = run.parser().parse_args(arguments)
    _refuse_ignored(str(options.run), arguments)
    token = read_token(options.token_file) if options.token_file else os.environ.get("RLPLAT_SERVE_TOKEN", "")
    from rlplat.serve.policies.serving import serve_policy

    if options.run.suffix in (".yaml", ".yml"):
        from rlplat.serve.files import verbs

        return verbs.serve_file(options.run, wait_for_signal)
    if ":" in str(options.run):
        return _serve_application(str(options.run), options, token)
    path = best_trial(options.run)
    running = serve_policy(
        path,
        options.checkpoint,
        policy=options.policy,
        name=options.name,
        num_replicas=options.replicas,
        host=options.host,
        port=options.port,
        token=token,
        follow=options.follow,
        max_rows=options.max_rows,
    )
    with running:
        print(f"serving {path} at {running.url}  (Ctrl-C ends it)", flush=True)
        return wait_for_signal()


_ELSEWHERE = {
    "checkpoint": "",
    "policy": "",
    "name": "",
    "follow": "",
    "max_rows": "",
    "replicas": "num_replicas= of @serve.deployment",
}
"""Options that an application of one's own has no use for: where it says the same."""


def _refuse_ignored(where: str, arguments: list[str]) -> None:
    """UsageError for options that would do nothing, as RUN says these things itself."""
    is_file = where.endswith((".yaml", ".yml"))
    if not is_file and ":" not in where:
        return
    parser = run.parser()
    names = [*_ELSEWHERE, "host", "port", "token_file"] if is_file else [*_ELSEWHERE]
    parser.set_defaults(**dict.fromkeys(names))  # so that what is given can be told from what is not
    given = parser.parse_args(arguments)
    for name in names:
        if getattr(given, name) is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        if not is_file:
            instead = _ELSEWHERE[name]
            fix = f"set {instead} in the program" if instead else "omit it"
            raise UsageError(f"{flag} is for a run, and {where} is an application of its own: {fix}")
        key = "applications.NAME" if name == "name" else f"applications.NAME.{name}"
        raise UsageError(f"{flag} does nothing with {where}, which says it itself: omit it, and set {key} there")


def _of_file(verb: str, options: argparse.Namespace) -> int:
    from rlplat.serve.files import verbs

    seconds = options.timeout_s or verbs.TIMEOUT_S[verb]
    if verb == "deploy":
        done = verbs.deploy(options.file, seconds)
        for name, what in done.items():
            print(f"{name}: {what}")
        if not done:
            print("nothing differs")
    elif verb == "shutdown":
        verbs.shutdown(options.file, seconds)
    elif options.json:
        print_json(verbs.status(options.file, seconds))
    else:
        _show(verbs.status(options.file, seconds))
    return 0


def _show(status: dict[str, Any]) -> None:
    print(f"process {status['pid']}, {'ready' if status['is_ready'] else 'starting'}")
    for name, application in status["applications"].items():
        print(f"{name}  {application['url']}")
        for deployment, each in application["deployments"].items():
            states = [replica["state"] for replica in each["replicas"].values()]
            failed = f"; update failed: {each['update_failed']}" if "update_failed" in each else ""
            print(f"  {deployment}: {states.count('ready')} of {each['num_replicas']} replicas ready{failed}")


def _serve_application(where: str, options: argparse.Namespace, token: str) -> int:
    """`app.py:app`, `package.module:app`: what `bind()` returned, or a function that returns such."""
    from rlplat.serve.files.applications import load_application
    from rlplat.serve.running import run

    app = load_application(where)
    with run(app, host=options.host, port=options.port, token=token) as running:
        print(f"serving {where} at {running.url}  (Ctrl-C ends it)", flush=True)
        return wait_for_signal()


def wait_for_signal() -> int:
    """Until Ctrl-C or SIGTERM: then the requests that run are finished; a second one does not wait for them."""
    ending = {signal.SIGINT: 130, signal.SIGTERM: 143}
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    before = {number: signal.signal(number, lambda number, _: came.put(number)) for number in ending}
    try:
        return ending[signal.Signals(came.get())]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def best_trial(path: Path) -> Path:
    """The run to serve: of an experiment that of its best trial."""
    if not (path / "experiment.yaml").exists():
        return path
    from rlplat import tune

    analysis = tune.load(path)
    best = analysis.best_trial
    print(
        f"the best trial of {path} is {best.number}: {analysis.metric[0]} {analysis.best_value:g}",
        file=sys.stderr,
    )
    return path / "trials" / best.directory_name
