"""The log of a killed process, and its bytes to damage."""

from tests.unit.wal.support.wal_harness import Machine, append

FIRST, SECOND = "/d/wal/0000000001.wal", "/d/wal/0000000002.wal"


def content(machine, path=FIRST):
    return bytes(machine.disk.names.get(path).content)


def replace(machine, data, path=FIRST):
    machine.put(path, data)


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


async def crashed(loop, *rounds, marker=False):
    """Return a machine whose process was killed after these rounds; each is a list of (group, entries)."""
    machine = Machine(loop)
    wal, _ = await machine.open()
    for one in rounds:
        done = [append(wal, group, new) for group, new in one]
        for future in done:
            assert await future is None
    if marker:
        await loop.delay(1_000_000)
        assert wal.stats().markers == 1
    machine.disk.kill()
    return machine
