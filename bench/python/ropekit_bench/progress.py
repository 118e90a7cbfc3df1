"""A bar on a terminal."""

from tqdm import tqdm


def progress(total):
    """A bar with the time left, by what share of the work took how long."""
    layout = "{percentage:3.0f}%|{bar:28}| {elapsed}, {remaining} left{postfix}"
    return tqdm(total=total, bar_format=layout, smoothing=0, disable=None)
