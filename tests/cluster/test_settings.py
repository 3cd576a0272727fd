"""CLUSTER.yaml: what is refused, and in which words. Nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlplat.cluster.settings import ClusterSettings, read_cluster
from rlplat.errors import ConfigError


def read(tmp_path: Path, text: str, name: str = "lab.yaml") -> ClusterSettings:
    path = tmp_path / name
    path.write_text(text)
    return read_cluster(path)


def complaint(tmp_path: Path, text: str, name: str = "lab.yaml") -> str:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text, name)
    return str(raised.value).replace(str(tmp_path) + "/", "")


def test_the_smallest_file_is_one_node_on_this_machine_named_after_the_file(tmp_path: Path) -> None:
    cluster = read(tmp_path, "provider: local")
    assert (cluster.title, cluster.num_nodes, cluster.engine) == ("lab", 1, "ray")


def test_hosts_are_counted(tmp_path: Path) -> None:
    cluster = read(tmp_path, "provider: ssh\nssh: {hosts: [gpu1, me@gpu2, 'gpu3:2222']}")
    assert cluster.num_nodes == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x", "'provider' is not set: one of local, ssh, slurm, kubernetes, sky"),
        ("provider: aws", "in lab.yaml:1: 'aws' (must be local, ssh, slurm, kubernetes or sky)"),
        ("provider: local\nengin: ray", "unknown key 'engin' in lab.yaml:2; did you mean 'engine'?"),
        ("provider: local\nlocal: {node: 2}", "did you mean 'local.nodes'?"),
        ("provider: local\nlocal: {nodes: 0}", "'local.nodes' in lab.yaml:2: 0 (must be a whole number from 1"),
        ("provider: local\nlocal: .nan", "'local' in lab.yaml:2: nan (it takes settings by name: local: {nodes: 1})"),
        ("provider: ssh\nssh: ''", "'' (it takes settings by name: ssh: {hosts: ...})"),
        ("provider: slurm\nslurm: {partition: 'a b'}", "must be one word of letters, digits"),
        ("provider: slurm\nslurm: {account: --uid=0}", "bad value for 'slurm.account'"),
        ("provider: slurm\nslurm: {time_limit: forever}", "must be [DAYS-]HOURS:MINUTES:SECONDS"),
        ("provider: slurm\nslurm: {time_limit: '0:03:00'}", "leaves no time to work"),
        ("provider: ssh", "provider=ssh needs a section ssh: with hosts: [HOST, ...]"),
        ("provider: local\nssh: {hosts: [a]}", "ssh= is for provider: ssh, and provider=local: remove one"),
        ("provider: ssh\nssh: {hosts: [a, a]}", "a is in ssh.hosts= more than once"),
        ("provider: ssh\nssh: {hosts: [a], addresses: {b: 10.0.0.1}}", "names b, which ssh.hosts= does not list"),
        ("provider: local\nengine: rlplat\nlocal: {nodes: 33}", "engine=rlplat has 32 nodes at most"),
        ("provider: local\nautoscale: {node_types: {}}", "autoscale.node_types"),
        ("provider: local\nautoscale: {node_types: {head: {}}}", "has 'head', which is another node's name"),
        ("provider: local\nautoscale: {node_types: {a: {min_nodes: 2}}}", "min_nodes=2 is more than max_nodes=1"),
        ("provider: local\nautoscale: {node_types: {a: {max_node: 2}}}", "max_node"),
        ("provider: local\nengine: rlplat\nautoscale: {node_types: {a: {}}}", "is for provider: local or"),
        ("provider: local\nlocal: {nodes: 2}\nautoscale: {node_types: {a: {}}}", "remove local.nodes"),
        ("provider: local\nautoscale: {node_types: {a: {max_nodes: 65}}}", "max_nodes=65 on one machine: 64 at most"),
        ("provider: local\nautoscale: {node_types: {a: {memory: 1Gi}}}", "are for provider: kubernetes"),
        ("provider: local\nname: lab-", "a letter first, no dash last"),
        ("provider: local\nenv: {HF_TOKEN: abc}", "HF_TOKEN, which looks like a secret: put it into a file"),
        ("provider: local\nenv: {'A;B': abc}", "the name of a variable is letters, digits and _"),
        ("provider: local\nsetup: !!python/name:os.system ls", "the tag 'tag:yaml.org,2002:python/name:os.system'"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_the_key_and_the_fix(tmp_path: Path, text: str, said: str) -> None:
    assert said in complaint(tmp_path, text)


@pytest.mark.parametrize("host", ["a;reboot", "$(id)", "a b", "-oProxyCommand=id", "a`id`", "a|b", "../a", "a\nb", ""])
def test_a_host_is_no_option_and_no_shell_text(tmp_path: Path, host: str) -> None:
    text = f"provider: ssh\nssh:\n  hosts: [{host!r}]".replace("'a\\nb'", '"a\\nb"')
    assert "must be HOST, USER@HOST or HOST:PORT" in complaint(tmp_path, text)


@pytest.mark.parametrize("key", ["name", "folder", "python"])
@pytest.mark.parametrize("value", ["a;b", "$(id)", "-x", "a\\`b"])
def test_names_and_paths_hold_no_shell_text(tmp_path: Path, key: str, value: str) -> None:
    assert f"bad value for '{key}'" in complaint(tmp_path, f'provider: local\n{key}: "{value}"'.replace("\\`", "`"))


KUBERNETES = "provider: kubernetes\nnum_cpus: 4\n{more}\nkubernetes: {{ray_version: 2.60.0, {image}{key}}}"


@pytest.mark.parametrize(
    ("key", "more", "said"),
    [
        ("imag: x", "", "unknown key 'kubernetes.imag'"),
        ("namespace: a;b", "", "bad value for 'kubernetes.namespace'"),
        ("namespace: a.b", "", "bad value for 'kubernetes.namespace'"),
        ("secrets: [$(id)]", "", "bad value for 'kubernetes.secrets"),
        ("secrets: [a, a]", "", "a is in kubernetes.secrets= more than once"),
        ("volumes: {a: /x, b: /x}", "", "/x is in kubernetes.volumes= more than once"),
        ("volumes: {a: runs}", "", "must be an absolute path"),
        ("volumes: {A_B: /runs}", "", "must be lower-case letters, digits, dots and dashes"),
        ("context: --kubeconfig=x", "", "bad value for 'kubernetes.context'"),
        ("memory: 8", "", "must be an amount of memory as Kubernetes writes it: 8Gi"),
        ("program_gpus: 1", "", "no node type has GPU 1: there are head (CPU 4; at most 1)"),
        ("program_cpus: 5, nodes: 3", "", "(CPU 4; at most 1), workers (CPU 4; at most 2)"),
        ("nodes: 2", "autoscale: {node_types: {a: {}}}", "remove kubernetes.nodes"),
        ("", "engine: rlplat", "provider=kubernetes needs engine: ray"),
        ("", "workdir: .", "workdir= is not for provider: kubernetes, where nothing is copied"),
        ("", "autoscale: {node_types: {a: {memory: 8GB}}}", "an amount of memory as Kubernetes writes it: 8Gi"),
        ("", "autoscale: {node_types: {a: {node_selector: {'a b': c}}}}", "must be a key of a label"),
        ("", "autoscale: {node_types: {a-: {}}}", "no dash last"),
    ],
)  # fmt: skip
def test_what_kubernetes_could_not_take_is_refused(tmp_path: Path, key: str, more: str, said: str) -> None:
    memory = "" if "memory" in key else "memory: 8Gi, "
    text = KUBERNETES.format(image=f"image: me/train, {memory}", key=key, more=more)
    assert said in complaint(tmp_path, text)


@pytest.mark.parametrize("version", ["2.51.0", "2.6", "3.0.0", "latest", "2.60.0;x"])
def test_kubernetes_needs_a_ray_with_tokens(tmp_path: Path, version: str) -> None:
    text = KUBERNETES.format(image="memory: 8Gi, image: x", key="", more="").replace("2.60.0", version)
    assert "must be Ray's version in the image, 2.52.0 or later" in complaint(tmp_path, text)


def test_kubernetes_needs_an_image_and_amounts(tmp_path: Path) -> None:
    text = KUBERNETES.format(image="memory: 8Gi", key="", more="")
    assert "provider=kubernetes needs kubernetes.image: what" in complaint(tmp_path, text)
    assert (
        "needs num_cpus, kubernetes.image, kubernetes.ray_version, kubernetes.memory:"
        in complaint(tmp_path, "provider: kubernetes")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sky: {node: 2}", "did you mean 'sky.nodes'?"),
        ("sky: {infra: 'aws;id'}", "must be CLOUD, CLOUD/REGION or CLOUD/REGION/ZONE"),
        ("sky: {infra: --yes}", "bad value for 'sky.infra'"),
        ("sky: {accelerators: 'A100:0'}", "must be NAME or NAME:COUNT"),
        ("sky: {image: 'docker:$(id)'}", "bad value for 'sky.image'"),
        ("sky: {mounts: {runs: s3://b}}", "must be a path that begins with / or ~"),
        ("num_gpus: 1", "name the kind, sky.accelerators: A100:1"),
        ("exclude: [x]", "a file .skyignore in workdir"),
        ("workdir: nothing-here", "workdir=nothing-here is not a folder of this machine"),
        ("engine: rlplat\nsky: {nodes: 2}", "several nodes need engine: ray"),
        ("autoscale: {node_types: {a: {}}}", "autoscale= is for provider: local or kubernetes"),
    ],
)  # fmt: skip
def test_what_skypilot_could_not_take_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in complaint(tmp_path, f"provider: sky\n{text}")


def test_kubernetes_nodes_come_by_and_by_so_their_types_are_known_before(tmp_path: Path) -> None:
    cluster = read(tmp_path, KUBERNETES.format(image="memory: 8Gi, image: x, nodes: 3", key="", more=""))
    kinds = {name: (kind.resources, kind.max_nodes) for name, kind in cluster.node_types.items()}
    assert kinds == {"head": ({"CPU": 4.0}, 1), "workers": ({"CPU": 4.0}, 2)}


def test_a_file_whose_name_is_no_name_needs_a_name(tmp_path: Path) -> None:
    assert "set name:" in complaint(tmp_path, "provider: local", "My Cluster.yaml")


def test_all_complaints_come_at_once(tmp_path: Path) -> None:
    said = complaint(tmp_path, "provider: aws\nengine: spark\nfoo: 1")
    assert [line.split(" in lab.yaml:")[1][0] for line in said.splitlines()] == ["1", "2", "3"]
