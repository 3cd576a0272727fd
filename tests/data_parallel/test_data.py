"""Arrays, Parquet files and folders of images as data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rlplat.data_parallel.data import ArrayDataset, ImageFolder, ParquetDataset
from rlplat.errors import ConfigError

arrow = pytest.importorskip("pyarrow")


def test_arrays_in_memory_and_in_files(tmp_path: Path) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([2, 1, 0])
    np.save(tmp_path / "x.npy", x)
    data = ArrayDataset(tmp_path / "x.npy", y)
    assert len(data) == 3
    assert (data[1][0].tolist(), data[1][1]) == ([2.0, 3.0], 1)
    data[1][0][:] = 7  # a copy: torch wants to write
    assert data[1][0].tolist() == [2.0, 3.0]
    with pytest.raises(ConfigError, match=r"unequal lengths: \[3, 2\]"):
        ArrayDataset(x, y[:2])


def test_parquet_files_of_a_folder_in_the_order_of_their_names(tmp_path: Path) -> None:
    from pyarrow import parquet

    for number in (1, 0):
        rows = {"pixels": [[number, 1.5], [number, 2.5]], "label": [number, number + 1], "name": ["a", "b"]}
        parquet.write_table(arrow.table(rows), tmp_path / f"{number}.parquet")
    data = ParquetDataset(tmp_path, ["pixels", "label"])
    assert [(pixels.tolist(), int(label)) for pixels, label in (data[i] for i in range(len(data)))] == [
        ([0.0, 1.5], 0), ([0.0, 2.5], 1), ([1.0, 1.5], 1), ([1.0, 2.5], 2),
    ]  # fmt: skip


def test_parquet_that_is_no_table_of_numbers_is_named(tmp_path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(arrow.table({"a": [1, None], "b": [[1], [1, 2]]}), tmp_path / "x.parquet")
    for column, text in (
        ("a", "1 empty values"),
        ("b", "unequal lengths"),
        ("c", "has no column 'c'; it has a, b"),
    ):
        with pytest.raises(ConfigError, match=text):
            ParquetDataset(tmp_path / "x.parquet", [column])
    with pytest.raises(ConfigError, match="no Parquet file at"):
        ParquetDataset(tmp_path / "nothing", ["a"])


def test_images_by_the_names_of_their_folders(tmp_path: Path) -> None:
    for number, name in enumerate(("dog", "cat")):
        (tmp_path / name).mkdir()
        Image.new("RGB", (3, 2), (number, 0, 0)).save(tmp_path / name / "one.png")
    data = ImageFolder(tmp_path)
    assert (data.classes, len(data)) == (["cat", "dog"], 2)
    pixels, label = data[0]
    assert (pixels.shape, pixels.dtype, pixels[0, 0, 0], label) == ((2, 3, 3), np.uint8, 1, 0)
    assert ImageFolder(tmp_path, transform=np.mean)[1] == (0.0, 1)
    with pytest.raises(ConfigError, match="no images in folders of"):
        ImageFolder(tmp_path / "cat")
