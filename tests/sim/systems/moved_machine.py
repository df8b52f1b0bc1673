"""The key-value machine in immutable files named by a manifest, which can be copied.

Its manifest has the flush point, so that checkers of a disk know the index that the files contain.
"""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec

from nyala.common.errors import Corrupt
from nyala.env.files import Files
from nyala.replica.copy.protocol import CopyFile
from nyala.replica.state_machine import FlushPoint
from tests.sim.systems.kv import KvMachine

PARTS = 2
MANIFEST = "state"


class Checkpoint:
    """Files that a source holds for one target."""

    def __init__(self, machine: "MovedMachine") -> None:
        self._machine = machine
        self.flush_point = machine.flush_point
        self.manifest_name = MANIFEST
        self.manifest_bytes, names = machine.manifest()
        self.files = tuple(CopyFile(n, machine.size(n)) for n in names)
        machine.held.append(self)

    def release(self) -> None:
        """Release the files."""
        if self in self._machine.held:
            self._machine.held.remove(self)
            self._machine.sweep()


class MovedMachine(KvMachine):
    """As `KvMachine`, in several files.

    Attributes:
        held: checkpoints with files in use.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._directory = directory
        self.held: list[Checkpoint] = []
        self._building: list[str] = []  # files of a flush that no manifest names yet
        super().__init__(files, directory)
        self.sweep()

    def _load(self, raw: bytes) -> None:
        if raw:  # none: a copy of a machine that was never flushed
            names = read_manifest(raw)["parts"]
            super()._load(b"".join(self._files.read(f"{self._directory}/{n}") for n in names))

    def _store(self, flush_point: FlushPoint, state: bytes) -> None:
        names = [f"part-{flush_point.op.index}-{n}" for n in range(PARTS)]
        self._building = names
        step = -(-len(state) // PARTS)
        for number, name in enumerate(names):
            piece = state[number * step : (number + 1) * step]
            self._files.write_new(f"{self._directory}/{name}", [piece])
        body = msgspec.json.encode(
            {"parts": names, "cut": [flush_point.op.term, flush_point.op.index]}
        )
        super()._store(flush_point, crc32(body).to_bytes(4, "little") + body)
        self._files.sync_dir(self._directory)

    def prepare_flush(self, flush_point: FlushPoint) -> Callable[[], Callable[[], None]] | None:
        """As in `KvMachine`; removes files that the new manifest does not name."""
        build = super().prepare_flush(flush_point)
        assert build is not None, "a build is always prepared"

        def swept() -> Callable[[], None]:
            install = build()

            def done() -> None:
                install()
                self._building = []
                self.sweep()

            return done

        return swept

    def manifest(self) -> tuple[bytes, list[str]]:
        """Return the manifest's bytes and the files that it names; empty if never flushed."""
        path = f"{self._directory}/{MANIFEST}"
        raw = self._files.read(path) if self._files.exists(path) else b""
        return raw, list(read_manifest(raw)["parts"]) if raw else []

    def size(self, name: str) -> int:
        """Return the length of a file."""
        return self._files.size(f"{self._directory}/{name}")

    def checkpoint(self) -> Checkpoint:
        """Keep the files that the manifest names. Lane APPLY, as installing a flush."""
        return Checkpoint(self)

    def sweep(self) -> None:
        """Remove files that neither the manifest nor a checkpoint names, nor a flush is building."""
        held = {f.name for c in self.held for f in c.files}
        kept = {*self.manifest()[1], *held, *self._building}
        for name in self._files.list(self._directory):
            if name.startswith("part-") and name not in kept:
                self._files.remove(f"{self._directory}/{name}")


def read_manifest(raw: bytes) -> dict[str, Any]:
    """Return the content of a manifest.

    Raises:
        Corrupt: it is damaged, or none.
    """
    if crc32(raw[4:]).to_bytes(4, "little") != raw[:4]:
        raise Corrupt("a manifest is damaged")
    found: dict[str, Any] = msgspec.json.decode(raw[4:])
    return found
