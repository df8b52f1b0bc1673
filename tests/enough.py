"""Coverage of random runs: whether enough happened is asserted in `./run test --full` only.

Each change of the product draws the schedules of all seeds anew, so what happens in one of them is chance. A
test in the gate asserts safety.
"""

import os

FULL = bool(os.environ.get("TESTS_FULL"))
"""True in `./run test --full`."""


def enough(condition: object, what: str) -> None:
    """Fail in the full run if the condition is false; print it in the gate, as part of the test's output.

    Args:
        condition: true if enough happened.
        what: description of what should have happened.
    """
    if FULL:
        assert condition, f"too little happened: {what}"
    elif not condition:
        print(f"too little happened: {what}")
