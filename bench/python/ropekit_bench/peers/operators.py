"""ropekit's PyTorch operators: rotation; append, as one call and as a call each for norm, rotation and store;
attention, with the gradient that autograd records; decode, which appends the token that it decodes."""

import ropekit
import torch

from ropekit_bench.cases.append import NORM, norm_of
from ropekit_bench.peers import require


def pairing(s, *ends):
    return {f"pairing_{end}": s[f"pairing_{end}"].replace("-", "_") for end in ends}


class Rotation:
    def prepare(self, case):
        require(case.is_whole, "whole heads alone are compared")
        config = ropekit.Config(rope_theta=case.shape["rope_theta"], **pairing(case.shape, "in"))
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


class Append:
    def prepare_append(self, case):
        s = case.shape
        rotation = {"rope_theta": s["rope_theta"], **pairing(s, "in", "out")}
        rotation |= {n: s[n] for n in ("rotary_dim", "rotary_offset") if s[n]}
        if s["k_head_dim"] != s["head_dim"]:
            rotation |= {"k_head_dim": s["k_head_dim"], "k_rotary_offset": s["k_rotary_offset"]}
        norm = {}
        for part in "qk":
            fields = norm_of(s, part)
            norm |= {f"{part}_norm_{n}": fields[n] for n in ("dim", *NORM) if n in fields}
        self.rotation, self.norm = ropekit.Config(**rotation), ropekit.Config(**norm)
        self.both = ropekit.Config(**rotation, **norm)
        self.weights = {f"{p}_weight": w for p, w in zip("qk", case.weights, strict=True) if w is not None}
        ids, places = case.positions.flatten(), [self.places(case, slot) for slot in range(case.sets)]
        if case.moves:
            return self.move(case, ids, places)
        prepare = self.steps if self.name == "ropekit steps" else self.call
        return prepare(case, ids, places)

    @staticmethod
    def places(case, slot):
        caches = dict(zip(("k_cache", "v_cache"), case.caches(slot), strict=True))
        narrow = {n: x for n, x in caches.items() if x is not None and x.dtype.itemsize == 1}
        return {**caches, "slots": case.slots, **{f"{n[0]}_scale": case.scale for n in narrow}}

    def call(self, case, ids, places):
        fixed = {"positions": ids, "config": self.both, **self.weights}
        calls = [
            (case.tensors(slot), {"q_out": case.q_out(slot), **places[slot], **fixed})
            for slot in range(case.sets)
        ]
        return lambda slot: ropekit.append(*calls[slot][0], **calls[slot][1])

    def steps(self, case, ids, places):
        """Between its steps one buffer serves all sets, so that it stays in the cache."""
        calls = [(case.tensors(slot), case.q_out(slot), places[slot]) for slot in range(case.sets)]
        weights, store = self.weights, ropekit.Config(rotation="off")
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
            ropekit.append(None, key, v, config=store, **places)
            return q_out

        return run

    def move(self, case, ids, places):
        for options in places:
            del options["v_cache"]
        dtype = {"dtype": case.dtype} if case.k_type.itemsize == 1 else {}

        def run(slot):
            ropekit.append(positions=ids, config=self.rotation, **places[slot], **dtype)

        return run


def config_of(case):
    """Of a case of attention."""
    if not case.rotates:
        return ropekit.Config(rotate="none")
    fields = {"rope_theta": case.shape["rope_theta"], **pairing(case.shape, "in")}
    return ropekit.Config(**fields, **({"window": case.window} if case.window else {}))


class Attention:
    def attending(self, case):
        """A function of q, k and v, [token, head, dim]."""
        require(not case.cached, "attention of tensors alone is compared")
        options = {"config": config_of(case), "causal": case.causal}
        if "cu_seqlens" in case.shape:
            return lambda *x: ropekit.attention(*x, **options, cu_seqlens=case.boundary_list)
        rows = case.batch, case.tokens
        return lambda *x: ropekit.attention(*(t.unflatten(0, rows) for t in x), **options)

    def prepare_attention(self, case):
        attend, calls = self.attending(case), [case.tensors(slot) for slot in range(case.sets)]
        return lambda slot: attend(*calls[slot])

    def prepare_attention_backward(self, case):
        attend, leaves = self.attending(case), case.leaves

        def run(slot):
            out = attend(*leaves[slot])
            return out, *torch.autograd.grad(out, leaves[slot], case.dout(slot).view(out.shape))

        return run


class Decode:
    def prepare_decode(self, case):
        q, k, v = zip(*(case.tensors(slot) for slot in range(case.sets)), strict=True)
        q = [x.unflatten(0, (case.batch, -1)) for x in q]
        k, v = ([x.unflatten(0, (-1, case.page_size)) for x in caches] for caches in (k, v))
        new, options = case.new_tokens, {"k_lengths": case.length_list, "block_table": case.page_table}
        rotary = {n: case.shape[n] for n in ("rotary_dim", "rotary_offset")}
        options |= {"config": config_of(case).replace(**rotary)} | case.scales
        return lambda slot: ropekit.decode(q[slot], *new, k_cache=k[slot], v_cache=v[slot], **options)


def adapter(name, tool):
    """What a peer's name says: an operator, and what follows it."""
    if tool and ropekit.__version__ != tool.version:
        raise ImportError(f"the package is {ropekit.__version__} and the tool {tool.version}")
    kinds = {"ropekit.apply": Rotation, "ropekit.append": Append, "ropekit steps": Append}
    kinds |= {"ropekit.decode": Decode}
    made = kinds.get(name, Attention)()
    made.name = made.kernel = name
    made.table_bytes = 0
    return made
