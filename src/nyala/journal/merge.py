"""Merges of data files: the newest files of a journal become one, without what is invalid.

If the oldest file is among them the result is a base: it names no deleted logs, keys or invalid entries,
since nothing older has them. Merges read files only, so they run beside applying.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from nyala.env.files import Files
from nyala.journal.data_file import DataFile, DataFileWriter, DeletedKey, LogRecord, Part, in_parts
from nyala.journal.keys import KeyValue

MAX_FILES = 16
"""Data files of a journal; with as many, some are merged."""
_LEAST_BYTES = 1 << 20
"""Invalid bytes that are not worth a merge."""


def choose(sizes: Sequence[int], valid_bytes: int) -> int:
    """Return how many of the newest files to merge; 0: none.

    Args:
        sizes: sizes of the files in bytes, oldest first.
        valid_bytes: size in bytes of what is valid.
    """
    total = sum(sizes)
    if total > _LEAST_BYTES and total > 2 * valid_bytes:
        return len(sizes)
    if len(sizes) < MAX_FILES:
        return 0
    count, newer = len(sizes) // 2, sum(sizes[len(sizes) - len(sizes) // 2 :])
    while count < len(sizes) and sizes[-count - 1] <= 2 * newer:
        newer += sizes[-count - 1]
        count += 1
    return count


def merge(files: Files, paths: Sequence[str], target: str, *, base: bool) -> int:
    """Write one data file in place of several; return its length in bytes. Lane COMPUTE.

    Args:
        files: the file system.
        paths: paths of the files, oldest first.
        target: path of the new file.
        base: the oldest file of the journal is among them.

    Raises:
        Corrupt: a file is damaged.
        OSError: the new file cannot be written.
    """
    inputs = [DataFile(files, path) for path in paths]
    writer = DataFileWriter(files, target)
    try:
        size = _write(inputs, writer, base=base)
    finally:
        writer.close()
    for data_file in inputs:
        data_file.check()
    return size


def _write(inputs: Sequence[DataFile], writer: DataFileWriter, *, base: bool) -> int:
    logs: dict[int, LogRecord] = {}
    dropped: set[int] = set()
    invalid: set[tuple[int, int]] = set()
    keys: dict[str, KeyValue | DeletedKey] = {}
    for data_file in inputs:
        dropped.update(data_file.dropped)
        logs |= {log.created: log for log in data_file.logs}
        invalid.update(data_file.invalid)
        keys |= {key.key: key for key in data_file.all_keys()}
    for created in dropped:
        logs.pop(created, None)
    found: set[tuple[int, int]] = set()
    parts: dict[int, list[Part]] = {}
    for data_file in inputs:
        for part in data_file.parts():
            if part.log in logs:
                parts.setdefault(part.log, []).append(part)
    for created in sorted(parts):
        for part in in_parts(created, _valid(parts[created], invalid, found)):
            writer.add_part(part)
    for name in sorted(keys):
        key = keys[name]
        if isinstance(key, KeyValue) or not base:
            writer.add_key(key)
    invalid_left = [] if base else sorted(p for p in invalid - found if p[0] not in dropped)
    dropped_logs = [] if base else sorted(dropped)
    return writer.finish([logs[created] for created in sorted(logs)], dropped_logs, invalid_left)


def _valid(
    parts: Sequence[Part], invalid: set[tuple[int, int]], found: set[tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """Yield the valid entries of one log; those that are not are added to `found`."""
    for part in parts:
        ends = np.cumsum(part.lengths, dtype=np.int64).tolist()
        start = 0
        view = memoryview(part.data)
        for entry_id, end in zip(part.ids.tolist(), ends, strict=True):
            if (part.log, entry_id) in invalid:
                found.add((part.log, entry_id))
            else:
                yield entry_id, bytes(view[start:end])
            start = end
