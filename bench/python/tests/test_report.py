"""What the report says of documents made for it."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, measurement, refused

from ropekit_bench import results
from ropekit_bench.report import command, page, plots, summary, svg, tables
from ropekit_bench.report.model import machines

TOKENS = (1024, 2048, 4096)


def column(suite, name):
    heading, *rows = tables.rows(suite)
    return [row[heading.index(name)] for row in rows]


def text_of(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@pytest.fixture
def document(make):
    records = []
    for tokens in TOKENS:
        records.append(measurement("ropekit", 1e-6, tokens))
        records.append(measurement("PyTorch naive", 2e-5, tokens))
        records.append(measurement("Liger-Kernel", 9e-7 if tokens == 2048 else 2e-6, tokens))
    looked_for = [
        {"implementation": "Liger-Kernel", "version": "0.8.5", "reason": ""},
        {"implementation": "vLLM", "version": "", "reason": "vllm is not installed"},
    ]
    return make(records, implementations=looked_for)


def test_documents_of_these_tests_follow_the_schema(document):
    results.check(document, "document")


def test_lost_cells_are_marked_as_plainly_as_won_ones(document):
    suite = machines([document])[0].suites["prefill"]
    assert tables.tally(suite) == "first in 2, ▼ NOT first in 1 of 3"
    verdicts = [row[tables.rows(suite)[0].index("against the best peer")] for row in tables.rows(suite)[1:]]
    assert verdicts == ["▲ first, 2.00x Liger-Kernel", "▼ NOT first, 0.90x Liger-Kernel",
                        "▲ first, 2.00x Liger-Kernel"]  # fmt: skip
    html = page.render(machines([document]))
    assert html.count(tables.tally(suite)) == 1
    assert html.count('<td class="won">') == 2
    assert html.count('<td class="lost">') == 2  # among all cases, and where the call is not first
    row = "▼ NOT first | prefill | T 2048 | 0.900x | Liger-Kernel | 1 us | 900 ns"
    assert row in re.sub(" +", " ", summary.summary(machines([document])))


def test_no_figure_stands_without_its_floor(document):
    for suite in machines([document])[0].suites.values():
        heading, *rows = tables.rows(suite)
        for name in ("copy GB/s", "of copy", "A/A", "eager", "host"):
            assert all(row[heading.index(name)] for row in rows)


def test_the_floor_of_a_row_is_that_of_its_record(document):
    for index, record in enumerate(document["records"]):
        record["floor"]["gb_per_second"] = 7.0 + index
    suite = machines([document])[0].suites["prefill"]
    assert (column(suite, "copy GB/s"), column(suite, "GB/s")) == (["7", "10", "13"], ["0.001"] * 3)


def test_speedup_is_over_pytorch_naive(document):
    heading, row, *_ = tables.rows(machines([document])[0].suites["prefill"])
    assert row[heading.index("over naive")] == "20.0x"


def test_implementations_are_compared_within_one_run_alone(make):
    alone = make([measurement("ropekit", 1e-9)])
    alone["command"] = "bench"
    together = make([measurement("ropekit", 3e-6), measurement("Liger-Kernel", 2e-6)])
    (machine,) = machines([alone, together])
    (cell,) = machine.suites["prefill"].cells
    assert cell.seconds("ropekit") == 3e-6
    assert tables.verdict(cell).startswith("▼ NOT first")


def test_kernel_of_our_own_run_stands_beside_the_floor_where_peers_have_calls_alone(make):
    alone = make([measurement("ropekit", 2e-6)])
    alone["command"] = "bench"
    together = make([measurement("ropekit", 4e-6), measurement("ONNX Runtime", 8e-6)])
    for record in together["records"]:
        del record["replay"]
    heading, row = tables.rows(machines([together, alone])[0].suites["prefill"])
    assert row[heading.index("of copy †")].startswith("50.0 %")
    assert row[heading.index("eager")] == "4 us"
    assert row[heading.index("against the best peer")] == "▲ first, 2.00x ONNX Runtime"
    found = machines([together, alone])
    text = tables.suite_markdown("prefill", found[0].suites["prefill"])
    assert "of the peers' run; † kernels alone, of the tool's own run" in text
    assert summary.grid_rows(found)[1] == ["prefill", "50 %"]


def test_overhead_shows_the_host_above_a_copy(make):
    records = [measurement("ropekit", 2e-6, t, suite) for suite in ("overhead", "decode") for t in TOKENS[:2]]
    for record in records[1:]:
        record["floor"]["host_seconds"] = 0.75e-6
    found = make(records)
    results.check(found, "made")
    suites = machines([found])[0].suites
    assert column(suites["overhead"], "above a copy's") == ["-", "+0.25 us"]
    assert "above a copy's" not in tables.rows(suites["decode"])[0]


def test_machines_are_merged_by_device(make):
    documents = [make([measurement("ropekit", 1e-6, t)], name) for name, t in
                 (("A", 1), ("B", 1), ("A", 2))]  # fmt: skip
    found = machines(documents)
    assert [(m.name, len(m.suites["prefill"].cells)) for m in found] == [("A", 2), ("B", 1)]


def test_overview_is_of_the_newest_gpu_with_peers(make):
    names = ("ropekit", "FlashInfer fused")
    records = [
        measurement(n, t, 1, s)
        for n, t in zip(names, (1e-6, 2e-6), strict=True)
        for s in ("prefill", "append")
    ]
    older, newer, cpu = (make(records, f"Device {i}") for i in range(3))
    older["time"], cpu["device"]["backend"] = "2000", "cpu"
    prompt, append = summary.overview_markdown(machines([older, newer, cpu])).split("\n- ")
    assert "**100 %**" in prompt and "an Device 1, the median of 1 cases" in prompt
    assert "**1 of 1**" in append and "than FlashInfer." in append
    assert "No run" in summary.overview_markdown(machines([cpu]))


def test_devices_have_names_that_people_know(make):
    known = {
        "AMD EPYC (Zen 5)": ("AMD EPYC (Zen 5), 1 thread", "Zen 5, 1 thread"),
        "Intel(R) Xeon(R) Processor (Emerald Rapids)": (
            "Intel Xeon (Emerald Rapids), 1 thread", "Emerald Rapids, 1 thread"),
        "Brand (family 6, model 1)": ("Brand (family 6, model 1), 1 thread",) * 2,
    }  # fmt: skip
    for device, names in known.items():
        document = make([measurement("ropekit", 1e-6)], device)
        document["device"]["backend"] = "cpu"
        (machine,) = machines([document])
        assert (machine.name, machine.short) == names


def test_absent_peers_are_listed(document):
    assert "vLLM (vllm is not installed)" in summary.summary(machines([document]))
    assert "vllm is not installed" in page.render(machines([document]))


def test_page_is_self_contained_and_escapes(document):
    document["device"]["name"] = "<b>device</b>"
    html = page.render(machines([document]))
    assert "<b>device" not in html and "&lt;b&gt;device" in html
    assert not re.search(r'(?:src|href)="(?!#)', html.replace("xlink:href", "href"))
    assert "<script" not in html and "url(http" not in html and "@import" not in html


def test_a_bar_in_a_name_is_no_column_of_a_markdown_table(document):
    for record in document["records"]:
        record["label"] = "A | B" if record["shape"]["tokens"] == 1024 else "C"
    heading, _, row, *_ = tables.markdown(tables.rows(machines([document])[0].suites["prefill"])).splitlines()
    assert row.startswith(r"| A \| B | 1024 | ") and len(row) == len(heading)


def test_every_kind_of_figure_is_drawn(document):
    document["records"] += [
        {"case": "", "suite": "accuracy", "implementation": "ropekit", "kernel": "k", "dtype": "f32",
         "angle_mode": "exact", "positions": p, "cos_sin_error": 6e-8, "output_ulp": 1, "samples": 1}
        for p in (1024, 8192)]  # fmt: skip
    for record in document["records"][:9]:
        record["label"] = "Llama-3-8B"
    html = page.render(machines([document]))
    labels = re.findall(r'<svg class="chart" role="img" aria-label="([^"]*)"', html)
    case = "Llama-3-8B, bf16, D 128, cold, kernels alone"
    assert labels == [f"{plots.SHAPE}, bf16", case, "largest error of cos and sin"]


def test_a_line_is_by_replay_or_eager_alone_and_the_figure_says_which(make):
    records = [measurement("ropekit", 1e-6, 2**i, label="Llama-3-8B") for i in range(7)]
    for record in records[:3]:
        del record["replay"]
    (machine,) = machines([make(records)])
    titles = plots.groups(machine.suites["prefill"])
    case = "Llama-3-8B, bf16, D 128, cold, "
    found = {title: len(cells) for title, cells in titles.items()}
    assert found == {case + "calls": 3, case + "kernels alone": 4}
    assert [row[0] for row in plots.speed_rows([machine])] == ["T", "8", "16", "32", "64"]


def test_a_point_lies_where_its_figure_is(make):
    seconds = {1024: 2e-6, 2048: 1.25e-6, 4096: 1e-6}  # 50, 80 and 100 % of the floor
    records = [measurement("ropekit", s, t) for t, s in seconds.items()]
    (machine,) = machines([make(records)])
    (drawn,) = plots.suite_plots(machine.suites["prefill"], plots.looks([machine]))
    points = re.search(r'class="line s0" points="([^"]*)"', drawn)[1].split()
    x, y = zip(*(map(float, point.split(",")) for point in points), strict=True)
    ticks = {t: float(at) for at, t in re.findall(r'<text x="([0-9.]+)" [^>]*middle">([0-9.]+K)<', drawn)}
    assert ticks == pytest.approx(dict(zip(("1K", "2K", "4K"), x, strict=True)))
    rules = {t: float(at) - 4 for at, t in re.findall(r'y="([0-9.]+)" text-anchor="end">([0-9.]+)<', drawn)}
    height = (rules["0"] - rules["100"]) / 100
    assert [(rules["0"] - at) / height for at in y] == pytest.approx([50, 80, 100], abs=0.1)


@pytest.mark.parametrize(("low", "high", "ticks"), [
    (30, 90, [50]), (8, 30, [10, 20]), (15, 4300, [100, 1000]), (5e-8, 0.9, [1e-6, 1e-4, 1e-2])])  # fmt: skip
def test_an_axis_of_decades_has_labels_within_its_ends(low, high, ticks):
    found = svg.Axis([low, high], 100, 0, 10)
    assert all(low <= t <= high for t in found.ticks) and found.ticks == pytest.approx(ticks)
    assert (found(low), found(high)) == (100, 0)


def test_an_implementation_has_one_look_on_every_figure(document):
    names = ("ropekit", "Liger-Kernel", "AITER")
    document["records"] += [
        {"case": "", "suite": "accuracy", "implementation": name, "kernel": "k", "dtype": "f32",
         "angle_mode": mode, "positions": p, "cos_sin_error": 6e-8, "output_ulp": 1, "samples": 1}
        for name, mode in zip((names[0], *names), ("f32", "exact", *["its own"] * 2), strict=True)
        for p in (1024, 8192)]  # fmt: skip
    (machine,) = machines([document])
    looks = plots.looks([machine])
    assert looks["ropekit"] == "s0" and len(set(looks.values())) == len(looks) == 4

    def drawn(figure):
        return set(re.findall(r'class="line (?:dashed )?(s\d+)"', figure))

    assert drawn(plots.error_plot(machine, looks)) == {looks[name] for name in names}
    (figure,) = plots.suite_plots(machine.suites["prefill"], looks)
    assert drawn(figure) == {looks[name] for name in ("ropekit", "PyTorch naive", "Liger-Kernel")}
    assert plots.legend(looks, machine) == [(c, name) for name, c in looks.items()]


def test_command_writes_both(document, tmp_path, capsys):
    source, html, markdown = (str(tmp_path / name) for name in ("a.json", "a.html", "a.md"))
    results.write(document, source)
    assert results.read(source) == document
    assert command.main([source, "--html", html, "--markdown", markdown]) == 0
    assert command.main([source]) == 0
    with open(markdown, encoding="utf-8") as file:
        assert file.read() + "\n" == capsys.readouterr().out


def test_what_json_cannot_say_is_not_written(document, tmp_path):
    path = tmp_path / "a.json"
    results.write(document, path)
    before = path.read_bytes()
    for part in (document["records"][0]["floor"], document["host"]):
        part["gb_per_second"] = float("nan")
        with pytest.raises(results.ResultsError, match="not JSON compliant"):
            results.write(document, path)
        del part["gb_per_second"]
    assert path.read_bytes() == before


def test_command_refuses_what_is_no_result(tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_text("{}")
    assert command.main([str(path)]) == 2
    assert "is a required property" in capsys.readouterr().err


@pytest.mark.parametrize(("peer", "mark"), [
    (0.98e-6, "▼ NOT first, 0.98x Liger-Kernel"), (0.995e-6, "≈ level with Liger-Kernel, 0.99x"),
    (1.005e-6, "≈ level with Liger-Kernel, 1.00x"), (1.02e-6, "▲ first, 1.02x Liger-Kernel")])  # fmt: skip
def test_within_the_disagreement_of_the_floor_nobody_is_first(make, peer, mark):
    found = machines([make([measurement("ropekit", 1e-6), measurement("Liger-Kernel", peer)])])
    assert column(found[0].suites["prefill"], "against the best peer") == [mark]
    assert ('<td class="level">' in page.render(found)) == mark.startswith("≈")


@pytest.mark.parametrize(("a_a", "mark"), [
    ((1.06, 1.01, 1.01), "≈ level with"), ((1.01, 0.94, 1.01), "≈ level with"),
    ((1.01, 1.01, 1.4), "▼ NOT first"), ((1.01, 1.11, 1.01), "◇ unsettled")])  # fmt: skip
def test_the_control_is_that_of_the_call_and_its_rival_and_a_wide_one_levels_nothing(make, a_a, mark):
    records = [measurement(n, s) for n, s in (("ropekit", 1e-6), ("Liger-Kernel", 0.95e-6), ("vLLM", 1e-5))]
    for record, control in zip(records, a_a, strict=True):
        record["self_ratio"] = dict(record["self_ratio"], median=control)
    suite = machines([make(records)])[0].suites["prefill"]
    assert column(suite, "against the best peer")[0].startswith(mark)


@pytest.mark.parametrize(("ours", "near", "far", "mark"), [
    ((9, 10, 13), (12, 12, 12), (20, 20, 20), "◇ unsettled, 1.20x Liger-Kernel"),
    ((9, 10, 11), (12, 12, 12), (11, 20, 20), "◇ unsettled, 1.20x Liger-Kernel"),
    ((7, 10, 11), (8, 8, 8), (20, 20, 20), "◇ unsettled, 0.80x Liger-Kernel"),
    ((5, 10, 11), (12, 12, 40), (13, 20, 30), "▲ first, 1.20x Liger-Kernel"),
    ((9, 10, 40), (5, 8, 8), (9, 12, 20), "▼ NOT first, 0.80x Liger-Kernel")])  # fmt: skip
def test_samples_that_scatter_across_each_other_settle_no_order(make, ours, near, far, mark):
    records = []
    for name, quartiles in (("ropekit", ours), ("Liger-Kernel", near), ("vLLM", far)):
        low, median, high = (1e-7 * q for q in quartiles)
        records.append(measurement(name, median))
        records[-1]["replay"]["seconds"] = {"low": low, "median": median, "high": high}
    found = machines([make(records)])
    assert column(found[0].suites["prefill"], "against the best peer") == [mark]
    assert ("◇ unsettled in 1 of 1" in tables.tally(found[0].suites["prefill"])) == mark.startswith("◇")
    assert ('<td class="level">' in page.render(found)) == mark.startswith("◇")


def test_level_cases_are_counted_apart(make):
    records = [measurement("ropekit", 1e-6, t) for t in TOKENS]
    records += [measurement("Liger-Kernel", s, t) for s, t in zip((1e-6, 2e-6, 5e-7), TOKENS, strict=True)]
    found = machines([make(records)])
    assert tables.tally(found[0].suites["prefill"]) == "first in 1, ▼ NOT first in 1, ≈ level in 1 of 3"
    assert summary.peers_rows(found[0])[1] == ["prefill", "3", "100 %", "1", "1", "-", "1", "-", "-"]
    assert "first in 1 of 3 cases, ▼ NOT first in 1, ≈ level in 1" in summary.summary(found)


def test_a_row_is_of_the_c_call_alone(make):
    records = [measurement("ropekit", 4e-6), measurement("ropekit.apply", 1e-6), measurement("vLLM", 2e-6)]
    suite = machines([make(records)])[0].suites["prefill"]
    assert column(suite, "against the best peer") == ["▼ NOT first, 0.50x vLLM"]
    assert column(suite, "ropekit") == column(suite, "eager") == ["4 us"]
    assert column(suite, "host") == ["2 us"]


def test_a_suite_compared_by_replay_and_eager_says_which(make):
    records = [measurement(n, s, t) for t in TOKENS for n, s in (("ropekit", 1e-6), ("vLLM", 2e-6))]
    del records[1]["replay"]
    suite = machines([make(records)])[0].suites["prefill"]
    assert column(suite, "compared by") == ["eager", "replay", "replay"]
    assert tables.measure(suite) == "kernels alone or calls"


def test_figures_of_the_tools_run_are_not_filled_up_from_the_peers(make):
    together = make([measurement("ropekit", 4e-6, t) for t in (1, 2)])
    for record in together["records"]:
        del record["replay"]
    alone = make([measurement("ropekit", 2e-6, 1)])
    alone["command"] = "bench"
    suite = machines([together, alone])[0].suites["prefill"]
    assert column(suite, "ropekit †") == ["2 us", "-"]
    assert column(suite, "eager") == ["4 us", "4 us"]


def test_every_implementation_shows_replay_eager_and_host(make):
    records = [measurement(name, 1e-6) for name in ("ropekit", "FlashInfer", "ropekit.apply")]
    for index, record in enumerate(records):
        record["eager"]["seconds"] = dict(record["replay"]["seconds"], median=(3 + index) * 1e-6)
        record["eager"]["host_seconds"] = (6 + index) * 1e-6
    del records[1]["replay"]
    records[1]["table_bytes"] = 3 << 19
    (machine,) = machines([make(records)])
    suite = machine.suites["prefill"]
    assert tables.peer_tables(suite) == [
        (title, [["T", "ropekit", "ropekit.apply", "FlashInfer"], ["1024", *cells]])
        for title, *cells in (
            ("Kernels alone", "1 us 100 %", "1 us 100 %", "-"),
            ("Calls", "3 us 100 %", "5 us 100 %", "4 us 100 %"),
            ("The host's part of a call", "6 us", "8 us", "7 us"),
        )
    ]
    line = "tables that a call reads, apart from these bytes: FlashInfer 1.5 MiB"
    assert f"\n- {line}\n" in tables.suite_markdown("prefill", suite)
    assert f"; median with quartiles; {line}.</p>" in page.render([machine])


@pytest.mark.parametrize(("labels", "name"), [(("A", "B"), "case"), (("A", "A"), "D")])
def test_a_column_that_adds_nothing_is_left_out_and_without_peers_the_floor_comes_first(make, labels, name):
    records = [measurement("ropekit", 1e-6, label=label, case=str(i)) for i, label in enumerate(labels)]
    records[1]["shape"]["head_dim"] = 64
    for record in records:
        record["eager"]["host_seconds"] = record["eager"]["seconds"]["median"]
    heading, *_ = tables.rows(machines([make(records)])[0].suites["prefill"])
    assert heading == [name, "ropekit", "GB/s", "copy GB/s", "of copy", "A/A", "eager"]


def test_bytes_have_a_unit_that_leaves_few_digits():
    assert [tables.size(n) for n in (0, 256, 3 << 9, 3 << 19)] == ["-", "256 B", "1.5 KiB", "1.5 MiB"]


def test_cells_that_are_not_first_are_listed(make):
    records = [measurement("ropekit", 1e-6, t) for t in TOKENS]
    records += [measurement("Liger-Kernel", s, t) for s, t in zip((1e-6, 2e-6, 5e-7), TOKENS, strict=True)]
    found = machines([make(records)])
    rows = [
        ["▼ NOT first", "prefill", "T 4096", "0.500x", "Liger-Kernel", "1 us", "500 ns"],
        ["≈ level", "prefill", "T 1024", "1.000x", "Liger-Kernel", "1 us", "1 us"],
    ]
    assert summary.behind_rows(found[0])[1:] == rows
    assert tables.markdown(summary.behind_rows(found[0])) in summary.summary(found)
    behind = text_of(page.render(found)).partition("Everything else")[0]
    assert all(f"prefill, {case} {mark} {x} Liger-Kernel" in behind
               for case, mark, x in (("T 4096", "▼", "0.500x"), ("T 1024", "≈", "1.000x")))  # fmt: skip


def test_losses_of_each_suite_are_listed(make):
    lost = [("prefill", 2.0 + i, 1 << i) for i in range(7)] + [("decode", 1.5, 1)]
    records = [
        measurement(name, 1e-6 * times, tokens, suite=suite)
        for suite, times, tokens in lost
        for name, times in (("ropekit", times), ("vLLM", 1))
    ]
    found = machines([make(records)])
    listed = [(row[1], row[3]) for row in summary.behind_rows(found[0])[1:]]
    assert listed == [*(("prefill", f"{1 / n:.3f}x") for n in (8, 7, 6, 5, 4)), ("decode", "0.667x")]
    assert "the 5 largest losses of a suite; 2 more in the report" in summary.summary(found)


def test_a_case_that_the_call_declined_is_marked_where_a_peer_ran(make):
    records = [measurement(n, s, 1024) for n, s in (("ropekit", 1e-6), ("vLLM", 2e-6))]
    records += [refused("ropekit", "wrong: off by inf", 2048), measurement("vLLM", 2e-6, 2048)]
    records += [refused(name, "no", 4096) for name in ("ropekit", "vLLM")]
    for chosen, first in ((records, 1), (records[2:], 0)):
        found = machines([make(chosen)])
        row = ["▼ NOT measured", "prefill", "T 2048", "-", "vLLM", "-", "2 us"]
        assert summary.behind_rows(found[0])[1:] == [row]
        assert f"first in {first} of {1 + first} cases, ▼ NOT measured in 1" in summary.summary(found)
        text = text_of(page.render(found))
        assert f"prefill : first in {first}, ▼ NOT measured in 1 of {1 + first}" in text
        assert "ropekit declined 1 case: wrong: off by inf" in text and "prefill, T 2048 ▼ - vLLM" in text


def test_markdown_fits_a_terminal(make):
    names = ("ropekit", "PyTorch naive", "torch.compile cached")
    records = []
    for label, dtype, heads in (("DeepSeek MLA, contiguous", "bf16", 64), ("Llama-3-8B", "f32", 128)):
        for tokens in (16384, 131072):
            records += [measurement(n, 1.23e-3, tokens, label=label) for n in names]
            for record in records[-3:]:
                record["shape"] |= {"dtype": dtype, "head_dim": heads}
    calls = [{k: v for k, v in r.items() if k != "replay"} for r in records]
    alone = make(records[::3]) | {"command": "bench"}
    for found in ([make(records)], [make(calls), alone]):
        (machine,) = machines(found)
        text = tables.suite_markdown("prefill", machine.suites["prefill"])
        assert all(len(line) <= tables.WIDTH for line in text.splitlines() if line.startswith("|"))


def test_another_host_driver_features_or_number_of_threads_is_a_section_of_its_own(make):
    def document(change):
        made = make([measurement("ropekit", 1e-6)])
        made["device"] |= {"driver": "1", "features": "wide narrow"}
        made["host"]["cpu"] = "X"
        made["build"]["commit"], made["host"]["threads"] = "aaa", 1
        for part, values in change.items():
            made[part] |= values
        return made

    for change, said in (
        ({"host": {"cpu": "Y"}}, {"host X", "host Y"}),
        ({"host": {"threads": 2}}, {"1 thread", "2 threads"}),
        ({"device": {"driver": "2"}}, {"driver 1", "driver 2"}),
        ({"device": {"features": "narrow"}}, {"wide", "narrow"}),
    ):
        names = [m.name for m in machines([document({}), document(change)])]
        assert sorted(names) == sorted(f"Device, {what}" for what in said)
    (both,) = machines([document({}), document({"build": {"commit": "bbb"}})])
    assert both.name == "Device" and len(both.runs) == 2
    assert [m.name for m in machines([document({}), document({"device": {"name": "Other"}})])] == [
        "Device",
        "Other",
    ]


def test_the_later_run_counts_whatever_the_order_of_files(make):
    first = make([measurement("ropekit", 3e-6, t) for t in TOKENS])
    second = make([measurement("ropekit", 2e-6, t) for t in TOKENS[:2]])
    third = make([measurement("ropekit", 1e-6, TOKENS[2])])
    third["command"] = "bench"
    other = make([measurement("ropekit", 1e-6)], "Another")
    for index, made in enumerate((first, second, third, other)):
        made["time"] = f"2026-01-0{1 + index}T00:00:00Z"
    texts, pages = set(), set()
    for files in itertools.permutations((first, second, third, other, second)):
        found = machines(files)
        texts.add(summary.summary(found))
        if not pages or files[0] is third:
            pages.add(text_of(page.render(found)))
    assert len(texts) == len(pages) == 1
    assert column(found[1].suites["prefill"], "ropekit") == ["2 us", "2 us", "3 us"]
    assert not found[0].replaced
    for said in (
        "peers, 2026-01-02T00:00:00Z replaces 2 records of peers, 2026-01-01T00:00:00Z.",
        "peers, 2026-01-01T00:00:00Z replaces 1 record of bench, 2026-01-03T00:00:00Z.",
    ):
        assert all(said in text for text in texts | pages)


def test_cases_that_every_implementation_declines_are_counted(make):
    together = make([refused(name, "no", t) for name in ("ropekit", "vLLM") for t in TOKENS])
    together["records"][-1]["reason"] = "none"
    together["records"] += [measurement("ropekit", 1e-6, t, "decode") for t in TOKENS]
    alone = make([measurement("ropekit", 1e-6, TOKENS[0]), refused("AITER", "later", TOKENS[1])])
    alone["command"] = "bench"
    declined = [
        "every implementation declined 2 cases: no",
        "ropekit declined 1 case: no",
        "vLLM declined 1 case: none",
    ]
    for documents, cases in (([together], 0), ([together, alone], 1)):
        found = machines(documents)
        assert tables.declined(found[0].suites["prefill"]) == declined
        assert len(found[0].suites["prefill"].ours) == cases
        text = page.render(found)
        assert all(text.count(line) == 1 for line in declined)


@pytest.mark.parametrize(("flaw", "before"), [
    ({"quick": True}, {}), ({"complete": False}, {}), ({"quick": True}, {"complete": False}),
    ({"quick": True}, {"command": "bench"})])  # fmt: skip
def test_a_later_run_that_is_quick_or_did_not_end_replaces_no_full_one(make, flaw, before):
    first = make([measurement("ropekit", 2e-6, 1)]) | before
    second = make([measurement("ropekit", 1e-6, t) for t in (1, 2)]) | flaw
    first["time"], second["time"] = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    found = machines([second, first])
    assert column(found[0].suites["prefill"], "ropekit") == ["2 us", "1 us"]
    marked = "no peer was measured" + "; 1 quick: not for comparison" * ("quick" in flaw)
    assert tables.tally(found[0].suites["prefill"]) == marked
    assert f"prefill : {marked} " in text_of(page.render(found))
    assert summary.grid_rows(found)[0] == ["suite", "Device" + ", quick" * ("quick" in flaw)]


def test_figures_that_a_quick_run_of_the_tool_lends_are_marked(make):
    together, alone = (make([measurement("ropekit", s)]) for s in (4e-6, 2e-6))
    del together["records"][0]["replay"]
    alone |= {"command": "bench", "quick": True}
    (machine,) = machines([together, alone])
    assert "1 quick" in tables.tally(machine.suites["prefill"]) and machine.short == "Device, quick"


def test_declined_cases_are_listed_with_their_reason(make):
    records = [measurement("ropekit", 1e-6, t) for t in TOKENS]
    records += [refused("FlashInfer", "f16 and\nbf16 alone", t) for t in TOKENS]
    records += [refused("AITER", "no", 1024)]
    found = machines([make(records)])
    assert tables.declined(found[0].suites["prefill"]) == [
        "AITER declined 1 case: no",
        "FlashInfer declined 3 cases: f16 and bf16 alone",
    ]
    line = "\n- FlashInfer declined 3 cases: f16 and bf16 alone\n"
    assert line in tables.suite_markdown("prefill", found[0].suites["prefill"])
    assert "<li>FlashInfer declined 3 cases: f16 and bf16 alone</li>" in page.render(found)


def test_a_run_that_did_not_end_says_so(document):
    document["complete"], document["quick"] = False, True
    assert "(quick: not for comparison; not complete)" in summary.summary(machines([document]))
    document["quick"] = False
    assert "(not complete)" in page.render(machines([document]))
    document["suites"] = {"prefill": True, "decode": False, "": False}
    assert "(not complete: decode, as given)" in summary.summary(machines([document]))
    del document["complete"]
    assert "not complete" not in summary.summary(machines([document]))


def test_the_verdict_follows_the_case(document):
    found = machines([document])
    heading = tables.rows(found[0].suites["prefill"])[0]
    assert heading[:2] == ["T", "against the best peer"]


def test_a_range_without_extent_is_one_figure(document):
    heading, row = summary.peers_rows(machines([document])[0])
    assert row[heading.index("over naive")] == "20.0x"


@pytest.fixture
def update(tmp_path):
    """update(*options, **environment): scripts/update_documents in a tree of its own."""
    for name in ("scripts", "bench/results", "docs", "examples"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/update_documents", tmp_path / "scripts")
    (tmp_path / "bench/python").symlink_to(ROOT / "bench/python")
    docs = ("figures.md", "append.md", "attention.md", "testing.md")
    for name in ("README.md", *(f"docs/{name}" for name in docs), "examples/minimal.c"):
        (tmp_path / name).touch()

    def run(*options, **environment):
        script = [sys.executable, tmp_path / "scripts/update_documents", *options]
        return subprocess.run(script, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)

    return run


def test_the_drawn_figure_is_checked_against_the_results(make, update, tmp_path):
    names = ("ropekit", "vLLM")
    measured = make([measurement(n, 1e-6, t, label="Llama-3-8B") for n in names for t in TOKENS])
    results.write(measured, tmp_path / "bench/results/a.json")
    assert "bandwidth.svg" in update("--check").stderr
    assert update().returncode == 0
    assert update("--check").returncode == 0
    measured["records"][0]["replay"]["ratio"]["median"] = 0.5
    results.write(measured, tmp_path / "bench/results/a.json")
    assert "bandwidth.svg" in update("--check").stderr


def test_runs_of_before_the_cpu_backend_was_rebuilt_are_named(make, update, tmp_path):
    documents = {"before": "2026-11-24T14:53:34Z", "behind": "2026-11-24T14:53:36Z"}
    text = tmp_path / "docs/figures.md"
    for name, time in documents.items():
        text.write_text("<!-- begin: older -->\n-\n<!-- end: older -->\n")
        document = {**make([measurement("ropekit", 1e-6, 1)], name), "time": time}
        document["device"]["backend"] = "cpu"
        results.write(document, tmp_path / "bench/results/a.json")
        update()
        assert (f"{name}, 1 thread: the tables below show" in text.read_text()) == (name == "before")


def test_results_that_grow_past_their_bound_are_refused(make, update, tmp_path):
    path = tmp_path / "bench/results/a.json"
    path.write_text(json.dumps(make([])))
    update()
    assert update("--check").returncode == 0
    path.write_text(path.read_text().ljust(10**6 + 1))
    assert "bench/results holds 1000001 bytes; allowed are 1000000" in update("--check").stderr
    path.write_text(path.read_text()[:-1])
    assert update("--check").returncode == 0
    (tmp_path / "docs/performance.md").write_text(151 * "\n")
    assert "docs/performance.md has 151 lines; allowed are 150" in update("--check").stderr


def test_two_devices_are_told_by_operation(make, update, tmp_path):
    cases = {"--tokens=2": 1.0, "--append --tokens=2": 0.99, "--append --k-store-dtype=f8e4m3": 0.98}
    records = [{"case": case, "name": "GPU", "ratio": ratio} for case, ratio in cases.items()]
    document = {**make([]), "command": "devices", "records": records}
    (tmp_path / "bench/results/two.json").write_text(json.dumps(document))
    text = tmp_path / "docs/figures.md"
    text.write_text("<!-- begin: devices -->\n-\n<!-- end: devices -->\n")
    update()
    both = [("rope_apply", 1.0), ("rope_append", 0.99), ("rope_append into fp8", 0.98)]
    told = "; ".join(f"{name} on both {r:.4f} to {r:.4f} of each alone" for name, r in both)
    assert f": {told}.\n" in text.read_text()


def attended(implementation, seconds, tokens, suite="attention"):
    """A measurement of attention by four sequences."""
    more = {"suite": suite, "label": "decode" if tokens == 1 else "prompt", "flops": 3e9}
    record = measurement(implementation, seconds, tokens, **more)
    return {**record, "shape": {**record["shape"], "batch": 4}}


@pytest.mark.parametrize(("name", "shown"), [("attention", "attention"), ("attention-backward", "gradients")])
def test_attention_is_shown_by_what_it_reaches_and_its_tax(name, shown, make, update, tmp_path):
    names = {"ropekit": 1.1e-3, "ropekit, rotated inputs": 1e-3, "ropekit + SDPA": 2e-3}
    document = make([attended(n, s, t, name) for n, s in names.items() for t in (1, 512)])
    found = machines([document])
    (suite,) = found[0].suites.values()
    assert column(suite, "TFLOP/s") == ["2.73"] * 2 and column(suite, "tax") == ["10.0 %"] * 2
    assert column(suite, "against the best peer") == ["▲ first, 1.82x ropekit + SDPA"] * 2
    assert summary.of_floor(suite) == [] and f"| {name} | " not in markdown_of_grid(found)
    text, region = tmp_path / "docs/attention.md", f"<!-- begin: {shown} -->\n-\n<!-- end: {shown} -->\n"
    update()
    assert text.read_text() == ""
    text.write_text(region)
    update()
    assert "No run is in bench/results." in text.read_text()
    results.write(document, tmp_path / "bench/results/one.json")
    update()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.read_text().splitlines()[3:-1]]
    assert rows == [
        ["decode", "4 x 1", "128", "bf16", "9.091e-07 GB/s, 10.0 %, 1.82x ropekit + SDPA"],
        ["prompt", "4 x 512", "128", "bf16", "2.73 TFLOP/s, 10.0 %, 1.82x ropekit + SDPA"],
    ]
    assert update("--check").returncode == 0


def test_append_is_shown_by_rotations_of_the_tools_own_run(make):
    """Whichever run its peers come from."""
    more = {"suite": "append", "label": "decode"}
    steps, rotation = "ropekit, step after step", "ropekit, rotation of as many bytes"
    took = {"ropekit": 3e-6, steps: 6e-6, rotation: 2e-6}
    own = make([measurement(n, s, 1, **more) for n, s in took.items()])
    own["command"] = "bench"
    peers = make([measurement(n, s, 1, **more) for n, s in (("ropekit", 4e-6), ("vLLM", 8e-6))])
    words = {"bench": "33 %, 1.50 rotations, 2.00x step after step", "peers": "25 %, 2.00x vLLM"}
    words["both"] = "25 %, 1.50 rotations, 2.00x vLLM"
    for name, documents in (("bench", [own]), ("peers", [peers]), ("both", [own, peers])):
        found = machines(documents)
        assert words[name] in summary.append_markdown(found)
        suite = found[0].suites["append"]
        assert name == "peers" or column(suite, "rotations") == ["1.50"]
    assert summary.ahead_markdown(machines([own])) == "No run of append with peers is in bench/results."
    assert summary.ahead_markdown(machines([peers])) == "In no case."
    peers["records"][1] |= {m: measurement("vLLM", 2e-6, 1)[m] for m in ("replay", "eager")}
    (row,) = summary.ahead_markdown(machines([peers])).splitlines()[2:]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        *("▼ NOT first", "T 1", "0.500x", "vLLM", "4 us", "2 us")
    ]


def markdown_of_grid(found):
    return tables.markdown(summary.grid_rows(found))
