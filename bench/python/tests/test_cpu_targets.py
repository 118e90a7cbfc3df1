"""What the tables of the CPU's targets say of runs made for them."""

import pytest
from conftest import measurement

from ropekit_bench import results
from ropekit_bench.report import cpu_targets


def record(suite, us, label="", ratio=1.0, above=0.0, tokens=16384, dtype="bf16"):
    made = measurement("ropekit", 1e-6 * us, tokens, suite, label, cache="cold")
    made["shape"]["dtype"] = dtype
    made["replay"]["ratio"] = {"median": ratio, "low": ratio - 0.01, "high": ratio + 0.01}
    made["eager"]["seconds"] = {k: v + 1e-9 * above for k, v in made["replay"]["seconds"].items()}
    return made


@pytest.fixture
def run(make):
    def made(*records, threads=1, features="avx512 avx2 scalar", time="2026-01-01T00:00:00Z"):
        document = make(list(records))
        document |= {"command": "bench", "time": time}
        document["device"] |= {"backend": "cpu", "features": features}
        document["host"]["threads"] = threads
        results.check(document, "made")
        return document

    return made


def verdicts(*documents):
    (runs,) = cpu_targets.runs_of(documents).values()
    return {(case, target): tuple(rest) for case, target, *rest in cpu_targets.rows(runs)[1:]}


FLOOR, AVX2 = "at least 0.95 of the floor", "AVX2 at least 0.8 of it"


def test_a_run_without_cases_meets_nothing(run):
    assert set(verdicts(run()).values()) == {("not measured", "-")}
    assert len(verdicts(run())) == len(cpu_targets.TARGETS) + 1
    assert cpu_targets.section([]).startswith("No run")


@pytest.mark.parametrize(("ratio", "met"), [(0.95, "yes"), (0.949, "no")])
def test_a_share_of_the_floor(run, ratio, met):
    found = verdicts(run(record("prefill", 1, "Llama-3-8B", ratio)))
    assert found.pop(("cold, T 16384, bf16", FLOOR))[1] == met
    assert set(found.values()) == {("not measured", "-")}


@pytest.mark.parametrize(("ratio", "met"), [(0.2, "yes"), (0.199, "no")])
def test_one_token_beside_its_copy(run, ratio, met):
    found = verdicts(run(record("overhead", 1, "32 + 8", ratio, tokens=1)))
    assert found["one warm token, bf16", "at most 5 times the copy"][1] == met


@pytest.mark.parametrize(("above", "met"), [(39, "yes"), (41, "no")])
def test_the_call_above_its_kernel(run, above, met):
    found = verdicts(run(record("overhead", 1, "1", above=above, tokens=1)))
    assert found["rope_apply, heads 1, bf16", "at most 40 ns above the kernel"] == (f"+{above} ns", met)


@pytest.mark.parametrize(("share", "met"), [(0.81, "yes"), (0.79, "no")])
def test_avx2_beside_the_widest(run, share, met):
    wide = run(record("tokens", 1, ratio=1.0, tokens=63488))
    narrow = run(record("tokens", 1, ratio=share, tokens=63488), features="avx2 scalar")
    case = ("one head of 128, N 63488, bf16", AVX2)
    assert verdicts(wide)[case] == ("not measured", "-")
    assert verdicts(wide, narrow)[case] == (f"{share:.3f}", met)


@pytest.mark.parametrize(
    ("speedup", "high", "answer"),
    [
        (1.9, 1.95, ("slower in 0 of 1", "yes")),
        (0.98, 1.01, ("slower in 0 of 1", "yes")),
        (0.995, 0.998, ("slower in 0 of 1", "yes")),  # within the A/A
        (0.98, 0.99, ("slower in 1 of 1", "no")),
    ],
)
def test_two_threads_beside_one(run, speedup, high, answer):
    one, case = run(record("prefill", 10)), record("prefill", 6)
    two = run(case | {"speedup": {"median": speedup, "low": 0.9, "high": high}}, threads=2)
    case = ("all that was measured", "no case slower by two threads")
    assert verdicts(one)[case] == ("not measured", "-")
    assert verdicts(one, two)[case] == answer


def test_a_run_around_the_cache_stands_beside_and_meets_nothing(run):
    one, around = (run(record("prefill", 1, "Llama-3-8B", ratio)) for ratio in (0.5, 0.96))
    around["host"]["settings"] = cpu_targets.AROUND
    found = verdicts(around, one)["cold, T 16384, bf16", FLOOR]
    assert found == ("0.500 (0.490..0.510); 0.960 around the cache", "no")
    around["records"][0]["bytes"] = 1 + one["device"]["cache_bytes"]
    assert verdicts(around, one) == verdicts(one)
    around["records"][0]["bytes"] = 1
    around["host"]["settings"] = {"ROPE_CPU_STREAM": "32"}
    assert verdicts(one, around) == verdicts(one)


def test_the_newest_full_runs_of_avx512_count(run):
    first, last = (run(time=f"2026-01-0{day}T00:00:00Z") for day in (1, 2))
    quick, peers, gpu, many = (run(time="2026-01-03T00:00:00Z") for _ in range(4))
    quick["quick"], peers["command"], gpu["device"]["backend"] = True, "peers", "cuda"
    many["host"]["threads"] = 16
    (runs,) = cpu_targets.runs_of([quick, last, peers, gpu, many, first]).values()
    assert runs == {"one": last}
    assert not cpu_targets.runs_of([run(features="avx2 scalar"), run(features="scalar")])
