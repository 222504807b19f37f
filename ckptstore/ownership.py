"""Ownership rules for bindings: the facts that are known when a child is committed, and the rules to choose from.

A binding that knows how its framework runs writes its own `Rule` and `LateRule` and hands them to `Store.put_checkpoint` and
`Store.put_writes`; `native` is what the engine uses by itself.
"""

from ckptstore.lineage.ownership import Edge, LateRule, Rule, Sibling, by_token, native
from ckptstore.storage.catalog import CheckpointEntry, WritesEntry

__all__ = ["CheckpointEntry", "Edge", "LateRule", "Rule", "Sibling", "WritesEntry", "by_token", "native"]
