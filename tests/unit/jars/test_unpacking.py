"""An archive is unpacked completely into the requested directory, or not at all."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from spark_eos._jars.jar_sets import unpack


def _file(name: str, content: bytes = b"content") -> tuple[tarfile.TarInfo, io.BytesIO]:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o6777, 1_700_000_000
    return member, io.BytesIO(content)


def _other(name: str, kind: bytes, link: str = "") -> tuple[tarfile.TarInfo, None]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member, None


def _archive(path: Path, *members: tuple[tarfile.TarInfo, io.BytesIO | None]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            archive.addfile(member, content)
    return path


def test_files_and_directories(tmp_path: Path) -> None:
    members = (
        _file("lib/a.jar"),
        _other("meta", tarfile.DIRTYPE),
        _other("meta", tarfile.DIRTYPE),
        _file("./b.jar"),
    )
    archive = _archive(tmp_path / "some.tar.gz", *members)
    umask = os.umask(0)
    try:
        unpack(archive, tmp_path / "some")
    finally:
        os.umask(umask)
    found = {
        str(path.relative_to(tmp_path)): oct(path.stat().st_mode & 0o7777)
        for path in [tmp_path / "some", *(tmp_path / "some").rglob("*")]
    }
    assert found == {
        **dict.fromkeys(("some", "some/lib", "some/meta"), "0o755"),
        **dict.fromkeys(("some/lib/a.jar", "some/b.jar"), "0o644"),
    }
    assert (tmp_path / "some/lib/a.jar").read_bytes() == b"content"
    assert (tmp_path / "some/lib/a.jar").stat().st_mtime == 1_700_000_000


@pytest.mark.parametrize(
    "hostile",
    [
        [_file("../outside")],
        [_file("lib/../../outside")],
        [_file("/HERE/outside")],
        [_other("../outside", tarfile.DIRTYPE)],
        [_other("lib", tarfile.SYMTYPE, ".."), _file("lib/outside")],
        [_other("passwd", tarfile.LNKTYPE, "/etc/passwd")],
        [_other("pipe", tarfile.FIFOTYPE)],
        [_other("null", tarfile.CHRTYPE)],
    ],
    ids=lambda members: f"{members[0][0].name} {members[0][0].type.decode()}",
)
def test_what_leads_elsewhere_is_refused(
    hostile: list[tuple[tarfile.TarInfo, io.BytesIO | None]], tmp_path: Path
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    for member, _content in hostile:
        member.name = member.name.replace("/HERE", str(tmp_path))
    archive = _archive(inside / "some.tar.gz", _file("first.jar"), *hostile)
    with pytest.raises(ValueError, match="unsafe member"):
        unpack(archive, inside / "some")
    assert not (inside / "some").exists()
    assert [*tmp_path.rglob("outside")] == []


def test_what_an_earlier_attempt_has_left_is_replaced(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "some.tar.gz", _file("../outside"))
    with pytest.raises(ValueError, match="unsafe member"):
        unpack(archive, tmp_path / "some")
    (left,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (left / "old").touch()
    _archive(archive, _file("a.jar"))
    unpack(archive, tmp_path / "some")
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["a.jar"]
    assert not left.exists()
