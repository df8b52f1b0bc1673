"""Each rule of `tests/tidy/rules.py` is broken no more often than `ratchet.toml` allows."""

import pytest

from tests.tidy import ratchet, rules


@pytest.mark.parametrize("rule", rules.RULES)
def test_violations_of_rule_do_not_increase(rule):
    ratchet.check(rule, rules.RULES[rule]())


def test_every_count_belongs_to_a_rule():
    assert set(ratchet.load()) <= set(rules.RULES)
