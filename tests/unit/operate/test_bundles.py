"""Files of `nyala diagnose`: written once, redacted, summarised; other files are refused."""

import json
import zipfile

import pytest

from nyala.common.errors import AlreadyPresent, InvalidArgument
from nyala.operate.diagnose.bundle import read, write
from tests.unit.cli.support.verbs import nyala

pytestmark = pytest.mark.row("A13")

SERVER = "servers/tserver-aa"
LINES = [
    "2026-11-28 10:00:00,123 I nyala: tserver serves on 127.0.0.1:7050",
    "2026-11-28 10:00:01,123 W nyala.wal: the disk is slow",
    "2026-11-28 10:00:02,123 E nyala: no space, password=hunter2",
]
FILES = {
    "manifest.json": {"made_at": "2026-11-28T10:00:00+00:00", "missing": {"b:1": "no answer"}},
    "ksck.json": {"problems": ["tablet server b:1 is unreachable"]},
    "doctor.json": [{"name": "start-bb", "finding": "tablet server b:1 does not answer"}],
    "ops.json": {"operations": [{"number": 1}], "longOperations": [{"what": "decommission"}]},
    f"{SERVER}/info.json": {"address": "a:1", "version": "0.1.0"},
    f"{SERVER}/options.json": {
        "rows": [
            {"name": "flush_bytes", "value": "5", "differs": "yes"},
            {"name": "replicas", "value": "3", "differs": "no"},
        ]
    },
    f"{SERVER}/log.json": {"rows": [{"line": line} for line in LINES]},
}


@pytest.fixture
def bundle(tmp_path):
    path = str(tmp_path / "bundle.zip")
    write(path, {name: json.dumps(value).encode() for name, value in FILES.items()})
    return path


def test_summary_has_problems_changed_options_and_warnings(bundle):
    found = read(bundle)
    (server,) = found.servers
    assert (server.server, server.address, server.options) == (
        "tserver-aa",
        "a:1",
        ("flush_bytes=5",),
    )
    assert [line[24:] for line in server.warnings] == [
        "W nyala.wal: the disk is slow", "E nyala: no space, password=[redacted]",
    ]  # fmt: skip
    assert found.problems == ("tablet server b:1 is unreachable",)
    assert (found.operations, dict(found.missing)) == (2, {"b:1": "no answer"})
    status, out, _ = nyala("diagnose", "show", bundle)
    assert status == 0
    assert "doctor: start-bb: tablet server b:1 does not answer" in out


def test_secrets_are_in_no_file_of_the_archive(bundle):
    with zipfile.ZipFile(bundle) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted(FILES)
        assert not any(b"hunter2" in archive.read(name) for name in archive.namelist())


def test_existing_file_is_not_overwritten(bundle):
    with pytest.raises(AlreadyPresent, match="exists; name a new file"):
        write(bundle, {})
    assert read(bundle).servers


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_other_file_is_refused(tmp_path, content):
    path = tmp_path / "other.zip"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match="is not a bundle of nyala diagnose, or is damaged"):
        read(str(path))


def test_archive_without_manifest_is_refused(tmp_path):
    path = str(tmp_path / "other.zip")
    write(path, {"x.json": b"{}"})
    with pytest.raises(InvalidArgument, match="is not a bundle"):
        read(path)
