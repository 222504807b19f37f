"""The folder: what stands where, and the small files around the log.

STORE                      identity: format, uuid, timelines, features; written once and at restore or upgrade
LOCK                       flock: shared while open, exclusive to create, recover and close as the last
segments/<id>.seg          the truth
segments/<id>.hint         directories of a sealed segment, hashed; derivable
torn/                      bytes ever cut from a tail
POISON                     an fsync failed; writes are refused until an exclusive open recovered
index/OWNER                evidence for trusting the index on this boot
index/CLEAN                evidence for trusting it on any boot: only after an orderly last close
index/SHARED               commit lock and the page that processes share
index/COMPACT              flock: somebody compacts
index/<epoch>/             the index itself; an epoch is never opened again once given up
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ckptstore.errors import CorruptionError, FormatVersionError, InvalidArgumentError, UnsupportedFilesystemError
from ckptstore.storage.local.format import MAJOR
from ckptstore.storage.local.vfs import Vfs

# Feature names this version knows, by what an unknown one forbids: nothing, writing, opening.
KNOWN_FEATURES: dict[str, frozenset[str]] = {
    "compatible": frozenset(),
    "read_compatible": frozenset(),
    "incompatible": frozenset(),
}

_SEGMENT_NAME = re.compile(r"[0-9]{20}\.seg", re.ASCII)

_EPOCH_NAME = re.compile(r"[0-9]{8,12}", re.ASCII)
_MOST_EPOCHS = 10**12

_NETWORK = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p ceph glusterfs lustre afs beegfs fuse.sshfs fuse.glusterfs fuse.s3fs fuse.rclone".split()  # noqa: SIM905
)


class Layout:
    """Paths of one store folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "STORE"
        self.lock = root / "LOCK"
        self.poison = root / "POISON"
        self.segments = root / "segments"
        self.torn = root / "torn"
        self.index = root / "index"
        self.owner = self.index / "OWNER"
        self.clean = self.index / "CLEAN"
        self.shared = self.index / "SHARED"
        self.compact = self.index / "COMPACT"

    def segment(self, number: int) -> Path:
        return self.segments / f"{number:020d}.seg"

    @staticmethod
    def numbers(names: Iterable[str]) -> list[int]:
        """Ids of the segments among these names of files, ascending."""
        return sorted(int(name[:20]) for name in names if _SEGMENT_NAME.fullmatch(name))

    def hint(self, number: int) -> Path:
        return self.segments / f"{number:020d}.hint"

    def epochs(self) -> list[int]:
        """Epochs of which something is there."""
        return [int(name) for name in os.listdir(self.index) if _EPOCH_NAME.fullmatch(name)]

    def epoch(self, number: int) -> Path:
        return self.index / f"{number:08d}"


class Identity(NamedTuple):
    """The STORE file."""

    uuid: bytes
    timelines: tuple[bytes, ...]
    """All timelines this store went through, the present one last."""
    features: dict[str, list[str]]
    created_ms: int

    @property
    def timeline(self) -> bytes:
        return self.timelines[-1]

    def unknown(self, what: str) -> list[str]:
        return sorted(set(self.features.get(what, [])) - KNOWN_FEATURES[what])


def new_identity() -> Identity:
    # os.urandom and not uuid.uuid4: test suites patch the latter with a finite sequence.
    return Identity(os.urandom(16), (os.urandom(8),), {name: [] for name in KNOWN_FEATURES}, now_ms())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def write_identity(vfs: Vfs, layout: Layout, identity: Identity) -> None:
    text = json.dumps(
        {
            "ckptstore": MAJOR,
            "uuid": identity.uuid.hex(),
            "timelines": [timeline.hex() for timeline in identity.timelines],
            "features": identity.features,
            "created_ms": identity.created_ms,
        },
        indent=1,
    )
    vfs.write_file(layout.store, text.encode() + b"\n")


def read_identity(vfs: Vfs, layout: Layout) -> Identity:
    """Read STORE.

    Raises:
        CorruptionError: it is not what `write_identity` writes.
        FormatVersionError: a newer format, or a feature that forbids opening.
    """
    try:
        facts = parse_json(vfs.read_file(layout.store))
        major = facts["ckptstore"]
        if not isinstance(major, int) or major > MAJOR:
            raise FormatVersionError(f"{layout.root}: store format {major}, this version knows {MAJOR}: upgrade ckptstore")
        identity = Identity(
            bytes.fromhex(facts["uuid"]),
            tuple(bytes.fromhex(text) for text in facts["timelines"]),
            {name: [str(feature) for feature in facts["features"].get(name, [])] for name in KNOWN_FEATURES},
            int(facts["created_ms"]),
        )
        if len(identity.uuid) != 16 or not identity.timelines or any(len(t) != 8 for t in identity.timelines):
            raise ValueError("wrong lengths")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptionError(f"{layout.store} does not read as the identity of a store: {error}") from None
    if unknown := identity.unknown("incompatible"):
        raise FormatVersionError(f"{layout.root} uses features this version does not know: {', '.join(unknown)}: upgrade ckptstore")
    return identity


def parse_json(data: bytes) -> Any:
    """JSON of a file that somebody else may have written.

    Raises:
        ValueError: it is none, or deeper than anything that is written here.
    """
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: Path, facts: dict[str, Any]) -> None:
    """Replace a small file of the index atomically, without fsync: it counts on this boot only."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(facts) + "\n")
    os.rename(temporary, path)


def read_owner(layout: Layout) -> dict[str, Any] | None:
    """OWNER, or None where it is missing or damaged: both mean no evidence."""
    facts = _read_json(layout.owner)
    if facts is None or type(facts.get("packed", 0)) is not int or not isinstance(facts.get("kind", ""), str):
        return None
    return facts if _is_epoch(facts.get("epoch", 0)) else None


def read_clean(layout: Layout) -> dict[str, Any] | None:
    """CLEAN, or None where it is missing or damaged: both mean no evidence."""
    facts = _read_json(layout.clean)
    end = [] if facts is None else facts.get("end")
    if facts is None or not _is_epoch(facts.get("epoch", 0)) or not isinstance(end, list) or len(end) != 4:
        return None
    return facts if all(type(number) is int and number >= 0 for number in end) else None


def _is_epoch(number: Any) -> bool:
    return type(number) is int and 0 <= number < _MOST_EPOCHS


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        facts = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def boot_id() -> str | None:
    """What tells one boot from another, or None where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def pid_namespace() -> str:
    """The pid namespace of this process; LMDB's reader table breaks across two of them."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "none"


def mount_type(path: Path, mountinfo: str) -> str:
    """Filesystem type of the mount that holds `path`, from the text of /proc/self/mountinfo."""
    target = str(path)
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        mount = fields[4].encode().decode("unicode_escape")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, right.split()[0]
    return kind


def refuse_network_filesystem(path: Path) -> None:
    """Raise where locks and shared memory are not to be trusted.

    Raises:
        UnsupportedFilesystemError
    """
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return
    kind = mount_type(path, mountinfo)
    if kind in _NETWORK:
        raise UnsupportedFilesystemError(
            f"{path} is on a network filesystem ({kind}), where file locks and shared memory are not reliable: "
            "use a local disk, or pass allow_network_filesystem=True if one machine alone ever opens it"
        )


def named_folder(argument: str, path: object) -> Path:
    """The folder that a caller names.

    Raises:
        InvalidArgumentError: names the argument.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or "\0" in str(os.fspath(path)):
        raise InvalidArgumentError(f"{argument}={path!r}: a folder name is needed")
    return Path(os.path.realpath(os.fspath(path)))
