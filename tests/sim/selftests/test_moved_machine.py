"""The key-value machine in several files: what its files hold when a copy ends during a flush."""

from nyala.env.files import SystemFiles
from nyala.replica.state_machine import FlushPoint
from tests.sim.systems.kv import KvMachine
from tests.sim.systems.moved_machine import MovedMachine


def test_end_of_a_copy_keeps_the_files_that_a_flush_has_written(tmp_path):
    machine: KvMachine = MovedMachine(SystemFiles(), str(tmp_path))
    held = machine.checkpoint()
    build = machine.prepare_flush(FlushPoint())
    assert build is not None
    install = build()
    held.release()
    install()
    later = MovedMachine(SystemFiles(), str(tmp_path))
    assert later.manifest()[1] == sorted(p.name for p in tmp_path.glob("part-*"))
