from __future__ import annotations

from pathlib import Path

import pytest

from evenflow.errors import Misconfigured
from evenflow.local import database
from evenflow.local.mounts import file_system_of

MOUNTINFO = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 21 0:40 / /mnt/share rw,relatime - nfs4 server:/export rw,vers=4.2
41 40 8:2 / /mnt/share/local rw - xfs /dev/sdb1 rw
42 21 0:44 / /mnt/with\\040blank rw - cifs //server/share rw
43 21 0:45 / /srv rw - ext4 /dev/sdc1 rw
44 21 0:46 / /srv rw shared:7 master:2 - fuse.sshfs host:/ rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/hub", "ext4"),
        ("/mnt/share/hub", "nfs4"),
        ("/mnt/share/local/hub", "xfs"),
        ("/mnt/sharecropper", "ext4"),
        ("/mnt/with blank/hub", "cifs"),
        ("/srv/hub", "fuse.sshfs"),
    ],
)
def test_the_deepest_and_latest_mount_decides(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTINFO) == kind


def test_an_unreadable_table_of_mounts_shows_nothing() -> None:
    assert file_system_of(Path("/anything"), "nonsense\n\n1 2 3") == ""


def test_a_database_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "network_file_system", lambda path: "nfs4")
    with pytest.raises(Misconfigured, match=r"network file system \(nfs4\).*Put it on a local disk"):
        database.connect(tmp_path / "a.sqlite", busy_timeout_s=1)
    assert not (tmp_path / "a.sqlite").exists()
