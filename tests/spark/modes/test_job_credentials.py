"""Jobs of a program that logged in with a password: tasks get its certificate, and never the password."""

import os
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from nyala.client import credentials
from nyala.common.errors import InvalidArgument
from nyala.common.folders import own
from nyala.security import authority as authorities
from nyala.security.authority import load
from nyala.security.identity import identity_of_pem
from nyala.security.principal import AccessRole
from nyala.spark.carried import NoCredentials, carried, login_options
from nyala.testing import layout
from tests.unit.security.certificates import authority, server_files, user_files
from tests.waiting import within

MASTERS = "127.0.0.1:7051"
PASSWORD = "correct horse battery"
PROGRAM = """
import sys
import nyala, nyala.spark
from nyala.spark.session import spark_session

masters, ca, login = sys.argv[1:]
client = nyala.connect(masters, user="spark", password="correct horse battery", ca=ca, login=login)
spark = spark_session("a program that logged in")
options = {"masters": masters, "table": "logins", **nyala.spark.login_options(masters)}
frame = spark.range(1000).selectExpr("id as k", "id as v")
frame.write.format("nyala").options(**options).mode("append").save()
print("rows", nyala.spark.read(spark, "logins", masters=masters).filter("v % 2 = 0").count())
plain = spark.read.format("nyala").options(masters=masters, table="logins")
try:
    plain.load().count()
except Exception as err:
    print("refused", "encrypted connections only" in str(err))
spark.stop()
"""


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A process that knows no credentials, whose temporary folder is empty."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(credentials, "_given", {})
    return tmp_path


def options(files):
    return {"ca": files.ca, "cert": files.cert, "key": files.key}


def own_certificate():
    found = credentials.credentials_for(MASTERS)
    assert found is not None
    return found


def test_process_that_receives_a_reader_uses_the_certificate_of_its_job(empty, monkeypatch):
    found = carried(options(user_files(AccessRole.WRITER)), MASTERS)
    raw = pickle.dumps(found)
    monkeypatch.setattr(credentials, "_given", {})  # another process
    assert credentials.credentials_for(MASTERS) is None
    for _ in range(2):
        pickle.loads(raw)
        used = own_certificate()
        assert used.principal.name == "writer"
    folder = Path(used.files.cert).parent
    assert folder.is_relative_to(own.temporary())
    assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o077 == 0


def test_task_of_an_older_job_does_not_bring_back_an_older_certificate(empty):
    jobs = []
    for hours in (0, 1):
        issued = authorities.BACKDATED + timedelta(hours=2 - hours)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(authorities, "BACKDATED", issued)
            certificate, key = load(authority()).issue(AccessRole.READER, "ann")
        for name, content in (("cert", certificate), ("key", key)):
            authorities.write_private(empty / f"{hours}.{name}", content)
        files = {
            "ca": server_files().ca,
            **{n: str(empty / f"{hours}.{n}") for n in ("cert", "key")},
        }
        jobs.append((pickle.dumps(carried(files, MASTERS)), identity_of_pem(certificate).serial))
    for raw, wanted in ((jobs[0][0], 0), (jobs[1][0], 1), (jobs[0][0], 1)):
        pickle.loads(raw)
        assert identity_of_pem(own_certificate().pem.cert).serial == jobs[wanted][1]


def test_job_without_credentials_does_not_use_those_of_another_job(empty, monkeypatch):
    """Spark runs tasks of both in one process; the second job may be of another user."""
    with_some = pickle.dumps(carried(options(user_files(AccessRole.WRITER)), MASTERS))
    without = pickle.dumps(carried({"table": "t"}, MASTERS))
    assert credentials.credentials_for(MASTERS) is None, "the driver plans both too"
    pickle.loads(with_some)
    assert own_certificate().principal.name == "writer"
    pickle.loads(pickle.dumps(carried({}, "127.0.0.1:9999")))
    assert own_certificate().principal.name == "writer", "it is a job on another cluster"
    pickle.loads(without)
    assert credentials.credentials_for(MASTERS) is None
    for name, path in options(user_files(AccessRole.READER)).items():
        monkeypatch.setenv(f"NYALA_{name.upper()}", path)
    pickle.loads(with_some)
    assert own_certificate().principal.name == "writer"
    pickle.loads(without)
    assert own_certificate().principal.name == "reader"


def test_tasks_do_not_write_the_files_of_their_job_again(empty):
    raw = pickle.dumps(carried(options(user_files(AccessRole.WRITER)), MASTERS))
    pickle.loads(raw)
    used = own_certificate()
    pickle.loads(raw)
    assert not used.refresh(), "all clients of this user would connect again"


def test_server_s_certificate_and_half_of_the_files_are_not_handed_to_tasks(empty):
    assert isinstance(carried({"table": "t"}, MASTERS), NoCredentials)
    with pytest.raises(InvalidArgument, match="is the certificate of a server"):
        carried(options(server_files()), MASTERS)
    with pytest.raises(InvalidArgument, match="belong together"):
        carried({"ca": server_files().ca}, MASTERS)
    assert login_options(MASTERS) == {}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_program_that_logged_in_reads_and_writes_and_hands_tasks_no_password(
    cluster, client, tmp_path
):
    import pyarrow as pa

    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
    client.create_table("logins", schema, primary_key=["k"], replicas=1)
    made = layout.load(cluster.dir)
    assert made is not None
    words = ("user", "add", "spark", "--role", "writer", "--password-stdin")
    subprocess.run(
        [sys.executable, "-m", "nyala", *words], input=f"{PASSWORD}\n", text=True, check=True,
        timeout=within(60), env={**os.environ, "NYALA_MASTERS": cluster.masters},
    )  # fmt: skip
    clean = {n: v for n, v in os.environ.items() if not n.startswith("NYALA_")}
    clean |= {"XDG_DATA_HOME": str(tmp_path / "data"), "TMPDIR": str(tmp_path)}
    where = (cluster.masters, f"{cluster.dir}/certs/ca.crt", ",".join(made.join_addresses))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *where], cwd=tmp_path, env=clean, capture_output=True,
        text=True, timeout=within(300),
    )  # fmt: skip
    assert "rows 500" in done.stdout, done.stderr[-4000:]
    assert "refused True" in done.stdout
    left = [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size < 1 << 20]
    assert not [p for p in left if PASSWORD.encode() in p.read_bytes()]
