"""The fuzz of `where` at its reduced size, and its detection of a wrong result."""

import pytest

from tests.properties import where_fuzz as fuzz


def test_any_bytes_are_parsed_with_correct_selection_or_refused():
    judged, good = fuzz.run(1, 800)
    assert judged == 800
    assert 100 < good < 600


def test_incorrect_answer_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(fuzz, "text", lambda chance: "c0 = 1")
    monkeypatch.setattr(fuzz, "evaluate_reference", lambda tree, row: True)
    with pytest.raises(AssertionError):
        fuzz.run(5, 10)
    assert "where text 0 of seed 5: 'c0 = 1'" in capsys.readouterr().err
