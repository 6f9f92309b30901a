"""Which file system holds a path: the same name on every host, and none for a local disk."""

import pytest

from strata.storage.mounts import shared_source

TABLE = r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 21 0:50 / /data rw,relatime shared:9 - nfs4 filer:/export/data rw,vers=4.2,addr=10.0.0.9
41 40 8:2 / /data/scratch rw - xfs /dev/nvme0n1 rw
42 21 0:51 / /my\040files rw - cifs //server/share rw
43 21 0:52 / /srv rw master:2 - fuse.sshfs me@host:/srv rw
44 21 0:53 / /overlay rw - overlay overlay rw,lowerdir=/a:/b
45 21 0:54 / /ceph rw - ceph 10.0.0.1,10.0.0.2:/vol rw
46 21 8:3 / /hidden rw - ext4 /dev/sdb1 rw
47 46 0:55 / /hidden rw - nfs filer:/top rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/data/runs/one", "filer:/export/data"),
        ("/data", "filer:/export/data"),
        ("/database", ""),
        ("/data/scratch/x", ""),
        ("/my files/x", "//server/share"),
        ("/srv/me", "me@host:/srv"),
        ("/overlay/x", ""),
        ("/ceph/x", "10.0.0.1,10.0.0.2:/vol"),
        ("/hidden/x", "filer:/top"),
        ("/etc", ""),
    ],
)
def test_source_of_the_mount_that_holds_a_path(tmp_path, path, source):
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    assert shared_source(path, table) == source


def test_host_without_the_table_has_no_sources(tmp_path):
    assert shared_source("/", tmp_path / "missing") == ""
