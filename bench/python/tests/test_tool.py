"""What the tool writes: its schema, and the cases of the suites."""

import json
import re
import shlex
import signal
import subprocess
import time

import pytest
from conftest import ROOT

from ropekit_bench import results

SUITES = {"prefill", "decode", "single-head", "large", "in-place", "heads", "rules", "overhead"}
SUITES |= {"append", "attention", "attention-backward", "attention-decode"}

WRITABLE = "; allowed is a file that can be written"

# Gives the tool's device another backend's name and much memory.
GPU = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ropekit/rope.h>
rope_status rope_device_get(const rope_device *device, rope_device_info *info) {
    rope_status (*get)(const rope_device *, rope_device_info *) = dlsym(RTLD_NEXT, "rope_device_get");
    rope_status status = get(device, info);
    info->backend = "gpu";
    info->memory_bytes = (int64_t)1 << 40;
    return status;
}
"""

# A clock on which the second copy is the fastest.
CLOCK = """
#include <ropekit/rope.h>
rope_status rope_time(rope_device *device, rope_timing *t) {
    static int copies, last;
    const int which = 8 * t->kind + t->candidate, after_others = which != last;
    (void)device;
    t->host_seconds = 1e-6;
    if (t->kind == ROPE_TIME_KERNEL || t->kind == ROPE_TIME_APPLY)
        t->seconds = t->kind == ROPE_TIME_APPLY ? 2e-3 : 1e-3;
    else
        t->seconds = t->candidate == 1 ? ((copies += t->graph) % 2 ? 6e-4 : 4e-4) : 8e-4;
    t->seconds *= after_others ? 10 : 1;
    last = which;
    return ROPE_OK;
}
"""

# A /proc/cpuinfo of the test's own.
CPUINFO = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
int open(const char *path, int flags, ...) {
    int (*next)(const char *, int, int) = dlsym(RTLD_NEXT, "open");
    return next(strcmp(path, "/proc/cpuinfo") == 0 ? getenv("CPUINFO") : path, flags, 0600);
}
"""


# Results that nothing wrote, or in which elements are wrong, once or always.
WRONG = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ropekit/append.h>
#include <ropekit/attention.h>
#include <stdlib.h>
rope_status rope_attention(const rope_plan *plan, const rope_attention_args *args) {
    rope_status (*attend)(const rope_plan *, const rope_attention_args *) =
        dlsym(RTLD_NEXT, "rope_attention");
    static int calls;
    rope_status status = getenv("NOTHING") ? ROPE_OK : attend(plan, args);
    if (getenv("OUT") && calls++ == 0)
        ((float *)args->out.data)[7] *= 1.5f;
    return status;
}
rope_status rope_attention_backward(const rope_plan *plan, const rope_attention_backward_args *args) {
    rope_status (*backward)(const rope_plan *, const rope_attention_backward_args *) =
        dlsym(RTLD_NEXT, "rope_attention_backward");
    static int calls;
    rope_status status = backward(plan, args);
    float *wrong = getenv("DQ") ? args->dq.data : getenv("DK") ? args->dk.data : args->dv.data;
    if (getenv("ONCE") && calls++ == 0)
        wrong[128 + 7] *= 1.5f;
    for (int i = 0; i < 3 * 128 && !getenv("ONCE"); i++)
        wrong[i] *= 2; /* as much when it is rotated */
    return status;
}
rope_status rope_append(const rope_plan *plan, const rope_append_args *args) {
    rope_status (*append)(const rope_plan *, const rope_append_args *) = dlsym(RTLD_NEXT, "rope_append");
    rope_status status = append(plan, args);
    if (getenv("Q"))
        ((float *)args->rope.q.out)[7] *= 1.5f;
    for (int i = 0; getenv("PAGE") && args->k_cache.data && i < 16 * 128; i++)
        ((char *)args->k_cache.data)[i] ^= 1;
    for (int i = 0; getenv("SCALE") && args->k_cache.data && i < 16; i++)
        ((float *)args->k_cache.scale.data)[i] *= 2;
    return status;
}
"""


def built(folder, text):
    """A library that stands before the tool's own."""
    source, library = folder / "before.c", folder / "before.so"
    source.write_text(text)
    command = ["cc", "-shared", "-fPIC", f"-I{ROOT / 'include'}", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True)
    return str(library)


def run(tool_path, *arguments, status=0, **more):
    command = [tool_path, *arguments]
    env = {"ROPE_BACKEND": "cpu", **more}
    answer = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert answer.returncode == status, answer.stderr
    return answer


