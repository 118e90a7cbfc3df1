"""ropekit's PyTorch operators, as the Python package offers them."""

import ropekit

from ropekit_bench.peers import require


class adapter:
    kernel = "ropekit.apply"
    table_bytes = 0

    def __init__(self, name, tool):
        pass

    def prepare(self, case):
        require(case.is_whole, "whole heads alone are compared")
        require(not case.backward, "its backward is ropekit's own")
        fields = {
            "rope_theta": case.shape["rope_theta"],
            "pairing_in": case.shape["pairing_in"].replace("-", "_"),
        }
        config = ropekit.Config(**fields)
        in_place = case.shape["in_place"]
        ids = case.positions if case.shape["position_ids"] != "none" else None
        inputs = case.inputs

        def run(slot):
            q, k = inputs[slot]
            if in_place:
                ropekit.apply_(q, k, positions=ids, config=config)
                return q, k
            result = ropekit.apply(q, k, positions=ids, config=config)
            return (result, None) if k is None else result

        return run
