"""The real images of the demo: scikit-learn's handwritten digits and scikit-image's photographs."""

from __future__ import annotations

import numpy as np

SEED = 7
SIDE = 24  # the digits are 8 pixels wide; larger ones make the arithmetic of a training step outweigh the calls


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return train images, train labels, test images, test labels.

    Images are (n, 1, SIDE, SIDE) float32 between 0 and 1, labels (n,) int.
    """
    from skimage.transform import resize
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = resize(bunch.images / 16.0, (len(bunch.images), SIDE, SIDE), order=1).astype(np.float32)[:, None]
    parts = train_test_split(images, bunch.target, test_size=0.25, random_state=SEED, stratify=bunch.target)
    return parts[0], parts[2], parts[1], parts[3]


def batches(count: int, size: int, epochs: int) -> list[np.ndarray]:
    """Return the indices of each batch, shuffled per epoch with a fixed seed; an incomplete batch is left out."""
    rng = np.random.default_rng(SEED)
    steps = []
    for _ in range(epochs):
        order = rng.permutation(count)
        steps += [order[i : i + size] for i in range(0, count - size + 1, size)]
    return steps


def photographs(size: int = 112) -> np.ndarray:
    """Return scikit-image's photographs, cropped and resized: (n, 3, size, size) float32 between 0 and 1."""
    import skimage.data
    from skimage.transform import resize

    images = []
    for name in ("astronaut", "chelsea", "coffee", "rocket"):
        picture = getattr(skimage.data, name)()
        side = min(picture.shape[:2])
        images.append(resize(picture[:side, :side], (size, size), anti_aliasing=True).transpose(2, 0, 1))
    return np.ascontiguousarray(images, dtype=np.float32)
