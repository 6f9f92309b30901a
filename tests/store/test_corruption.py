"""Damage is noticed: a store returns what was written or raises `Corrupt`; salvage recovers the
rest and reports exactly what is missing."""

import random

import pytest

from strata.errors import AlreadyExists, Corrupt, NotFound, UnknownKind
from strata.store.event_store import Snapshot, Window
from strata.store.seq_ranges import missing
from strata.store.sqlite import SqliteReader, SqliteStore, salvage
from tests.store import images
from tests.store.kinds import CODEC, batch, compact, contents, event, events, fill

DAMAGE = (Corrupt, UnknownKind)
SNAPSHOTS = [Snapshot(position, position, "s", bytes(position)) for position in (60, 80, 100)]


def build(folder, ending):
    """A store with something in every table; returns its files and what it answers.

    It ends closed, with the write-ahead log gone; open, with its newest part in the log only; or
    checkpointed, with all of the log in the main file as well.
    """
    folder.mkdir()
    with SqliteStore(folder / "log.db", CODEC) as store:
        fill(store, rows=8)
        sent = [batch(0, 20, node="w1", offset_ns=7), batch(80, 100)]
        store.append(events(80, 400), incarnation=1, expected=80, batches=sent)
        for snapshot in SNAPSHOTS:
            store.save_snapshot(snapshot)
        store.release("w0", 1, 50)
        store.release("w1", 1, 20)
        assert compact(store)
        store._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        fill(store, rows=8)
        if ending == "checkpointed":
            store._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        truth, image = answers(store), images.take(folder)
    return (images.take(folder) if ending == "closed" else image), truth


def answers(store):
    """What all the ways of asking give."""
    return {
        "facts": list(store.read()),
        "all": list(store.query()),
        "node": list(store.query(Window(node="w0"))),
        "kind": list(store.query(Window(60_000, kinds=frozenset({"Finished"})))),
        "window": list(store.query(Window(90_000, 200_000))),
        "streams": [(each, store.last_seq(*each), store.gaps(*each)) for each in store.streams()],
        "moments": [store.position_at(1_000 * at) for at in range(49, 480, 13)],
        "tail": list(store.read(store.position - 3)),
    }


def genuine(truth):
    """What salvage may find: also what had been released, if the note of that is lost."""
    old = [("w0", 1, event(seq, 1_000 * seq + 500)) for seq in range(80)]
    return truth["all"] + old + [("w1", 1, event(seq, 1_000 * seq + 7)) for seq in range(20)]


def flipped(data: bytes, at: int, length: int = 1) -> bytes:
    change = random.Random(at).randrange(1, 256)
    damaged = bytes(byte ^ change for byte in data[at : at + length])
    return data[:at] + damaged + data[at + length :]


def require_noticed(path, truth):
    """The truth, or `Corrupt` with the file's name and a hint. Returns whether it was noticed."""
    noticed = None
    try:
        with SqliteReader(path, CODEC) as store:
            found, snapshot = answers(store), store.load_snapshot(None, "s")
    except DAMAGE as error:
        noticed = error
    if noticed is None:
        assert found == truth
        assert snapshot in SNAPSHOTS
        return False
    assert path.name in noticed.message
    assert noticed.hint
    return True


def require_salvaged(path, to, truth):
    """No invented row, no unreported loss, and unchanged damaged files."""
    before = images.take(path.parent)
    report = salvage(path, to)
    assert images.take(path.parent) == before
    with SqliteStore(to, CODEC) as store:
        kept = [range(*each) for each in missing(report.missing_facts, 0, len(truth["facts"]))]
        facts = [fact for part in kept for fact in store.read(part.start, part.stop)]
        assert facts == [fact for fact in truth["facts"] if any(fact.seq in part for part in kept)]
        assert len(facts) == report.facts
        for first, _ in report.missing_facts:
            if first < store.position:
                with pytest.raises(Corrupt, match=f"@{first} "):
                    list(store.read(first))
        found = [repr(each) for each in store.query()]
        assert set(found) <= set(map(repr, genuine(truth)))
        assert len(found) == len(set(found))
        found = set(found)
        lost = {each[0] for each in truth["all"] if repr(each) not in found}
        assert lost <= {"coordinator"} or report.missing_batches
        fill(store, rows=1, facts=5, batches=False)
    return report


