"""Peers of append that run on a CPU: right where they are timed, declined where they are wrong."""

import pytest
import torch
from conftest import check_others_decline, peer_of

from ropekit_bench import harness, results
from ropekit_bench.append_case import AppendCase, append_refusal
from ropekit_bench.case import Declined
from ropekit_bench.compare import Comparison
from ropekit_bench.operations import make_case
from ropekit_bench.peers import Peer

NAMES = ("ropekit", "ropekit.append", "ropekit steps", "PyTorch cached", "torch.compile cached", "llama.cpp")
F32_TO_F16 = ("Llama-3-8B, f32 to f16", "Qwen3-8B, f32 to f16")
SMALL = {"batch": 1, "tokens": 19, "q_heads": 3, "k_heads": 2, "max_position": 100}


@pytest.fixture(scope="module")
def shapes(tool):
    """The suite's shapes, each kind once, with fewer tokens and heads."""
    found = {}
    for case in tool.list("append", False)["records"]:
        shape = {**case["shape"], **SMALL}
        append = dict(shape["append"])
        if "v_heads" in append:
            append["v_heads"] = 2
        if append.get("k_norm_dim"):
            shape |= {"k_heads": 1}
        if append.get("k_source"):
            shape |= {"q_heads": 0}
        found.setdefault(case["label"], {**shape, "append": append})
    return found


LABELS = (
    *("Llama-3-8B", "Llama-3-8B, fp8", "Qwen3-8B", "Qwen3-8B, fp8", "DeepSeek-V3 MLA"),
    *("Llama-3-8B, decode", "Qwen3-8B, decode", "Qwen3-8B, fp8, decode", "DeepSeek-V3 MLA, decode"),
    *("keys moved", "keys moved, fp8"),
    *F32_TO_F16,
)


def case_of(shape):
    return make_case(shape, torch.device("cpu"), 0, 1, False)


def test_every_label_of_the_suite_is_tested(shapes):
    assert set(shapes) == set(LABELS)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", NAMES)
def test_peer_is_right(name, label, shapes, tool):
    if name.startswith("torch.compile") and label not in ("Qwen3-8B, fp8", "keys moved"):
        pytest.skip("what is compiled is tested where it differs most")
    case = case_of(shapes[label])
    if name == "llama.cpp" and label not in F32_TO_F16:
        with pytest.raises(Declined, match="f32"):
            peer_of(name, tool).prepare(case)
        return
    checked = case.check(peer_of(name, tool).prepare(case))
    assert checked["max_error"] > 0 and checked["elements"] >= 16 * 2 * 128  # of a sample


def test_others_decline(shapes, tool):
    check_others_decline(case_of(shapes["Llama-3-8B"]), tool, NAMES, "append")
    rotation = {k: v for k, v in shapes["Llama-3-8B"].items() if k not in ("operation", "append")}
    with pytest.raises(Declined, match="has no rotation alone"):
        peer_of("ropekit.append", tool).prepare(case_of(rotation))


@pytest.mark.parametrize("part", ["q", "k", "v", "one slot", "nan", "scale"])
def test_wrong_peer_is_not_timed(part, shapes, tool):
    case = case_of(shapes["Qwen3-8B, fp8"])
    right = peer_of("ropekit", tool).prepare(case)

    def run(slot):
        q = right(slot)
        k_cache, v_cache = case.caches(slot)
        if part == "q":
            return case.tensors(slot)[0]
        if part == "nan":
            q[-1, 0, 0] = float("nan")
        elif part == "k":
            k_cache.zero_()
        elif part == "v":
            v_cache.view(torch.uint8).copy_(v_cache.view(torch.uint8).flip(-1))
        elif part == "scale":
            v_cache.copy_((v_cache.float() / 2).to(v_cache.dtype))
        else:
            at = int(case.slots[-1])
            k_cache.flatten(0, 1)[at] = k_cache.flatten(0, 1)[int(case.slots[0])].clone()
        return q

    with pytest.raises(Declined, match="wrong: off by"):
        case.check(run)


def test_result_of_another_peer_does_not_pass(shapes, tool):
    case = case_of(shapes["Llama-3-8B"])
    case.check(peer_of("ropekit", tool).prepare(case))
    with pytest.raises(Declined, match="wrong: off by"):
        case.check(lambda slot: case.q_out(slot))


def test_sets_lie_apart_and_exceed_the_cache(shapes):
    cache = 1 << 20
    case = AppendCase(shapes["Llama-3-8B"], torch.device("cpu"), cache, 1, True)
    assert case.sets * case.pitch > 2 * cache and case.floor_bytes <= case.pitch
    for slabs in ([case.tensors(i) for i in range(2)], [case.caches(i) for i in range(2)]):
        starts = sorted(x.data_ptr() for tensors in slabs for x in tensors)
        assert len(set(starts)) == len(starts)
    first, last = case.tensors(0)[0], case.tensors(case.sets - 1)[0]
    assert torch.equal(first, last) and first.data_ptr() != last.data_ptr()


def test_bytes_are_those_of_the_tool(tool):
    """Half of what is read and written: 3 heads of q twice, 2 of k and v each read and stored."""
    listed = tool.list("append", False)["records"]
    shape = next(
        c["shape"] for c in listed if c["label"] == "Llama-3-8B, fp8" and c["shape"]["tokens"] == 2048
    )
    case = case_of(shape)
    assert 2 * case.floor_bytes == 2048 * 128 * (32 * 4 + 2 * 8 * 3)
    moved = case_of({**next(c["shape"] for c in listed if c["label"] == "keys moved"), "tokens": 64})
    assert 2 * moved.floor_bytes == 64 * 8 * 128 * 4


def test_what_peers_do_not_offer_is_refused(shapes):
    shape = shapes["Qwen3-8B"]
    assert not append_refusal(shape)
    for more in ({"kv_cache": "table"}, {"q_norm_type": "layer"}, {"k_scale": "head"}, {"q_factor": 2.0}):
        assert append_refusal({**shape, "append": {**shape["append"], **more}})
    assert append_refusal({**shape, "rope_type": "yarn"})


def test_slots_are_of_pages_in_no_order(shapes):
    whole, decode = (case_of(shapes[label]) for label in ("Llama-3-8B", "Llama-3-8B, decode"))
    assert len(set(whole.slots.tolist())) == whole.count and whole.pages == 2
    assert len(set((decode.slots // decode.page_size).tolist())) == decode.count == decode.pages


def test_records_are_those_of_the_schema(shapes, tool):
    listed = {"case": "c", "suite": "append", "label": "", "cache": "warm", "shape": shapes["Llama-3-8B"]}
    comparison = Comparison(tool, [Peer("ropekit", tool), Peer("PyTorch cached", tool)], 1, 2)
    records = comparison.run(listed)
    assert [r["implementation"] for r in records] == ["ropekit", "PyTorch cached"]
    assert records[0]["bytes"] == 2 * case_of(shapes["Llama-3-8B"]).floor_bytes
    assert records[0]["floor"]["kernel"] in comparison.device.kernels("copy")
    results.check({**tool.header, "command": "peers", "records": records}, "records")
    options = harness.parse(["--output=none", "--suite=append"])
    document = {"records": [], "suites": {}, "implementations": []}
    assert harness.cases(options, tool, document) and document["suites"] == {"append": False}
