"""The names that users type are those of `tests/golden/surface.txt`."""

from tests.tidy import surface


def test_public_names_verbs_and_options_stay():
    assert surface.surface() == surface.FILE.read_text(), (
        "a public name changed; if it was meant: python -m tests.tidy.surface"
    )