def damage_everywhere(ram, name, ending, places, length=1):
    image, truth = build(ram / "origin", ending)
    noticed = 0
    step = len(image[name]) // places
    for number, at in enumerate(range(0, len(image[name]), step)):
        damaged = image | {name: flipped(image[name], at, length)}
        path = images.put(ram / "damaged", damaged)
        if require_noticed(path, truth):
            noticed += 1
            if number % 8 == 0:
                path = images.put(ram / "damaged", damaged)
                require_salvaged(path, ram / "salvaged" / f"{at}.db", truth)
    assert noticed


@pytest.fixture(autouse=True)
def _folder(ram, small_segments):
    (ram / "salvaged").mkdir()


CASES = [
    ("log.db", "closed"),
    ("log.db", "open"),
    ("log.db-wal", "open"),
    ("log.db-wal", "checkpointed"),
]


@pytest.mark.parametrize(("name", "ending"), CASES)
def test_flipped_byte_is_noticed(ram, name, ending):
    damage_everywhere(ram, name, ending, places=120)


@pytest.mark.parametrize(("name", "ending"), CASES)
def test_lost_sector_is_noticed(ram, name, ending):
    damage_everywhere(ram, name, ending, places=30, length=512)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "ending"), CASES)
def test_flipped_byte_anywhere_is_noticed(ram, name, ending):
    damage_everywhere(ram, name, ending, places=1_200)


