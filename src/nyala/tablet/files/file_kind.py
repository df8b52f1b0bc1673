"""Magics of a tablet's files."""


class FileKind:
    """Kinds of a tablet's files, each by its magic."""

    INDEX = b"NYtabIDX"
    DATA = b"NYtabDAT"
    END_STAMPS = b"NYtabDEL"
    MANIFEST = b"NYtabMAN"
