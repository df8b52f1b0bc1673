"""Numbers of things in texts: `1 tablet`, `2 tablets`."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    Args:
        count: the number.
        noun: for one.
        plural: for other numbers; empty: the noun with an s.
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
