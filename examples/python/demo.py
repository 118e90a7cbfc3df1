"""What rotary position embedding does, in cells that a notebook or an editor can run.

python examples/python/demo.py [FOLDER] prints what it finds, and draws it into the folder.
"""

# %%
import sys
from pathlib import Path

import ropekit
import torch
from rope_attention import RoPEAttention, scores

torch.manual_seed(0)

# %% Scores depend on the distance alone: both tokens moved by a million positions, they stay.
q, k = torch.randn(2, 128)
here = torch.arange(64)
near = scores(q, k, here, here)
far = scores(q, k, here + 1_000_000, here + 1_000_000)
size = float(q.norm() * k.norm())
moved = float((near - far).abs().max()) / size
print(f"scores of 64 x 64 positions, moved by 1000000: largest change {moved:.1e} of |q||k|")
assert moved < 1e-6

# %% So each diagonal of the scores is one number.
spread = max(float(near.diagonal(d).std(correction=0)) for d in range(-32, 33)) / size
print(f"spread along a diagonal: {spread:.1e} of |q||k|")
assert spread < 1e-6

# %% Causal attention: a token's output does not change with what comes after it.
attention = RoPEAttention(width=256, heads=8, kv_heads=2).eval()
x = torch.randn(1, 32, 256)
with torch.no_grad():
    whole, start = attention(x), attention(x[:, :20])
later = float((whole[:, :20] - start).abs().max())
print(
    f"outputs of the first 20 of 32 tokens, with and without the rest: largest change {later:.1e}"
)
assert later < 1e-5

# %% Order counts: without positions attention would not see that two earlier tokens changed places.
swapped = x.clone()
swapped[:, [3, 7]] = x[:, [7, 3]]
with torch.no_grad():
    last = float((attention(swapped) - whole)[:, -1].abs().max())
    same = torch.zeros(32, dtype=torch.long)
    blind = float((attention(swapped, same) - attention(x, same))[:, -1].abs().max())
print(
    f"last token after two earlier ones change places: {last:.1e}; at equal positions {blind:.1e}"
)
assert blind < 1e-5 < last

# %% The score of a query and an equal key, over their distance, for three bases.
distances = torch.arange(0, 512)
one = torch.ones(128)
curves = {}
for theta in (1e4, 1e5, 1e6):
    rotated = ropekit.apply(one.expand(1, 512, 1, 128), rope_theta=theta)[0, :, 0]
    curves[theta] = rotated @ one / 128


# %%
def draw(folder: Path) -> None:
    """Writes rope.png: the scores, and how they fall with distance."""
    from matplotlib import pyplot  # noqa: PLC0415 (optional)

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    image = left.imshow(near, cmap="RdBu")
    left.set(title="Score of one q and one k", xlabel="position of k", ylabel="position of q")
    figure.colorbar(image, ax=left)
    for theta, curve in curves.items():
        right.plot(distances, curve, label=f"base {theta:g}")
    right.set(title="Score of equal q and k", xlabel="distance in tokens", ylabel="share of |q||k|")
    right.legend()
    figure.savefig(folder / "rope.png", dpi=110)


if __name__ == "__main__" and len(sys.argv) > 1:
    draw(Path(sys.argv[1]))
