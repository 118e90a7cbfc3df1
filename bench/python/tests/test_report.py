"""What reports say of documents made for it."""

import itertools
import json
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, measurement, refused

from ropekit_bench import results
from ropekit_bench.report import command, documents, page, tables
from ropekit_bench.report.model import machines

TOKENS = (1024, 2048, 4096)


def found_of(*made):
    return machines([results.short(document) for document in made])


def suite_of(*made):
    return next(iter(found_of(*made)[0].suites.values()))


def column(suite, name):
    heading, *rows = tables.suite_rows(suite)
    return [row[heading.index(name)] for row in rows]


@pytest.fixture
def document(make):
    records = []
    for tokens in TOKENS:
        records.append(measurement("ropekit", 1e-6, tokens))
        records.append(measurement("PyTorch naive", 2e-5, tokens, table_bytes=4096))
        records.append(measurement("Liger-Kernel", 9e-7 if tokens == 2048 else 2e-6, tokens))
    absent = {"implementation": "vLLM", "version": "", "reason": "vllm is not installed"}
    return make(records, implementations=[absent])


def test_runs_of_one_day_and_build_have_one_row(make):
    peers = [{"implementation": name, "version": "1.0"} for name in ("FlashInfer", "vLLM", "Liger-Kernel")]
    made = [make([], implementations=some) for some in (peers[:1], peers[:2], peers[2:], peers[:2])]
    made[-1]["time"] = "2020-01-01T00:00:00Z"
    _, *rows = documents.run_rows(made)
    assert [row[1] for row in rows] == [f"peers, {x['time'][:10]}" for x in made[2:]]
    assert [row[-1] for row in rows] == [
        "FlashInfer 1.0, vLLM 1.0, Liger-Kernel 1.0",
        "FlashInfer 1.0, vLLM 1.0",
    ]


def test_lost_cases_are_marked_as_plainly_as_won_ones(document):
    results.check(document, "document")
    suite = suite_of(document)
    assert tables.tally(suite.cells) == "first in 2 of 3, ▼ NOT first in 1"
    won, lost = "▲ first, 2.00x Liger-Kernel", "▼ NOT first, 0.90x Liger-Kernel"
    assert column(suite, "against the best peer") == [won, lost, won]
    assert column(suite, "over naive") == ["20.00x"] * 3 and column(suite, "of copy") == ["100.0 %"] * 3
    html = page.render([results.short(document)])
    assert html.count('<td class="won">') == 2
    assert html.count('<td class="lost">') == 2  # among all cases, and where a peer is ahead
    row = "| prefill | T 2048 | ▼ NOT first, 0.90x Liger-Kernel | 1 us | 900 ns |"
    assert row in re.sub(" +", " ", documents.summary([results.short(document)]))


@pytest.mark.parametrize(("ours", "near", "far", "mark"), [
    ((9.9, 10, 10.1), (9.95, 9.95, 9.95), (20, 20, 20), "≈"),
    ((9, 10, 13), (12, 12, 12), (20, 20, 20), "◇"), ((9, 10, 11), (12, 12, 12), (11, 20, 20), "◇"),
    ((7, 10, 11), (8, 8, 8), (20, 20, 20), "◇"), ((5, 10, 11), (12, 12, 40), (13, 20, 30), "▲"),
    ((9, 10, 40), (5, 8, 8), (9, 12, 20), "▼")])  # fmt: skip
def test_samples_that_scatter_across_each_other_settle_no_order(make, ours, near, far, mark):
    records = []
    for name, ends in (("ropekit", ours), ("Liger-Kernel", near), ("vLLM", far)):
        low, median, high = (1e-7 * q for q in ends)
        records.append(measurement(name, median))
        records[-1]["replay"]["seconds"] = {"low": low, "median": median, "high": high}
    (cell,) = suite_of(make(records)).cells
    assert tables.verdict(cell).startswith(mark)


def test_a_copy_that_disagrees_with_itself_levels_nothing(make):
    for a_a, mark in ((1.06, "≈ level"), (0.94, "≈ level"), (1.01, "▼ NOT first"), (1.4, "▼ NOT first")):
        records = [measurement("ropekit", 1e-6), measurement("Liger-Kernel", 0.95e-6)]
        records[0]["self_ratio"] = {"median": a_a, "low": a_a, "high": a_a}
        assert tables.verdict(suite_of(make(records)).cells[0]).startswith(mark)


def test_a_case_that_the_call_declined_is_marked_where_a_peer_ran(make):
    records = [measurement("ropekit", 1e-6), measurement("vLLM", 2e-6), measurement("vLLM", 2e-6, 2048)]
    made = make([*records, refused("ropekit", "wrong: off by\ninf", 2048)])
    suite = suite_of(made)
    assert tables.tally(suite.cells) == "first in 1 of 2, ▼ NOT measured in 1"
    assert tables.declined(suite) == ["ropekit declined 1 case: wrong: off by inf"]
    assert "T 2048" in documents.summary([results.short(made)])


