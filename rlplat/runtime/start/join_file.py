"""The join file of a cluster of several machines: where its head listens, and the keys.

Whoever can read it may run code on every machine of the cluster, so it is made with mode 0600, and one that others can
read is refused.
"""

from __future__ import annotations

import os
import stat
import time

import msgspec

from rlplat.errors import ConfigError, OptionError, UsageError
from rlplat.listening import in_url, is_loopback, listen
from rlplat.runtime.link.trunk import AgentTrunk, HeadTrunks, Keys, new_keys
from rlplat.runtime.wire import agent_messages

_REACH_S = 5.0
_FREE_S = 3.0


def make(path: str, host: str, port: int, token: str = "", offers: dict[str, float] | None = None) -> Keys:
    """A new cluster: port 0 takes one that is free now. ConfigError where the file is there already."""
    with listen(host, port) as socket:
        keys = new_keys(in_url(host, socket.getsockname()[1]), token, offers)
    _check_reachable(keys)
    write(path, keys)
    return keys


def write(path: str, keys: Keys) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} is there already: it is the join file of a cluster; remove it for new keys, or name another"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path!r}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(keys)) + b"\n")


def _check_reachable(keys: Keys) -> None:
    """ConfigError when this machine itself gets no word through to where its head listens."""
    head = HeadTrunks(keys)
    agent = AgentTrunk(keys)
    try:
        agent.tell(agent_messages.AskLease(0))
        deadline = time.monotonic() + _REACH_S
        while not any(head.receive()):
            if agent.has_ended or time.monotonic() > deadline:
                raise ConfigError(
                    f"{keys.address} was not reached from this machine itself: a firewall drops what comes for that "
                    "port (--port takes another), or --host is not an address of this machine"
                )
            time.sleep(0.005)
    finally:
        agent.close()
        head.close()


def read(path: str) -> Keys:
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read()
    except OSError as error:
        raise OptionError(
            f"{path!r}: {error.strerror}; a cluster of several machines goes by its join file, which "
            "`rlplat start --head` writes"
        ) from None
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by others (mode {mode:o}), and it holds keys: chmod 600 {path}")
    try:
        return msgspec.json.decode(data, type=Keys)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is no join file: {error}") from None


def check_free(keys: Keys) -> None:
    """ConfigError while another program has this cluster. One that has just ended, or was killed, may have it a moment
    more, until its machines have ended their part."""
    deadline = time.monotonic() + _FREE_S
    while True:
        try:
            return listen(*host_and_port(keys)).close()
        except UsageError as error:
            if "in use" not in str(error):
                why = "the program of a cluster runs on its head, the machine of that address"
                raise ConfigError(f"{error}: {why}") from None
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"{keys.address} is in use: another program has this cluster (one at a time may), or the port is "
                    "somebody else's (`rlplat start --head --port` takes another)"
                ) from None
        time.sleep(0.02)


def host_and_port(keys: Keys) -> tuple[str, int]:
    host, _, port = keys.address.rpartition(":")
    return host.strip("[]"), int(port)


def is_local(keys: Keys) -> bool:
    """Whether machines can only join from the head's own."""
    return is_loopback(host_and_port(keys)[0])
