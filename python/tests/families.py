"""Every model file of Transformers with a rotary function, in families.tsv: what `patch` replaces,
and whether a small model of it keeps every bit of its result and of each parameter's gradient.
Rotated tensors are made contiguous in both runs: ours keep the order of q and k in memory, where
torch.cat does not, and a matrix product adds in an order that follows it.

`python python/tests/families.py` writes the table anew.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import ropekit.transformers
import torch
import transformers
from ropekit._forms import NAMES, find_forms

TABLE = Path(__file__).parent / "families.tsv"
HEADING = "family\tmodel\tvariant\treplaced\tevery bit of result and gradients"
ROOT = Path(transformers.models.__path__[0])
MOST = 20_000_000  # parameters
SMALL: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "use_cache": False,
} | dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 2)
SMALL |= dict.fromkeys(("hidden_size", "d_model", "n_embd"), 64)
SMALL |= dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4)
SMALL |= dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size"), 96)
SMALL |= dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32)
SMALL |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4)
SMALL |= dict.fromkeys(("moe_num_experts", "num_key_value_heads"), 4)
SMALL |= dict.fromkeys(("num_experts_per_tok", "moe_k", "top_k_experts"), 2)
SMALL |= dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts"), 1)
SMALL |= dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32)
SMALL |= dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "head_dim"), 16)
SMALL |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "ssm_state_size"), 16)
SMALL |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "mamba_num_heads": 8}
SMALL |= {"mamba_d_state": 16, "moe_shared_expert_intermediate_size": 32, "moe_hidden_size": 32}
SMALL |= dict.fromkeys(("shared_intermediate_size", "dense_intermediate_size"), 96)
SMALL |= {"vocab_size": 97, "max_position_embeddings": 256, "sliding_window": 8, "rotary_dim": 8}
SMALL |= {"position_embedding_type": "rotary", "mamba_chunk_size": 8, "chunk_size": 8}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
# What else some models want; None leaves a field out.
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"head_dim": None},
    {"hidden_size": None, "d_model": None},
    {"rope_parameters": SECTIONS},
    {"layer_types": ["linear_attention", "full_attention"]},
    {"layer_types": ["conv", "full_attention"]},
)
# Each by PyTorch's attention, or by eager where a model has no other: rotations are the same.
MODES = [
    (dtype, autocast, attention)
    for dtype in (torch.float32, torch.bfloat16)
    for autocast in (False, True)
    for attention in ("sdpa", "eager")
    if not (autocast and dtype == torch.bfloat16)
]
KINDS = (
    "ForCausalLM",
    "ForMaskedLM",
    "LMHeadModel",
    "TextModel",
    "ForConditionalGeneration",
    "Model",
)


def names() -> dict[str, str]:
    """The module of each family. One is imported where it is tested: all together take seconds."""
    found = {}
    for path in sorted(ROOT.glob("*/modeling_*.py")):
        text = path.read_text(encoding="utf-8")
        if any(f"\ndef {name}(" in text for name in NAMES):
            family = path.stem.removeprefix("modeling_")
            found[family] = f"transformers.models.{path.parent.name}.{path.stem}"
    return found


def functions(module: ModuleType) -> Iterator[Any]:
    for name in NAMES:
        function = getattr(module, name, None)
        if function is not None and function.__module__ == module.__name__:
            yield function


def classes(module: ModuleType) -> list[Any]:
    """The module's models, what reads text first."""
    found = [
        (kind, name, item)
        for name, item in vars(module).items()
        for kind in range(len(KINDS))
        if name.endswith(KINDS[kind])
        and inspect.isclass(item)
        and issubclass(item, transformers.PreTrainedModel)
        and item.__module__ == module.__name__
        and not name.endswith("PreTrainedModel")
    ]
    return list(dict.fromkeys(item for _, _, item in sorted(found, key=lambda row: row[:2])))


