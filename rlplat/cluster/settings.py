"""CLUSTER.yaml: what a cluster is made of. Pure: reading it starts nothing and runs nothing.

cluster = read_cluster("lab.yaml")      # or one ConfigError with every complaint
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rlplat.cluster.scaling.decision import Demand, why_never
from rlplat.config import Layer, load_yaml, resolve
from rlplat.errors import ConfigError
from rlplat.machine_limits import cpu_count
from rlplat.node_types import MOST_OWN_NODES, NodeType
from rlplat.section import Count, CountOrZero, Seconds, Section
from rlplat.setting_types import Words

PROVIDERS = ("local", "ssh", "slurm", "kubernetes", "sky")
WORKERS = "workers"
"""The type of the nodes beside the head, where all are alike."""
RESERVED = ("head", "autoscaler")
"""Names of nodes that are no node type."""
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,29}[a-z0-9])?\Z")
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*(?::[0-9]{1,5})?\Z")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:/@+=-]*\Z")
_PATH = re.compile(r"[A-Za-z0-9_~./@+][A-Za-z0-9_./@+=,: -]*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TIME = re.compile(r"(?:[0-9]{1,3}-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]\Z")
_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
_DNS_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
_LABEL_KEY = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z"
)
_QUANTITY = re.compile(r"[1-9][0-9]{0,11}(?:[kMGTPE]|[KMGTPE]i)?\Z")
_MOUNT = re.compile(r"/[A-Za-z0-9_][A-Za-z0-9_./-]*\Z")
_INFRA = re.compile(r"[A-Za-z0-9*][A-Za-z0-9_.:/*@-]*\Z")
_ACCELERATORS = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(?::[1-9][0-9]{0,2})?\Z")
_THERE = re.compile(r"[~/][A-Za-z0-9_./-]*\Z")
_RAY = re.compile(r"2\.(?:5[2-9]|[6-9][0-9]|[1-9][0-9]{2})\.[0-9]{1,3}\Z")
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY|SIGNING_KEY|PGPASS|DATABASE_URL"
    r"|(?:\A|_)(?:AUTH|PAT|PWD|DSN)\Z",
    re.IGNORECASE,
)


def _matching(pattern: re.Pattern[str], allowed: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.match(text):
            raise ValueError(allowed)
        return text

    return AfterValidator(check)


Name = Annotated[
    str,
    _matching(_NAME, "must be lower-case letters, digits and dashes, at most 31, a letter first, no dash last"),
]
Host = Annotated[str, _matching(_HOST, "must be HOST, USER@HOST or HOST:PORT")]
Word = Annotated[str, _matching(_WORD, "must be one word of letters, digits and _.,:/@+=-, no dash first")]
File = Annotated[str, _matching(_PATH, "must be a path of letters, digits, spaces and _./@+=,:-, no dash first")]

DnsLabel = Annotated[
    str,
    _matching(_DNS_LABEL, "must be lower-case letters, digits and dashes, at most 63, no dash first or last"),
]
DnsName = Annotated[
    str,
    _matching(_DNS_NAME, "must be lower-case letters, digits, dots and dashes, as Kubernetes names things"),
]
LabelKey = Annotated[str, _matching(_LABEL_KEY, "must be a key of a label of Kubernetes")]
LabelValue = Annotated[str, _matching(_LABEL_VALUE, "must be a value of a label of Kubernetes, in quotes")]
Quantity = Annotated[
    str,
    _matching(_QUANTITY, "must be an amount of memory as Kubernetes writes it: 8Gi"),
    Words("an amount of memory as Kubernetes writes it: 8Gi"),
]
RayVersion = Annotated[
    str,
    _matching(_RAY, "must be Ray's version in the image, 2.52.0 or later"),
    Words("Ray's version in the image, 2.52.0 or later"),
]
MountPath = Annotated[str, _matching(_MOUNT, "must be an absolute path of letters, digits and _./-")]


class LocalSettings(Section):
    """Several nodes on this machine."""

    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """How many."""


class SshSettings(Section):
    """Machines that this one reaches by ssh, the head first."""

    hosts: Annotated[list[Host], Field(min_length=1, max_length=256), Words("a list of HOST, USER@HOST or HOST:PORT")]
    """As ssh knows them: names, addresses, or aliases of ~/.ssh/config. The first is the head."""
    addresses: dict[str, Word] = {}
    """HOST: the address under which the other nodes reach it, where that is not the one this machine uses."""
    identity_file: File | None = None
    """A private key, as ssh's -i."""
    config_file: File | None = None
    """A file for ssh instead of ~/.ssh/config, as ssh's -F."""
    connect_timeout_s: Annotated[int, Field(ge=1, le=600)] = 10
    """Seconds until a host that does not answer counts as unreachable."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        twice = sorted({host for host in self.hosts if self.hosts.count(host) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is in ssh.hosts= more than once")
        unknown = sorted(set(self.addresses) - set(self.hosts))
        if unknown:
            raise ValueError(f"ssh.addresses= names {', '.join(unknown)}, which ssh.hosts= does not list")
        return self


class SlurmSettings(Section):
    """Jobs of SLURM: each program is one, with nodes of its own."""

    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Nodes of a job."""
    cpus_per_node: Count = 1
    gpus_per_node: CountOrZero = 0
    memory: Word | None = None
    """Of each node, as sbatch's --mem: 16G."""
    time_limit: Annotated[str, _matching(_TIME, "must be [DAYS-]HOURS:MINUTES:SECONDS")] = "01:00:00"
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = None
    grace_s: Annotated[int, Field(ge=10, le=3600)] = 120
    """Seconds before the time limit at which the program is told to save a checkpoint and end."""
    requeue: bool = True
    """Queue the job again when its time is over or it is preempted; a training then resumes."""
    seeds: list[CountOrZero] = []
    """A job for each: `{seed}` in the program's arguments is its seed."""

    @model_validator(mode="after")
    def _has_time_to_work(self) -> Self:
        """Else every run of the job would be told to end as soon as it begins, and be queued again for ever."""
        days, _, clock = self.time_limit.rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        limit_s = 86400 * int(days or 0) + 3600 * hours + 60 * minutes + seconds
        if limit_s <= self.grace_s + 60:
            raise ValueError(
                f"time_limit={self.time_limit} leaves no time to work: SLURM may send its signal a minute before "
                f"grace_s={self.grace_s} s are left: raise time_limit or lower grace_s"
            )
        return self