def test_implementations_are_compared_within_one_run_alone(make):
    together = make([measurement("ropekit", 3e-6), measurement("Liger-Kernel", 2e-6)])
    alone = make([measurement("ropekit", 1e-9)]) | {"command": "bench"}
    (cell,) = suite_of(alone, together).cells
    assert cell.seconds("ropekit") == pytest.approx(3e-6) and tables.verdict(cell).startswith("▼ NOT first")


def test_our_kernel_of_the_tools_run_stands_beside_the_copy_where_peers_have_calls_alone(make):
    alone = make([measurement("ropekit", 2e-6)]) | {"command": "bench"}
    together = make([measurement("ropekit", 4e-6), measurement("ONNX Runtime", 8e-6)])
    for record in together["records"]:
        del record["replay"]
    suite = suite_of(together, alone)
    assert column(suite, "of copy") == ["50.0 %"] and column(suite, "call") == ["4 us"]
    assert column(suite, "against the best peer") == ["▲ first, 2.00x ONNX Runtime"]


def test_the_later_run_counts_and_a_quick_one_stands_apart(make):
    first, second, quick = (
        make([measurement("ropekit", s, t) for t in TOKENS[:n]]) for s, n in ((3e-6, 3), (2e-6, 2), (1e-6, 1))
    )
    quick["quick"] = True
    for i, made in enumerate((first, second, quick)):
        made["time"] = f"2026-01-0{1 + i}T00:00:00Z"
    for files in itertools.permutations((first, second, quick)):
        full, fast = found_of(*files)
        assert (full.name, fast.name) == ("Device", "Device, quick")
        assert column(full.suites["prefill"], "ropekit") == ["2 us", "2 us", "3 us"]


def test_machines_are_told_apart(make):
    def named(device, **more):
        made = make([measurement("ropekit", 1e-6)], device)
        made["device"]["backend"] = "cpu"
        made["host"] |= more
        return made

    zen, xeon = "AMD EPYC (Zen 5)", "Intel(R) Xeon(R) Processor (Emerald Rapids)"
    found = found_of(named(zen), named(zen, threads=2), named(xeon), named(xeon, settings={"ROPE_X": "1"}))
    assert [m.name for m in found] == [
        "AMD EPYC (Zen 5), 1 thread",
        "AMD EPYC (Zen 5), 2 threads",
        "Intel Xeon (Emerald Rapids), 1 thread",
        "Intel Xeon (Emerald Rapids), 1 thread, ROPE_X=1",
    ]
    assert found[0].short == "Zen 5, 1 thread"


def test_attention_is_shown_by_what_it_reaches_and_beside_deterministic_peers(make):
    took = {"ropekit": 2e-3, "ropekit + flash": 1e-3, "ropekit + flash deterministic": 3e-3}
    more = {"suite": "attention-backward", "flops": 3e9}
    for any_order, rival in ((False, "ropekit + flash deterministic"), (True, "ropekit + flash")):
        records = [measurement(n, s, 512, **more) for n, s in took.items()]
        for record in records:
            record["shape"]["attention"] = {"nondeterministic": any_order}
        suite = suite_of(make(records))
        assert suite.cells[0].rival == rival and column(suite, "reaches") == ["1.5 TFLOP/s"]
        assert suite.shares == []


def test_a_decoded_token_has_those_as_peers_that_append_it(make):
    took = {"ropekit": 2e-3, "ropekit + flash": 1e-3, "FlashAttention 3": 3e-3}
    suite = suite_of(make(attentions("1K keys", 1, took, decode=True, kv_cache="table")))
    assert suite.cells[0].peers == ["FlashAttention 3"] and suite.cells[0].standing == "first"


def attentions(label, tokens, took, **attention):
    records = [measurement(n, s, tokens, "attention", label, flops=3e9) for n, s in took.items()]
    for record in records:
        record["shape"] = {**record["shape"], "attention": {"mask": "causal", "keys": tokens, **attention}}
    return records


def test_a_duration_has_the_unit_that_it_is_rounded_to():
    said = [tables.duration(ns) for ns in (3.14159, 999.6, 999.4e3, 999.6e3, 2.5e9)]
    assert said == ["3.14 ns", "1 us", "999 us", "1 ms", "2.5 s"]


