"""`ckpt doctor [STORE]`."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Any

import typer

from ckptstore.cli.arguments import Json, LockTimeout
from ckptstore.cli.output import FINE, PROBLEMS, print_facts, print_json, print_line, print_problems, print_table
from ckptstore.cli.probes import Probe, probe
from ckptstore.inspect.health import StoreHealth, store_health, versions


def doctor(
    store: Annotated[
        Path | None, typer.Argument(metavar="STORE", help="A store folder to look at, too.", show_default=False)
    ] = None,
    probes: Annotated[
        bool, typer.Option("--probes/--no-probes", help="Try out the installed langgraph, in memory, for known faults.")
    ] = True,
    lock_timeout: LockTimeout = 30.0,
    json: Json = False,
) -> int:
    """Versions, the filesystem and index of a store, and faults of the installed langgraph.

    Each known fault of langgraph is tried out with its own in-memory saver and with CkptSaver. Only a fault that shows with
    CkptSaver, or one of the store, is a problem.
    """
    found = versions()
    health = None if store is None else store_health(store, lock_timeout=lock_timeout)
    tried = probe() if probes and found["langgraph"] is not None else None
    problems = [] if health is None else list(health.problems)
    problems += [f"langgraph with CkptSaver: {item.fault}" for item in tried or () if item.with_ckptstore]
    if json:
        print_json(
            {
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.release()} {platform.machine()}",
                "packages": found,
                "store": None if health is None else health._asdict(),
                "probes": None if tried is None else [item._asdict() for item in tried],
                "problems": problems,
            }
        )
    else:
        _print(found, health, tried, problems)
    return PROBLEMS if problems else FINE


def _print(found: dict[str, str | None], health: StoreHealth | None, tried: list[Probe] | None, problems: list[str]) -> None:
    facts = [("python", platform.python_version()), ("system", f"{platform.system()} {platform.release()}")]
    print_facts(facts + [(name, version or "not installed") for name, version in found.items()])
    if health is not None:
        print_line()
        print_facts(
            [
                ("store", health.path),
                ("filesystem", f"{health.filesystem or 'unknown'}, {health.free_bytes:,} bytes free"),
                ("writable", "yes" if health.writable else "no: read_only=True works"),
                ("index", f"{health.index_kind}; {health.evidence}"),
                ("torn tails", str(health.torn)),
                ("opened in", f"{health.open_ms:,.0f} ms"),
            ]
        )
    if tried is not None:
        print_line()
        print_table(
            [("known faults of langgraph", False), ("its own saver", False), ("CkptSaver", False)],
            [(item.fault, _shows(item.with_stock), _shows(item.with_ckptstore)) for item in tried],
        )
    print_problems(problems)


def _shows(shows: Any) -> str:
    return "shows" if shows else "fine"