class KubernetesSettings(Section):
    """Pods of a RayCluster, which the KubeRay operator makes."""

    image: Word | None = None
    """Of every node: with rlplat, ray[default] and your files."""
    ray_version: RayVersion | None = None
    """Of the Ray in the image."""
    memory: Quantity | None = None
    """That each pod asks for, and may use: 8Gi."""
    nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    """How many, all alike; the first is the head."""
    namespace: DnsLabel = "default"
    context: Word | None = None
    """As kubectl's --context; null: the current one."""
    program_cpus: CountOrZero = 0
    """That the submitted program itself needs; with 0 it runs on the head."""
    program_gpus: CountOrZero = 0
    secrets: list[DnsName] = []
    """Secrets of the namespace: each key is a file in /etc/rlplat/secrets/NAME."""
    volumes: dict[DnsName, MountPath] = {}
    """CLAIM: where a PersistentVolumeClaim of the namespace is mounted in every pod."""
    image_pull_secrets: list[DnsName] = []
    service_account: DnsName | None = None

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for key, names in (("secrets", self.secrets), ("volumes", list(self.volumes.values()))):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{', '.join(twice)} is in kubernetes.{key}= more than once")
        return self


class SkySettings(Section):
    """Machines of any cloud, which SkyPilot finds and rents."""

    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many, all alike; the first is the head."""
    infra: Annotated[str, _matching(_INFRA, "must be CLOUD, CLOUD/REGION or CLOUD/REGION/ZONE")] | None = None
    """Where: aws/us-east-1; null: the cheapest of those that SkyPilot may use."""
    accelerators: Annotated[str, _matching(_ACCELERATORS, "must be NAME or NAME:COUNT")] | None = None
    """GPUs of each machine: A100:8."""
    memory_gb: Count | None = None
    """That each machine has at least."""
    disk_gb: Count | None = None
    use_spot: bool = False
    """Machines that are cheaper and may be taken away."""
    image: Word | None = None
    """docker:NAME, or a machine image of the cloud; null: SkyPilot's."""
    idle_minutes: Count = 30
    """Minutes after the last program until the machines are given back, with all that is on them."""
    mounts: dict[Annotated[str, _matching(_THERE, "must be a path that begins with / or ~")], File] = {}
    """PATH there: a file or folder of this machine, which is copied, or a bucket (s3://..., gs://...), mounted."""


