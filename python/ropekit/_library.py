"""Loads libtorch_ropekit.so, which registers the kernels, and libropekit.so with it."""

import ctypes
from pathlib import Path

import torch

_PATH = Path(__file__).parent / "libtorch_ropekit.so"


def _load() -> ctypes.CDLL:
    if not _PATH.exists():
        raise ImportError(f"{_PATH} is missing; install the package, or build it with ./dev test")
    torch.ops.load_library(str(_PATH))
    library = ctypes.CDLL(str(_PATH))
    pointer, text, count = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    whole, long = ctypes.c_int32, ctypes.c_int64
    for name, result, arguments in (
        ("rope_last_error", text, []),
        ("rope_version", text, []),
        ("rope_backend_count", whole, []),
        ("rope_backend_get", whole, [whole, pointer]),
        ("rope_config_parse", whole, [pointer, text, count, text]),
        ("rope_config_destroy", None, [pointer]),
        ("rope_config_check", whole, [pointer]),
        ("rope_config_note", text, [pointer]),
        ("rope_config_kind_count", whole, [pointer]),
        ("rope_config_kind_get", whole, [pointer, whole, pointer]),
        ("ropekit_last_error", text, [pointer]),
        ("ropekit_check_text", text, [text]),
        ("ropekit_check_attention", text, [text]),
        ("ropekit_explanation", text, []),
        ("ropekit_faster", whole, [text, text, long, long, long, long, whole, whole, whole]),
        ("ropekit_arguments", text, [text]),
        ("ropekit_describe_config", count, [pointer, whole, text, count]),
        ("ropekit_frequencies", text, [text, whole, pointer, whole, pointer]),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


library = _load()


def version() -> str:
    """Version of libropekit, as in "0.1.0"."""
    text: bytes = library.rope_version()
    return text.decode()
