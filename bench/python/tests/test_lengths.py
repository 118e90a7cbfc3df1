"""Attention against length: what is drawn and said of runs with --tax."""

import re

import pytest
import torch
from conftest import measurement

from ropekit_bench import results
from ropekit_bench.compact import compact, expand
from ropekit_bench.compare import beside_ours, paired
from ropekit_bench.operations import make_case
from ropekit_bench.report import lengths, page
from ropekit_bench.report.model import ALONE, BY_CUDA, BY_CUDNN, CALL, IN_TILES, ROTATED, is_peer, machines

CHAIN, DETERMINISTIC = "ropekit + cuDNN", "ropekit + flash deterministic"
# Seconds of attention to 16K tokens by length, and of their rotation; each one's multiples of both.
ATTENDING = {512: 2e-4, 2048: 4e-4, 8192: 1.8e-3, 16384: 3.6e-3, 32768: 1.4e-2, 131072: 2.4e-1}
ROTATING = 1e-4
NAMES = {
    CALL: (1, 0.9), ALONE: (1, 0), BY_CUDA: (1.8, 0.5), BY_CUDA + ROTATED: (1.8, 0), BY_CUDNN: (1, 0.9),
    BY_CUDNN + ROTATED: (1, 0), CHAIN: (1, 1.4), CHAIN + ROTATED: (1.01, 0),
}  # fmt: skip
TILES = {IN_TILES: (1.5, 0.5), IN_TILES + ROTATED: (1.2, 0)}


