"""vLLM on ropekit's kernels. vLLM calls `register` by the entry point vllm.general_plugins.

ROPE_VLLM names what ropekit takes over: "attention", "rotation" or "attention,rotation". Empty or
unset changes nothing. Attention replaces CPU_ATTN on a CPU. On a GPU it is the backend CUSTOM,
which --attention-backend CUSTOM picks. A layer that ropekit does not take keeps vLLM's own
code, and one line of log says why before the first token.
"""

from __future__ import annotations

import os
from importlib import import_module

TESTED = ("0.32.0",)
_PARTS = ("attention", "rotation")


def register() -> None:
    """Makes ropekit known to vLLM, once or again."""
    wanted = [part.strip() for part in os.environ.get("ROPE_VLLM", "").split(",")]
    wanted = [part for part in wanted if part]
    for part in wanted:
        if part not in _PARTS:
            raise ValueError(f'ROPE_VLLM is "{part}"; allowed is {" and ".join(_PARTS)}')
    if not wanted:
        return
    import vllm  # noqa: PLC0415, only where it is asked for
    from vllm.logger import init_logger  # noqa: PLC0415

    if vllm.__version__.partition("+")[0] not in TESTED:
        init_logger("vllm.ropekit").warning_once(
            "ropekit leaves all to vLLM: its version is %s; tested is %s",
            vllm.__version__,
            " and ".join(TESTED),
        )
        return
    for part in wanted:
        import_module(f"ropekit.vllm._{part}").register()
