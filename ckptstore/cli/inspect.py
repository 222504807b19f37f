"""`ckpt inspect PATH`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ckptstore.cli.output import FINE, PROBLEMS, counted, print_facts, print_json, print_line, print_table, progress
from ckptstore.inspect.channels import ChannelBytes
from ckptstore.inspect.stats import CHANNELS_UP_TO, Breakdown, StoreReport, store_report


def inspect(
    path: Annotated[Path, typer.Argument(help="The store folder.", show_default=False)],
    top: Annotated[
        int, typer.Option(min=0, help="Threads to name in the breakdown. 0 leaves the breakdown out and does not read the log.")
    ] = 10,
    channels: Annotated[
        bool | None,
        typer.Option(
            "--channels/--no-channels",
            help="Say how each channel's values are stored, which unpacks a table for each checkpoint.",
            show_default=f"up to {CHANNELS_UP_TO:,} frames",
        ),
    ] = None,
    lock_timeout: Annotated[float, typer.Option(help="Seconds to wait while another process recovers the store.")] = 30.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> int:
    """What a store is, and where its bytes go. Values are not read."""
    with progress("reading the log", json) as told:
        report = store_report(path, top=top, channels=channels, lock_timeout=lock_timeout, progress=told)
    if json:
        print_json(_facts(report))
    else:
        _print(report)
    return PROBLEMS if report.problems else FINE


def _facts(report: StoreReport) -> dict[str, Any]:
    facts = report._asdict()
    if report.breakdown is not None:
        facts["breakdown"] = {
            **report.breakdown._asdict(),
            "kinds": [item._asdict() for item in report.breakdown.kinds],
            "threads": [item._asdict() for item in report.breakdown.threads],
            "channels": None if report.breakdown.channels is None else [item._asdict() for item in report.breakdown.channels],
        }
    return facts


def _print(report: StoreReport) -> None:
    segments = counted(report.segments, "segment")
    namespaces, checkpoints = counted(report.namespaces, "namespace"), counted(report.checkpoints, "checkpoint")
    print_facts(
        [
            ("store", report.path),
            ("format", str(report.format)),
            ("uuid", report.uuid),
            ("timeline", report.timeline),
            ("log", f"{report.log_bytes:,} bytes in {segments}: {report.live_bytes:,} live, {report.dead_bytes:,} dead"),
            ("index", f"{report.index_bytes:,} bytes"),
            ("frames", f"{report.frames:,}, last LSN {report.last_lsn:,}, durable up to LSN {report.durable_lsn:,}"),
            ("threads", f"{report.threads:,}, with {namespaces} and {checkpoints}"),
        ]
    )
    if report.breakdown is not None:
        _print_breakdown(report, report.breakdown)
    for problem in report.problems:
        print_line(f"problem: {problem}")


def _print_breakdown(report: StoreReport, breakdown: Breakdown) -> None:
    rows: list[tuple[str, int | None, int]] = [(item.kind, item.records, item.bytes) for item in breakdown.kinds]
    rows.append(("headers", None, breakdown.headers))
    if report.dead_bytes:
        rows.append(("dead frames", None, report.dead_bytes))
    print_line()
    print_table([("log bytes by kind", False), ("records", True), ("bytes", True)], rows)
    print_line()
    owners = [(item.thread, item.bytes) for item in breakdown.threads]
    if breakdown.other_threads:
        owners.append(("(other threads)", breakdown.other_threads))
    if breakdown.no_thread:
        owners.append(("(no thread)", breakdown.no_thread))
    print_table([("live bytes by thread", False), ("bytes", True)], owners)
    if breakdown.channels:
        print_line()
        _print_channels(breakdown.channels)


def _print_channels(channels: list[ChannelBytes]) -> None:
    print_table(
        [
            ("values by channel", False),
            *((title, True) for title in ("records", "bytes", "whole", "patched", "raw", "ratio", "frames")),
        ],
        [
            (
                "(no channel)" if item.channel is None else item.channel,
                item.records,
                item.bytes,
                item.whole,
                item.patched,
                item.raw_bytes,
                f"{item.ratio:,.1f}",
                item.most_frames,
            )
            for item in channels
        ],
    )
