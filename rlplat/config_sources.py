"""Where configuration comes from: YAML files, command-line flags, Python arguments; each becomes a `Layer`.

A layer remembers for every key where it was written (`configs/ppo/pong.yaml:7`, `--stop.env-steps`), so that a
complaint can point there. YAML is read as a graph of plain nodes (no tag can create an object), with limits on
its size, depth and number of nodes, so that aliases cannot blow it up. Two readings differ from YAML 1.1, each
because the other one surprises: `1e-4` is a float, and `on`, `off`, `yes`, `no` and dates are text. Merge keys
(`<<: *anchor`) are read as YAML 1.1 has them, and the lines in complaints are those of the anchor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlplat.errors import ConfigError
from rlplat.paths import expanded

KeyPath = tuple[str, ...]
"""A key's place in the tree: ("stop", "env_steps") for `stop.env_steps`."""

MAX_FILE_BYTES = 1 << 20
MAX_NODES = 10_000
MAX_DEPTH = 32
MERGE = "tag:yaml.org,2002:merge"
"""The tag of a plain key `<<`."""

_DIGITS = "[0-9]+(_[0-9]+)*"  # as Python's
_INT = re.compile(rf"[-+]?{_DIGITS}$")
_FLOAT = re.compile(rf"[-+]?(\.[0-9]+|{_DIGITS}(\.({_DIGITS})?)?)([eE][-+]?[0-9]+)?$")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf", ".Inf", "inf", "+inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-inf"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN"), float("nan")),
}


class _Bare:
    """The value of a flag that stands alone (`--deterministic`): true where a setting takes true."""

    def __repr__(self) -> str:
        return "nothing"


BARE = _Bare()


