"""FlashInfer, angles in the kernel, in place; for append its norm and its page store around that, or its one
kernel that rotates, quantises and appends, which takes fp8 caches and gives q in fp8 too."""

import flashinfer
import torch

from ropekit_bench.cases.append import NORM, SCALE
from ropekit_bench.peers import require


class adapter:
    table_bytes = 0

    def __init__(self, name, tool):
        self.kernel = "flashinfer.apply_rope_pos_ids_inplace"
        self.is_fused = name == "FlashInfer fused"

    def require_types(self, case):
        require(case.dtype in (torch.float16, torch.bfloat16), "f16 and bf16 alone")
        require(case.k_shape[2], "rotates q and k together")

    def prepare(self, case):
        require(not self.is_fused, "appends alone")
        self.require_types(case)
        positions = case.positions.flatten().int()
        flat = [tuple(x.flatten(0, 1) for x in pair) for pair in case.inputs]
        theta, interleaved = case.shape["rope_theta"], case.interleaved

        def run(slot):
            q, k = flat[slot]
            flashinfer.apply_rope_pos_ids_inplace(q, k, positions, interleave=interleaved, rope_theta=theta)
            return case.inputs[slot]

        return run

    def prepare_append(self, case):
        self.require_types(case)
        require(not case.moves, "keys in a cache do not move")
        require(case.v_shape[2], "keeps MLA's latent and rotated part in two caches")
        places = self.places(case)
        if self.is_fused:
            require(case.k_type == torch.float8_e4m3fn, "appends to fp8 caches alone")
            require(all(w is None for w in case.weights), "has no norm")
            return self.fused(case, places)
        return self.chain(case, places)

    def places(self, case):
        """Slots as FlashInfer names them: pages of requests, and indices in these."""
        numbers = {"dtype": torch.int32, "device": case.device}
        if case.shape["position_ids"] == "random":  # a request, of one page, for each token
            requests = torch.arange(case.count, **numbers)
            within, bounds = (case.slots % case.page_size).int(), torch.arange(case.count + 1, **numbers)
            last = within + 1
        else:
            requests, within = torch.zeros(case.count, **numbers), torch.arange(case.count, **numbers)
            bounds = torch.tensor([0, case.pages], **numbers)
            last = torch.tensor([(case.count - 1) % case.page_size + 1], **numbers)
        return requests, within, case.page_order.int(), bounds, last

    def fused(self, case, places):
        self.kernel = "flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache, q in fp8"
        rows = torch.arange(case.rows, device=case.device)
        table = torch.cat(case.table(rows), -1)
        self.table_bytes = case.selected_bytes([table])
        positions = case.positions.flatten().int()
        requests, within, order, bounds, _ = places
        calls = [(case.tensors(slot), case.caches(slot)) for slot in range(case.sets)]
        # As large as its own result: q's place has room for it.
        results = [
            case.q_out(slot)
            .view(case.k_type)
            .flatten()[: case.q_out(slot).numel()]
            .view(case.q_shape[0] * case.q_shape[1], *case.q_shape[2:])
            for slot in range(case.sets)
        ]

        def run(slot):
            (q, k, v), pages = calls[slot]
            flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
                *(q, k, None, None, v, table, positions, tuple(pages), order, bounds, requests, within),
                is_neox=not case.interleaved,
                quant_scale_q=1 / SCALE,
                quant_scale_kv=1 / SCALE,
                page_size=case.page_size,
                q_rope_out=results[slot],
            )
            return results[slot]

        return run

    def chain(self, case, places):
        norms = any(w is not None for w in case.weights)
        self.kernel = f"flashinfer.{'rmsnorm, ' * norms}apply_rope_pos_ids_inplace, append_paged_kv_cache"
        narrow = case.k_type.itemsize == 1
        if narrow:
            self.kernel += ", and a cast by PyTorch"
        positions = case.positions.flatten().int()
        theta, interleaved = case.shape["rope_theta"], case.interleaved
        requests, within, order, bounds, last = places
        calls = [(case.tensors(slot), case.caches(slot)) for slot in range(case.sets)]
        normed = [
            None if w is None else torch.empty_like(x)
            for w, x in zip(case.weights, calls[0][0], strict=False)
        ]
        largest = torch.finfo(case.k_type).max

        def norm(x, which):
            if normed[which] is None:
                return x
            return flashinfer.rmsnorm(x, case.weights[which], NORM["eps"], out=normed[which])

        def cast(x):
            return (x * (1 / SCALE)).clamp(-largest, largest).to(case.k_type) if narrow else x

        def run(slot):
            (q, k, v), pages = calls[slot]
            q, k = norm(q, 0), norm(k, 1)
            flashinfer.apply_rope_pos_ids_inplace(q, k, positions, interleave=interleaved, rope_theta=theta)
            flashinfer.append_paged_kv_cache(
                cast(k), cast(v), requests, within, tuple(pages), order, bounds, last
            )
            return q

        return run
