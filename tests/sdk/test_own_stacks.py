"""What a worker reads from PyTorch's flight recorder, in the format of `_dump_nccl_trace_json`."""

from strata.core.workers.stack_reports import PendingExchange
from strata.sdk.record.own_stacks import pending_in


def entry(state, name, number, group=("0", "default_pg"), **given):
    """An entry as PyTorch 2.5 and later write it (FlightRecorderDetail.hpp)."""
    return {
        "record_id": 3,
        "pg_id": 0,
        "process_group": list(group),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1_750_000_000_000_000_000,
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0,
        "retired": False,
        "timeout_ms": 600000,
        "is_p2p": False,
    } | given


def dump(*entries, **ranks):
    groups = {
        name.removeprefix("pg"): {"name": name.removeprefix("pg"), "desc": "", "ranks": members}
        for name, members in ranks.items()
    }
    return {"version": "2.10", "pg_config": groups, "entries": list(entries)}


def test_oldest_entry_that_has_not_completed_is_pending():
    found = pending_in(
        dump(
            entry("completed", "all_reduce", 7),
            entry("started", "_all_gather_base", 8),
            entry("scheduled", "all_reduce", 9),
            pg0="[0, 1]",
        )
    )
    assert found == PendingExchange(
        kind="all-gather-base", number=8, pending=True, group="default_pg 0 ranks 0, 1"
    )


def test_groups_of_one_name_with_different_ranks_differ():
    one, other = (
        pending_in(dump(entry("started", "all_reduce", 4, ("5", "dp")), pg5=ranks))
        for ranks in ("[0, 2]", "[1, 3]")
    )
    assert one.number == other.number
    assert one.group != other.group


def test_long_lists_of_ranks_are_short_and_differ():
    lists = [list(range(first, 2048, 2)) for first in (0, 1)]
    groups = [
        pending_in(dump(entry("started", "all_reduce", 4, ("5", "dp")), pg5=str(ranks))).group
        for ranks in lists
    ]
    assert groups[0] != groups[1]
    assert all(len(group) <= 100 for group in groups)


def test_message_between_two_ranks_is_not_compared_with_collectives():
    sent = entry("started", "send 0->1", 0, is_p2p=True, p2p_seq_id=12)
    found = pending_in(dump(sent))
    assert (found.kind, found.number) == ("send 0->1", 12)
    assert found.group == "default_pg 0 send 0->1"


def test_nothing_is_pending_without_entries():
    assert pending_in({"version": "2.10", "pg_config": {}}) is None
    assert pending_in(dump(entry("completed", "all_reduce", 7))) is None