def documented(tool_path, *arguments, **more):
    """What a command writes, which follows the schema."""
    document = json.loads(run(tool_path, *arguments, "--json", **more).stdout)
    results.check(document, "stdout")
    return document


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["info", "--config=qwen3-next-80b"],
        ["info", "--config=qwen2-vl-7b"],
        ["verify", "--tokens=2"],
        ["verify", "--attention", "--tokens=2"],
        ["bench", "--tokens=2", "--rounds=2"],
        ["bench", "--tokens=2", "--rounds=2", "--angle-mode=table", "--in-place"],
        ["bench", "--suite=all", "--list"],
        ["demo", "--tokens=2"],
    ],
)
def test_every_command_writes_the_schema(tool_path, arguments):
    assert documented(tool_path, *arguments)["records"]


def test_schema_refuses_what_it_does_not_name(tool):
    for change in ({"version": 1}, {"surprise": 1}, {"records": [{"case": "x"}]}):
        with pytest.raises(results.ResultsError):
            results.check({**tool.header, **change}, "changed")


def undescribed(part, place=""):
    """Places of members without a description, in a part of a schema."""
    found = []
    if isinstance(part, dict):
        for name, member in part.get("properties", {}).items():
            said = member.get("description", "").strip() or member.get("$ref")
            found += [f"{place}/{name}"] * (not said)
        for name, inner in part.items():
            found += undescribed(inner, f"{place}/{name}")
    return found


def test_schema_says_what_every_member_means():
    assert undescribed(results.validator().schema) == []


def test_suites_hold_the_cases_they_promise(tool):
    cases = {suite: tool.list(suite, False)["records"] for suite in SUITES}

    def values(suite, name):
        return sorted({c["shape"][name] for c in cases[suite]})

    assert values("single-head", "head_dim") == [128, 256] and values("large", "tokens") == [8192]
    assert {c["label"] for c in cases["prefill"]} == {"Llama-3-8B", "Qwen3-32B", "DeepSeek MLA"}
    assert {c["shape"]["rope_type"] for c in cases["rules"]} >= {"default", "yarn", "longrope", "llama3"}
    stored = {c["shape"]["append"].get("k_store_dtype", "as dtype") for c in cases["append"]}
    assert stored == {"as dtype", "f16", "f8e4m3"}
    assert {"packed", "window 1K", "decode, 128K keys"} <= {c["label"] for c in cases["attention"]}
    gradients = [c["shape"]["attention"] for c in cases["attention-backward"]]
    assert len(gradients) > 20 and all(s["backward"] and "kv_cache" not in s for s in gradients)
    assert all(len({c["case"] for c in listed}) == len(listed) for listed in cases.values())
    assert len(tool.list("all", False)["records"]) == sum(map(len, cases.values()))