def test_a_prompt_is_shown_beside_the_same_that_had_rotated(make):
    records = []
    for tokens, ours in ((2048, 4e-4), (1024, 2e-4)):
        took = {"ropekit": ours, "ropekit + FA3": 3e-4, "ropekit + cuDNN": 5e-4}
        records += attentions("32/8 heads", tokens, took, rotate="qk")
        before = {"ropekit": 0.8 * ours, "ropekit + FA3": 2e-4}
        records += attentions("32/8 heads, rotated before", tokens, before, rotate="none")
    backward = [{**r, "suite": "attention-backward"} for r in records if r["shape"]["tokens"] == 2048]
    records += attentions("packed", 2048, {"ropekit": 1e-4}, rotate="qk") + backward  # has no other half
    (machine,) = found_of(make(records, "GPU"))
    heading, *rows = documents.length_rows(machine)
    assert [row[2] for row in rows] == ["1024", "2048", "2048"]
    assert heading[-2:] == ["FA3 alone", "cuDNN alone"]
    assert rows[2] == ["attention and its backward", *rows[1][1:]]
    first = ["1", "1024", "200 us", "15 TFLOP/s", "▲ first, 1.50x ropekit + FA3", "25.0 %", "160 us"]
    assert rows[0] == ["attention", *first, "200 us", "-"]
    said = "- **1 of 2** prompts' attentions, rotation included, are faster on an GPU than a rotation"
    assert f"{said} and then cuDNN or FlashAttention 3, 1 slower." in documents.overview([machine])
    assert "tax against length" in documents.figures([results.short(make(records, "GPU"))])


def test_several_devices_are_shown_beside_one_and_what_was_predicted():
    times = {
        "one device": {"s": 0.02, "captured_s": 0.01},
        "allgather": {"s": 0.02, "captured_s": 0.008},
        "ring": {"s": 0.0125, "exposed_s": 1e-3, "predicted_s": 0.01, "predicted_exposed_s": 0.0},
        "PyTorch": {"refused": "no"},
    }
    assert list(documents.parallel_rows(["8", "forward"], times)) == [
        ["8", "forward", "one device", "20 ms", "1.00x", "-", "-", "-", "10 ms", "1.00x"],
        ["8", "forward", "allgather", "20 ms", "1.00x", "-", "-", "-", "8 ms", "1.25x"],
        ["8", "forward", "ring", "12.5 ms", "1.60x", "1 ms", "10 ms", "0", "-", "-"],
        ["8", "forward", "PyTorch", "no", "-", "-", "-", "-", "-", "-"],
    ]
    run = {
        "ranks": 2,
        "device": "GPU",
        "backend": "nccl",
        "heads": [4, 2],
        "head_dim": 8,
        "dtype": "torch.half",
    }
    told = documents.parallel([run | {"lengths": [{"tokens": 8, "forward": times}]}])
    assert told.startswith("### 2 x GPU, NCCL: 4/2 heads of 8, half") and "| ring " in told


def test_vllm_is_shown_beside_its_own_attention():
    part = {"own_tokens_per_s": 10.4, "ropekit_tokens_per_s": 12.0, "ratio": 1.149}
    case = {"dtype": "bfloat16", "prompt": 128, "batch": 8, "first": part, "rest": part}
    told = documents.served([{"device": "CPU", "threads": 1, "vllm": "1.0", "cases": [case]}])
    assert told.startswith("### CPU, 1 thread, vLLM 1.0")
    assert "bfloat16 8 x 128 10 12 1.15x 10 12 1.15x" in " ".join(told.replace("|", "").split())


def test_a_token_decoded_in_one_call_is_shown_beside_what_does_less(make):
    took = {"ropekit": 2e-5, "ropekit + cuDNN": 3e-5, "FlashAttention 3": 4e-5}
    fields = {"rotate": "q", "kv_cache": "table", "decode": True}
    records = attentions("8K keys", 1, took, **fields)
    records += attentions("fp8", 1, {"ropekit": 2e-5}, **fields)
    (machine,) = found_of(make([{**r, "suite": "attention-decode"} for r in records]))
    rows = [
        ["8K keys", "1", "20 us", "5.0 %", "▲ first, 2.00x FlashAttention 3", "40 us", "-", "30 us"],
        ["fp8", "1", "20 us", "5.0 %", "alone", "-", "-", "-"],
    ]
    assert documents.decode_rows(machine)[1:] == rows


def test_append_is_shown_beside_its_steps(make):
    took = {"ropekit": 3e-6, "ropekit, step after step": 6e-6, "vLLM": 9e-6}
    own = make([measurement(n, s, 1, "append") for n, s in list(took.items())[:2]]) | {"command": "bench"}
    peers = make([measurement(n, took[n], 1, "append") for n in ("ropekit", "vLLM")])
    assert column(suite_of(own, peers), "over steps") == ["2.00x"]
    assert "- **1 of 1** KV-cache writes" in documents.overview(found_of(own, peers))


