"""What the report says of documents made for it."""

import re

import pytest
from conftest import measurement

from ropekit_bench import results
from ropekit_bench.report import command, page, tables
from ropekit_bench.report.model import machines

TOKENS = (1024, 2048, 4096)


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
    assert tables.tally(suite) == "first in 2 of 3 cases"
    verdicts = [row[tables.rows(suite)[0].index("beside the best peer")] for row in tables.rows(suite)[1:]]
    assert verdicts == ["▲ first, 2.00x Liger-Kernel", "▼ NOT first, 0.90x Liger-Kernel",
                        "▲ first, 2.00x Liger-Kernel"]  # fmt: skip
    html = page.render(machines([document]))
    assert html.count('<td class="won">') == 2
    assert html.count('<td class="lost">') == 1


def test_no_figure_stands_without_its_floor(document):
    for suite in machines([document])[0].suites.values():
        heading, *rows = tables.rows(suite)
        for name in ("floor GB/s", "of floor", "A/A", "eager", "host"):
            assert all(row[heading.index(name)] for row in rows)


def test_speedup_is_over_pytorch(document):
    heading, row, *_ = tables.rows(machines([document])[0].suites["prefill"])
    assert row[heading.index("over PyTorch")] == "20.0x"


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
    assert row[heading.index("of floor")].startswith("50.0 %")
    assert row[heading.index("beside the best peer")] == "▲ first, 2.00x ONNX Runtime"


def test_machines_are_merged_by_device(make):
    documents = [make([measurement("ropekit", 1e-6, t)], name) for name, t in
                 (("A", 1), ("B", 1), ("A", 2))]  # fmt: skip
    found = machines(documents)
    assert [(m.name, len(m.suites["prefill"].cells)) for m in found] == [("A (cuda)", 2), ("B (cuda)", 1)]


def test_absent_peers_are_listed(document):
    assert "vLLM (vllm is not installed)" in tables.summary(machines([document]))
    assert "vllm is not installed" in page.render(machines([document]))


def test_page_is_self_contained_and_escapes(document):
    document["device"]["name"] = "<b>device</b>"
    html = page.render(machines([document]))
    assert "<b>device" not in html and "&lt;b&gt;device" in html
    assert not re.search(r'(?:src|href)="(?!#)', html.replace("xlink:href", "href"))
    assert "<script" not in html and "url(http" not in html and "@import" not in html


def test_every_kind_of_figure_is_drawn(document):
    document["records"] += [
        {"case": "", "suite": "accuracy", "implementation": "ropekit", "kernel": "k", "dtype": "f32",
         "angle_mode": "exact", "positions": p, "cos_sin_error": 6e-8, "output_ulp": 1, "samples": 1}
        for p in (1024, 8192)]  # fmt: skip
    html = page.render(machines([document]))
    labels = re.findall(r'<svg role="img" aria-label="([^"]*)"', html)
    wanted = ["bandwidth", "of the floor", "speed-up", "error against position", "host cost"]
    assert [label.split(": ")[-1] for label in labels] == wanted
    assert "#010203" not in html


def test_command_writes_both(document, tmp_path, capsys):
    source, html, markdown = (str(tmp_path / name) for name in ("a.json", "a.html", "a.md"))
    results.write(document, source)
    assert results.read(source) == document
    assert command.main([source, "--html", html, "--markdown", markdown]) == 0
    assert command.main([source]) == 0
    with open(markdown, encoding="utf-8") as file:
        assert file.read() + "\n" == capsys.readouterr().out


def test_command_refuses_what_is_no_result(tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_text("{}")
    assert command.main([str(path)]) == 2
    assert "is a required property" in capsys.readouterr().err
