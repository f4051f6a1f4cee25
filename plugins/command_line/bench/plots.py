"""Results as pictures: a roofline of our operators, the ratios to each peer as bars, and the gain from cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clgraft.plugins.command_line.bench.cases import GROUPS
from clgraft.plugins.command_line.bench.results import Results, summaries
from clgraft.plugins.command_line.bench.threads import Speeds
from clgraft.plugins.plugin import PluginError


def draw(results: Results, folder: Path) -> list[Path]:
    """Write ``roofline.png`` and ``ratios.png``.

    Raises
    ------
    PluginError
        If matplotlib is not installed.
    """
    _prepare(folder)
    return [_roofline(results, folder / "roofline.png"), _ratios(results, folder / "ratios.png")]


def draw_gain(speeds: Speeds, folder: Path) -> Path:
    """Write ``threads.png``: the speed of ours and of each peer by number of cores, against that with the least.

    Raises
    ------
    PluginError
        If matplotlib is not installed.
    """
    _prepare(folder)
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    for index, ((group, direction, peer), by_count) in enumerate(speeds.items()):
        title = f"{GROUPS.get(group, 'whole nets')}, {direction}"
        counts = list(by_count)
        for side, (name, style) in enumerate((("clgraft", "o-"), (peer, "x--"))):
            gains = [found[side] for found in by_count.values()]
            axes.loglog(counts, gains, style, base=2, color=f"C{index % 10}", label=f"{title}: {name}")
    axes.loglog(counts, [count / counts[0] for count in counts], "k:", base=2, label="as many times as cores")
    axes.set_xlabel("cores")
    axes.set_ylabel(f"speed against that with {counts[0]}, geometric mean")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(fontsize=6)
    path = folder / "threads.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _prepare(folder: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        raise PluginError('[bench] got no matplotlib, expected it for plots: pip install "clgraft[bench]"') from None
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)


def _roofline(results: Results, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    knee = results.peak_flops / results.peak_bandwidth
    lowest = min((row.flops / row.nbytes for row in results.rows if row.flops), default=1.0)
    intensity = np.geomspace(min(0.25, lowest / 2), max(1000.0, knee * 20), 100)
    axes.loglog(
        intensity, np.minimum(results.peak_flops, intensity * results.peak_bandwidth) / 1e9, "k-", label="measured peak"
    )
    for index, (group, title) in enumerate(GROUPS.items()):
        for direction, marker in (("forward", "o"), ("backward", "^")):
            # ours is measured once for each peer: one of them is enough
            rows = list(
                {r.text: r for r in results.rows if (r.group, r.direction) == (group, direction) and r.flops}.values()
            )
            if rows:
                axes.loglog(
                    [row.flops / row.nbytes for row in rows],
                    [row.flops / row.ours / 1e9 for row in rows],
                    marker,
                    color=f"C{index}",
                    alpha=0.7,
                    label=f"{title}, {direction}",
                )
    axes.set_xlabel("operations per byte that has to move")
    axes.set_ylabel("GFLOPS (of the direct method: Winograd may pass the peak)")
    axes.set_title(f"Roofline: {results.device}")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _ratios(results: Results, path: Path) -> Path:
    import matplotlib.pyplot as plt

    found = summaries(results.rows)
    labels = list(dict.fromkeys((group, direction) for group, direction, _ in found))
    peers = list(dict.fromkeys(peer for _, _, peer in found))
    figure, axes = plt.subplots(figsize=(9, 1 + 0.28 * max(len(labels) * len(peers), 4)), layout="constrained")
    height = 0.8 / max(len(peers), 1)
    for i, peer in enumerate(peers):
        places, means, lows = [], [], []
        for place, (group, direction) in enumerate(labels):
            one = found.get((group, direction, peer))
            if one is not None:
                places.append(place + (i - (len(peers) - 1) / 2) * height)
                means.append(one.mean)
                lows.append(one.worst)
        bars = axes.barh(places, means, height, label=peer)
        axes.bar_label(bars, [f"{mean:.2f}x" for mean in means], padding=3, fontsize=6)
        axes.plot(lows, places, "k|", markersize=6)
    axes.axvline(1, color="k", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yticks(range(len(labels)), [f"{GROUPS.get(g, 'whole nets')}, {d}" for g, d in labels], fontsize=8)
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.invert_yaxis()
    axes.set_xlabel("peer's time over ours, geometric mean; | is the worst of the group")
    axes.set_title(f"Faster than the peers' own: {results.device}")
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
