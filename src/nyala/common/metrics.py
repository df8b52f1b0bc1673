"""Counters and gauges of one server, named `nyala_<component>_<what>_<unit>`.

There is no global registry: several servers may run in one (simulated) process, so each has its own
`Metrics`; `/metrics` exposes `Metrics.registry`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with one sample per label combination, collected at exposition.

    Attributes:
        name: as for `Metrics.counter`; a counter if it ends with `_total`.
        description: description.
        labels: names of its labels.
        samples: label values, and the value.
    """

    name: str
    description: str
    labels: Sequence[str]
    samples: Sequence[tuple[Sequence[str], float]]


class Metrics:
    """The metrics of one server. The same name returns the same metric.

    Args:
        registry: None: a new one.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._made: dict[str, Counter | Gauge] = {}

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        """Return a counter, which is exposed with the suffix `_total`.

        Args:
            name: `<component>_<what>_<unit>`, without the leading `nyala_`.
            description: description.
            labels: names of its labels.
        """
        made = self._made.get(name)
        if made is None:
            made = Counter(_full(name), description, labels, registry=self.registry)
            self._made[name] = made
        assert isinstance(made, Counter), f"{name} is a {type(made).__name__}"
        return made

    def gauge(
        self,
        name: str,
        description: str,
        labels: Sequence[str] = (),
        *,
        read: Callable[[], float] | None = None,
    ) -> Gauge:
        """Return a gauge.

        Args:
            name: as for `counter`.
            description: description.
            labels: names of its labels.
            read: returns the value at each exposition, instead of `set`; must be fast.
        """
        made = self._made.get(name)
        if made is None:
            made = Gauge(_full(name), description, labels, registry=self.registry)
            self._made[name] = made
        assert isinstance(made, Gauge), f"{name} is a {type(made).__name__}"
        if read is not None:
            made.set_function(read)
        return made

    def families(self, read: Callable[[], Iterable[Family]]) -> None:
        """Expose metrics with varying labels.

        Args:
            read: returns all of them at each exposition; must be fast.
        """
        self.registry.register(_Read(read))


class _Read(Collector):
    def __init__(self, read: Callable[[], Iterable[Family]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for family in self._read():
            kind = CounterMetricFamily if family.name.endswith("_total") else GaugeMetricFamily
            made = kind(_full(family.name), family.description, labels=family.labels)
            for labels, value in family.samples:
                made.add_metric(labels, value)
            yield made


def _full(name: str) -> str:
    assert _NAME.fullmatch(name), f"{name!r} is not <component>_<what>_<unit>"
    return f"nyala_{name}"
