"""`rlplat up`, `rlplat down`, `rlplat status CLUSTER.yaml`."""

from __future__ import annotations

import argparse

from rlplat.cli.cluster.options import launcher_of, of_cluster, refuse_dry_run


@of_cluster("up")
def up(options: argparse.Namespace) -> int:
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
        print(f"the cluster '{launcher.cluster.title}' is up: rlplat submit {options.cluster} -- rlplat train ...")
    return 0


@of_cluster("down")
def down(options: argparse.Namespace) -> int:
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
