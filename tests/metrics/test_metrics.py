"""Figures for operators: what is counted, and that both exporters give exactly what `Store.stats` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

import ckptstore
from ckptstore import channels, metrics
from ckptstore.errors import ConflictError, ThreadDeletedError
from ckptstore.metrics import METRICS

SCHEMA = {"log": channels.append(), "title": channels.last_value()}


def _busy(path: Path | str) -> ckptstore.Store:
    store = ckptstore.open(path)
    thread = store.thread("t", schema=SCHEMA)
    for number in range(30):
        thread.step({"log": [f"item {number} " + "x" * 200], "title": f"title {number}"})
    return store


def test_commits_and_fsyncs_are_counted(tmp_path: Path) -> None:
    with _busy(tmp_path / "s") as store:
        stats = store.stats()
        assert stats.appends == stats.frames == stats.last_lsn == 30
        assert stats.appended_bytes + 84 == stats.log_bytes == stats.live_bytes + stats.dead_bytes
        assert stats.fsyncs >= 1
        assert 0 < stats.slowest_fsync <= stats.fsync_seconds
        assert stats.durable_lsn == 30
        assert stats.waiting == 0


def test_reads_frames_and_the_cache_are_counted(tmp_path: Path) -> None:
    _busy(tmp_path / "s").close()
    with ckptstore.open(tmp_path / "s") as store:
        thread = store.thread("t")
        thread.state()
        cold = store.stats()
        thread.state()
        warm = store.stats()
    assert cold.value_reads >= 1
    assert cold.value_frames >= cold.value_reads
    assert 1 <= cold.most_frames <= 16
    assert warm.value_reads == cold.value_reads
    assert warm.cache_hits > cold.cache_hits


def test_refusals_are_counted(tmp_path: Path) -> None:
    with _busy(tmp_path / "s") as store:
        late, other = store.thread("t"), store.thread("t")
        late.step({"title": "first"})
        with pytest.raises(ConflictError):
            other.step({"title": "second"}, expect_head=True)
        store.delete("t")
        with pytest.raises(ThreadDeletedError):
            store.put_writes(
                ckptstore.LaneName("t"),
                str(late.tip),
                [(0, "log", "x")],
                task_id="k",
                encode=lambda name, value: ("msgpack", b"\xa1x"),
            )
        stats = store.stats()
        assert (stats.conflicts, stats.refused_late) == (1, 1)


def test_a_cut_tail_is_counted(tmp_path: Path) -> None:
    _busy(tmp_path / "s").close()
    with (tmp_path / "s" / "segments" / f"{1:020}.seg").open("ab") as file:
        file.write(b"\x17" * 7)
    with ckptstore.open(tmp_path / "s") as store:
        assert store.stats().cut_tail_bytes == 7


def test_every_metric_is_a_figure_of_the_store() -> None:
    with ckptstore.open(":memory:") as store:
        fields = store.stats()._asdict()
        assert {metric.name for metric in METRICS} <= fields.keys()
        assert fields.keys() - {metric.name for metric in METRICS} == {"frames", "last_compaction_ms"}


def test_prometheus(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with _busy(tmp_path / "s") as store:
        registry.register(metrics.prometheus(store, {"store": "chat"}))
        text = generate_latest(registry).decode()
    assert 'ckptstore_appends_total{store="chat"} 30.0' in text
    assert 'ckptstore_waiting{store="chat"} 0.0' in text
    for metric in METRICS:
        assert f"# HELP ckptstore_{metric.name}" in text


def test_opentelemetry(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    with _busy(tmp_path / "s") as store:
        metrics.opentelemetry(store, MeterProvider([reader]).get_meter("test"), {"store": "chat"})
        data: Any = reader.get_metrics_data()
    found = {item.name: item.data.data_points[0] for item in data.resource_metrics[0].scope_metrics[0].metrics}
    assert found["ckptstore.appends"].value == 30
    assert dict(found["ckptstore.appends"].attributes) == {"store": "chat"}
    assert found.keys() == {f"ckptstore.{metric.name}" for metric in METRICS}