class NodeTypeSettings(Section):
    """Nodes that are alike and come and go with the demand."""

    num_cpus: Count = 1
    """CPUs that each offers."""
    num_gpus: CountOrZero = 0
    """GPUs that each offers."""
    min_nodes: Annotated[int, Field(ge=0, le=4096)] = 0
    """So many are always there."""
    max_nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    """And never more than so many."""
    memory: Quantity | None = None
    """Kubernetes: of each; null: kubernetes.memory."""
    node_selector: dict[LabelKey, LabelValue] = {}
    """Kubernetes: labels of the machines on which such nodes run."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes={self.min_nodes} is more than max_nodes={self.max_nodes}")
        return self


class AutoscaleSettings(Section):
    """Nodes beside the head that come and go with what waits for room."""

    node_types: Annotated[dict[Name, NodeTypeSettings], Field(min_length=1)]
    """NAME: what such a node has, and how many there may be."""
    idle_timeout_s: Seconds = 60.0
    """Seconds without work after which a node is drained."""

    @model_validator(mode="after")
    def _names_are_free(self) -> Self:
        for name in RESERVED:
            if name in self.node_types:
                raise ValueError(f"autoscale.node_types= has '{name}', which is another node's name: choose another")
        return self


class ClusterSettings(Section):
    """A cluster: where its nodes are, and what runs on them."""

    name: Name | None = None
    """What it is called, and the name of its folder on each machine; null: the name of the file."""
    provider: Annotated[
        Literal["local", "ssh", "slurm", "kubernetes", "sky"] | None,
        Words("local, ssh, slurm, kubernetes or sky"),
    ] = None
    """Where nodes come from."""
    engine: Literal["ray", "rlplat"] = "ray"
    """What hosts tasks and actors: `ray` on any number of nodes, `rlplat` on up to 32."""
    local: LocalSettings | None = None
    ssh: SshSettings | None = None
    slurm: SlurmSettings | None = None
    kubernetes: KubernetesSettings | None = None
    sky: SkySettings | None = None
    autoscale: AutoscaleSettings | None = None
    python: File | None = None
    """The Python of each node, with rlplat and the engine installed; null: this one (local), python3 (elsewhere)."""
    folder: File | None = None
    """Of the cluster on each node; null: ~/.rlplat/clusters/NAME."""
    num_cpus: Count | None = None
    """CPUs that each node offers; null: those it has."""
    num_gpus: CountOrZero | None = None
    """GPUs that each node offers; null: those it has."""
    workdir: File | None = None
    """A folder of this machine that is copied to each node; commands run in the copy. null: none."""
    exclude: list[str] = [".git", ".venv", "__pycache__", "runs"]
    """Names of files and folders within it that are not copied."""
    setup: list[str] = []
    """Shell commands that prepare a node, run in order by `rlplat up` before it starts."""
    env: dict[str, str] = {}
    """Environment of setup commands, nodes and programs. Not for secrets: the file is read by whoever shares it."""
    start_timeout_s: Seconds = 60.0
    """Seconds that a node may take to start."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.provider is None:
            raise ValueError(f"'provider' is not set: one of {', '.join(PROVIDERS)}")
        others = [name for name in PROVIDERS if name != self.provider and getattr(self, name) is not None]
        if others:
            raise ValueError(f"{others[0]}= is for provider: {others[0]}, and provider={self.provider}: remove one")
        if self.provider == "ssh" and self.ssh is None:
            raise ValueError("provider=ssh needs a section ssh: with hosts: [HOST, ...]")
        if self.provider == "kubernetes":
            self._fits_kubernetes()
        if self.provider == "sky":
            self._fits_sky()
        if self.engine == "rlplat" and self.num_nodes > MOST_OWN_NODES:
            raise ValueError(
                f"engine=rlplat has {MOST_OWN_NODES} nodes at most, and this cluster {self.num_nodes}: set engine: ray"
            )
        if self.engine == "rlplat" and self.num_nodes > 1 and self.provider == "sky":
            raise ValueError("provider=sky with engine=rlplat has one node: several nodes need engine: ray")
        self._fits_autoscaling()
        for variable in self.env:
            if not _VARIABLE.match(variable):
                raise ValueError(f"env= has {variable!r}: the name of a variable is letters, digits and _")
            if _SECRET.search(variable):
                raise ValueError(
                    f"env= has {variable}, which looks like a secret: put it into a file of mode 0600 on the nodes, "
                    "and let the program read that"
                )
        return self

    def _fits_autoscaling(self) -> None:
        if self.autoscale is None:
            return
        if self.provider not in ("local", "kubernetes") or self.engine != "ray":
            raise ValueError("autoscale= is for provider: local or kubernetes with engine: ray, so far: remove it")
        if self.num_nodes > 1:
            raise ValueError(
                f"{self.provider}.nodes= and autoscale= both say how many nodes there are: remove {self.provider}.nodes"
            )
        if self.provider == "local":
            for name, kind in self.autoscale.node_types.items():
                if kind.max_nodes > 64:
                    raise ValueError(f"{name}: max_nodes={kind.max_nodes} on one machine: 64 at most")
                if kind.memory or kind.node_selector:
                    raise ValueError(f"{name}: memory and node_selector are for provider: kubernetes: remove them")

    def _fits_kubernetes(self) -> None:
        if self.engine != "ray":
            raise ValueError("provider=kubernetes needs engine: ray: rlplat's own nodes are on one machine, so far")
        kubernetes = self.kubernetes or KubernetesSettings()
        needed = {
            "num_cpus": self.num_cpus,
            "kubernetes.image": kubernetes.image,
            "kubernetes.ray_version": kubernetes.ray_version,
            "kubernetes.memory": kubernetes.memory,
        }
        if missing := [key for key, value in needed.items() if value is None]:
            raise ValueError(
                f"provider=kubernetes needs {', '.join(missing)}: what each pod asks for, the image with rlplat "
                "and Ray, and which Ray that is"
            )
        if foreign := sorted({"workdir", "exclude", "folder", "python"} & self.model_fields_set):
            raise ValueError(
                f"{foreign[0]}= is not for provider: kubernetes, where nothing is copied: put your files into the "
                "image or on a volume (kubernetes.volumes), and remove it"
            )
        program = {"CPU": float(kubernetes.program_cpus), "GPU": float(kubernetes.program_gpus)}
        asked = {name: amount for name, amount in program.items() if amount}
        if asked and (never := why_never(Demand((asked,)), self.node_types)):
            raise ValueError(f"the program's own demand (kubernetes.program_cpus, program_gpus): {never}")

    def _fits_sky(self) -> None:
        if self.num_gpus is not None:
            raise ValueError("num_gpus= is not for provider: sky: name the kind, sky.accelerators: A100:1")
        if "exclude" in self.model_fields_set:
            raise ValueError("exclude= is not for provider: sky: a file .skyignore in workdir says what stays here")
        if self.workdir is not None and not Path(self.workdir).expanduser().is_dir():
            raise ValueError(f"workdir={self.workdir} is not a folder of this machine")

    @property
    def num_nodes(self) -> int:
        if self.provider == "ssh":
            return len(self.ssh.hosts) if self.ssh else 0
        section = getattr(self, self.provider or "")
        return section.nodes if section else 1

    @property
    def node_types(self) -> dict[str, NodeType]:
        """Where nodes come by and by: the head's and those of the others."""
        if self.autoscale is None and self.provider != "kubernetes":
            return {}
        head = {"CPU": float(self.num_cpus or cpu_count()), "GPU": float(self.num_gpus or 0)}
        types = {"head": NodeType({name: amount for name, amount in head.items() if amount}, 1, 1)}
        if self.autoscale is None:
            others = self.num_nodes - 1
            return types | ({WORKERS: NodeType(types["head"].resources, others, others)} if others else {})
        for name, kind in self.autoscale.node_types.items():
            offers = {"CPU": float(kind.num_cpus)} | ({"GPU": float(kind.num_gpus)} if kind.num_gpus else {})
            types[name] = NodeType(offers, kind.min_nodes, kind.max_nodes)
        return types

    @property
    def place(self) -> str:
        """Its folder on each node."""
        return self.folder or f"~/.rlplat/clusters/{self.title}"

    @property
    def title(self) -> str:
        assert self.name is not None, "set by read_cluster"
        return self.name


def read_cluster(path: str | os.PathLike[str]) -> ClusterSettings:
    """The cluster that a file describes; every complaint names the file, the line and the key."""
    layer = load_yaml(path)
    return resolve_cluster(layer, Path(path).stem)


def resolve_cluster(layer: Layer, default_name: str) -> ClusterSettings:
    cluster = resolve(ClusterSettings, [layer])
    if cluster.name is not None:
        return cluster
    if not _NAME.match(default_name):
        raise ConfigError(f"'{default_name}' is no name for a cluster: set name: (lower-case letters, digits, dashes)")
    return cluster.model_copy(update={"name": default_name})
