"""Looks as metrics, read back by Prometheus' own parser."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from evenflow.model import Group
from evenflow.operate.inspect.metrics import exposition
from evenflow.operate.inspect.watcher import GroupWatcher
from tests.unit.console.scenes import found, lease, look_at, member, record


def read(text: str) -> dict[tuple[str, ...], float]:
    """Each sample by its name and those of its labels that are not the group's."""
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name not in ("namespace", "hub", "group"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_lag_owners_and_instances_are_exported() -> None:
    survey = found(
        members=[member(1), member(2)],
        leases=[lease("0", 1), lease("1", None)],
        records=[record("0", 4), record("1", 9)],
        newest={"0": 10, "1": 9},
    )
    shown = read(exposition([look_at(survey)]))
    assert shown["evenflow_partition_lag_events", "0"] == 6
    assert shown["evenflow_partition_lag_events", "1"] == 0
    assert shown["evenflow_group_lag_events",] == 6
    assert shown["evenflow_partition_owned", "0", "node-1"] == 1
    assert shown["evenflow_partition_owned", "1", ""] == 0
    assert shown["evenflow_instance_partitions", "node-1"] == 1
    assert shown["evenflow_group_instances",] == 2
    assert shown["evenflow_group_findings", "unowned"] == 1
    assert shown["evenflow_group_findings", "stopped"] == 0


def test_what_is_unknown_has_no_sample() -> None:
    shown = read(exposition([look_at(found(leases=[lease("0", 1)], members=[member(1)]))]))
    assert not [sample for sample in shown if sample[0].startswith("evenflow_partition_lag")]
    assert ("evenflow_group_lag_events",) not in shown
    assert ("evenflow_group_events_per_second",) not in shown
    assert shown["evenflow_group_lag_unknown_partitions",] == 1


def test_rates_come_with_the_second_look() -> None:
    watcher = GroupWatcher()
    look_at(found(leases=[lease("0", 1)], members=[member(1)], records=[record("0", 0)]), 0.0, watcher)
    later = found(leases=[lease("0", 1)], members=[member(1, mark=2)], records=[record("0", 50)])
    shown = read(exposition([look_at(later, 5.0, watcher)]))
    assert shown["evenflow_group_events_per_second",] == shown["evenflow_instance_events_per_second", "node-1"] == 10.0


def test_charges_are_exported_for_each_kind_of_operation() -> None:
    charged = replace(member(1), charges={"read feed": 12.5, "write lease": 3.0})
    text = exposition([look_at(found(leases=[lease("0", 1)], members=[charged, member(2)]))])
    shown = read(text)
    assert shown["evenflow_instance_request_units_total", "node-1", "read feed"] == 12.5
    assert shown["evenflow_instance_request_units_total", "node-1", "write lease"] == 3.0
    assert "# TYPE evenflow_instance_request_units_total counter" in text
    assert not [sample for sample in shown if sample[0].endswith("_total") and sample[1] == "node-2"]


def test_odd_names_come_back_as_they_were() -> None:
    name = 'a "quoted" \\ name\nof two lines'
    survey = found(leases=[lease(name, 1)], members=[member(1)])
    [sample] = [
        sample
        for family in text_string_to_metric_families(exposition([look_at(survey)]))
        for sample in family.samples
        if sample.name == "evenflow_partition_status"
    ]
    assert sample.labels["partition"] == name
    assert [sample.labels[label] for label in ("namespace", "hub", "group")] == ["local", "homes", "alerts"]


def test_each_metric_of_all_groups_stands_together() -> None:
    """Prometheus rejects a metric whose samples are not contiguous."""
    one = look_at(found(leases=[lease("0", 1)], members=[member(1)]))
    survey = found(leases=[lease("0", 1)], members=[member(1)])
    other = look_at(replace(survey, group=Group("local", "homes", "other")))
    text = exposition([one, other])
    kinds = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    groups = {sample.labels["group"] for family in text_string_to_metric_families(text) for sample in family.samples}
    assert groups == {"alerts", "other"}
