"""What is compared: one description of a case, a record's shape, and one class for each operation."""

from ropekit_bench.cases.append import Append
from ropekit_bench.cases.attention import Attention, AttentionBackward
from ropekit_bench.cases.rotation import Rotation

KINDS = {"rope": Rotation, "append": Append, "attention": Attention, "attention_backward": AttentionBackward}


def kind(shape):
    name = shape.get("operation", "rope")
    return KINDS[f"{name}_backward" if shape.get(name, {}).get("backward") else name]


def make_case(shape, *arguments):
    """The case of a shape: device, bytes of the cache, seed, and whether its data are cold."""
    return kind(shape)(shape, *arguments)


def case_refusal(shape):
    """Why nobody is compared on a shape; empty where they are."""
    return kind(shape).refusal(shape)
