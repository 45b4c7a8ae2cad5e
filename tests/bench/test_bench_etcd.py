"""The rows and tables of our port for clients of etcd."""

from bench.lib.measuring import Run
from bench.report.results import Results
from bench.report.sections import etcd
from bench.runs.etcd import beside, cost

LEASES = {
    "leases": 10_000,
    "lost": 0.0,
    "elections": 0,
    "renewals": 3000.0,
    "renewal_p50_ms": 12.0,
    "renewal_p99_ms": 40.0,
    "rate": 2500.0,
    "p99_ms": 80.0,
    "processor_ms": 1500.0,
}


def test_the_ratio_is_the_median_of_the_turns() -> None:
    ours = [{"rate": 10.0}, {"rate": 90.0}, {"rate": 30.0}]
    theirs = [{"rate": 20.0}, {"rate": 30.0}, {"rate": 30.0}]
    row = beside(ours, theirs)
    assert (row["ours_rate"], row["etcd_rate"], row["rate_ratio"]) == (30.0, 30.0, 1.0)


def test_a_figure_of_zero_has_no_ratio() -> None:
    row = beside([{"us": 5.0}], [{"us": 0.0}])
    assert "us_ratio" not in row
    assert row["etcd_us"] == 0.0


def test_an_operation_costs_what_all_members_spend() -> None:
    run = Run(rate=1.0, p50_ms=1.0, p99_ms=1.0, p999_ms=1.0, leader_us=100.0, follower_us=40.0)
    assert cost(run)["us"] == 180.0


def test_the_tables_have_calls_watches_and_leases() -> None:
    call = beside(
        [{"rate": 2000.0, "p99_ms": 30.0, "us": 300.0}],
        [{"rate": 4000.0, "p99_ms": 20.0, "us": 200.0}],
    )
    event = beside(
        [{"p50_ms": 10.0, "p99_ms": 30.0, "event_us": 30.0}],
        [{"p50_ms": 5.0, "p99_ms": 20.0, "event_us": 20.0}],
    )
    rows = [
        {"door": "gRPC", "call": "Put", "clients": 64, **call},
        {"watched": "one prefix", "watchers": 1000, "puts": 10, **event},
        {"cluster": "quorate", **LEASES},
        {"cluster": "etcd", **LEASES},
    ]
    shown = etcd(Results("etcd", {}, {}, rows))
    assert (
        "| gRPC | Put | 64 | 2,000 | 4,000 | 0.50 | 30.0 | 20.0 | 1.50 | 300 | 200 | 1.50 |"
        in shown
    )
    assert "| 1,000 | one prefix | 10 | 10.0 | 5.0 | 2.00 |" in shown
    assert "| 10,000 | etcd | 0 | 0 | 3,000 | 12.0 | 40.0 | 2,500 | 80.0 | 1,500 |" in shown
