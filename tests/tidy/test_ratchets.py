"""Each rule of `tests/tidy/rules.py` is broken no more often than `ratchet.toml` allows."""

import pytest

from tests.tidy import ratchet, rules


@pytest.mark.parametrize("rule", rules.RULES)
def test_a_rule_is_broken_no_more_often_than_before(rule):
    ratchet.check(rule, rules.RULES[rule]())


def test_every_count_belongs_to_a_rule():
    assert set(ratchet.load()) <= set(rules.RULES)
