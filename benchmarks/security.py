"""Cost of security: the same work on a cluster with certificates and on one without, in turn, as ratios."""

import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jwt
import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric import ec

import nyala
from benchmarks.report import Report
from benchmarks.wide import SCHEMA, rows
from nyala.common import addresses
from nyala.security import join_token
from nyala.security.accounts.issuers import TokenIssuers
from nyala.testing import MiniCluster, layout

ROWS, BATCH, TABLETS, ROUNDS = 200_000, 10_000, 8, 5
SMALL, HANDSHAKES = 300, 200
UP_LIMIT_S = 10.0
JOINS, JOIN_LIMIT_S, DEADLINE_S = 3, 5.0, 60.0
CHECKS = 2_000
TARGETS = {
    "bulk upsert": ("rows/s", 0.9),
    "scan, all columns": ("rows/s", 0.75),
    "acknowledged upsert, one row at a time": ("ops/s", 0.8),
    "look-up by key, one at a time": ("ops/s", 0.8),
}
"""Unit, and least ratio of the rate with security to that without, by work."""


class Side:
    """A table of one of the two clusters, and the work that is measured.

    Args:
        cluster: with or without certificates.
        client: of it.
        batches: the rows, which are written again in each round.
    """

    def __init__(
        self, cluster: MiniCluster, client: nyala.Client, batches: list[pa.RecordBatch]
    ) -> None:
        self.cluster = cluster
        self._batches = batches
        hashed = nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
        self._table = client.create_table("t", SCHEMA, ["k"], hashed)
        self._keys = [int(k) for k in batches[0].column(0)[:SMALL].to_pylist()]
        self._works: dict[str, tuple[int, Callable[[], object]]] = {
            "bulk upsert": (sum(b.num_rows for b in batches), self._upsert),
            "scan, all columns": (len(batches) * BATCH, lambda: self._table.scan().to_arrow()),
            "acknowledged upsert, one row at a time": (SMALL, self._upsert_each),
            "look-up by key, one at a time": (SMALL, self._get_each),
        }

    def rate(self, work: str) -> float:
        """Do one of the works; return its rate, in rows or operations per second."""
        count, do = self._works[work]
        began = time.perf_counter()
        do()
        return count / (time.perf_counter() - began)

    def _upsert(self) -> None:
        for batch in self._batches:
            self._table.upsert(batch).raise_for_errors()

    def _upsert_each(self) -> None:
        for number in range(SMALL):
            self._table.upsert(self._batches[0].slice(number, 1)).raise_for_errors()

    def _get_each(self) -> None:
        for key in self._keys:
            self._table.get({"k": key})


