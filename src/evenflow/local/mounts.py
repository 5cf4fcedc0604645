"""Finds the file system of a path, so that databases on network file systems can be rejected.

SQLite's write-ahead log needs shared memory and reliable locks. Network file systems provide neither, so the file would
be damaged sooner or later.
"""

from __future__ import annotations

import os
from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb2",
        "smb3",
        "smbfs",
        "ncpfs",
        "davfs",
        "afs",
        "ceph",
        "coda",
        "glusterfs",
        "lustre",
        "gpfs",
        "beegfs",
        "orangefs",
        "pvfs2",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.gcsfuse",
        "fuse.goofys",
        "fuse.blobfuse",
        "fuse.blobfuse2",
        "fuse.davfs",
    )
)


def file_system_of(path: Path, mountinfo: str) -> str:
    """The file system type of `path` (absolute, without links), from the text of a mountinfo file.

    "" if no mount covers it. Of two mounts on the same point, the later hides the earlier.
    """
    deepest, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(_unescaped(fields[4]))
        depth = len(point.parts)
        if depth >= deepest and path.is_relative_to(point):
            deepest, kind = depth, after.split(" ")[0]
    return kind


def network_file_system(path: Path) -> str | None:
    """The network file system that `path` is on; None if it is local or unknown."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mountinfo = file.read()
    except OSError:
        return None
    kind = file_system_of(Path(os.path.realpath(path)), mountinfo)
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def _unescaped(field: str) -> str:
    """Decodes the octal escapes that the kernel uses for blanks and backslashes in mount points."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
