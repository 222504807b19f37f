"""`ckpt diff STORE REF [REF]`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptstore.cli.arguments import IdOption, Json, LockTimeout, NsOption, Ref, StorePath, ThreadOption, reference
from ckptstore.cli.output import FINE, PROBLEMS, print_json, print_line, print_problems
from ckptstore.inspect.diff import Difference, DiffReport, diff_report
from ckptstore.inspect.refs import Reference
from ckptstore.inspect.rendering import as_json, one_line


def diff(
    store: StorePath,
    ref: Ref = None,
    other: Annotated[
        str | None,
        typer.Argument(metavar="REF2", help="What to compare with; @WHERE means the thread of the first.", show_default=False),
    ] = None,
    channel: Annotated[list[str] | None, typer.Option(help="Only this channel; may be given again.", show_default="all")] = None,
    thread: ThreadOption = None,
    ns: NsOption = None,
    id: IdOption = None,
    other_id: Annotated[
        str | None, typer.Option(metavar="ID", help="What to compare with, by its whole id.", show_default=False)
    ] = None,
    lock_timeout: LockTimeout = 30.0,
    json: Json = False,
) -> int:
    """What differs between two checkpoints.

    With two references, what the second has otherwise than the first. With one, what it has otherwise than its parent.
    Messages, and other lists whose items have ids, are compared by id.
    """
    first = reference(ref, thread, ns, id)
    second: Reference | None = None
    if other is not None and other.startswith("@"):
        second = reference(other, first.thread, first.ns, None)
    elif other is not None:
        second = reference(other, None, None, None)
    elif other_id is not None:
        second = Reference(first.thread, first.ns, other_id, exact=True)
    report = diff_report(store, first, second, channels=channel, lock_timeout=lock_timeout)
    if json:
        print_json(
            {
                "before": _named(report.before.thread, report.before.ns, report.before.id),
                "after": _named(report.after.thread, report.after.ns, report.after.id),
                "differences": [
                    {**item._asdict(), "before": as_json(item.before), "after": as_json(item.after)} for item in report.differences
                ],
                "unchanged": report.unchanged,
                "uncompared": report.uncompared,
                "problems": report.problems,
            }
        )
    else:
        _print(report)
    return PROBLEMS if report.problems else FINE


def _named(thread: str, ns: str, id: str) -> dict[str, str]:
    return {"thread": thread, "ns": ns, "id": id}


def _print(report: DiffReport) -> None:
    print_line(f"before  {report.before.id}")
    print_line(f"after   {report.after.id}")
    if not report.differences:
        print_line("no difference")
    for item in report.differences:
        print_line()
        print_line(f"{where(item)}  {item.kind}")
        if item.kind != "added":
            print_line(f"  - {one_line(item.before)}")
        if item.kind != "removed":
            print_line(f"  + {one_line(item.after)}")
    if report.uncompared:
        print_line(f"not compared: {', '.join(report.uncompared)}")
    print_problems(report.problems)


def where(item: Difference) -> str:
    """A channel and a path inside it, as `messages[id=m1].content`."""
    parts = [item.channel]
    for step in item.path:
        parts.append(f"[{step}]" if isinstance(step, int) or step.startswith("id=") else f".{step}")
    return "".join(parts)