def run(quick: bool = False) -> Report:
    """Run the benchmark.

    Args:
        quick: fewer rows and rounds.
    """
    count, rounds = (ROWS // 5, 3) if quick else (ROWS, ROUNDS)
    about = f"{count:,} wide rows, {TABLETS} tablets, 3 replicas, synced; medians of {rounds} rounds in turn"
    report = Report("security", about)
    keys = np.random.default_rng(7).permutation(count).astype(np.int64)
    batches = [rows(keys[at : at + BATCH], at) for at in range(0, count, BATCH)]
    with (
        MiniCluster() as plain, MiniCluster(secure=True) as secured,
        plain.connect() as without, secured.connect() as with_it,
    ):  # fmt: skip
        sides = (Side(plain, without, batches), Side(secured, with_it, batches))
        for side in sides:
            side.rate("bulk upsert")  # the first one inserts
        for work, (unit, least) in TARGETS.items():
            _compare(report, sides, work, unit, least, rounds)
        _add_handshakes(report, secured)
        _add_joins(report, secured, with_it)
    _add_token_checks(report)
    _add_starts(report)
    return report


def _compare(
    report: Report, sides: tuple[Side, Side], work: str, unit: str, least: float, rounds: int
) -> None:
    """Add the rates of a work on both clusters, and the ratio, which has a target.

    Args:
        report: to add to.
        sides: without and with security.
        work: one of `TARGETS`.
        unit: of the rates.
        least: the target.
        rounds: number of measurements of each.
    """
    found: list[list[float]] = [[], []]
    for number in range(rounds):
        for at in (0, 1) if number % 2 else (1, 0):
            found[at].append(sides[at].rate(work))
    without, with_it = map(statistics.median, found)
    report.add(f"{work}, without", without, unit)
    report.add(f"{work}, with", with_it, unit)
    report.add(f"{work}: ratio", with_it / without, "x", at_least=least)


def _add_handshakes(report: Report, cluster: MiniCluster) -> None:
    """Add the rate of handshakes, both ends on this machine, one after the other."""
    files = cluster.environment
    context = ssl.create_default_context(cafile=files["NYALA_CA"])
    context.load_cert_chain(files["NYALA_CERT"], files["NYALA_KEY"])
    ports = {
        "gRPC": cluster.address("tserver-0"),
        "web (the event loop, as stream and peer ports)": cluster.web_address("tserver-0"),
    }
    for port, address in ports.items():
        host, number = addresses.parse(address)
        began = time.perf_counter()
        for _ in range(HANDSHAKES):
            with (
                socket.create_connection((host, number)) as link,
                context.wrap_socket(link, server_hostname=host),
            ):
                pass
        rate = HANDSHAKES / (time.perf_counter() - began)
        report.add(f"TLS handshakes, port of {port}", rate, "per s")


def _add_joins(report: Report, cluster: MiniCluster, client: nyala.Client) -> None:
    """Add the time of `nyala tserver join`, from its start until the leader master has a report."""
    planned = layout.load(cluster.dir)
    assert planned is not None, f"{cluster.dir} has a cluster"
    environ = {**os.environ, **cluster.environment}
    words = (sys.executable, "-m", "nyala")
    more = ("token", "create", "--role", "tserver", "--ttl", "1h", "--uses", str(JOINS))
    made = subprocess.run([*words, *more], check=True, capture_output=True, text=True, env=environ)
    token, took = made.stdout.split()[0], []
    for _ in range(JOINS):
        before = sum(s.alive for s in client.servers())
        own = [f"{layout.HOST}:{port}" for port in layout.free_ports(2)]
        where = ("--address", own[0], "--peer-address", own[1], "--web-address", "")
        masters = ("--masters", ",".join(planned.join_addresses))
        with tempfile.TemporaryDirectory(prefix="nyala-bench-join-") as folder:
            began = time.perf_counter()
            joining = subprocess.Popen(
                [*words, "tserver", "join", token, *masters, "--dir", f"{folder}/t", *where],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                while sum(s.alive for s in client.servers()) == before:
                    assert time.perf_counter() - began < DEADLINE_S, "the server has not joined"
                took.append(time.perf_counter() - began)
            finally:
                joining.kill()
                joining.wait()
    median = statistics.median(took)
    report.add("join of a server, with its imports", median, "s", at_most=JOIN_LIMIT_S)


def _add_token_checks(report: Report) -> None:
    """Add the time in which a token of an issuer (JWT, ES256) and the secret of a join token are checked."""
    key, now_s = ec.generate_private_key(ec.SECP256R1()), time.time()
    public = jwt.get_algorithm_by_name("ES256").to_jwk(key.public_key(), as_dict=True)
    with tempfile.TemporaryDirectory(prefix="nyala-bench-token-") as folder:
        Path(folder, "keys.json").write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))
        Path(folder, "issuers.toml").write_text(
            '[[issuer]]\nissuer = "i"\naudience = "nyala"\njwks = "keys.json"\n'
        )
        issuers = TokenIssuers(f"{folder}/issuers.toml")
        claims = {"iss": "i", "aud": "nyala", "sub": "ann", "exp": now_s + 600}
        text = jwt.encode(claims, key, "ES256", headers={"kid": "k"})
        took = _each_us(lambda: issuers.account_in(text, now_s))
        report.add("check of a token of an issuer (ES256), with its files", took, "us")
    known = join_token.hash_of("secret" * 8)
    took = _each_us(lambda: join_token.matches("secret" * 8, known))
    report.add("check of the secret of a join token", took, "us")


def _each_us(work: Callable[[], object]) -> float:
    """Return the mean time of a work in microseconds."""
    began = time.perf_counter()
    for _ in range(CHECKS):
        work()
    return (time.perf_counter() - began) / CHECKS * 1e6


def _add_starts(report: Report) -> None:
    """Add the time of `nyala up` of a new cluster, with its imports, with and without security."""
    for options, label in (((), "with"), (("--insecure",), "without")):
        took = []
        for _ in range(3):
            with tempfile.TemporaryDirectory(prefix="nyala-bench-up-") as folder:
                own = ("--dir", f"{folder}/data")
                began = time.perf_counter()
                _nyala("up", *own, "--base-port", str(_free_base()), *options)
                took.append(time.perf_counter() - began)
                _nyala("down", *own, "--delete-data")
        median = statistics.median(took)
        report.add(f"nyala up of a new cluster, {label}", median, "s", at_most=UP_LIMIT_S)


def _nyala(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "nyala", *words], check=True, capture_output=True)


def _free_base() -> int:
    """Return a base port whose 18 ports for three masters and three tablet servers are free."""
    for base in range(21_050, 27_000, 350):
        planned = layout.plan("unused", 3, 3, base_port=base, options={})
        if not layout.ports_in_use(a for s in planned.servers for a in s.addresses):
            return base
    raise RuntimeError("no free ports for nyala up")
