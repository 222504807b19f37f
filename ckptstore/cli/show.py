"""`ckpt show STORE REF`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ckptstore.cli.arguments import IdOption, Json, LockTimeout, NsOption, Ref, StorePath, ThreadOption, reference
from ckptstore.cli.graph import read_with_graph
from ckptstore.cli.output import FINE, PROBLEMS, print_facts, print_json, print_line, print_problems
from ckptstore.inspect.rendering import as_json, as_lines
from ckptstore.inspect.show import EMPTY, NOTES, UNFOLDED, UNREAD, ChannelView, CheckpointView, checkpoint_view


def show(
    store: StorePath,
    ref: Ref = None,
    channel: Annotated[list[str] | None, typer.Option(help="Only this channel; may be given again.", show_default="all")] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTR",
            help="Fold with the reducers of this graph. This imports the application, and runs what it runs at import.",
            show_default=False,
        ),
    ] = None,
    unmask: Annotated[
        bool, typer.Option("--unmask", help="Show metadata whose name holds key, token, secret or password.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten texts and lists.")] = False,
    thread: ThreadOption = None,
    ns: NsOption = None,
    id: IdOption = None,
    lock_timeout: LockTimeout = 30.0,
    json: Json = False,
) -> int:
    """A checkpoint: its state, metadata, pending writes and interrupts.

    Objects are shown as trees with their type names. None is ever built, and pickled values are not opened; only --graph loads an
    application. Channels that are not stored are rebuilt from the lineage; what is a guess says so.
    """
    wanted = reference(ref, thread, ns, id)
    view = checkpoint_view(store, wanted, unmask=unmask, channels=channel, lock_timeout=lock_timeout)
    if graph is not None:
        view = read_with_graph(store, view, graph, lock_timeout)
    if json:
        print_json(facts(view))
    else:
        _print(view, full)
    return PROBLEMS if view.problems else FINE


def facts(view: CheckpointView) -> dict[str, Any]:
    """A checkpoint as JSON."""
    return {
        **view._asdict(),
        "metadata": as_json(view.metadata),
        "channels": [_channel(channel) for channel in view.channels],
        "pending": [{**write._asdict(), "value": as_json(write.value)} for write in view.pending],
        "interrupts": [{**asked._asdict(), "value": as_json(asked.value)} for asked in view.interrupts],
    }


def _channel(channel: ChannelView) -> dict[str, Any]:
    found = channel._asdict()
    found["value"] = as_json(channel.value)
    found["seed"] = as_json(channel.seed)
    found["writes"] = [{**write._asdict(), "value": as_json(write.value)} for write in channel.writes]
    return found


def _print(view: CheckpointView, full: bool) -> None:
    print_facts(
        [
            ("checkpoint", view.id + (" (HEAD)" if view.head else "")),
            ("thread", view.thread + (f", namespace {view.ns}" if view.ns else "")),
            ("parent", view.parent or "none"),
            ("children", ", ".join(view.children) or "none"),
            *([("step", str(view.step))] if view.step is not None else []),
            *([("source", view.source)] if view.source is not None else []),
            *([("time", view.time)] if view.time is not None else []),
        ]
    )
    for asked in view.interrupts:
        waiting = "waiting for an answer" if asked.open else "the run went on"
        _section(f"interrupt ({waiting}), task {asked.task_id}", [("", asked.value)], full)
    named = isinstance(view.metadata, dict)
    _section("metadata", [(f"{key}: ", value) for key, value in view.metadata.items()] if named else [("", view.metadata)], full)
    empty = [channel.name for channel in view.channels if channel.how == EMPTY]
    if empty:
        print_line()
        print_line(f"without a value: {', '.join(empty)}")
    for channel in view.channels:
        if channel.how == EMPTY:
            continue
        note = NOTES.get(channel.how)
        version = "" if channel.version is None else f"  version {_version(channel.version)}"
        print_line()
        print_line(f"{channel.name}{version}{f'  ({note})' if note else ''}")
        if channel.how == UNFOLDED:
            _lines([("seed: ", channel.seed), *((f"write of {write.task_id}: ", write.value) for write in channel.writes)], full)
        elif channel.how != UNREAD:
            _lines([("", channel.value)], full)
    if view.pending:
        pending = [(f"{write.channel} (task {write.task_id}): ", write.value) for write in view.pending]
        _section("writes stored on it", pending, full)
    print_problems(view.problems)


def _version(version: object) -> str:
    """LangGraph pads the number of a version with zeros to 32 digits."""
    text = str(version)
    return text.lstrip("0") if text.startswith("0000") else text


def _section(title: str, items: list[tuple[str, Any]], full: bool) -> None:
    print_line()
    print_line(title)
    _lines(items, full)


def _lines(items: list[tuple[str, Any]], full: bool) -> None:
    for name, value in items:
        for line in as_lines(name, value, indent=2, everything=full):
            print_line(line)
