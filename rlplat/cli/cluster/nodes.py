"""`rlplat up`, `rlplat down`, `rlplat status CLUSTER.yaml`."""

from __future__ import annotations

import argparse

from rlplat.cli.cluster.options import add_dry_run, cluster_parser, launcher_of, refuse_dry_run


def up_parser() -> argparse.ArgumentParser:
    parser = cluster_parser(
        "up",
        "Copy files to the machines, run the setup commands there, start the nodes. What runs already stays.",
        "Exit code 2: a machine cannot be used as it is, and nothing was started; 1: a setup command or a node\n"
        "failed, and what this command had started is ended again.",
    )
    add_dry_run(parser)
    return parser


def up(arguments: list[str]) -> int:
    options = up_parser().parse_args(arguments)
    from rlplat.cluster.settings import read_cluster

    cluster = read_cluster(options.cluster)
    if cluster.provider == "kubernetes":
        from rlplat.cluster.kubernetes import kubectl, manifests

        print(manifests.as_yaml(manifests.ray_cluster(cluster)) if options.dry_run else kubectl.up(cluster))
        if not options.dry_run:
            print(f"its pods come by and by: {kubectl.look_command(cluster)}")
        return 0
    if options.dry_run and cluster.provider != "sky":
        refuse_dry_run(cluster)
    with launcher_of(options.cluster) as launcher:
        from rlplat.cluster.launcher import table

        print(table(launcher.up()))
        print(
            f"the cluster '{launcher.cluster.title}' is up: rlplat submit {options.cluster} -- rlplat train ..."
        )
    return 0


def down_parser() -> argparse.ArgumentParser:
    parser = cluster_parser(
        "down",
        "End the jobs and the nodes of a cluster. Files and logs stay on the machines.",
        "Exit code 1: a machine could not be reached, and its node may be running.",
    )
    return parser


def down(arguments: list[str]) -> int:
    options = down_parser().parse_args(arguments)
    from rlplat.cluster.settings import read_cluster

    cluster = read_cluster(options.cluster)
    if cluster.provider == "kubernetes":
        from rlplat.cluster.kubernetes import kubectl

        print(kubectl.down(cluster) or "nothing of this cluster was there")
        return 0
    return _show(options.cluster, "down")


def status(path: str) -> int:
    """Exit code 0: every node is as it should be."""
    return _show(path, "status")


def _show(path: str, verb: str) -> int:
    with launcher_of(path) as launcher:
        from rlplat.cluster.launcher import table

        rows = launcher.down() if verb == "down" else launcher.status()
    print(table(rows))
    return 0 if all(row.is_ok for row in rows) else 1
