"""Random changes of trees of plain types, for inputs that are structures and not only bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgpack

Tree = Any
"""None, bool, int, float, str, bytes, and lists and maps of them."""

_INTEGERS = [
    0,
    1,
    2,
    3,
    7,
    15,
    16,
    63,
    127,
    128,
    255,
    256,
    65535,
    65536,
    *(2**n + d for n in (31, 32, 40, 47, 48, 63) for d in (-1, 0, 1)),
]
_OTHERS: list[Tree] = [
    None,
    True,
    False,
    0.5,
    float("inf"),
    "",
    "x",
    "\udcff",
    "msgpack",
    "pickle",
    b"",
    bytes(6),
    bytes(16),
    [],
    {},
    [[]],
]
_OTHERS += [
    {"": 0},
    {1: 2},
    [0, 0],
    [1, 0, 1, 1],
    msgpack.ExtType(1, bytes(16)),
    msgpack.ExtType(0, msgpack.packb(["os", "system", "x"])),
]
# What parsers trip over: depth, sizes that are only announced, numbers without an end, zstd frames that state a size.
_TOKENS = [b"\x91" * 1200, b"[" * 3000, b'{"a":' * 3000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
_TOKENS += [
    b"\xc9\xff\xff\xff\xff\x00",
    b"\xff" * 9,
    b"\xd6\xff\0\0\0\0",
    b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8,
    b"\xe0" + b"\x7f" * 8,
    b"\xc4KF\0",
    b"9" * 5000,
]


def mutated(rng: random.Random, tree: Tree, others: Sequence[Tree]) -> Tree:
    """A copy of a tree with one to three changes.

    Args:
        others: trees to take parts from.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tree = _somewhere(rng, tree, others)
    return tree


def _somewhere(rng: random.Random, tree: Tree, others: Sequence[Tree]) -> Tree:
    if isinstance(tree, list) and tree and rng.random() < 0.92:
        at = rng.randrange(len(tree))
        return [*tree[:at], _somewhere(rng, tree[at], others), *tree[at + 1 :]]
    if isinstance(tree, dict) and tree and rng.random() < 0.92:
        key = rng.choice(list(tree))
        if rng.random() < 0.05:
            return {(_plain(rng) if name == key else name): value for name, value in tree.items()}
        return {**tree, key: _somewhere(rng, tree[key], others)}
    return _changed(rng, tree, others)


def _changed(rng: random.Random, tree: Tree, others: Sequence[Tree]) -> Tree:
    luck = rng.random()
    if luck < 0.15:
        return _any(rng)
    if luck < 0.25:
        return _part(rng, rng.choice(others))
    if luck < 0.28:
        return [tree]
    if isinstance(tree, bool | float) or tree is None:
        return _any(rng)
    if isinstance(tree, int):
        return rng.choice((tree + 1, tree - 1, -tree, tree * 2, tree ^ 1 << rng.randrange(64), rng.choice(_INTEGERS)))
    if isinstance(tree, bytes):
        return _bytes(rng, tree, others)
    if isinstance(tree, str):
        return _bytes(rng, tree.encode("utf-8", "surrogatepass"), others).decode("utf-8", "replace")
    if isinstance(tree, list):
        return _list(rng, tree, others)
    if isinstance(tree, dict) and tree:
        key = rng.choice(list(tree))
        return rng.choice(({name: tree[name] for name in tree if name != key}, {**tree, _plain(rng): tree[key]}))
    return _any(rng)


def _any(rng: random.Random) -> Tree:
    return rng.choice((rng.choice(_INTEGERS), -rng.choice(_INTEGERS), rng.choice(_OTHERS)))


def _plain(rng: random.Random) -> Tree:
    """Something that may be the key of a map."""
    return rng.choice(("", "x", "mode", "numbers", 0, 1, b"x", None, 2**63))


def _part(rng: random.Random, tree: Tree) -> Tree:
    """Some subtree."""
    while rng.random() < 0.85:
        if isinstance(tree, list) and tree:
            tree = rng.choice(tree)
        elif isinstance(tree, dict) and tree:
            tree = tree[rng.choice(list(tree))]
        else:
            break
    return tree


def _list(rng: random.Random, tree: list[Tree], others: Sequence[Tree]) -> Tree:
    at = rng.randrange(len(tree) + 1)
    return rng.choice(
        (
            tree[:at] + tree[at + 1 :],
            [*tree[:at], _any(rng), *tree[at:]],
            tree[:at] + tree[at : at + 1] * rng.choice((2, 3, 300)) + tree[at + 1 :],
            rng.sample(tree, len(tree)),
            [*tree[:at], _part(rng, rng.choice(others)), *tree[at:]],
        )
    )


def _bytes(rng: random.Random, data: bytes, others: Sequence[Tree]) -> bytes:
    if rng.random() < 0.3:
        inside = _unpacked(data)
        if isinstance(inside, list | dict):
            try:
                return bytes(msgpack.packb(_somewhere(rng, inside, others), unicode_errors="surrogatepass"))
            except (ValueError, OverflowError, TypeError):
                return data
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 30)))
    luck = rng.randrange(8)
    if luck == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if luck == 1:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if luck == 2:
        return data[:at] + data[to:]
    if luck == 3:
        return data[:to] + data[at:to] * rng.choice((1, 1, 50)) + data[to:]
    if luck == 4:
        number = rng.choice(_INTEGERS) % 2**64
        size = rng.choice((2, 4, 8))
        packed = (number % 256**size).to_bytes(size, rng.choice(("little", "big")))
        return data[:at] + packed + data[at + size :]
    if luck == 5:
        return data[:at] + rng.choice(_TOKENS) + data[rng.choice((at, to)) :]
    if luck == 6:
        return data[:at]
    return data[:at] + rng.randbytes(rng.randrange(1, 6)) + data[at:]


def _unpacked(data: bytes) -> Tree:
    try:
        return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
    except Exception:
        return None
