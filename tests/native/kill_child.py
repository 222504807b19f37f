"""Run by the kill and process tests: a native thread in a process of its own.

server                      forks a child for each line of JSON on stdin; it runs a program and dies on its way
race STORE INDEX NAME       steps with and without an expected head, as told line by line
write STORE INDEX NAME N    steps a branch, and at the head with retries, as fast as it goes
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ckptstore
from ckptstore.errors import ConflictError
from tests.crash.kill_child import Deadly, say
from tests.crash.programs import opened
from tests.native.calls import GIVEN_AGAIN
from tests.native.programs import program, run


def hear() -> str:
    return sys.stdin.readline().strip()


def child(job: dict[str, Any]) -> None:
    """Run calls `first` to the end of a program, and close the store."""
    say(f"pid {os.getpid()}")
    with opened(Path(job["store"]), job["level"], Deadly(job["point"], job["nth"], 0), index=job["index"]) as store:
        say("open")
        for number, call in enumerate(program(job["seed"], job["length"]), 1):
            if number > job["first"]:
                run(store, call)
                say(f"ack {number}")
        if job["linger"]:
            time.sleep(30)  # the kill from outside ends this sleep with the process


def server() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child(json.loads(line))
                status = 0
            finally:
                os._exit(status)
        say(f"end {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


def race(path: str, index: str, name: str) -> None:
    """One step a line, from the head as it was when the line before was answered."""
    with ckptstore.open(path, index=index, durability="process") as store:
        cursor = store.thread("t", schema=GIVEN_AGAIN)
        say("open")
        while number := hear():
            try:
                cursor.step({"log": [f"{name}.{number}"]}, expect_head=True)
                say("won")
            except ConflictError:
                say("lost")
            hear()
            cursor = store.thread("t", schema=GIVEN_AGAIN)
            say("ready")


def write(path: str, index: str, name: str, count: str) -> None:
    """Step a branch of one's own, and the head of another thread until it is not taken by others."""
    with ckptstore.open(path, index=index, durability="process") as store:
        branch = store.thread("branches", schema=GIVEN_AGAIN)
        say("open")
        hear()
        for number in range(int(count)):
            branch.step({"log": [f"{name}.{number}"], "total": 1})
            while True:
                try:
                    store.thread("line", schema=GIVEN_AGAIN).step({"log": [f"{name}.{number}"], "total": 1}, expect_head=True)
                    break
                except ConflictError:
                    continue
        say(f"done {branch.tip}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
