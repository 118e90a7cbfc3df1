"""What is compared. A peer is named here and adapted in a file of its own; none of its code is."""

import importlib
import importlib.metadata

from ropekit_bench.cases.base import Declined

# name: module, published package (None: its own version), backends
PEERS = {
    "ropekit": ("capi", None, ("cpu", "cuda", "hip")),
    "ropekit.apply": ("operators", None, ("cpu", "cuda", "hip")),
    "ropekit.append": ("operators", None, ("cpu", "cuda", "hip")),
    "ropekit steps": ("operators", None, ("cpu", "cuda", "hip")),
    "ropekit.attention": ("operators", None, ("cpu", "cuda", "hip")),
    "ropekit.decode": ("operators", None, ("cpu", "cuda", "hip")),
    "PyTorch naive": ("eager", "torch", ("cpu", "cuda", "hip")),
    "PyTorch cached": ("eager", "torch", ("cpu", "cuda", "hip")),
    "torch.compile naive": ("eager", "torch", ("cpu", "cuda", "hip")),
    "torch.compile cached": ("eager", "torch", ("cpu", "cuda", "hip")),
    "ropekit + SDPA": ("sdpa", "torch", ("cpu", "cuda", "hip")),
    "ropekit + cuDNN": ("sdpa", "torch", ("cuda",)),
    "ropekit + flash": ("sdpa", "torch", ("cuda", "hip")),
    "ropekit + flash deterministic": ("sdpa", "torch", ("cuda", "hip")),
    "ropekit + FA3": ("flash_attn_3", "xformers", ("cuda",)),
    "ropekit + FA3 deterministic": ("flash_attn_3", "xformers", ("cuda",)),
    "FlashAttention 3": ("flash_attn_3", "xformers", ("cuda",)),
    "Liger-Kernel": ("liger", "liger-kernel", ("cuda", "hip")),
    "FlashInfer": ("flashinfer", "flashinfer-python", ("cuda",)),
    "FlashInfer fused": ("flashinfer", "flashinfer-python", ("cuda",)),
    "flash-attn": ("flash_attn", "flash-attn", ("cuda", "hip")),
    "vLLM": ("vllm", "vllm", ("cuda", "hip")),
    "ONNX Runtime": ("onnx_runtime", "onnxruntime", ("cpu",)),
    "llama.cpp": ("llama_cpp", "llama-cpp-python", ("cpu",)),
}
COMPILED = "torch.compile"  # begins the names of those for which each shape needs code of its own


def is_compiled(name):
    return name.startswith(COMPILED)


class Absent(Exception):
    """A peer that cannot run here, with the reason."""


def load(name):
    """The adapter of a peer, not made yet."""
    return importlib.import_module(f"ropekit_bench.peers.{PEERS[name][0]}").adapter


def prepare(adapter, case):
    """What an adapter offers for the case's operation."""
    name = "prepare" if case.operation == "rotation" else f"prepare_{case.operation}"
    words = case.operation.replace("_", " and its ")
    require(hasattr(adapter, name), f"has no {words}{' alone' * (name == 'prepare')}")
    return getattr(adapter, name)(case)


class Peer:
    """prepare(case) gives run(slot) -> (q, k): a call on the case's input windows of that set; for append
    run(slot) -> q, which also writes the set's pages; for attention run(slot) -> its result, and with the
    backward (out, dq, dk, dv). From then on the adapter's kernel names what runs, and table_bytes are those
    of the rows of cos and sin that the call is given for its positions."""

    def __init__(self, name, tool):
        _, package, backends = PEERS[name]
        if tool.backend not in backends:
            raise Absent(f"does not run on {tool.backend}")
        try:
            self.version = tool.version if package is None else importlib.metadata.version(package)
            adapter = load(name)(name, tool)
        except importlib.metadata.PackageNotFoundError:
            raise Absent(f"{package} is not installed") from None
        except Exception as error:  # a package that breaks on import is as good as absent
            raise Absent(f"{type(error).__name__}: {str(error)[:200]}") from error
        self.name, self.adapter = name, adapter

    @property
    def compiles(self):
        """Whether each shape needs code of its own."""
        return is_compiled(self.name)

    def prepare(self, case):
        return prepare(self.adapter, case)


def require(condition, reason):
    if not condition:
        raise Declined(reason)
