"""Prometheus metrics of what waits. Needs the extra `metrics`; register them once a process."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connections
from prometheus_client.core import REGISTRY, GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from .conf import conf
from .figures import COUNTED, figures


class RunsCollector(Collector):
    """Reads the figures at each scrape, with bounded queries.

    Every process reads the same database, so one that is scraped is enough. A database that is away
    fails the scrape: no figure is better than an old one.
    """

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield from families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        count, age = families()
        connection = connections[conf.DATABASE]
        connection.close_if_unusable_or_obsolete()
        try:
            for figure in figures():
                count.add_metric([figure.name], figure.count)
                age.add_metric([figure.name], figure.age.total_seconds())
        finally:
            # A thread of a metrics server ends with its request, and nobody would close it there.
            if not connection.in_atomic_block:
                connection.close()
        yield count
        yield age


def families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "agentruns_waiting",
            f"Runs that wait, by what they wait for; counted up to {COUNTED}.",
            labels=["what"],
        ),
        GaugeMetricFamily(
            "agentruns_oldest_waiting_seconds",
            "For how long the oldest of them has waited; 0 where there is none.",
            labels=["what"],
        ),
    )


def register(registry: CollectorRegistry = REGISTRY) -> RunsCollector:
    """Add the metrics to a registry: call it in an `AppConfig.ready()`, or where you expose them."""
    collector = RunsCollector()
    registry.register(collector)
    return collector
