"""Every error the store raises, in one tree.

The root is `CkptStoreError`. Each error also subclasses the builtin that habit or the LangGraph contract expects
(`KeyError`, `ValueError`, `TypeError`, `RuntimeError`, `OSError`, `TimeoutError`), so code that knows nothing of this package
still catches it. A message says what went wrong, where, and what to do; it never contains a stored value.
"""

from __future__ import annotations


class CkptStoreError(Exception):
    """Root of all errors of this package."""

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0]) if self.args else ""


# -- what the caller gave ------------------------------------------------------------------------------------------------


class InvalidArgumentError(CkptStoreError, ValueError):
    """An argument is outside its range; the message names it, its value and the range."""


class WrongTypeError(InvalidArgumentError, TypeError):
    """An argument has another type than is needed; the message names it and its value."""


class MissingConfigError(InvalidArgumentError, KeyError):
    """The config lacks `configurable.thread_id`."""


class SerializationError(CkptStoreError, TypeError):
    """The serde refused a value; the message names the channel and the path inside the value."""


class ReducerError(CkptStoreError, TypeError):
    """A channel cannot take a write: it has another type than its reducer needs."""


class MissingReducerError(CkptStoreError, LookupError):
    """A channel has to be rebuilt from its writes and its reducer is not known: give it when you open the thread."""


class SchemaError(CkptStoreError, ValueError):
    """A schema that does not agree with the one the thread was written with, or a channel that it does not name."""


class ValueTooLargeError(CkptStoreError, ValueError):
    """A value is larger than `max_value_bytes`; the message names thread, channel, size and limit."""


class StoreClosedError(CkptStoreError, RuntimeError):
    """The store was closed; open it again."""


class ReadOnlyError(CkptStoreError, RuntimeError):
    """A write was asked of a store opened with `read_only=True`."""


class ThreadExistsError(CkptStoreError, ValueError):
    """A thread cannot be copied onto one that holds records."""


class ThreadDeletedError(CkptStoreError, RuntimeError):
    """A late call names a checkpoint that `delete_thread` removed and nobody stored since (docs/guarantees.md, 'Late writes')."""


class ConflictError(CkptStoreError, RuntimeError):
    """The head of the lane is not the parent this call expected."""


class ModeMismatchError(CkptStoreError, RuntimeError):
    """The store was opened with another channel mode than the one it keeps."""


# -- what is on disk -----------------------------------------------------------------------------------------------------


class NotAStoreError(CkptStoreError, ValueError):
    """The path is something else than a store: a file, or a folder with other contents."""


class StoreMissingError(CkptStoreError, FileNotFoundError):
    """There is no store at this path and the call does not create one."""


class FormatVersionError(CkptStoreError, RuntimeError):
    """The store, or a segment of it, has a format or a feature this version does not know."""


class ForeignSegmentError(CkptStoreError, RuntimeError):
    """A segment belongs to another store (another uuid)."""


class TimelineError(CkptStoreError, RuntimeError):
    """A segment belongs to a timeline that this store never had: two copies of one store were mixed."""


class UnsupportedFilesystemError(CkptStoreError, OSError):
    """The path is on a network filesystem, where file locks and shared memory are not to be trusted."""


class NotWritableError(CkptStoreError, PermissionError):
    """The store cannot be written: permissions or a read-only mount."""


class NoSpaceError(CkptStoreError, OSError):
    """No space is left (disk, quota or file size limit); nothing of the failed call was kept."""


class StorageIOError(CkptStoreError, OSError):
    """The disk failed to read or to write; the message names the place. Nothing of a failed call was kept."""


class CorruptionError(CkptStoreError, RuntimeError):
    """Bytes on disk do not match their checksum, or are missing: the message names segment, offset and LSN."""


class FrameGoneError(CkptStoreError, RuntimeError):
    """What was being read was removed and compacted away in that moment. The store reads again by itself."""


class StaleIndexError(CkptStoreError, RuntimeError):
    """The index points at a frame that is not the one it names; it was marked bad and is rebuilt at the next open."""


class IndexUnusableError(CkptStoreError, RuntimeError):
    """The index cannot be shared with this process: another kind, another version, or another pid namespace."""


# -- what happens at run time --------------------------------------------------------------------------------------------


class LockTimeoutError(CkptStoreError, TimeoutError):
    """A lock was not free in time; the message names the holder and the time waited."""


class DurabilityUnknownError(CkptStoreError, OSError):
    """fsync failed after the call was published: it may be seen and it may be lost. The store refuses writes until it is reopened."""


class StorePoisonedError(CkptStoreError, RuntimeError):
    """An earlier fsync failed; writes are refused until every process has closed the store and one has reopened it."""


# -- lineage -------------------------------------------------------------------------------------------------------------


class CheckpointLineageError(CkptStoreError, RuntimeError):
    """The chain of ancestors cannot be followed."""


class CheckpointParentMissingError(CheckpointLineageError):
    """No parent link is recorded: the only lineage error that may allow a chronological fallback."""


class CheckpointLineageIntegrityError(CheckpointLineageError):
    """A cycle, a dangling or removed parent, or a record that is not the one the chain names: history was lost."""
