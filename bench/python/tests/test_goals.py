"""What the table of goals says of runs made for it."""

import pytest
from conftest import measurement, refused

from ropekit_bench import results
from ropekit_bench.report import goals
from ropekit_bench.report.model import machines


def pair(suite, tokens, lead, naive=20):
    """Our record of a case, and those of two that take `lead` and `naive` times as long."""
    times = {"ropekit": 1, "Liger-Kernel": lead, "PyTorch naive": naive}
    return [measurement(name, 1e-6 * time, tokens, suite) for name, time in times.items()]


def found(make, *pairs, backend="cuda"):
    made = make([record for records in pairs for record in records])
    made["device"]["backend"] = backend
    (machine,) = machines([made])
    return [row[2:] for row in goals.rows(machine)[1:]], machine


def test_a_run_without_the_cells_meets_nothing(make):
    rows, _ = found(make, pair("rules", 1, 2))
    assert rows == [["not measured", "-"]] * len(goals.GPU)
    _, alone = found(make, [measurement("ropekit", 1e-6)])
    assert goals.section([alone]) == goals.section([]) == "No run with peers."


@pytest.mark.parametrize(("lead", "said", "met"), [
    (2, "first in 2 of 2", "yes"), (1.001, "first in 1, ≈ level in 1 of 2", "no"),
    (0.5, "first in 1, ▼ NOT first in 1 of 2", "no")])  # fmt: skip
def test_first_in_every_cell_from_a_number_of_tokens_on(make, lead, said, met):
    cells = [pair("prefill", t, ratio) for t, ratio in ((1024, 0.5), (2048, lead), (4096, 2))]
    rows, machine = found(make, *cells, [measurement("ropekit", 1e-6, 8192)])  # which has no rival
    assert rows[0] == [said, met]
    assert f"Met: {int(met == 'yes')} of {len(goals.GPU)}" in goals.section([machine])


def test_a_case_that_the_call_declined_is_not_first(make):
    others = [measurement(name, 1e-6, 4096, "single-head") for name in ("Liger-Kernel", "PyTorch naive")]
    nobody = [refused(name, "out of memory", 8192, "single-head") for name in ("ropekit", "Liger-Kernel")]
    declined = [refused("ropekit", "wrong: off by inf", 4096, "single-head"), *others]
    rows, _ = found(make, pair("single-head", 2048, 2), declined, nobody)
    assert rows[2] == ["first in 1, ▼ NOT measured in 1 of 2", "no"]
    assert rows[-2] == ["20.0x, ropekit missing in 1", "no"]
    assert found(make, declined)[0][-2] == ["-, ropekit missing in 1", "no"]


@pytest.mark.parametrize(("naive", "met"), [(10, "yes"), (9.9, "no")])
def test_as_many_times_as_fast_in_every_cell(make, naive, met):
    rows, _ = found(make, pair("single-head", 512, 2, naive), pair("single-head", 1024, 2))
    assert rows[-2] == [f"{naive:.1f}x..20.0x", met]


@pytest.mark.parametrize(("flaw", "said", "met"), [
    ({"quick": True}, ("; 1 quick: not for comparison", "; quick"), "no"),
    ({"complete": False}, ("; not complete",) * 2, "no"),
    ({"suites": {"tokens": False}, "complete": False}, ("; not complete",) * 2, "no"),
    ({"suites": {"tokens": True, "decode": False}, "complete": False}, ("", ""), "yes")])  # fmt: skip
def test_a_quick_run_or_one_without_all_cases_meets_no_goal(make, flaw, said, met):
    made = make(pair("tokens", 63488, 2)) | flaw
    results.check(made, "made")
    rows = [row[2:] for row in goals.rows(machines([made])[0])]
    assert [rows[4], rows[-1]] == [["first in 1 of 1" + said[0], met], ["20.0x" + said[1], met]]


def test_on_a_cpu_every_cell_counts(make):
    others = [pair(suite, 1, 2) for suite in goals.EVERY[1:]]
    for lead, said, met in ((2, "first in 10", "yes"), (0.5, "first in 9, ▼ NOT first in 1", "no")):
        rows, _ = found(make, *others, pair(goals.EVERY[0], 1, lead), backend="cpu")
        assert rows[0] == [f"{said} of 10", met]


def test_on_a_cpu_a_suite_without_a_cell_that_a_peer_runs_is_missed(make):
    pairs = [pair(suite, 1, 2) for suite in goals.EVERY[2:]]
    alone = [measurement("ropekit", 1e-6, 1, goals.EVERY[1])]
    rows, _ = found(make, *pairs, alone, backend="cpu")
    assert rows[0] == ["first in 8 of 8; without single-head, tokens", "no"]


def test_every_suite_is_what_the_tool_lists_on_a_cpu(tool):
    listed = {case["suite"] for case in tool.list("all", False)["records"]}
    assert set(goals.EVERY) == listed - {"heads"}
