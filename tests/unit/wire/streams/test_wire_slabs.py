"""Memory of received bodies: of one process alone, also after a fork, and in large pages."""

import os

import pytest

from nyala.wire.framing import Slabs

MIB = 1 << 20


def seen_by_child(memory: memoryview, change: memoryview, value: int) -> int:
    """Return the first byte of memory in a forked child, read after the parent has written to it.

    Args:
        memory: read by the child.
        change: the part of it that the parent writes.
        value: written by the parent.
    """
    go, went = os.pipe()
    answer, answered = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go, 1)
        os.write(answered, bytes(memory[:1]))
        os._exit(0)
    change[:1] = bytes([value])
    os.write(went, b"x")
    seen = os.read(answer, 1)
    os.waitpid(child, 0)
    for end in (go, went, answer, answered):
        os.close(end)
    return seen[0]


def flags_of(memory: memoryview) -> list[str]:
    """Return the flags that the kernel has for the mapping in which memory lies (VmFlags in proc(5))."""
    at, inside = memory.obj.ctypes.data, False  # type: ignore[attr-defined]
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first = line.split()[0]
            if not first.endswith(":"):
                begin, _, end = first.partition("-")
                inside = int(begin, 16) <= at < int(end, 16)
            elif inside and first == "VmFlags:":
                return line.split()[1:]
    raise AssertionError("the memory is in no mapping")


def test_rows_in_a_forked_child_stay_when_its_parent_reads_more():
    body = Slabs(4 * MIB).take(MIB)
    body[:1] = b"\1"
    assert seen_by_child(body, body, 2) == 1


@pytest.mark.skipif(
    not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="a kernel without large pages"
)
def test_slabs_are_eligible_for_large_pages():
    flags = flags_of(Slabs(4 * MIB).take(MIB))
    assert "hg" in flags, "the kernel was advised to use large pages"
    assert "sh" not in flags, (
        "memory that can be shared has large pages only where the system is set up so"
    )