def test_wrong_outputs_are_told(make):
    made = make([measurement("ropekit", 1e-6)])
    made["records"].append({"case": "--x", "kernel": "k", "refused": 3, "elements": 9})
    assert "WRONG, not timed: --x, k: 3 of 9 outputs outside" in page.render([results.short(made)])


def test_the_page_is_self_contained_and_escapes(document):
    document["device"]["name"] = "<b>device</b>"
    html = page.render([results.short(document)])
    assert "<b>device" not in html and "&lt;b&gt;device" in html
    assert not re.search(r'(?:src|href)="(?!#)', html) and "<script" not in html and "@import" not in html
    assert "vllm is not installed" in html and "tables that a call reads" in html


def test_a_point_lies_where_its_figure_is(make):
    seconds = {1024: 2e-6, 2048: 1.25e-6, 4096: 1e-6}  # 50, 80 and 100 % of the copy's speed
    suite = suite_of(make([measurement("ropekit", s, t) for t, s in seconds.items()]))
    drawn = page.charts(suite, {"ropekit": "s0"})
    points = re.search(r'class="line s0" points="([^"]*)"', drawn)[1].split()
    x, y = zip(*(map(float, point.split(",")) for point in points), strict=True)
    ticks = {t: float(at) for at, t in re.findall(r'<text x="([0-9.]+)" [^>]*middle">([0-9.]+K)<', drawn)}
    assert ticks == pytest.approx(dict(zip(("1K", "2K", "4K"), x, strict=True)))
    rules = {t: float(at) - 4 for at, t in re.findall(r'y="([0-9.]+)" text-anchor="end">([0-9.]+)<', drawn)}
    height = (rules["0"] - rules["100"]) / 100
    assert [(rules["0"] - at) / height for at in y] == pytest.approx([50, 80, 100], abs=0.5)


def test_a_bar_in_a_name_is_no_column_of_a_markdown_table():
    heading, _, row = tables.markdown([["case", "T"], ["A | B", "1024"]]).splitlines()
    assert row == r"| A \| B | 1024 |" and len(row) == len(heading)


def test_files_of_runs_hold_what_reports_show(document, tmp_path, capsys):
    source, runs, html, markdown = (tmp_path / name for name in ("a.json", "b.jsonl", "a.html", "a.md"))
    results.write(document, source)
    assert command.main([str(source), "--runs", str(runs)]) == 0
    assert results.read(runs) == results.read(source)
    assert runs.read_text().count("\n") == 1 + len(TOKENS)
    assert command.main([str(runs), "--html", str(html), "--markdown", str(markdown)]) == 0
    assert command.main([str(source)]) == 0
    assert markdown.read_text() + "\n" == capsys.readouterr().out


def test_what_is_no_result_is_refused(document, tmp_path, capsys):
    path = tmp_path / "a.json"
    for text, said in (("{}", "is a required property"), ("not JSON", "Expecting value")):
        path.write_text(text)
        assert command.main([str(path)]) == 2
        assert said in capsys.readouterr().err
    document["host"]["threads"] = float("nan")
    with pytest.raises(results.ResultsError, match="not JSON compliant"):
        results.write(document, path)
    assert path.read_text() == "not JSON"


def test_documents_are_checked_against_the_results(document, tmp_path):
    for name in ("scripts", "bench/results", "docs", "examples"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/update_documents", tmp_path / "scripts")
    (tmp_path / "bench/python").symlink_to(ROOT / "bench/python")
    readme, figures = tmp_path / "README.md", tmp_path / "docs/figures.md"
    for path in (readme, figures, tmp_path / "docs/benchmarks.md", tmp_path / "examples/minimal.c"):
        path.write_text("<!-- begin: overview -->\n<!-- end: overview -->\n" * (path == readme))
    figures.write_text("<!-- begin: figures -->\n-\n<!-- end: figures -->\n")

    def update(*options):
        script = [sys.executable, tmp_path / "scripts/update_documents", *options]
        return subprocess.run(script, stderr=subprocess.PIPE, text=True, check=False)

    run = results.short(document)
    results.write_runs([run], tmp_path / "bench/results/a.jsonl")
    assert "README.md is not what bench/results" in update("--check").stderr
    assert update().returncode == 0 and update("--check").returncode == 0
    assert "| prefill |" in figures.read_text() and "of a copy's speed" in readme.read_text()
    for case in run["cases"]:
        case["rows"][0]["share"] = 0.5
    results.write_runs([run], tmp_path / "bench/results/a.jsonl")
    assert "is not what bench/results" in update("--check").stderr
    (tmp_path / "bench/results/b.jsonl").write_text(json.dumps(run).ljust(300_001))
    assert "allowed are 300000" in update("--check").stderr
