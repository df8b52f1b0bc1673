"""Numbers of things in texts."""

import pytest

from nyala.common.texts.counted import counted


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ("tablet",), "0 tablets"),
        (1, ("tablet",), "1 tablet"),
        (1_234_567, ("row",), "1,234,567 rows"),
        (1, ("row is written", "rows are written"), "1 row is written"),
        (2, ("row is written", "rows are written"), "2 rows are written"),
    ],
)
def test_noun_agrees_with_its_number(count: int, words: tuple[str, ...], text: str):
    assert counted(count, *words) == text