@pytest.mark.parametrize("name", ["log.db", "log.db-wal"])
def test_file_cut_short_is_noticed(ram, name):
    image, truth = build(ram / "origin", "open")
    for length in (0, 10, 32, 4_096, 9_000, len(image[name]) // 2):
        path = images.put(ram / "damaged", image | {name: image[name][:length]})
        if name == "log.db-wal" or length > 0:
            assert require_noticed(path, truth) or name == "log.db"
        else:
            with pytest.raises(Corrupt, match="acknowledged"):
                SqliteStore(path, CODEC)


def test_lost_write_ahead_log_is_noticed(ram):
    image, _ = build(ram / "origin", "open")
    del image["log.db-wal"]
    path = images.put(ram / "damaged", image)
    for opening in (SqliteReader, SqliteStore):
        with pytest.raises(Corrupt) as caught:
            opening(path, CODEC)
        assert caught.value.hint
    left = images.take(path.parent)
    assert left.pop("log.db-wal", b"") == b""
    assert left == image, "a refused opening changes nothing"


def test_lost_or_damaged_mark_stops_nothing(ram):
    image, truth = build(ram / "origin", "open")
    mark = image.pop("log.db.mark")
    for left in (
        {},
        {"log.db.mark": b""},
        *({"log.db.mark": flipped(mark, at)} for at in range(32)),
    ):
        path = images.put(ram / "damaged", image | left)
        with SqliteStore(path, CODEC) as store:
            assert answers(store) == truth


def test_damaged_snapshot_costs_time_not_truth(ram):
    with SqliteStore(ram / "log.db", CODEC) as store:
        fill(store, rows=10)
        for snapshot in SNAPSHOTS:
            store.save_snapshot(snapshot)
        store._db.execute("UPDATE snapshots SET state = x'00' WHERE position >= 80")
        assert store.load_snapshot(None, "s") == SNAPSHOTS[0]


def test_verify_names_the_damage(ram):
    with SqliteStore(ram / "log.db", CODEC) as store:
        fill(store, rows=10)
        assert store.verify() == []
        store._db.execute("UPDATE batches SET count = 11 WHERE id = 3")
        store._db.execute("UPDATE facts SET kinds = ' Other ' WHERE position = 40")
        found = " ".join(store.verify())
        assert "row 3 of batches" in found
        assert "row 40 of facts" in found


def test_row_that_vanished_is_noticed(ram):
    with SqliteStore(ram / "log.db", CODEC) as store:
        fill(store, rows=10)
        store._db.execute("DELETE FROM facts WHERE position = 40")
        assert list(store.read(0, 40)) == events(0, 40)
        with pytest.raises(Corrupt, match="@40 to @49 are missing"):
            list(store.read())
        with pytest.raises(Corrupt, match="@45 to @49 are missing"):
            list(store.read(45))
        with pytest.raises(Corrupt, match="missing"):
            store.position_at(39_000)


class TestSalvage:
    @pytest.mark.parametrize("ending", ["closed", "open", "checkpointed"])
    def test_intact_store_is_salvaged_completely(self, ram, ending):
        image, truth = build(ram / "origin", ending)
        path = images.put(ram / "copy", image)
        report = require_salvaged(path, ram / "new.db", truth)
        assert (report.missing_facts, report.missing_batches) == ([], 0)
        assert report.missing_seqs == {("w0", 1): [(100, 400)]}, "these never arrived"
        assert report.snapshots == 3
        with SqliteReader(ram / "new.db", CODEC) as store:
            assert list(store.query(Window(node="w0"))) == truth["node"]
            assert not list(store.stream("w0", 1, 0, 50)), "what was released did not come back"

    def test_frames_behind_a_damaged_one_are_found(self, ram):
        image, truth = build(ram / "origin", "open")
        wal = image["log.db-wal"]
        path = images.put(ram / "damaged", image | {"log.db-wal": flipped(wal, 40)})
        report = require_salvaged(path, ram / "new.db", truth)
        assert report.missing_facts == []

    def test_lost_page_costs_only_its_rows(self, ram):
        folder = ram / "origin"
        folder.mkdir()
        with SqliteStore(folder / "log.db", CODEC) as store:
            fill(store, rows=200, batches=False)
        image = images.take(folder)
        main = image["log.db"]
        lost = []
        for page in range(len(main) // 4096):
            damaged = main[: 4096 * page] + bytes(4096) + main[4096 * (page + 1) :]
            path = images.put(ram / "damaged", image | {"log.db": damaged})
            report = salvage(path, ram / "salvaged" / f"{page}.db")
            assert report.facts + sum(stop - first for first, stop in report.missing_facts) == 2_000
            lost.append(2_000 - report.facts)
        assert sum(lost) == 2_000, "each row is on one page"
        assert max(lost) < 200

    def test_log_can_be_ended_before_a_hole(self, ram):
        with SqliteStore(ram / "log.db", CODEC) as store:
            fill(store, rows=10)
            store._db.execute("DELETE FROM facts WHERE position = 40")
        report = salvage(ram / "log.db", ram / "new.db", stop=40)
        assert report.missing_facts == [(40, 100)]
        with SqliteStore(ram / "new.db", CODEC) as store:
            assert list(store.read()) == events(0, 40)
            store.append([event(40)], incarnation=2, expected=40)

    def test_log_can_be_ended_within_a_segment(self, ram):
        with SqliteStore(ram / "log.db", CODEC) as store:
            fill(store, rows=10)
            assert compact(store)
        report = salvage(ram / "log.db", ram / "new.db", stop=17)
        assert report.missing_facts == [(17, 100)]
        with SqliteStore(ram / "new.db", CODEC) as store:
            assert list(store.read()) == events(0, 17)
            assert store.position_at(16_000) == 17
            store.append([event(17)], incarnation=2, expected=17)

    def test_rows_that_were_joined_do_not_come_back_beside_their_segment(self, ram):
        with SqliteStore(ram / "log.db", CODEC) as store:
            fill(store, rows=100, batches=False)
            assert compact(store)
        report = salvage(ram / "log.db", ram / "new.db")
        assert (report.facts, report.missing_facts) == (1_000, [])
        with SqliteStore(ram / "new.db", CODEC) as store:
            assert store.verify() == []
            assert contents(store)[0] == events(0, 1_000)
            assert len(contents(store)[1]) == 1_000

    def test_refuses_to_overwrite_and_to_work_on_nothing(self, ram):
        with pytest.raises(NotFound):
            salvage(ram / "none.db", ram / "new.db")
        SqliteStore(ram / "log.db", CODEC).close()
        with pytest.raises(AlreadyExists):
            salvage(ram / "log.db", ram / "log.db")