@dataclass
class Layer:
    """One source of settings: nested dicts with text keys, and where each key was written."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)


def load_yaml(path: str | os.PathLike[str]) -> Layer:
    """Read a config file; every complaint names the file and the line."""
    path = expanded(path)
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: {size_bytes} bytes is more than a config file may have ({MAX_FILE_BYTES})")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no config file '{path}'") from None
    except IsADirectoryError:
        raise ConfigError(f"'{path}' is a directory, not a config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config file '{path}': {error}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Layer:
    """Parse the text of a config file; `name` stands for it in complaints."""
    node = _compose(text, name)
    layer = Layer()
    if node is None:
        return layer
    reader = _Reader(name, layer.origins)
    if node.id != "mapping":
        raise ConfigError(f"{name}:{_line(node)}: a config file holds `key: value` lines, this is a {node.id}")
    layer.values = reader.read(node, ())
    if reader.complaints:
        raise ConfigError("\n".join(reader.complaints))
    return layer


def parse_scalar(text: str) -> Any:
    """The value of a flag, read as YAML: 3e-4 is a float, [64, 64] a list, null None; what is not YAML is text."""
    try:
        node = _compose(text, "value")
        if node is None:
            return text or None
        reader = _Reader("value", {})
        value = reader.read(node, ())
    except ConfigError:
        return text
    return text if reader.complaints else value


def layer_from_flags(pairs: Iterable[tuple[str, str | None]], *, prefix: str = "--") -> Layer:
    """[("stop.env-steps", "200000")] -> one layer; dashes in keys are underscores; None: a flag without a value."""
    layer = Layer()
    for key, text in pairs:
        path = tuple(part.replace("-", "_") for part in key.split("."))
        put(layer, path, BARE if text is None else parse_scalar(text), f"{prefix}{key}")
    return layer


def layer_from_arguments(arguments: Mapping[str, Any]) -> Layer:
    """Python keyword arguments -> one layer; nested dicts and dotted names both reach nested keys."""
    layer = Layer()
    for key, value in arguments.items():
        put(layer, tuple(key.split(".")), value, f"argument {key}")
    return layer


def put(layer: Layer, path: KeyPath, value: Any, origin: str) -> None:
    """Set one key of a layer, making the mappings on the way."""
    if not all(path):
        raise ConfigError(f"'{origin}': a key is empty")
    place = layer.values
    for depth, part in enumerate(path[:-1], start=1):
        if not isinstance(place.setdefault(part, {}), dict):
            whole = ".".join(path[:depth])
            raise ConfigError(f"{origin}: '{whole}' was already set to {place[part]!r}, so it has no keys of its own")
        layer.origins.setdefault(path[:depth], origin)
        place = place[part]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        merged = place.setdefault(path[-1], {})
        if not isinstance(merged, dict):
            place[path[-1]] = {}
        layer.origins[path] = origin
        for key, inner in value.items():
            put(layer, (*path, key), inner, origin)
        return
    place[path[-1]] = value
    layer.origins[path] = origin


def merge(layers: Iterable[Layer]) -> Layer:
    """Later layers win, key by key; lists are replaced as a whole."""
    merged = Layer()
    for layer in layers:
        _merge_into(merged.values, layer.values)
        merged.origins.update(layer.origins)
    return merged


def _merge_into(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    for key, value in source.items():
        if isinstance(value, dict):
            inner = target.get(key)
            target[key] = inner = dict(inner) if isinstance(inner, dict) else {}
            _merge_into(inner, value)
        else:
            target[key] = value


def _compose(text: str, name: str) -> Any:
    import yaml

    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {error.problem or error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: not valid YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested deeper than {MAX_DEPTH} levels") from None


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Turns YAML nodes into plain values and collects every complaint instead of stopping at the first."""

    def __init__(self, name: str, origins: dict[KeyPath, str]) -> None:
        self.name, self.origins = name, origins
        self.complaints: list[str] = []
        self._nodes = 0

    def read(self, node: Any, path: KeyPath, depth: int = 0) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:  # also what stops aliases of aliases of aliases
            raise ConfigError(f"{self.name}:{_line(node)}: more than {MAX_NODES} values, aliases counted each time")
        if depth > MAX_DEPTH:
            raise ConfigError(f"{self.name}:{_line(node)}: nested deeper than {MAX_DEPTH} levels")
        if not node.tag.startswith("tag:yaml.org,2002:") or "python/" in node.tag:
            self.complaints.append(
                f"{self.name}:{_line(node)}: the tag '{node.tag}' is not allowed; write a plain value"
            )
            return None
        if node.id == "scalar":
            return node.value if node.style in ("'", '"', "|", ">") else read_plain(node.value)
        if node.id == "sequence":
            return [self.read(item, path, depth + 1) for item in node.value]
        return self._read_mapping(node, path, depth)

    def _read_mapping(self, node: Any, path: KeyPath, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        written = [pair for pair in node.value if pair[0].tag != MERGE]
        # What `<<: *anchor` brings is read first: the mapping's own keys win, wherever they stand.
        for key_node, value_node, merged_in in self._merged(node, depth):
            key = key_node.value
            self._forget_origins((*path, key))
            values[key] = self.read(value_node, (*path, key), depth + 1)
            self.origins[(*path, key)] = f"{self.name}:{_line(key_node)} (merged in line {merged_in})"
        for key_node, value_node in written:
            line = _line(key_node)
            if key_node.id != "scalar":
                self.complaints.append(f"{self.name}:{line}: a key must be plain text")
                continue
            key = key_node.value
            if key in lines:
                self.complaints.append(f"{self.name}:{line}: key '{key}' was already set in line {lines[key]}")
                continue
            lines[key] = line
            self._forget_origins((*path, key))
            self.origins[(*path, key)] = f"{self.name}:{line}"
            values[key] = self.read(value_node, (*path, key), depth + 1)
        return values

    def _merged(self, node: Any, depth: int) -> list[tuple[Any, Any, int]]:
        """(key, value, line of the merge key) of what the merge keys of a mapping bring, each key once.

        As YAML 1.1 says (yaml.org/type/merge.html): of several mappings in a list the earlier ones win. A `<<` of a
        merged mapping counts too.
        """
        found: dict[str, tuple[Any, Any, int]] = {}
        merge_keys = [pair for pair in node.value if pair[0].tag == MERGE]
        if len(merge_keys) > 1:  # readers disagree which of them wins
            self.complaints.append(
                f"{self.name}:{_line(merge_keys[1][0])}: key '<<' was already set in line "
                f"{_line(merge_keys[0][0])}; merge several in one: `<<: [*first, *second]`"
            )
        for key_node, value_node in merge_keys:
            sources = value_node.value if value_node.id == "sequence" else [value_node]
            for source in sources:
                if source.id != "mapping" or depth > MAX_DEPTH:
                    self.complaints.append(
                        f"{self.name}:{_line(key_node)}: `<<` merges a mapping, or a list of mappings, such as "
                        "`<<: *anchor`"
                    )
                    break
                own = {key.value: (key, value) for key, value in source.value if key.id == "scalar"}
                own.pop("<<", None)
                inherited = {key.value: (key, value) for key, value, _ in self._merged(source, depth + 1)}
                for name, pair in {**inherited, **own}.items():
                    found.setdefault(name, (*pair, _line(key_node)))
        return list(found.values())

    def _forget_origins(self, path: KeyPath) -> None:
        """Those of a merged value that another one takes the place of."""
        for key in [key for key in self.origins if key[: len(path)] == path]:
            del self.origins[key]


def read_plain(text: str) -> Any:
    """An unquoted scalar: null, true, false, a number, or text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= 400:  # longer digits are no number that anybody meant, and slow to convert
        if _INT.match(text):
            return int(text)
        if _FLOAT.match(text):
            return float(text)
    return text
