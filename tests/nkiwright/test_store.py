"""Run folders keep what was found, whatever happens in between."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from nkiwright.errors import StoreError
from nkiwright.events import StrategyNote
from nkiwright.store import RunRecord, RunStore, write_atomic

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def record(task="softmax"):
    return RunRecord(task=task, created=NOON.isoformat(), config={"model": "autoschedule"})


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


@pytest.fixture
def folder(store):
    return store.create(record(), now=NOON)


def test_record_and_result_read_back(folder):
    assert folder.run == "20260301-120000-softmax"
    assert folder.record() == record()
    folder.finish({"solved": True})
    assert folder.record().result == {"solved": True}


def test_keys_reach_neither_record_nor_log(folder):
    key = "sk-" + "abcdefgh12345678"
    folder.finish({"solved": False, "reason": f"401: bad key {key}"})
    folder.append(StrategyNote(text=key), seconds=0)
    for path in folder.path.iterdir():
        assert key not in path.read_text()
    assert len(list(folder.events())) == 1


def test_runs_of_the_same_second_get_their_own_folders(store):
    runs = [store.create(record(), now=NOON).run for _ in range(3)]
    assert len(set(runs)) == 3
    assert store.open("last").run == runs[-1]


def test_hostile_task_name_stays_inside_the_store(store):
    assert store.create(record("../../etc/x y"), now=NOON).path.parent == store.root


def test_candidates_are_written_piece_by_piece(folder):
    folder.save_candidate(7, kernel="import nki\n")
    folder.save_candidate(7, evaluation={"stage": "trace"})
    folder.save_candidate(12, kernel="x")
    assert folder.candidates() == (7, 12)
    assert folder.kernel(7) == "import nki\n"
    assert folder.evaluation(7) == {"stage": "trace"}
    assert folder.evaluation(12) is None
    assert not (folder.candidate_dir(7) / "profile.json").exists()


def test_missing_candidate_names_those_there_are(folder):
    folder.save_candidate(0, kernel="x")
    folder.save_candidate(5, kernel="x")
    with pytest.raises(StoreError, match="no candidate 9") as caught:
        folder.kernel(9)
    assert caught.value.hint == "it has 0 to 5"


def test_winner_is_replaced_as_a_whole(folder):
    folder.save_winner({"kernel.py": "old", "profile.html": "<html>"})
    folder.save_winner({"kernel.py": "new", "certificate.json": {"seed": 1}})
    winner = folder.path / "winner"
    assert sorted(path.name for path in winner.iterdir()) == ["certificate.json", "kernel.py"]
    assert (winner / "kernel.py").read_text() == "new"
    assert json.loads((winner / "certificate.json").read_text()) == {"seed": 1}
    assert sorted(path.name for path in folder.path.iterdir()) == ["run.json", "winner"]


def test_events_read_back_with_their_times(folder):
    for number in range(3):
        folder.append(StrategyNote(text=f"note {number}"), seconds=number / 2)
    logged = list(folder.events())
    assert [item.seconds for item in logged] == [0.0, 0.5, 1.0]
    assert logged[2].event == StrategyNote(text="note 2")


def test_line_cut_short_by_a_kill_is_dropped(folder):
    folder.append(StrategyNote(text="whole"), seconds=0)
    with (folder.path / "events.jsonl").open("a") as file:
        file.write('{"seconds": 1, "event": "Strat')
    assert [item.event for item in folder.events()] == [StrategyNote(text="whole")]
    folder.append(StrategyNote(text="resumed"), seconds=2)
    assert [item.seconds for item in folder.events()] == [0, 2]


def test_damaged_event_names_its_line(folder):
    folder.append(StrategyNote(text="whole"), seconds=0)
    with (folder.path / "events.jsonl").open("a") as file:
        file.write("garbage\n")
    with pytest.raises(StoreError, match=r"events\.jsonl:2"):
        list(folder.events())


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new \ud800")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.txt"]


def test_list_summarises_finished_unfinished_and_damaged_runs(store):
    done = store.create(record(), now=NOON)
    done.finish({"solved": True, "winner": {"latency_ns": 100.0, "speedup": 2.5}})
    store.create(record("rope"), now=NOON + timedelta(seconds=1))
    broken = store.create(record("cumsum"), now=NOON + timedelta(seconds=2))
    (broken.path / "run.json").write_text("{")
    (store.root / "notes").mkdir()
    first, second, third = store.list()
    assert (first.status, first.is_solved, first.latency_ns, first.speedup) == (
        "finished",
        True,
        100.0,
        2.5,
    )
    assert (second.status, second.task, second.is_solved) == ("unfinished", "rope", None)
    assert (third.status, third.task) == ("damaged", None)


def test_unsolved_run_has_no_times(store):
    store.create(record(), now=NOON).finish({"solved": False, "winner": None})
    (summary,) = store.list()
    assert (summary.is_solved, summary.latency_ns) == (False, None)


def test_run_opens_by_unambiguous_beginning(store):
    store.create(record(), now=NOON)
    store.create(record(), now=NOON + timedelta(days=1))
    assert store.open("20260302").run == "20260302-120000-softmax"
    with pytest.raises(StoreError, match="beginning of 2 runs"):
        store.open("202603")


@pytest.mark.parametrize("run", ["nope", "..", "", "/"], ids=["unknown", "dots", "empty", "root"])
def test_unknown_run_is_refused(store, run):
    store.create(record(), now=NOON)
    with pytest.raises(StoreError, match="unknown run"):
        store.open(run)


def test_empty_store_says_how_to_begin(store):
    with pytest.raises(StoreError, match="no runs") as caught:
        store.open("last")
    assert "solve" in (caught.value.hint or "")
    assert store.list() == ()


def test_remove_deletes_only_that_run(store):
    first = store.create(record(), now=NOON)
    second = store.create(record(), now=NOON + timedelta(days=1))
    store.remove(first.run)
    assert not first.path.exists()
    assert [item.run for item in store.list()] == [second.run]


def test_damaged_record_names_line(folder):
    (folder.path / "run.json").write_text('{\n"task": }')
    with pytest.raises(StoreError, match=r"run\.json:2: not valid JSON"):
        folder.record()


def test_record_of_another_version_is_refused(folder):
    (folder.path / "run.json").write_text('{"schema_version": 99}')
    with pytest.raises(StoreError, match="schema version 1 expected, got 99"):
        folder.record()


def test_runs_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make a run folder") as caught:
        RunStore(tmp_path / "file" / "runs").create(record(), now=NOON)
    assert "--runs-dir" in (caught.value.hint or "")
