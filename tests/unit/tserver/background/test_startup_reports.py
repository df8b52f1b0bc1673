"""Progress of a start: only replicas with data are loaded, and only they are counted."""

from nyala.common.ids import TabletId
from nyala.env.files import SystemFiles
from nyala.replica import witness
from nyala.tserver.startup_reports import StartupReports

GROUPS = [TabletId(c * 32) for c in "abcd"]


def test_witnesses_and_deleted_replicas_are_not_counted_as_replicas_to_open(tmp_path):
    """Two replicas with data, a witness, and a deleted one, which has a superblock only."""
    (tmp_path / "superblock").mkdir()
    for group in GROUPS:
        (tmp_path / "superblock" / group).touch()
    for group in GROUPS[:3]:
        (tmp_path / "data" / group).mkdir(parents=True)
    (tmp_path / "data" / GROUPS[2] / witness.FILE_NAME).touch()
    opening = StartupReports(SystemFiles(), str(tmp_path))
    opening.find()
    assert [r.tablet_id for r in opening.reports(None)] == GROUPS
    assert opening.left == 2
    opening.begins(GROUPS[0])
    assert (opening.left, opening.progress()) == (1, "starting: it opens replica 1 of 2")
    opening.begins(GROUPS[1])
    assert opening.progress() == "starting: it opens replica 2 of 2"
