"""`ckpt writes STORE REF`."""

from __future__ import annotations

from ckptstore.cli.arguments import IdOption, Json, LockTimeout, NsOption, Ref, StorePath, ThreadOption, reference
from ckptstore.cli.output import FINE, PROBLEMS, counted, print_json, print_line, print_problems
from ckptstore.inspect.rendering import as_json, one_line
from ckptstore.inspect.writes import WHY, Batch, Consumer, WritesReport, writes_report


def writes(
    store: StorePath,
    ref: Ref = None,
    thread: ThreadOption = None,
    ns: NsOption = None,
    id: IdOption = None,
    lock_timeout: LockTimeout = 30.0,
    json: Json = False,
) -> int:
    """The batches of writes stored on a checkpoint, and which child each of them made, and why.

    every: each batch of the step or update counts. newest: the child's own writer stored it; the newest batch of a task counts.
    first: stored by others since the previous child; the first write of a task counts. late: it came after the child that it made.
    """
    report = writes_report(store, reference(ref, thread, ns, id), lock_timeout=lock_timeout)
    if json:
        print_json({**report._asdict(), "batches": [_facts(batch) for batch in report.batches]})
    else:
        _print(report)
    return PROBLEMS if report.problems else FINE


def _facts(batch: Batch) -> dict[str, object]:
    return {
        **batch._asdict(),
        "writes": [{**write._asdict(), "value": as_json(write.value)} for write in batch.writes],
        "consumers": [consumer._asdict() for consumer in batch.consumers],
    }


def _print(report: WritesReport) -> None:
    stored = "" if report.stored else ", which is not stored"
    print_line(f"{counted(len(report.batches), 'batch', 'batches')} on {report.id}{stored}")
    for batch in report.batches:
        print_line()
        path = f" {batch.task_path}" if batch.task_path else ""
        run = f", run {batch.token}" if batch.token else ""
        print_line(f"LSN {batch.lsn:,}  task {batch.task_id}{path}  ({batch.origin}{run})")
        for write in batch.writes:
            print_line(f"  {write.idx:>3}  {write.channel}: {one_line(write.value)}")
        for consumer in batch.consumers:
            print_line(f"  -> {_made(consumer)}")
        if not batch.consumers:
            print_line("  -> pending: no child was made of it")
    print_problems(report.problems)


def _made(consumer: Consumer) -> str:
    late = ", late: it came after the child" if consumer.late else ""
    gated = ", as far as channel versions moved" if consumer.gated else ""
    return f"{consumer.id or '(damaged)'}  {consumer.how}: {WHY[consumer.how]}{gated}{late}"
