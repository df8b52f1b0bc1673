"""Magics of a tablet's files."""


class FileKind:
    """Kinds of a tablet's files, each by its magic."""

    INDEX = b"NYtabIDX"
    DATA = b"NYtabDAT"
    END_STAMPS = b"NYtabDEL"
    MANIFEST = b"NYtabMAN"
    MANIFEST_2 = b"NYtabMA2"
    """Of a manifest with transactions, which a release without them refuses instead of losing them."""
    MANIFEST_3 = b"NYtabMA3"
    """Of a manifest with dropped columns, which a release that would lose their values refuses."""
    STAGE = b"NYtabSTG"