@cache
def configuration(model_class: Any, variant: int) -> Any:
    """Of a model with few parameters."""
    kind = model_class.config_class
    known = set(inspect.signature(kind.__init__).parameters)
    known |= {name for base in kind.__mro__ for name in inspect.get_annotations(base)}
    known -= set(getattr(kind, "attribute_map", {}))
    given = (SMALL | VARIANTS[variant]).items()
    fields = {name: x for name, x in given if name in known and x is not None}
    config = kind(**copy.deepcopy(fields))
    with torch.device("meta"):
        model = model_class._from_config(copy.deepcopy(config), attn_implementation="eager")
    if sum(x.numel() for x in model.parameters()) > MOST:
        raise ValueError("too many parameters")
    return config


def make(model_class: Any, variant: int, dtype: torch.dtype, attention: str) -> Any:
    """The model of a variant, from a fixed seed."""
    config = copy.deepcopy(configuration(model_class, variant))
    torch.manual_seed(0)
    model = model_class._from_config(config, dtype=dtype, attn_implementation=attention)
    return model.eval()


def run(model: Any, autocast: bool = False) -> dict[str, torch.Tensor]:
    """The result for fixed tokens, and the gradient of every parameter."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 80, (2, 24), generator=generator)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = model(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
    found.float().backward(torch.randn(found.shape, generator=generator))
    grads = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    return {"": found.detach()} | grads


def _contiguous(function: Callable[..., Any]) -> Callable[..., Any]:
    def run_it(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return (
            tuple(x.contiguous() for x in found) if isinstance(found, tuple) else found.contiguous()
        )

    return run_it


@contextmanager
def contiguous_results(module: ModuleType) -> Iterator[None]:
    """The module's rotary functions with contiguous results."""
    found = {name: getattr(module, name) for name in NAMES if hasattr(module, name)}
    vars(module).update({name: _contiguous(function) for name, function in found.items()})
    try:
        yield
    finally:
        vars(module).update(found)


def rotates(model: Any) -> bool:
    """Whether a layer may rotate, where a configuration names kinds of layers."""
    kinds = getattr(model.config, "layer_types", None)
    return not kinds or not {"linear_attention", "conv"}.issuperset(kinds)


def recipe(module: ModuleType) -> tuple[str, str]:
    """The name of a class of the module, and the variant, of which a model can be made and run;
    the first that rotates, if there is one."""
    found = []
    for model_class in classes(module):
        for variant in range(len(VARIANTS)):
            with suppress(Exception):  # whatever the model misses
                model = make(model_class, variant, torch.float32, "eager")
                run(model)
                found.append((model_class.__name__, str(variant)))
                if rotates(model):
                    return found[-1]
    return found[0] if found else ("-", "-")


def compare(model_class: Any, variant: int) -> Iterator[str]:
    """Every mode in which the model runs by itself, and what differs in it."""
    module = importlib.import_module(model_class.__module__)
    done = set()
    for dtype, autocast, attention in MODES:
        if (dtype, autocast) in done:
            continue
        try:
            model = make(model_class, variant, dtype, attention)
            with contiguous_results(module):
                expected = run(model, autocast)
        except Exception:
            continue
        done.add((dtype, autocast))
        with ropekit.transformers.patch(model), contiguous_results(module):
            found = run(model, autocast)
        differ = [name for name, x in expected.items() if not torch.equal(x, found[name])]
        mode = "autocast" if autocast else str(dtype).removeprefix("torch.")
        yield f"{mode}/{attention}" + (f" DIFFERS in {' '.join(differ)}" if differ else "")


def row(module: ModuleType, made: tuple[str, str] | None = None) -> str:
    """The line of the table, of a model that is known to run or of one that is looked for."""
    replaced = [f.__name__ for f in functions(module) if find_forms(f)]
    name, variant = made or (recipe(module) if replaced else ("-", "-"))
    modes = "-" if name == "-" else ", ".join(compare(getattr(module, name), int(variant)))
    family = module.__name__.rpartition("modeling_")[2]
    return "\t".join((family, name, variant, " ".join(replaced) or "-", modes))


if __name__ == "__main__":
    rows = [HEADING, *(row(importlib.import_module(name)) for name in names().values())]
    TABLE.write_text("\n".join(rows) + "\n", encoding="utf-8")
