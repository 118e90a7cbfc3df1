"""What is compared: one description of a case, a record's shape, and one class for each operation."""

from ropekit_bench.cases.append import Append
from ropekit_bench.cases.attention import Attention, AttentionBackward
from ropekit_bench.cases.decode import Decode
from ropekit_bench.cases.rotation import Rotation

KINDS = {"rope": Rotation, "append": Append, "attention": Attention, "attention_backward": AttentionBackward}
KINDS |= {"attention_decode": Decode}


def kind(shape):
    name = shape.get("operation", "rope")
    more = [x for x in ("backward", "decode") if shape.get(name, {}).get(x)]
    return KINDS["_".join((name, *more))]


def make_case(shape, *arguments):
    """The case of a shape: device, bytes of the cache, seed, and whether its data are cold."""
    return kind(shape)(shape, *arguments)


def case_refusal(shape):
    """Why nobody is compared on a shape; empty where they are."""
    return kind(shape).refusal(shape)