def records(suite, names, label="32/8 heads"):
    found = []
    for tokens, attending in ATTENDING.items():
        batch = max(1, 16384 // tokens)
        for name, (times, rotations) in names.items():
            seconds = times * attending + rotations * ROTATING * batch * tokens / 16384
            record = measurement(name, seconds, tokens, suite, label, flops=1e9, rounds=30)
            record["shape"] = {**record["shape"], "batch": batch}
            record["kernel"] = "cudnn:sdpa" if name in (CALL, BY_CUDNN) else name
            if is_peer(name):
                record["beside_ropekit"] = {
                    "median": 1.02,
                    "low": 0.98 if tokens == 512 else 1.01,
                    "high": 1.1,
                }
            found.append(record)
    return found


def documents(make):
    forward, both = records("attention", NAMES | TILES), records("attention-backward", NAMES)
    return [make(forward + both + records("attention-backward", {DETERMINISTIC: (2.5, 2)}), "A GPU")]


@pytest.fixture(scope="module")
def shown(make):
    return machines(documents(make))


def test_time_and_tax_of_each_are_drawn(shown):
    found = lengths.families(shown[0].suites["attention"])
    cells = found["32/8 heads of 128, bf16, 16K tokens and more"]
    cell = cells[2]
    assert [c.shape["tokens"] for c in cells] == list(ATTENDING) and cell.attending == ATTENDING[8192]
    assert lengths.tax_of(cell, CALL) == pytest.approx(0.05) and cell.tax == pytest.approx(1.05)
    assert lengths.tax_of(cell, BY_CUDA) == pytest.approx(0.8 + 0.05 / 1.8)
    assert lengths.own_tax(cell, BY_CUDA) == pytest.approx(0.05 / 1.8 / 1.8)
    known = {name: f"s{i}" for i, name in enumerate(lengths.shown(cells))}
    assert list(known) == [CALL, BY_CUDA, BY_CUDNN, IN_TILES, CHAIN]
    times, taxes = dict(lengths.times(cells, known)), dict(lengths.taxes(cells, known))
    assert times["s0"][2] == (8192, pytest.approx(1e6 * 1.89e-3 / 16384))
    assert taxes["s0"][2] == (8192, pytest.approx(5)) and taxes["dashed s3"][2] == (
        8192,
        pytest.approx(27.3, 0.01),
    )


def test_the_figure_has_four_panels_and_one_legend(shown):
    text = lengths.figure(shown)
    assert text.count(">us a token<") == 2 and text.count(">RoPE tax, %") == 2
    drawn = {f"s{i}" for i in range(6)}
    assert set(re.findall(r'class="line (?:dashed )?(s\d)"', text)) == drawn
    legend = dict(re.findall(r'class="line (s\d)" points="[^"]*"/><text [^>]*>([^<]*)<', text))
    assert set(legend) == drawn and set(legend.values()) == {*lengths.WORDS.values(), CHAIN, DETERMINISTIC}


def test_what_it_comes_to_is_said(shown):
    text = lengths.document(shown)
    assert "fastest peer in 5 of 6 cases" in text and "deterministic peer in 5 of 6 cases" in text
    factors = [(1.5 * t + 5e-5 * n) / (1.2 * t) / ((t + 9e-5 * n) / t) for t, n in ((1.8e-3, 1), (0.24, 8))]
    assert f"loses from 8K tokens on by {factors[0]:.2f}x to {factors[1]:.2f}x" in text
    assert "at 8K its rotation adds 27.3 % to the same attention, once ahead 5.0 %" in text
    assert text.count("loses from 8K") == 1 and " 2 x 8192 |" in text
    assert "loses from 8K tokens on by" in page.render(shown)
    assert {c.rival for c in shown[0].suites["attention-backward"].cells} == {DETERMINISTIC}
    assert text.count("The same kernel, named, takes 1.000 to 1.000 of the time") == 2


def test_keys_in_pages_are_counted_apart(make):
    forward = records("attention", NAMES | TILES)
    paged = records("attention", NAMES, "decode")[: 2 * len(NAMES)]
    for record in paged:
        record["case"] += " --kv-cache=table"
        record["shape"]["attention"] = {"kv_cache": "table"}
    text = lengths.document(machines([make(forward + paged, "A GPU")]))
    assert "fastest peer in 5 of 6 cases: its time" in text
    assert "fastest peer in 1 of 2 cases with keys in pages: its time" in text


def test_cases_of_any_order_stand_behind_the_others(make):
    (document,) = documents(make)
    label = f"32/8 heads{lengths.ANY_ORDER}"
    others = records("attention-backward", NAMES | {DETERMINISTIC: (2.5, 2)}, label)
    for record in others:
        record["case"] += " --nondeterministic"
        record["shape"]["attention"] = {"nondeterministic": 1}
    document["records"] += others
    found = machines([document])
    text = lengths.document(found)
    assert text.count("| forward and backward, any order |") == len(ATTENDING)
    assert "fastest peer in 5 of 6 cases, any order: its time" in text
    assert "fastest peer in 5 of 6 cases: its time" in text
    assert lengths.figure(found) == lengths.figure(machines(documents(make)))


def test_a_run_without_rotated_inputs_draws_nothing(make):
    found = machines([make(records("attention", {CALL: (1, 1), CHAIN: (1, 1)}))])
    assert lengths.figure(found) == "" and lengths.document(found) == "No run is in bench/results."
    assert lengths.charts(found[0].suites["attention"], {CALL: "s0"}) == []


def test_a_cpu_has_the_figure_too(make):
    names = {CALL: (1, 0.3), ALONE: (1, 0), "ropekit + SDPA": (1.2, 1), "ropekit + SDPA" + ROTATED: (1.2, 0)}
    document = make(records("attention", names))
    document["device"]["backend"] = "cpu"
    for record in document["records"]:
        record["shape"]["batch"] = 1
        del record["replay"]
    text = lengths.figure(machines([document]))
    assert "bf16, one sequence" in text and text.count(">us a token<") == 1


def test_compact_files_keep_taxes_and_pairs(make):
    (document,) = documents(make)
    for record in document["records"]:
        if record["implementation"] == BY_CUDA:
            record["tax"] = {"median": 1.0625, "low": 1.06, "high": 1.07}
    small = compact(document)
    results.check(small, "compact")
    kept = {r["implementation"]: r for r in expand(small)["records"]}
    assert kept[BY_CUDA]["tax"] == {"median": 1.0625}
    assert kept[CHAIN]["beside_ropekit"] == {"median": 1.02, "low": 1.01, "high": 1.1}
    cells = machines([expand(small)])[0].suites["attention"].cells
    assert {lengths.own_tax(c, BY_CUDA) for c in cells} == {0.0625}
    assert lengths.document(machines([document])) == lengths.document(machines([expand(small)]))


def test_pairs_have_the_interval_of_order_statistics():
    ratios = [float(i) for i in range(1, 31)]  # of 30 the 10th and the 21st
    assert paired(ratios, [1.0] * 30) == {"median": 15.5, "low": 10, "high": 21}
    assert paired(ratios[:6], [1.0] * 6) == {"median": 3.5, "low": 1, "high": 6}
    assert paired(ratios[:5], [1.0] * 5) == {"median": 3}


class Timed:
    def __init__(self, name, samples):
        self.peer = type("Named", (), {"name": name})
        self.samples = {"replay": samples, "eager": []}


def test_samples_of_the_same_round_are_compared():
    samples = {CALL: [1.0, 4.0, 2.0], ALONE: [0.5, 2.0, 1.0], CHAIN: [2.0, 8.0, 4.0]}
    found = [{"implementation": name} for name in samples]
    beside_ours(found, [Timed(*item) for item in samples.items()])
    assert found[0]["tax"] == {"median": 2, "low": 2, "high": 2} and "beside_ropekit" not in found[0]
    assert found[1] == {"implementation": ALONE}
    assert found[2]["beside_ropekit"] == {"median": 2} and "tax" not in found[2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's kernel needs a GPU")
@pytest.mark.parametrize("name", [IN_TILES, IN_TILES + ROTATED])
@pytest.mark.parametrize(("tokens", "dim", "dtype"), [(300, 64, "f16"), (130, 128, "bf16"), (5, 128, "bf16")])
def test_keys_rotated_in_tiles_are_right(name, tokens, dim, dtype, tool):
    from ropekit_bench.peers import load

    pytest.importorskip("triton")
    shape = next(c["shape"] for c in tool.list("attention", False)["records"] if c["label"] == "32/8 heads")
    heads = {"head_dim": dim, "rotary_dim": dim, "k_head_dim": dim, "q_heads": 4, "k_heads": 2}
    shape |= {**heads, "batch": 2, "tokens": tokens, "dtype": dtype}
    shape["attention"] = {**shape["attention"], "keys": tokens}
    case = make_case(shape, torch.device("cuda"), 0, 1, False)
    assert case.check(load(name)(name, tool).prepare_attention(case))["worst"] < 0.5
