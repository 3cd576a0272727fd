"""Files between machines: nothing in an archive leads out of its folder, on Python before 3.11.4 (Debian 12) too."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from rlplat.cluster.host import LeadsOutside, take


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    return found


@pytest.fixture(params=["filters", "before 3.11.4"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "before 3.11.4":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    ("found", "why"),
    [
        (member("a/b"), ""),
        (member("/a/b"), ""),
        (member("a/link", tarfile.SYMTYPE, "b"), ""),
        (member("a/link", tarfile.SYMTYPE, "../b"), ""),
        (member("../b"), "outside the destination"),
        (member("a/../../b"), "outside the destination"),
        (member("a/link", tarfile.SYMTYPE, "/etc"), "is a link to an absolute path"),
        (member("a/link", tarfile.SYMTYPE, "../../b"), "outside the destination"),
        (member("a/link", tarfile.LNKTYPE, "../b"), "outside the destination"),
        (member("pipe", tarfile.FIFOTYPE), "is a special file"),
    ],
    ids=lambda each: f"{each.name}-{each.linkname}" if isinstance(each, tarfile.TarInfo) else None,
)
def test_what_leads_outside_is_refused(tmp_path: Path, found: tarfile.TarInfo, why: str) -> None:
    (tmp_path / "b").write_text("theirs")
    target = tmp_path / "folder"
    target.mkdir()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(found)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        (each,) = archive
        if why:
            with pytest.raises(LeadsOutside, match=why):
                take(archive, each, target)
        else:
            take(archive, each, target)
    assert [path.name for path in tmp_path.iterdir()] == ["b", "folder"] or not why
    assert (tmp_path / "b").read_text() == "theirs" and (not why or not list(target.rglob("*")))
