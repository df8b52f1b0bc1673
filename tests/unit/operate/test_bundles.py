"""Files of `nyala diagnose`: written once, redacted, summarised; other files are refused."""

import json
import os
import stat
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
    write(path, lambda: {name: json.dumps(value).encode() for name, value in FILES.items()})
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
        write(bundle, dict)
    assert read(bundle).servers


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_other_file_is_refused(tmp_path, content):
    path = tmp_path / "other.zip"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match="is not a bundle of nyala diagnose, or is damaged"):
        read(str(path))


def test_archive_without_manifest_is_refused(tmp_path):
    path = str(tmp_path / "other.zip")
    write(path, lambda: {"x.json": b"{}"})
    with pytest.raises(InvalidArgument, match="is not a bundle"):
        read(path)


def archive_of(tmp_path, **changed):
    """Return a bundle with other contents of some files, by name with `_` instead of `.`."""
    path = tmp_path / "other.zip"
    files = {name: json.dumps(value) for name, value in FILES.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (files | {k.replace("_", "."): v for k, v in changed.items()}).items():
            archive.writestr(name, text)
    return str(path)


def test_file_is_made_before_servers_are_asked_and_removed_after_an_error(tmp_path):
    path = str(tmp_path / "bundle.zip")

    def interrupted():
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, "others may not read it"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, interrupted)
    assert not os.path.exists(path)
    with pytest.raises(FileNotFoundError):
        write(str(tmp_path / "nowhere" / "bundle.zip"), interrupted)
    os.symlink(tmp_path / "target", path)
    with pytest.raises(AlreadyPresent):
        write(path, interrupted)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"made_at": "", "missing": {}, "more": ' + "[" * 100_000, "ecursion"),
        ('{"made_at": 3, "missing": {}}', "Expected `str`, got `int`"),
        ('{"made_at": "", "missing": [1]}', "Expected `object`, got `array`"),
        ('"' + "a" * (65 << 20) + '"', "larger than a file of a bundle"),
    ],
    ids=["nested", "other type", "other value", "large"],
)
def test_hostile_manifest_is_refused(tmp_path, content, why):
    path = archive_of(tmp_path, manifest_json=content)
    with pytest.raises(InvalidArgument, match=why):
        read(path)


@pytest.mark.parametrize(
    ("local", "central", "value"), [(8, 10, 99), (6, 8, 1)], ids=["method", "key"]
)
def test_archive_that_needs_another_method_or_a_password_is_refused(
    tmp_path, local, central, value
):
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(FILES["manifest.json"]))
    data = bytearray(path.read_bytes())
    for at in (local, data.index(b"PK\x01\x02") + central):
        data[at] = value
    path.write_bytes(data)
    with pytest.raises(InvalidArgument, match="is not a bundle"):
        read(str(path))


@pytest.mark.full
def test_large_archive_is_refused_before_all_of_it_is_in_memory(tmp_path):
    path = tmp_path / "other.zip"
    text = json.dumps({"rows": [], "more": "a" * (60 << 20)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("manifest.json", json.dumps(FILES["manifest.json"]))
        for number in range(5):
            archive.writestr(f"servers/s-{number}/log.json", text)
    with pytest.raises(InvalidArgument, match="larger than a file of a bundle"):
        read(str(path))


def test_page_with_something_else_is_missing_and_the_rest_is_shown(tmp_path):
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in FILES.items():
            log = name.endswith("log.json")
            archive.writestr(name, "<html>forbidden" if log else json.dumps(value))
    found = read(str(path))
    assert found.servers[0].options == ("flush_bytes=5",)
    assert found.missing[f"{SERVER}/log.json"].startswith("not readable: ")


def test_characters_that_change_a_terminal_are_shown_as_escapes(tmp_path):
    hostile = json.dumps({"made_at": "\x1b]0;x\x07", "missing": {"a\nb": "\u202e"}})
    found = read(archive_of(tmp_path, manifest_json=hostile))
    assert found.made_at == "\\x1b]0;x\\x07"
    assert found.missing == {"a\\nb": "\\u202e"}
