"""Figures of a store for Prometheus and OpenTelemetry. Optional: each needs its library (extras `prometheus`, `opentelemetry`), and
nothing is exported unless you ask.

    from prometheus_client import REGISTRY
    REGISTRY.register(ckptstore.metrics.prometheus(store))

    ckptstore.metrics.opentelemetry(store, meter)

Names begin with `ckptstore_`. Values are read from `Store.stats()` when they are collected; no value of a user is ever part of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ckptstore.store import Store


class Metric(NamedTuple):
    """One exported figure."""

    name: str
    """Without prefix and suffix; also the name of the field of `StoreStats`."""
    help: str
    unit: str
    counter: bool


METRICS = (
    Metric("appends", "Commits appended to the log by this process", "", True),
    Metric("appended_bytes", "Bytes appended to the log by this process", "bytes", True),
    Metric("fsyncs", "fsyncs of the log", "", True),
    Metric("fsync_seconds", "Time spent in fsync", "seconds", True),
    Metric("slowest_fsync", "The longest fsync so far", "seconds", False),
    Metric("lock_waits", "Commits that found the commit lock taken", "", True),
    Metric("lock_wait_seconds", "Time spent waiting for the commit lock", "seconds", True),
    Metric("waiting", "Calls waiting now for the commit lock or an fsync", "", False),
    Metric("value_reads", "Values read from the log, not from the cache", "", True),
    Metric("value_frames", "Frames touched by these reads", "", True),
    Metric("most_frames", "The most frames one read touched", "", False),
    Metric("cache_hits", "Value reads answered by the cache", "", True),
    Metric("cache_misses", "Value reads not answered by the cache", "", True),
    Metric("refused_late", "Late calls refused after a thread deletion", "", True),
    Metric("conflicts", "Calls refused because the head was not the expected one", "", True),
    Metric("cut_tail_bytes", "Bytes cut from a torn tail", "bytes", True),
    Metric("log_bytes", "Size of the log", "bytes", False),
    Metric("live_bytes", "Bytes of the log that something still needs", "bytes", False),
    Metric("dead_bytes", "Bytes of the log that compaction would give back", "bytes", False),
    Metric("index_bytes", "Size of the index", "bytes", False),
    Metric("segments", "Segments of the log", "", False),
    Metric("last_lsn", "Last LSN written", "", False),
    Metric("durable_lsn", "Last LSN known to be durable", "", False),
)


def prometheus(store: Store, labels: Mapping[str, str] | None = None) -> Any:
    """A collector for a `prometheus_client` registry.

    Args:
        labels: constant labels, to tell stores apart.

    Raises:
        ImportError: prometheus_client is not installed: `pip install 'ckptstore[prometheus]'`.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    names, values = list(labels or {}), list((labels or {}).values())

    class Collector:
        """Reads the store when Prometheus asks."""

        def collect(self) -> Iterator[Any]:
            stats = store.stats()
            for metric in METRICS:
                family = CounterMetricFamily if metric.counter else GaugeMetricFamily
                found = family(f"ckptstore_{metric.name}", metric.help, labels=names)
                found.add_metric(values, getattr(stats, metric.name))
                yield found

    return Collector()


def opentelemetry(store: Store, meter: Any, attributes: Mapping[str, str] | None = None) -> None:
    """Register observable instruments on an OpenTelemetry meter.

    Args:
        meter: of `opentelemetry.metrics.get_meter`.
        attributes: constant attributes, to tell stores apart.

    Raises:
        ImportError: opentelemetry-api is not installed: `pip install 'ckptstore[opentelemetry]'`.
    """
    from opentelemetry.metrics import Observation

    constant = dict(attributes or {})

    def observer(name: str) -> Any:
        return lambda options: [Observation(getattr(store.stats(), name), constant)]

    for metric in METRICS:
        create = meter.create_observable_counter if metric.counter else meter.create_observable_gauge
        create(f"ckptstore.{metric.name}", [observer(metric.name)], unit=metric.unit or "1", description=metric.help)
