"""Data sets of arrays and files, for a `DataLoader` whose samples `ctx.prepare` divides among the ranks. No torch here.

    loader = DataLoader(ArrayDataset("x.npy", "y.npy"), batch_size=64, shuffle=True)
    loader = DataLoader(ParquetDataset("rows/", columns=["image", "label"]), batch_size=64)
    loader = DataLoader(ImageFolder("photos/"), batch_size=64)      # photos/<class>/<file>

A sample is a tuple of numpy arrays and numbers, which the loader stacks to tensors. Every rank opens all files.
Streams, joins and other transformations of tables are not done here: prepare the files with other tools.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.errors import ConfigError, MissingExtra
from rlplat.paths import expanded

IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")


class ArrayDataset:
    """Arrays of equal length; sample i is (first[i], second[i], ...). A path is a .npy file, read as it is needed."""

    def __init__(self, *arrays: np.ndarray | str | os.PathLike[str]) -> None:
        if not arrays:
            raise ConfigError("ArrayDataset needs at least one array or .npy file")
        self._arrays = [
            np.load(one, mmap_mode="r") if isinstance(one, (str, os.PathLike)) else np.asarray(one) for one in arrays
        ]
        lengths = [len(array) for array in self._arrays]
        if len(set(lengths)) > 1:
            raise ConfigError(f"ArrayDataset: the arrays have unequal lengths: {lengths}")

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(np.array(array[index]) for array in self._arrays)


class ParquetDataset:
    """Rows of one Parquet file, or of all in a directory, by name; sample i is the values of `columns` in row i.

    Numbers and lists of numbers; the rows of one column have lists of one length. What is read of a file stays mapped.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingExtra("pyarrow", "data", "ParquetDataset") from None
        path = expanded(path)
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not files or not files[0].exists():
            raise ConfigError(f"ParquetDataset: there is no Parquet file at {path}")
        for file in files:
            known = parquet.read_schema(file).names
            if missing := [name for name in columns if name not in known]:
                raise ConfigError(f"{file} has no column {missing[0]!r}; it has {', '.join(known)}")
        tables = [parquet.read_table(file, columns=list(columns), memory_map=True) for file in files]
        self._columns = [
            np.concatenate(
                [_dense(table[name], f"{file}: column {name!r}") for file, table in zip(files, tables, strict=True)]
            )
            for name in columns
        ]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(column[index] for column in self._columns)


def _dense(column: Any, name: str) -> np.ndarray:
    """A column as an array [rows] or [rows, length]."""
    if column.null_count:
        raise ConfigError(f"{name} has {column.null_count} empty values: fill or drop them first")
    import pyarrow as arrow

    kind = column.type
    if arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind):
        rows = column.to_pylist()
        if len({len(row) for row in rows}) > 1:
            raise ConfigError(f"{name} has lists of unequal lengths: pad them first")
        return np.array(rows, dtype=kind.value_type.to_pandas_dtype())
    return np.asarray(column.to_numpy())


class ImageFolder:
    """`root/<class>/<image>`; sample i is (pixels, class number).

    pixels: uint8[height, width, 3], or what `transform` makes of it.

    classes: names in alphabetical order, which is that of the numbers.
    """

    def __init__(self, root: str | os.PathLike[str], transform: Callable[[np.ndarray], Any] | None = None) -> None:
        root = expanded(root)
        self.classes = sorted(entry.name for entry in Path(root).iterdir() if entry.is_dir())
        self._samples = [
            (file, number)
            for number, name in enumerate(self.classes)
            for file in sorted((Path(root) / name).rglob("*"))
            if file.suffix.lower() in IMAGES
        ]
        if not self._samples:
            raise ConfigError(f"ImageFolder: there are no images in folders of {root}: {root}/<class>/<name>.png")
        self._transform = transform

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        try:
            from PIL import Image
        except ImportError:
            raise MissingExtra("pillow", "data", "ImageFolder") from None
        file, number = self._samples[index]
        with Image.open(file) as image:
            pixels = np.array(image.convert("RGB"))
        return (pixels if self._transform is None else self._transform(pixels)), number