def test_suites_hold_more_on_a_gpu(tool_path, tmp_path):
    library = built(tmp_path, GPU)
    document = documented(tool_path, "bench", "--suite=all", "--list", LD_PRELOAD=library)
    found = {}
    for c in document["records"]:
        found.setdefault((c["suite"], c["label"], c["shape"]["dtype"]), []).append(c["shape"])
    early = found["decode", "Llama-3-8B, programmatic", "bf16"]
    assert early == [{**s, "launch": "programmatic"} for s in found["decode", "Llama-3-8B", "bf16"]]
    for suite in ("attention", "attention-backward"):
        sizes = {(s["batch"], s["tokens"]) for s in found[suite, "32/8 heads", "bf16"]}
        assert sizes >= {(16384 // n, n) for n in (512, 1024, 2048, 4096, 8192, 16384)} | {(1, 131072)}
    whole = [s["tokens"] for s in found["in-place", "whole", "bf16"]]
    assert sorted(whole) == [16, 2048, 8192, 16384, 32768, 131072]


@pytest.mark.parametrize(("maker", "family", "model", "name"), [
    ("AuthenticAMD", 25, 17, "Zen 4"), ("AuthenticAMD", 26, 2, "Zen 5"), ("AuthenticAMD", 25, 33, "Zen 3"),
    ("GenuineIntel", 6, 143, "Sapphire Rapids"), ("GenuineIntel", 6, 207, "Emerald Rapids"),
    ("GenuineIntel", 26, 2, "family 26, model 2"), ("AuthenticAMD", 26, 255, "family 26, model 255"),
    ("Another", 25, 17, "family 25, model 17")])  # fmt: skip
def test_a_processor_is_named_by_its_microarchitecture(tool_path, tmp_path, maker, family, model, name):
    path = tmp_path / "cpuinfo"
    rows = {"vendor_id": maker, "cpu family": family, "model": model, "model name": "Brand"}
    path.write_text("".join(f"{key}\t: {value}\n" for key, value in rows.items()) + "\nmodel name\t: no\n")
    command = ["bench", "--suite=overhead", "--list", "--json"]
    answer = run(tool_path, *command, LD_PRELOAD=built(tmp_path, CPUINFO), CPUINFO=str(path))
    assert json.loads(answer.stdout)["device"]["name"] == f"Brand ({name})"


def test_a_quick_run_has_fewer_cases_and_rounds(tool_path):
    command = ["bench", "--suite=all", "--list", "--json"]
    full, quick = (json.loads(run(tool_path, *command, *o).stdout) for o in ([], ["--quick"]))
    assert (full["rounds"], quick["rounds"]) == (15, 5)
    cases = [{(r["suite"], r["case"]) for r in document["records"]} for document in (full, quick)]
    assert cases[1] < cases[0]
    column = [r["shape"] for r in quick["records"] if r["label"] == "Qwen3-32B" and r["suite"] == "prefill"]
    assert [(s["tokens"], s["dtype"]) for s in column] == [(n, "bf16") for n in (1, 1024)]


def test_a_record_stands_beside_the_fastest_copy_of_its_own_rounds(tool_path, tmp_path):
    command = ["bench", "--tokens=2", "--rounds=3", "--threads=2", "--json"]
    answer = run(tool_path, *command, LD_PRELOAD=built(tmp_path, CLOCK))
    (record,) = json.loads(answer.stdout)["records"]
    assert record["rounds"] == 3
    medians = [record[name]["seconds"]["median"] for name in ("replay", "eager", "floor")]
    assert medians == pytest.approx([1e-3, 2e-3, 5e-4])
    assert [record[n]["ratio"]["median"] for n in ("replay", "eager")] == pytest.approx([0.5, 0.25])
    assert record["self_ratio"]["median"] == pytest.approx(1.5)
    assert record["replay"]["gb_per_second"] == pytest.approx(1e-9 * record["bytes"] / 1e-3)
    assert record["floor"]["gb_per_second"] == pytest.approx(1e-9 * record["bytes"] / 5e-4)


def test_a_record_states_the_append_that_was_timed(tool_path):
    norm = ["--append", "--kv-cache=slots", "--q-norm-type=rms", "--tokens=2", "--dtype=bf16"]
    (record,) = documented(tool_path, "bench", *norm, "--rounds=1", "--threads=1")["records"]
    # in and out of q, and of k and v with their cache, each element once
    assert record["bytes"] == 2 * 2 * 2 * 128 * (32 + 8 + 8)
    stated = {"q_norm_type": "rms", "v_heads": 8, "kv_cache": "slots", "page_size": 16}
    assert record["shape"]["append"] == stated


@pytest.mark.parametrize(("settings", "each"), [
    ("--k-store-dtype=f8e4m3 --v-store-dtype=i8", 128 * (32 * 4 + 8 * 3 + 8 * 3)),
    ("--k-store-dtype=f8e4m3 --k-scale=token-head-max", 128 * (32 * 4 + 8 * 3 + 8 * 4) + 8 * 4),
    ("--in-place --rotary-dim=64", 64 * 32 * 4 + 128 * 16 * 4),
    ("--q-heads=0 --k-source=cache --rotary-dim=64", 64 * 8 * 4),
    ("--q-heads=0 --k-source=cache --k-store-dtype=i8 --k-scale=token-head-max", (128 + 4) * 8 * 2),
])  # fmt: skip
def test_bytes_of_append_are_those_that_must_move(tool_path, settings, each):
    shape = ["--append", "--kv-cache=slots", "--tokens=16", "--dtype=bf16"]
    command = ["bench", *shape, *settings.split(), "--rounds=1", "--threads=1"]
    (record,) = documented(tool_path, *command)["records"]
    assert record["bytes"] == 16 * each


def test_a_record_states_the_attention_that_was_timed(tool_path):
    shape = ["--attention", "--tokens=8", "--q-heads=4", "--k-heads=2", "--dtype=bf16"]
    (record,) = documented(tool_path, "bench", *shape, "--rounds=1", "--threads=1")["records"]
    assert record["bytes"] == 8 * 128 * 2 * (4 + 2 + 2 + 4)
    assert record["flops"] == 4 * 128 * 4 * (8 * 9 / 2)
    assert record["shape"]["attention"] == {"rotate": "qk", "keys": 8, "mask": "causal"}


def test_the_backward_is_a_part_of_the_call(tool_path, tmp_path):
    shape = ["--attention", "--backward", "--tokens=8", "--q-heads=4", "--k-heads=2", "--dtype=bf16"]
    command = ["bench", *shape, "--v-head-dim=64", "--rounds=3", "--threads=2"]
    document = documented(tool_path, *command, LD_PRELOAD=built(tmp_path, CLOCK))
    (whole,) = document["records"]
    assert whole["replay"]["seconds"]["median"] == pytest.approx(2e-3)
    assert re.fullmatch("attention: cpu:.*, backward: cpu:.*", whole["kernel"])
    assert whole["bytes"] == 2 * 8 * (128 + 64) * 2 * (4 + 2)
    assert whole["flops"] == 2 * (4 * 128 + 3 * 64) * 4 * (8 * 9 / 2)
    assert whole["shape"]["attention"]["backward"] is True
    # out, lse, three gradients, and rotated q and k, beside the steps; then rows beside double
    assert whole["checked"]["elements"] > 8 * (4 * 64 + 4 + 6 * 128 + 2 * 64 + 6 * 128)


def test_wrong_attention_is_not_timed(tool_path, tmp_path):
    """Rows and gradients that differ from the oracle's, or in bits from the steps'."""
    command = ["verify", "--attention", "--tokens=3", "--q-heads=1", "--k-heads=1"]
    library, bound, once = built(tmp_path, WRONG), "outside their bound; the worst", "1 element differ"
    forward = (({"NOTHING": "1"}, "out", bound), ({"OUT": "1"}, "out", once))
    backward = [({n: "1", **more}, n.lower(), said) for n in ("DQ", "DK", "DV")
                for more, said in (({"ONCE": "1"}, once), ({}, bound))]  # fmt: skip
    for options, cases in (([], forward), (["--backward"], backward)):
        for wrong, tensor, said in cases:
            answer = run(tool_path, *command, *options, status=1, LD_PRELOAD=library, **wrong)
            assert said in answer.stdout and f" {tensor}[batch 0, token " in answer.stdout


def test_a_wrong_append_is_found(tool_path, tmp_path):
    """Of q in place, of a key in its page, or of a key's scale."""
    shape = ["--append", "--tokens=16", "--q-heads=1", "--k-heads=1", "--in-place", "--kv-cache=slots"]
    shape += ["--k-store-dtype=i8", "--k-scale=token-head-max"]
    library = built(tmp_path, WRONG)
    for word, tensor in (("Q", "q"), ("PAGE", "k"), ("SCALE", "k")):
        answer = run(tool_path, "verify", *shape, status=1, LD_PRELOAD=library, **{word: "1"})
        assert f" {tensor}[batch 0, token " in answer.stdout


def test_cold_cases_go_round_sets_beyond_the_cache(tool_path, tmp_path):
    command = ["bench", "--tokens=64", "--rounds=1", "--json"]
    library, sets = built(tmp_path, CLOCK), {}
    for cache in ("warm", "cold"):
        document = json.loads(run(tool_path, *command, f"--cache={cache}", LD_PRELOAD=library).stdout)
        (record,) = document["records"]
        sets[cache] = record["sets"]
        beyond = record["sets"] * record["bytes"] > 2 * document["device"]["cache_bytes"]
        assert beyond == (cache == "cold")
    assert sets["warm"] == 1


def test_table_bytes_are_apart(tool_path):
    shape = ["--tokens=64", "--q-heads=1", "--k-heads=0", "--rounds=2"]
    plain = documented(tool_path, "bench", *shape)["records"][0]
    table = documented(tool_path, "bench", *shape, "--angle-mode=table")["records"][0]
    assert plain["bytes"] == table["bytes"] == 2 * 64 * 128 * 4
    assert (plain["table_bytes"], table["table_bytes"]) == (0, 2 * 64 * 64 * 4)


def test_an_interrupted_run_leaves_the_cases_that_it_measured(tool_path, tmp_path):
    path = tmp_path / "results.json"
    command = [tool_path, "bench", "--suite=all", "--rounds=20", "--threads=1", f"--output={path}"]
    first = subprocess.Popen(command, env={"ROPE_BACKEND": "cpu"}, stdout=subprocess.DEVNULL)
    while not path.exists():
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGTERM)  # which a shell ignores for nobody
    assert first.wait() != 0
    document = json.loads(path.read_text())
    assert {r["rounds"] for r in document["records"]} == {20}


def test_a_file_that_cannot_be_written_is_known_before_anything_is_measured(tool_path, tmp_path):
    folder, taken = tmp_path / "folder", tmp_path / "taken"
    folder.mkdir()
    (tmp_path / "taken.part").mkdir()
    (tmp_path / "file").touch()
    reasons = {"/nowhere/o.json": "No such file or directory", "": "No such file or directory"}
    reasons |= {str(folder): "Is a directory", str(taken): "Is a directory"}
    reasons |= {f"{tmp_path}/file/o.json": "Not a directory", "/dev/nowhere/o": "No such file or directory"}
    before = sorted(tmp_path.iterdir())
    for path, reason in reasons.items():
        for command in (["bench", "--suite=overhead"], ["verify", "--tokens=2"]):
            answer = run(tool_path, *command, f"--output={path}", status=2)
            assert answer.stderr == f'ropekit: --output is "{path}": {reason}{WRITABLE}\n'
            assert answer.stdout == ""
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_that_fails_leaves_its_file_as_it_was(tool_path, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "results.json"
    library = built(tmp_path, "#include <errno.h>\nint rename(void) { errno = EROFS; return -1; }")
    for text in (None, "older"):
        if text:
            path.write_text(text)
        run(tool_path, "bench", "--suite=nonesuch", f"--output={path}", status=2)
        answer = run(tool_path, "info", f"--output={path}", status=2, LD_PRELOAD=library)
        assert answer.stderr == f'ropekit: --output is "{path}": Read-only file system{WRITABLE}\n'
        assert [p.read_text() for p in folder.iterdir()] == [text] * bool(text)


def test_no_path_reaches_a_result(tool_path, tmp_path):
    path = tmp_path / "results.json"
    for spelling in ([f"--output={path}"], ["--output", str(path)]):
        run(tool_path, "bench", "--tokens=2", "--rounds=2", *spelling)
        assert str(tmp_path) not in path.read_text()


@pytest.mark.parametrize("arguments", [
    ["bench", "--suite=all", "--quick", "--seed=5", "--layout=bhsd", "--list"],
    ["demo", "--quick", "--config=gpt-j-6b", "--tokens=5", "--dtype=bf16"]])  # fmt: skip
def test_the_command_of_a_case_repeats_it(tool_path, arguments):
    cases = documented(tool_path, *arguments)["records"]
    assert len(cases) > 30 or "demo" in arguments
    for case in cases:
        words = shlex.split(case["command"])
        assert words[:2] == ["ropekit", "bench"] and not any("--suite" in w or "--config" in w for w in words)
        (again,) = documented(tool_path, *words[1:], "--list")["records"]
        assert (again["shape"], again["cache"]) == (case["shape"], case["cache"])
        assert (again["command"], again["case"]) == (case["command"], case["case"])


@pytest.mark.parametrize(("name", "stated"), [
    ("gpt-oss-20b", {"factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": "off"}),
    ("qwen2-vl-7b", {"axis_layout": "chunked", "axis_frequency": "shared", "sections": [16, 24, 24]}),
    ("phi-3.5-mini", {"longrope_select": "per-sequence"})])  # fmt: skip
def test_the_command_of_a_check_repeats_it_without_its_configuration(tool_path, name, stated):
    command = ["verify", "--tokens=3", f"--config={name}", "--seed=7"]
    (first,) = documented(tool_path, *command)["records"]
    words = shlex.split(first["command"])
    assert words[:5] == ["ropekit", "verify", "--backend=cpu", "--seed=7", "--tokens=3"]
    assert not any("--config" in w for w in words)
    (again,) = documented(tool_path, *words[1:])["records"]
    for record in (first, again):
        del record["shape"]["dtype_is_assumed"]
    assert again == first
    assert {**first["shape"], **first["shape"]["rule"]}.items() >= stated.items()


def test_wrong_output_is_not_timed(tool_path, tmp_path):
    path, library = tmp_path / "results.json", built(tmp_path, "int rope_apply(void) { return 0; }")
    command = ["bench", "--suite=overhead", "--rounds=2", f"--output={path}"]
    answer = run(tool_path, *command, status=1, LD_PRELOAD=library)
    assert "outside their bound; it is not timed" in answer.stderr
    (found,) = results.read(path)
    assert not found["cases"] and len(found["wrong"]) == 5
