"""The case of a shape, by its operation."""

from ropekit_bench.append_case import AppendCase, append_refusal
from ropekit_bench.attention_backward_case import AttentionBackwardCase
from ropekit_bench.attention_case import AttentionCase, attention_refusal
from ropekit_bench.case import Case, refusal

OPERATIONS = {
    "rope": (Case, refusal),
    "append": (AppendCase, append_refusal),
    "attention": (AttentionCase, attention_refusal),
    "attention_backward": (AttentionBackwardCase, attention_refusal),
}


def operation_of(shape):
    name = shape.get("operation", "rope")
    return OPERATIONS[f"{name}_backward" if shape.get(name, {}).get("backward") else name]


def make_case(shape, *arguments):
    return operation_of(shape)[0](shape, *arguments)


def case_refusal(shape):
    return operation_of(shape)[1](shape)
