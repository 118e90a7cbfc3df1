"""ropekit's PyTorch operator append, as one call, and as a call each for norm, rotation and store."""

import ropekit
import torch

from ropekit_bench.append_case import NORM, norm_of


class adapter:
    table_bytes = 0

    def __init__(self, name, tool):
        if ropekit.__version__ != tool.version:
            raise ImportError(f"the package is {ropekit.__version__} and the tool {tool.version}")
        self.kernel = "ropekit.append" if name == "ropekit.append" else "ropekit.append, a call for each step"
        self.in_steps = name != "ropekit.append"

    def prepare_append(self, case):
        s = case.shape
        rotation = {"rope_theta": s["rope_theta"], **self.pairings(s)}
        rotation |= {n: s[n] for n in ("rotary_dim", "rotary_offset") if s[n]}
        if s["k_head_dim"] != s["head_dim"]:
            rotation |= {"k_head_dim": s["k_head_dim"], "k_rotary_offset": s["k_rotary_offset"]}
        norm = {}
        for part in "qk":
            fields = norm_of(s, part)
            norm |= {f"{part}_norm_{n}": fields[n] for n in ("dim", *NORM) if n in fields}
        self.rotation = ropekit.Config(**rotation)
        self.norm = ropekit.Config(**norm)
        self.both = ropekit.Config(**rotation, **norm)
        self.store = ropekit.Config(rotation="off")
        ids = case.positions.flatten()
        if case.moves:
            return self.move(case, ids)
        return self.steps(case, ids) if self.in_steps else self.call(case, ids)

    def pairings(self, s):
        return {n: s[n].replace("-", "_") for n in ("pairing_in", "pairing_out")}

    def places(self, case, slot):
        k_cache, v_cache = case.caches(slot)
        scales = {
            f"{part}_scale": case.scale
            for part, cache in (("k", k_cache), ("v", v_cache))
            if cache is not None and cache.dtype.itemsize == 1
        }
        return {"k_cache": k_cache, "v_cache": v_cache, "slots": case.slots, **scales}

    def weights(self, case):
        return {f"{part}_weight": w for part, w in zip("qk", case.weights, strict=True) if w is not None}

    def call(self, case, ids):
        fixed = {"positions": ids, "config": self.both, **self.weights(case)}
        calls = [
            (case.tensors(slot), {"q_out": case.q_out(slot), **self.places(case, slot), **fixed})
            for slot in range(case.sets)
        ]

        def run(slot):
            tensors, options = calls[slot]
            return ropekit.append(*tensors, **options)

        return run

    def steps(self, case, ids):
        """Between its steps one buffer serves all sets, so that it stays in the cache."""
        calls = [(case.tensors(slot), case.q_out(slot), self.places(case, slot)) for slot in range(case.sets)]
        weights = self.weights(case)
        between = [
            None if w is None else torch.empty_like(x)
            for w, x in zip(case.weights, calls[0][0][:2], strict=True)
        ]
        key = torch.empty_like(calls[0][0][1])

        def normed(x, which):
            if between[which] is None:
                return x
            part = "qk"[which]
            given = {part: x, f"{part}_out": between[which], f"{part}_weight": weights[f"{part}_weight"]}
            ropekit.append(**given, config=self.norm, rotation="off")
            return between[which]

        def run(slot):
            (q, k, v), q_out, places = calls[slot]
            q, k = normed(q, 0), normed(k, 1)
            ropekit.append(q, k, q_out=q_out, k_out=key, positions=ids, config=self.rotation)
            ropekit.append(None, key, v, config=self.store, **places)
            return q_out

        return run

    def move(self, case, ids):
        calls = [self.places(case, slot) for slot in range(case.sets)]
        for options in calls:
            del options["v_cache"]
        dtype = {"dtype": case.dtype} if case.k_type.itemsize == 1 else {}

        def run(slot):
            ropekit.append(positions=ids, config=self.rotation, **calls[slot], **dtype)

        return run
