"""A case whose sets of tensors lie in slabs of bytes, as q, k and v of append and of attention do."""

import torch

from ropekit_bench.case import Case, round_up


class SlabCase(Case):
    """Inputs of a set lie in `source`, results in `target`; a view is where it starts in a set, a shape and
    a type."""

    in_place = False  # a copy moves as many bytes

    @staticmethod
    def _lay_out(*tensors):
        """Views of tensors, each a shape and a type, one after the other; and where they end."""
        start, views = 0, []
        for shape, dtype in tensors:
            views.append((start, torch.Size(shape), dtype))
            start = round_up(start + torch.Size(shape).numel() * dtype.itemsize, 64)
        return views, start

    def _at(self, slab, slot, view):
        start, shape, dtype = view
        start += slot * self.pitch
        return slab[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)

    def _views(self, slab, slot, views):
        """Tensors of a set; None where there is none."""
        return [self._at(slab, slot, view) if view[1].numel() else None for view in views]

    def _draw(self, generator):
        self.drawn = [
            (2 * torch.rand(shape, generator=generator) - 1).to(self.device, dtype)
            for _, shape, dtype in self.source_views
        ]

    def _fill(self):
        self._draw(torch.Generator().manual_seed(self.seed))
        slab = torch.zeros(self.pitch * self.sets, dtype=torch.uint8, device=self.device)
        self.source, self.target = slab, slab.clone()
        for slot in range(self.sets):
            self._restore(slot)

    def _restore(self, slot):
        for x, drawn in zip(self._views(self.source, slot, self.source_views), self.drawn, strict=True):
            if x is not None:
                x.copy_(drawn)

    def tensors(self, slot):
        """q, k and v of a set, [token, head, dim]; None where there is none."""
        return self._views(self.source, slot, self.source_views)
