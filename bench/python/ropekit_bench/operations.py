"""The case of a shape, by its operation."""

from ropekit_bench.append_case import AppendCase, append_refusal
from ropekit_bench.attention_case import AttentionCase, attention_refusal
from ropekit_bench.case import Case, refusal

OPERATIONS = {
    "rope": (Case, refusal),
    "append": (AppendCase, append_refusal),
    "attention": (AttentionCase, attention_refusal),
}


def make_case(shape, *arguments):
    return OPERATIONS[shape.get("operation", "rope")][0](shape, *arguments)


def case_refusal(shape):
    return OPERATIONS[shape.get("operation", "rope")][1](shape)
