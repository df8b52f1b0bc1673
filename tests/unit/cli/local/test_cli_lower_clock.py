"""`nyala fs lower_clock`: a ceiling written by a wrong clock is lowered; that of a running server is not."""

import json
import time

import pytest

from nyala.common.hybrid_time import from_micros, to_micros
from nyala.env.clock import write_ceiling
from nyala.env.files import SystemFiles
from tests.unit.cli.support import cli_recover
from tests.unit.cli.support.verbs import fs

pytestmark = pytest.mark.usefixtures("held")
folder = cli_recover.folder

YEAR_US = 365 * 86_400 * 1_000_000


def ceiling(directory):
    return int((directory / "hybrid_clock").read_bytes().split()[0])


def test_ceiling_far_ahead_is_lowered_once(tmp_path):
    fs("format", "--dir", tmp_path, "--role", "tserver")
    (tmp_path / "wal").mkdir(exist_ok=True)
    far = from_micros(time.time_ns() // 1000 + 20 * YEAR_US)
    write_ceiling(SystemFiles(), str(tmp_path / "hybrid_clock"), far)
    status, stdout, _ = fs("lower_clock", "--dir", tmp_path)
    assert (status, stdout) == (0, "lowered: it was 20.0 years ahead of the wall clock\n")
    now_us = time.time_ns() // 1000
    assert now_us < to_micros(ceiling(tmp_path)) <= now_us + 10_000_000
    status, stdout, _ = fs("lower_clock", "--dir", tmp_path, "--format", "json")
    answer = json.loads(stdout)
    assert status == 0
    assert answer["before"] == answer["after"] == ceiling(tmp_path)


def test_running_server_ceiling_is_not_lowered(tmp_path, held):
    fs("format", "--dir", tmp_path, "--role", "tserver")
    far = from_micros(time.time_ns() // 1000 + 20 * YEAR_US)
    write_ceiling(SystemFiles(), str(tmp_path / "hybrid_clock"), far)
    held.add(f"{tmp_path}/LOCK")
    held.add(f"{tmp_path}/lock")
    status, _, stderr = fs("lower_clock", "--dir", tmp_path)
    assert status != 0, stderr
    assert ceiling(tmp_path) == far


def test_ceiling_of_server_with_replica_of_either_kind_is_lowered(folder):
    far = from_micros(time.time_ns() // 1000 + 20 * YEAR_US)
    write_ceiling(SystemFiles(), str(folder / "hybrid_clock"), far)
    status, stdout, stderr = fs("lower_clock", "--dir", folder)
    assert (status, stdout) == (0, "lowered: it was 20.0 years ahead of the wall clock\n"), stderr
    assert ceiling(folder) < far
