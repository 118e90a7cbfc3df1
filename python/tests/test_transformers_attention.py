"""attn_implementation "ropekit" beside eager and sdpa, on small models of Transformers."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import attention_models
import models
import pytest
import ropekit.transformers
import torch
import transformers
from attention_models import SLIDING, build, inputs
from ropekit._transformers_attention import attention_forward
from ropekit._transformers_masks import CHUNK, CUT, FULL, Mask, build_mask
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    eager_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

FAMILIES = list(attention_models.MODELS)
GENERATORS = [name for name in FAMILIES if name != "modernbert"]
GREEDY = {"max_new_tokens": 44, "do_sample": False}  # past the 64 tokens at which angles change
# In float32: what a kernel's other order of sums may move the largest logit by.
RELATIVE = 2e-5


def close(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).abs().max() <= RELATIVE * expected.abs().max()


def switched(model: Any, attention: str) -> Any:
    model.set_attn_implementation(attention)
    return model


# ---- generation ----


@pytest.mark.parametrize("name", GENERATORS)
def test_greedy_tokens_are_eagers(name: str, device: str) -> None:
    model = build(name, "eager", device=device)
    given = inputs(name, device, padding="" if name.endswith("_vl") else "left")
    expected = model.generate(**given, **GREEDY)
    assert torch.equal(switched(model, "ropekit").generate(**given, **GREEDY), expected)
    assert len(expected[0, 24:].unique()) > 4


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("padding", ["", "left"])
def test_a_static_cache(name: str, padding: str, device: str) -> None:
    padding = "" if name.endswith("_vl") else padding
    model, given = build(name, "eager", device=device), inputs(name, device, padding=padding)
    options = GREEDY | {"max_new_tokens": 12, "cache_implementation": "static"}
    expected = model.generate(**given, **options, disable_compile=True)
    found = switched(model, "ropekit").generate(**given, **options, disable_compile=True)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", GENERATORS)
def test_beams_and_assisted_generation(name: str, device: str) -> None:
    model, given = build(name, "eager", device=device), inputs(name, device)
    one = {key: x[:1] for key, x in given.items()}
    if "pixel_values" in given:
        one["pixel_values"] = given["pixel_values"][: len(given["pixel_values"]) // 2]
    runs = (given, {"num_beams": 3}), (one, {"prompt_lookup_num_tokens": 3})
    options = GREEDY | {"max_new_tokens": 12}
    expected = [model.generate(**x, **options, **more) for x, more in runs]
    switched(model, "ropekit")
    for (x, more), wanted in zip(runs, expected, strict=True):
        assert torch.equal(model.generate(**x, **options, **more), wanted)


@pytest.mark.compiles
@pytest.mark.parametrize("padding", ["", "left"])
def test_decoding_compiled_by_transformers(padding: str, device: str) -> None:
    model = build("gemma3", "eager", device=device)
    given = inputs("gemma3", device, padding=padding)
    options = GREEDY | {"max_new_tokens": 12, "cache_implementation": "static"}
    expected = model.generate(**given, **options, disable_compile=True)
    torch._dynamo.reset()
    compiled = transformers.CompileConfig(fullgraph=True, backend="aot_eager", mode=None)
    compiled._compile_all_devices = True
    switched(model, "ropekit")
    assert torch.equal(model.generate(**given, **options, compile_config=compiled), expected)


# ---- logits ----


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_padded_prompts(name: str, padding: str, device: str) -> None:
    if name.endswith("_vl"):
        padding = ""
    model, given = build(name, "eager", device=device), inputs(name, device, padding=padding)
    real = given["attention_mask"].bool()
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            expected = switched(model, "eager")(**given).logits[real]
            found = switched(model, "ropekit")(**given).logits[real]
        close(found, expected)


def of_rows(rows: list[str], device: str = "cpu") -> Tensor:
    """Masks of keys, a row for each sequence: of "0011", the last two are seen."""
    return torch.tensor([[int(x) for x in row] for row in rows], device=device)


# A row each: padded behind, ahead, on both sides, with a hole, and not at all.
PADDED = [
    *("1" + "0" * 23, "1" * 15 + "0" * 9, "0" * 5 + "1" * 19, "0" * 23 + "1"),
    *("0" * 4 + "1" * 11 + "0" * 9, "1" * 9 + "000" + "1" * 12, "1" * 24, "0" * 24),
]
RIGHT, LEFT, BOTH = ("1" * 24, "1" * 15 + "0" * 9), ("1" * 24, "0" * 5 + "1" * 19), tuple(PADDED)


def next_logits(model: Any, given: dict[str, Tensor]) -> Tensor:
    """Of the last position, with the position ids of what the mask tells."""
    mask = given["attention_mask"]
    places = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    more = {} if "pixel_values" in given else {"position_ids": places}
    if model.config.model_type == "modernbert":
        more = {}
    found: Tensor = model(**given, **more).logits[:, -1]
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_left_padding_moves_no_logits(name: str, device: str) -> None:
    """As Transformers tests it: rows padded on the right, and 32 more on the left of each."""
    model, given = build(name, "ropekit", device=device), inputs(name, device)
    if not name.endswith("_vl"):
        given["attention_mask"] = torch.ones_like(given["input_ids"]).tril()
    zeros = torch.zeros(2, 32, dtype=torch.int64, device=device)
    wide = ("input_ids", "attention_mask", "mm_token_type_ids")
    padded = {x: torch.cat((zeros, y), 1) if x in wide else y for x, y in given.items()}
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            close(next_logits(model, padded), next_logits(model, given))
            with ropekit.transformers.patch(model, attention=True):
                close(next_logits(model, padded), next_logits(model, given))


@pytest.mark.parametrize("name", [x for x in FAMILIES if x not in ("gemma2", "gpt_oss")])
def test_padded_positions_are_sdpas(name: str, device: str) -> None:
    """Every logit, of rows that no key is seen by too; sdpa has neither soft caps nor sinks."""
    model, ids = build(name, "sdpa", device=device), inputs(name, device)["input_ids"]
    ids = ids[:, :20].repeat(4, 1) if name.endswith("_vl") else ids.repeat(4, 1)
    for rows in (RIGHT, LEFT, BOTH):
        mask = of_rows([row[: ids.shape[1]] for row in rows], device)
        for context in (torch.no_grad, torch.enable_grad):
            with context():
                given = ids[: len(mask)], mask
                expected = switched(model, "sdpa")(*given).logits
                close(switched(model, "ropekit")(*given).logits, expected)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral"])
def test_a_mask_of_fewer_tokens_hides_the_rest(name: str, device: str) -> None:
    """As sdpa has it with a cache; without one the mask tells how many keys there are."""
    model, given = build(name, "sdpa", device=device), inputs(name, device)
    short = {**given, "attention_mask": given["attention_mask"][:, :20]}
    long = {**given, "attention_mask": torch.ones(2, 30, dtype=torch.int64, device=device)}
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            expected = [switched(model, "sdpa")(**x).logits for x in (short, long)]
            switched(model, "ropekit")
            for x, wanted in zip((short, long), expected, strict=True):
                close(model(**x).logits, wanted)
                with pytest.raises(ValueError, match=r"attention_mask has .*allowed"):
                    model(**x, use_cache=False)
                x["attention_mask"] = x["attention_mask"].clone()
                x["attention_mask"][1, 5:8] = 0
                with pytest.raises(ValueError, match=r"attention_mask has .*allowed"):
                    model(**x, use_cache=False)


@pytest.mark.parametrize("length", [20, 30])
def test_an_encoders_mask_has_as_many_keys(length: int, device: str) -> None:
    model, given = build("modernbert", "ropekit", device=device), inputs("modernbert", device)
    mask = torch.ones(2, length, dtype=torch.int64, device=device)
    mask[1, 15:] = 0
    for context in (torch.no_grad, torch.enable_grad):
        with context(), pytest.raises(ValueError, match=r"attention_mask has .*allowed"):
            model(given["input_ids"], attention_mask=mask)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3", "olmo3"])
def test_packed_batches_without_padding(name: str, device: str) -> None:
    model, ids = build(name, "eager", device=device), inputs(name, device)["input_ids"]
    places = [torch.arange(n, device=device) for n in (11, 6, 7)]
    given = {"input_ids": ids, "position_ids": torch.cat(places).repeat(2, 1), "use_cache": False}
    with torch.no_grad():
        expected = model(**given).logits
        found = switched(model, "ropekit")(**given).logits
        alone = model(ids[:, 11:17], use_cache=False).logits
    close(found, expected)
    close(found[:, 11:17], alone)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_packed_by_boundaries_alone(name: str, dtype: torch.dtype, device: str) -> None:
    """cu_seq_lens_q and cu_seq_lens_k, as DataCollatorWithFlattening gives them."""
    if name == "gpt_oss" and dtype == torch.float64:
        pytest.skip("its experts multiply no float64")
    model, ids = build(name, "ropekit", dtype, device), inputs(name, device)["input_ids"][:1]
    bounds = torch.tensor([0, 11, 17, 24], dtype=torch.int32, device=device)
    packed = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds.clone(), "use_cache": False}
    packed |= {"max_length_q": 11, "max_length_k": 11}
    ones = torch.ones_like(ids)
    ones[:, 3] = 0
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            found = model(ids, **packed).logits
            alone = [model(x, use_cache=False).logits for x in ids.split([11, 6, 7], 1)]
            close(found, torch.cat(alone, 1))
            holed = model(ids, attention_mask=ones, **packed).logits[:, 11:]
            close(holed, torch.cat(alone[1:], 1))
            ones[:, :3] = 0  # of which the rest is another sequence: its rotation is relative
            padded = model(ids, attention_mask=ones, **packed).logits[:, 4:11]
            close(padded, model(ids[:, 4:11], use_cache=False).logits)
            ones[:, :3] = 1
    with pytest.raises(ValueError, match="cu_seq_lens_k is None; allowed with cu_seq_lens_q is"):
        model(ids, cu_seq_lens_q=bounds, use_cache=False)
    with pytest.raises(ValueError, match=r"cu_seq_lens_q is given with 7 queries and \d+ keys"):
        cache = model(ids[:, :17]).past_key_values
        model(ids[:, 17:], past_key_values=cache, **(packed | {"use_cache": True}))


def test_a_mask_with_holes_and_one_of_the_caller(device: str) -> None:
    model, given = build("gemma2", "eager", device=device), inputs("gemma2", device)
    given["attention_mask"][0, 3:6] = 0
    real = given["attention_mask"].bool()
    own = torch.rand(2, 1, 24, 24, device=device) < 0.5
    own |= torch.eye(24, dtype=torch.bool, device=device)
    additive = torch.zeros(own.shape, device=device).masked_fill(
        ~own, torch.finfo(torch.float32).min
    )
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            expected = switched(model, "eager")(**given).logits[real]
            close(switched(model, "ropekit")(**given).logits[real], expected)
            wanted = switched(model, "eager")(given["input_ids"], attention_mask=additive).logits
            for mask in (own, additive):
                found = switched(model, "ropekit")(given["input_ids"], attention_mask=mask).logits
                close(found, wanted)
            with pytest.raises(
                ValueError, match=r"has the shape \[2, 1, 24, 24\] of torch.int64; al"
            ):
                model(given["input_ids"], attention_mask=own.long())


def test_a_decoder_that_attends_to_an_encoder(device: str) -> None:
    """A mask of other queries than keys, as many or not, and of fewer keys than queries."""
    layers = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 64, "vocab_size": 97}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    tokens = {"decoder_start_token_id": 1, "eos_token_id": None, "forced_eos_token_id": None}
    config = transformers.BartConfig(
        **layers, **heads, **sizes, **tokens, attn_implementation="eager"
    )
    torch.manual_seed(0)
    model = transformers.BartForConditionalGeneration(config).to(device).eval()
    models.widen(model)
    few = torch.ones(2, 24, dtype=torch.int64, device=device)
    few[1, 3:] = 0
    for padding in ("left", "right", "few"):
        given = inputs("llama", device, padding=padding)
        mask = few if padding == "few" else given["attention_mask"]
        for context in (torch.no_grad, torch.enable_grad):
            for count in (6, 24):
                given = {
                    "input_ids": given["input_ids"],
                    "attention_mask": mask,
                    "decoder_input_ids": given["input_ids"][:, :count],
                }
                with context():
                    expected = switched(model, "eager")(**given).logits
                    close(switched(model, "ropekit")(**given).logits, expected)
        del given["decoder_input_ids"]
        for more in ({}, {"num_beams": 2}):
            options = GREEDY | {"max_new_tokens": 6, **more}
            wanted = switched(model, "eager").generate(**given, **options)
            found = switched(model, "ropekit").generate(**given, **options)
            assert torch.equal(found, wanted)


def distances(name: str, device: str, attention: str) -> tuple[float, float]:
    """Of logits and gradients in bfloat16 from eager in float32, relative to their norm."""
    runs = []
    for kind, dtype in (("eager", torch.float32), (attention, torch.bfloat16)):
        model, given = build(name, kind, dtype, device), inputs(name, device, padding="right")
        if name.endswith("_vl"):
            given = inputs(name, device)
        logits = model(**given).logits[given["attention_mask"].bool()].float()
        generator = torch.Generator().manual_seed(2)
        logits.backward(torch.randn(logits.shape, generator=generator).to(device))
        grads = [x.grad.float().flatten() for x in model.parameters() if x.grad is not None]
        runs.append((logits.detach(), torch.cat(grads)))
    pairs = zip(*runs, strict=True)
    logits_off, grads_off = (float((b - a).norm() / a.norm()) for a, b in pairs)
    return logits_off, grads_off


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_is_as_near_as_sdpa(name: str, device: str) -> None:
    kind = "eager" if name in ("gemma2", "gpt_oss") else "sdpa"  # which sdpa refuses
    expected, found = distances(name, device, kind), distances(name, device, "ropekit")
    for off, bound in zip(found, expected, strict=True):
        assert off <= 1.1 * bound, f"{found} beside {expected}"


# ---- training ----


@pytest.mark.parametrize("name", FAMILIES)
def test_training_under_autocast_is_as_near_as_sdpa(name: str, device: str) -> None:
    kind = "eager" if name in ("gemma2", "gpt_oss") else "sdpa"  # which sdpa refuses
    model = build(name, "eager", device=device)
    padding = "" if name.endswith("_vl") else "right"
    squares = torch.zeros(2, 2)  # of errors of logits and of gradients, by sdpa and by ropekit
    for seed in range(1, 5):  # by one draw either is ahead by 10 %
        given, runs = inputs(name, device, padding=padding, seed=seed), []
        for attention, is_cast in (("eager", False), (kind, True), ("ropekit", True)):
            switched(model, attention).zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=is_cast):
                logits = model(**given).logits[given["attention_mask"].bool()].float()
            logits.square().mean().backward()
            grads = [x.grad.flatten() for x in model.parameters() if x.grad is not None]
            runs.append((logits.detach(), torch.cat(grads).clone()))
        for n, (exact, *found) in enumerate(zip(*runs, strict=True)):
            squares[n] += torch.stack([(x - exact).square().sum() for x in found]).cpu()
    assert (squares[:, 1] <= 1.1**2 * squares[:, 0]).all(), squares.sqrt()


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_under_autocast(name: str, cache: str, device: str) -> None:
    if cache == "static" and [int(n) for n in transformers.__version__.split(".")[:2]] < [5, 24]:
        pytest.skip("Transformers before 5.24 keeps k and v of a static cache in one type")
    model, given = build(name, "ropekit", device=device), inputs(name, device, padding="left")
    options = GREEDY | {"max_new_tokens": 6, "cache_implementation": cache}
    with torch.autocast(device, torch.bfloat16):
        found = model.generate(**given, **options, disable_compile=True)
        with ropekit.transformers.patch(model, attention=True):
            patched = model.generate(**given, **options, disable_compile=True)
    assert torch.equal(patched, found) and found.shape[1] == 30


def gradients(model: Any, given: dict[str, Any]) -> dict[str, Tensor]:
    model.zero_grad()
    model(**given, labels=given["input_ids"]).loss.backward()
    return {n: x.grad.clone() for n, x in model.named_parameters() if x.grad is not None}


def test_gradient_checkpoints(device: str) -> None:
    model, given = build("llama", "ropekit", device=device).train(), inputs("llama", device)
    expected = gradients(model, given)
    for reentrant in (False, True):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        found = gradients(model, given)
        for name, x in expected.items():  # CUDA adds some of them in any order
            assert torch.equal(found[name], x) or device == "cuda"
            torch.testing.assert_close(found[name], x, rtol=1e-4, atol=1e-5)


@pytest.mark.compiles
def test_a_compiled_model_trains(device: str) -> None:
    torch._dynamo.reset()
    model, given = build("gemma2", "ropekit", device=device).train(), inputs("gemma2", device)
    expected = gradients(model, given)
    compiled = torch.compile(model, backend="aot_eager")
    model.zero_grad()
    compiled(**given, labels=given["input_ids"]).loss.backward()
    for name, x in model.named_parameters():
        if x.grad is not None:
            torch.testing.assert_close(x.grad, expected[name], rtol=1e-4, atol=1e-5)


def test_dropout_of_attention(device: str) -> None:
    model = build("llama", "ropekit", device=device, attention_dropout=0.5).train()
    given = inputs("llama", device, padding="right")
    found = [model(**given).logits for _ in range(2)]
    assert not torch.equal(*found) and torch.isfinite(found[0]).all()


# ---- masks ----


KINDS = ("causal", "window", "chunk", "free", "both sides")


@pytest.mark.parametrize(
    ("kind", "size"), [(x, n) for x in KINDS for n in (4, 100)] + [("both sides", 0)]
)
def test_masks_tell_what_transformers_says(kind: str, size: int) -> None:
    """As eager_mask has it: attention of values that are one-hot gives back the weights."""
    flags = {"chunk": CHUNK, "free": FULL, "both sides": FULL}.get(kind, 0)
    q, k = torch.randn(2, 2, 9, 80), torch.randn(2, 2, 65, 80)
    v = torch.eye(65, 80).expand(2, 2, 65, 80)
    for queries, keys, start, rows in (
        (9, 9, 0, []),
        (1, 9, 8, []),
        (3, 9, 6, []),
        (9, 12, 0, []),
        (9, 9, 0, ["111111111", "111111000"]),
        (9, 9, 0, ["111111111", "000011111"]),
        (9, 9, 0, ["001110000", "000000000"]),
        (9, 9, 0, ["001110", "111110"]),
        (9, 9, 0, ["001011111", "111111111"]),
        (9, 12, 0, ["001110000", "111111110"]),
        (9, 12, 0, ["001110000110", "111111110111"]),
        (1, 9, 8, ["001111111", "111111110"]),
        (1, 12, torch.tensor(8), ["001111111", "111111110"]),
        (1, 65, torch.tensor(64), ["0" * 40 + "1" * 25, "10" * 32 + "1"]),
        (3, 9, 6, ["001111111", "111111110"]),
    ):
        padding = of_rows(rows).bool() if rows else None
        zeros = torch.zeros(2, dtype=torch.int64)
        left = zeros if padding is None else (padding.cumsum(-1) == 0).sum(-1)
        function = {
            "causal": causal_mask_function,
            "window": sliding_window_causal_mask_function(size),
            "chunk": chunked_causal_mask_function(size, left),
            "free": bidirectional_mask_function,
            "both sides": sliding_window_bidirectional_mask_function(size),
        }[kind]
        given = {"batch_size": 2, "q_length": queries, "kv_length": keys, "q_offset": start}
        given |= {"mask_function": function, "attention_mask": padding}
        wanted = (eager_mask(**given) == 0).expand(2, 1, queries, keys)
        for context in (torch.no_grad, torch.enable_grad):
            with context():
                mask = build_mask(**given)
                x = q[:, :, :queries], k[:, :, :keys], v[:, :, :keys]
                out, _ = attention_forward(torch.nn.Module(), *x, mask)
                seen = out.transpose(1, 2)[..., :keys] > 0
                assert torch.equal(seen, wanted.expand_as(seen)), (queries, keys, rows)
                dropped, _ = attention_forward(torch.nn.Module(), *x, mask, dropout=1e-9)
                torch.testing.assert_close(dropped, out)
        if padding is None and size <= 4 and mask.dtype == torch.int64:
            found = Mask.decode(mask)
            wide = {"causal": 0, "free": 0, "both sides": size + 1}.get(kind, size)
            assert (found.size, found.flags & ~CUT) == (wide, flags)


def test_a_mask_that_no_kernel_has_is_one_of_bits_or_of_sdpa() -> None:
    def own(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return key % 2 == query % 2

    sizes = {"batch_size": 2, "q_length": 40, "kv_length": 40, "mask_function": own}
    with torch.no_grad():
        mask = build_mask(**sizes)
        assert (mask.shape, mask.dtype) == ((2, 1, 40, 2), torch.int32)
    assert build_mask(**sizes).dtype == torch.bool


@pytest.mark.parametrize("keys", [1, 2, 3, 32, 33, 300])
def test_a_copied_mask_is_small_and_fits_no_scores(keys: int) -> None:
    """Each kind of mask; a copy has the whole of a tensor's virtual size."""
    window = sliding_window_causal_mask_function(4096)
    holes = torch.ones(2, keys, dtype=torch.bool)
    holes[0, keys // 2] = False
    left = torch.arange(keys) >= torch.tensor([[0], [keys // 3]])
    for function in (causal_mask_function, window):
        for padding in (None, holes, left):
            for queries, start in ((1, keys - 1), (1, torch.tensor(keys - 1)), (keys, 0)):
                sizes = {"q_length": queries, "kv_length": keys, "q_offset": start}
                with torch.no_grad():
                    mask = build_mask(
                        batch_size=2, mask_function=function, attention_mask=padding, **sizes
                    )
                copied = mask.to("cpu", copy=True)
                dense = 2 * queries * (keys + 96) // 8
                assert copied.untyped_storage().nbytes() <= max(4096, dense)
                with pytest.raises(RuntimeError, match=r"must match|Expected size"):
                    (torch.zeros(2, 4, queries, keys) + mask) @ torch.zeros(2, 4, keys, 16)
                x = torch.randn(2, 4, keys, 16)
                found, wanted = (
                    attention_forward(torch.nn.Module(), x[:, :, -queries:], x, x, own)[0]
                    for own in (copied, mask)
                )
                assert torch.equal(found, wanted)


def test_a_model_that_computes_with_its_mask(device: str) -> None:
    """Doge asks for a whole one; another would compute with what no mask of heads fits."""
    sizes = {"batch_size": 2, "q_length": 9, "kv_length": 9}
    with torch.no_grad():
        whole = build_mask(**sizes, allow_is_causal_skip=False)
        assert torch.equal(whole[1, 0], torch.ones(9, 9, dtype=torch.bool).tril())
        holes = torch.tensor([[1] * 9, [0, 1, 0] + [1] * 6]).bool()
        for padding in (None, holes, torch.arange(9) < torch.tensor([[9], [4]])):
            mask = build_mask(**sizes, attention_mask=padding)
            for like in (torch.zeros(2, 1, 9, 9), torch.zeros(2, 4, 9, 9)):
                with pytest.raises((RuntimeError, ValueError), match=r"must match|has the shape"):
                    x = torch.zeros(2, 4, 9, 16)
                    attention_forward(torch.nn.Module(), x, x, x, like + mask)
            padded = torch.nn.functional.pad(mask, (0, 9 - mask.shape[-1]))  # as DeepSeek-V4 does
            with pytest.raises(ValueError, match=r"attention_mask has the shape .* 'eager' or"):
                attention_forward(torch.nn.Module(), x[:1], x[:1], x[:1], padded[:1])
    kind = transformers.DogeForCausalLM
    fields = models.TEXT | {"num_hidden_layers": 1, "keep_window_size": 4}
    model = kind(kind.config_class(**fields, attn_implementation="eager")).to(device).eval()
    ids = torch.randint(3, 80, (2, 9), device=device)
    for given in (None, holes.to(device)):
        with torch.no_grad():
            expected = switched(model, "eager")(ids, attention_mask=given).logits
            found = switched(model, "ropekit")(ids, attention_mask=given).logits
        close(found[:, 3:], expected[:, 3:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_softcap_of_zero_is_none(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(1, 2, 3, 16, dtype=dtype) for _ in range(3))
    wanted, _ = attention_forward(torch.nn.Module(), q, k, v, None)
    found, _ = attention_forward(torch.nn.Module(), q, k, v, None, softcap=0.0)
    assert torch.equal(found, wanted)


# ---- refusals ----


def test_what_is_not_mapped_is_refused() -> None:
    module = torch.nn.Module()
    q = torch.randn(1, 2, 3, 16)
    for more, text in (
        ({"position_bias": q}, "position_bias is given, a bias of positions; allowed with"),
        ({"indices": q}, "indices is given, keys that an indexer chose; allowed with"),
        ({"output_attentions": True}, "output_attentions is True; allowed with"),
    ):
        with pytest.raises(ValueError, match=text):
            attention_forward(module, q, q, q, None, **more)
    with pytest.raises(TypeError, match=r"attention_mask is torch.Size\(\[1, 3\]\); allowed is"):
        attention_forward(module, q, q, q, torch.ones(1, 3))
    with pytest.raises(ValueError, match="attention_mask is None with 3 queries and 2 keys"):
        attention_forward(module, q, q[:, :, :2], q[:, :, :2], None)
    odd = torch.zeros(1, 5, 3, 3)
    with pytest.raises(
        ValueError, match=r"attention_mask has the shape \[1, 5, 3, 3\]; allowed is"
    ):
        attention_forward(module, q, q, q, odd)
    with pytest.raises(ValueError, match="which does not attend by Transformers"):
        config = transformers.FalconConfig(hidden_size=64, num_attention_heads=4, vocab_size=9)
        config.num_hidden_layers = 1
        ropekit.transformers.patch(transformers.FalconForCausalLM(config), attention=True)
    model = build("llama", "ropekit")
    with pytest.raises(ValueError, match="output_attentions"):
        model.generate(**inputs("llama"), output_attentions=True, return_dict_in_generate=True)
    own = transformers.ContinuousBatchingConfig(auto_switch_to_flash=False)
    with pytest.raises(ValueError, match="ropekit is not supported for continuous batching"):
        model.generate_batch([[1, 2]], continuous_batching_config=own)


def test_a_model_that_computes_with_its_mask_generates() -> None:
    config = transformers.DogeConfig(**models.TEXT, num_hidden_layers=2)
    torch.manual_seed(0)
    model = transformers.DogeForCausalLM(config).eval()
    models.widen(model)
    model.generation_config.eos_token_id = None
    given = {**inputs("llama"), "max_new_tokens": 8, "do_sample": False}
    expected = switched(model, "eager").generate(**given)
    for options in ({}, {"cache_implementation": "static"}):
        assert torch.equal(switched(model, "ropekit").generate(**given, **options), expected)


def test_a_patched_layer_drops_what_training_drops() -> None:
    model, ids = build("llama", "ropekit", attention_dropout=0.5), inputs("llama")["input_ids"]
    with torch.no_grad(), ropekit.transformers.patch(model, attention=True):
        found = []
        for seed in (0, 1):
            cache = transformers.StaticCache(config=model.config, max_cache_len=40)
            model.eval()(ids, past_key_values=cache)
            torch.manual_seed(seed)
            found.append(model.train()(ids[:, :1], past_key_values=cache).logits)
    assert not torch.equal(*found)


def test_patch_sets_the_attention_and_restores_it(device: str) -> None:
    model, given = build("llama", "sdpa", device=device), inputs("llama", device)
    with torch.no_grad():
        expected = model(**given).logits
        with ropekit.transformers.patch(model, attention=True) as patch:
            assert model.config._attn_implementation == "ropekit"
            assert "attention: ropekit, in place of sdpa" in patch.report
            assert repr(patch).splitlines() == ["Patch", *(f"  {line}" for line in patch.report)]
            close(model(**given).logits, expected)
        assert model.config._attn_implementation == "sdpa"
        assert torch.equal(model(**given).logits, expected)
    first, second = (ropekit.transformers.patch(model, attention=True) for _ in range(2))
    for patch, left in ((first, "ropekit"), (second, "sdpa")):  # in any order
        patch.restore()
        assert model.config._attn_implementation == left
    with pytest.raises(ValueError, match="attention is True; allowed for a module is False"):
        ropekit.transformers.patch("llama", attention=True)


class Decoded(TorchDispatchMode):
    """Counts calls of decode."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += str(func).startswith("ropekit.decode")
        return func(*args, **(kwargs or {}))


FUSED = ["llama", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "gemma3"]


@pytest.mark.parametrize("padding", ["", "left"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUSED)
def test_a_patched_layer_decodes_over_a_static_cache(
    name: str, dtype: torch.dtype, padding: str, device: str
) -> None:
    model = build(name, "ropekit", dtype, device)
    given = inputs(name, device, padding=padding)
    options = GREEDY | {"max_new_tokens": 8, "cache_implementation": "static"}
    expected = model.generate(**given, **options, disable_compile=True)
    plain = model.model.layers[0].self_attn
    layers = 1 if name in ("gpt_oss", "gemma3") else 2  # the others slide
    with ropekit.transformers.patch(model, attention=True) as patch, Decoded() as decoded:
        found = model.generate(**given, **options, disable_compile=True)
        assert len([line for line in patch.report if "attention in one call" in line]) == layers
        assert decoded.calls == 7 * layers
        copied = copy.deepcopy(plain)
    assert torch.equal(found, expected)
    assert "forward" not in plain.__dict__ and "Fused" not in repr(copied.forward)


def test_a_layer_of_other_steps_is_left_alone(device: str) -> None:
    model, given = build("llama", "eager", device=device), inputs("llama", device)
    own = type(model.model.layers[0].self_attn)

    class Scaled(own):  # type: ignore[misc,valid-type]
        def forward(
            self, hidden_states: Tensor, position_embeddings: Any = None, **kwargs: Any
        ) -> Any:
            return super().forward(2 * hidden_states, position_embeddings, **kwargs)

    Scaled.__module__ = own.__module__
    Scaled.forward.__signature__ = inspect.signature(own.forward)  # type: ignore[attr-defined]
    model.model.layers[0].self_attn.__class__ = Scaled
    options = GREEDY | {"max_new_tokens": 8, "cache_implementation": "static"}
    expected = model.generate(**given, **options, disable_compile=True)
    with ropekit.transformers.patch(model, attention=True) as patch:
        assert torch.equal(model.generate(**given, **options, disable_compile=True), expected)
    why = "its own steps, because a trial of it gave other queries, keys or values"
    assert f"model.layers.0.self_attn: {why}" in patch.report


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("phi3", "it has no q_proj"),
        ("gemma3", "its cache is not one that a StaticCache keeps whole"),
        ("olmo2", "q_weight has the shape"),
        ("gemma4", "its forward has other arguments: shared_kv_states"),
    ],
)
def test_a_report_says_why_a_layer_is_left_alone(name: str, reason: str) -> None:
    with ropekit.transformers.patch(build(name, "eager"), attention=True) as patch:
        assert f"layers.0.self_attn: its own steps, because {reason}" in str(patch)


def test_a_report_names_the_type_of_layers_of_angles() -> None:
    with ropekit.transformers.patch(build("gemma3", "eager"), angle_mode="exact") as patch:
        assert all(f"rotary_emb, {kind}: rope_type=" in str(patch) for kind in SLIDING)
