"""Where a study is: a file, or the address of a database. Passwords stay in the address and are shown to nobody."""

from __future__ import annotations

import re
from pathlib import Path

_SCHEMES = ("postgres", "postgresql", "postgresql+psycopg2")


def is_url(storage: str | Path) -> bool:
    return isinstance(storage, str) and "://" in storage


def shown(storage: str | Path) -> str:
    """For messages and files: without the password."""
    if not is_url(storage):
        return str(storage)
    address = re.sub(r"(?<=[?&])password=[^&]*&?", "", str(storage)).rstrip("?&")
    scheme, _, rest = address.partition("://")
    login, at, place = rest.rpartition("@")
    return f"{scheme}://{login.partition(':')[0]}{at}{place}"


def problem_of(storage: str) -> str:
    """What is wrong with the address of a database, or the empty string."""
    scheme = storage.partition("://")[0] if is_url(storage) else ""
    if scheme.partition("+")[0] == "sqlite":
        return (
            "SQLite locks up while several processes write; omit storage for a file in the experiment's "
            "directory, or use postgresql://user@host/database"
        )
    if scheme in _SCHEMES:
        return ""
    return (
        "use postgresql://user@host/database, or omit storage for a file in the experiment's directory; "
        f"not {shown(storage)!r}"
    )
