"""Compare float16 and bfloat16 with float32 on one device: `python benchmarks/sixteen_bits.py --device pocl`.

Each problem runs in the three types, in turns in one process. What memory bounds takes half of the bytes in 16 bits;
its share of the copy speed is that of the bytes of its arguments in float32 and in float16. `--parts products` and
`--parts memory` choose, words of the command line select problems by parts of their text, and `--from 20 --count 10`
takes some of these. What a run measures takes the place of the same rows in the file of results, if that is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from progress import announced
from timing import Timing, compare, geometric_mean, keep, row

from clgraft import core
from clgraft.core.problem import SMALL
from clgraft.plugins.command_line.bench import peaks
from clgraft.plugins.command_line.bench.peers import aligned
from clgraft.plugins.command_line.bench.results import Measurement, Results

TYPES = {"float32": "", "float16": "f16 ", "bfloat16": "bf16 "}
# `{}` is where a problem's text names a type
MEMORY = (
    "conv forward {}g144 n32 ic144 ih56 iw56 oc144 kh3 kw3 ph1 pw1",
    "conv backward_data {}g144 n32 ic144 ih56 iw56 oc144 kh3 kw3 ph1 pw1",
    "conv backward_filter {}g144 n32 ic144 ih56 iw56 oc144 kh3 kw3 ph1 pw1",
    "conv forward {}g144 n32 ic144 ih56 iw56 oc144 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv backward_data {}g144 n32 ic144 ih56 iw56 oc144 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv backward_filter {}g144 n32 ic144 ih56 iw56 oc144 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv forward {}g384 n64 ic384 ih14 iw14 oc384 kh3 kw3 ph1 pw1",
    "batchnorm forward_training {}n32 c256 s3136",
    "batchnorm forward_inference {}n32 c256 s3136",
    "batchnorm backward_training {}n32 c256 s3136",
    "batchnorm forward_training {}n128 c2048 s49",
    "pool forward max {}n32 c64 ih112 iw112 kh3 kw3 sh2 sw2 ph1 pw1",
    "pool backward max {}n32 c64 ih112 iw112 kh3 kw3 sh2 sw2 ph1 pw1",
    "pool forward average {}n64 c192 ih28 iw28 kh3 kw3 ph1 pw1",
    "pool backward average {}n64 c192 ih28 iw28 kh3 kw3 ph1 pw1",
    "pool forward max {}n32 c256 ih56 iw56 kh2 kw2 sh2 sw2",
    "pool forward average {}n128 c2048 ih7 iw7 kh7 kw7",
    "pool backward average {}n128 c2048 ih7 iw7 kh7 kw7",
    "pointwise {}x0[32,256,56,56] : y0 = x0 > 0 ? x0 : 0",
    "pointwise {}x0[32,256,56,56] x1[32,256,56,56] : y0 = x0 + x1",
    "pointwise {}x0[32,256,56,56] x1[32,256,56,56] : y0 = x0 > 0 ? x1 : 0",
    "pointwise {}x0[32,256,56,56] x1[256,1,1] x2[256,1,1] : y0 = fmax(x0 * x1 + x2, 0)",
    "pointwise {}x0[32,256,56,56] y0=sum[0,2,3] : y0 = x0",
    "pointwise {}x0[128,2048,7,7] y0=sum[2,3] : y0 = x0",
    "pointwise {}x0[131072,256] y0=sum[1] : y0 = x0",
    "pointwise {}x0[8192,4096] y0=sum[0] : y0 = x0",
    "softmax forward {}n16384 c1000 s1",
    "softmax backward {}n16384 c1000 s1",
    "softmax forward {}n4 c21 s62500",
    "lrn forward {}n32 c96 s3025 size5 beta0.75",
    "lrn backward {}n32 c96 s3025 size5 beta0.75",
    "concat forward {}outer[32] extents[128,128] inner[3136]",
    "concat forward {}outer[64] extents[192,208,48,64] inner[196]",
    "slice forward {}x[32,256,56,56] y[32,256,54,54] at[0,0,1,1]",
    "transpose {}x[32,256,56,56] axes[0,2,3,1]",
    "pad forward edge {}x[64,64,56,56] before[0,0,1,1] behind[0,0,1,1]",
    "repeat {}x[64,64,28,28] times[1,1,2,2]",
    "dropout forward {}x[32,256,56,56]",
    "dense forward {}n1 i4096 o4096",
    "dense forward {}n8 i4096 o4096",
)
PRODUCTS = (
    "conv forward {}n8 ic64 ih56 iw56 oc256 kh1 kw1",
    "conv forward {}n8 ic1024 ih14 iw14 oc256 kh1 kw1",
    "conv forward {}n8 ic512 ih28 iw28 oc1024 kh1 kw1 sh2 sw2",
    "conv forward {}n8 ic256 ih14 iw14 oc256 kh3 kw3 ph1 pw1",
    "conv forward {}n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1",
    "conv forward {}n8 ic128 ih56 iw56 oc128 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv forward {}n8 ic3 ih224 iw224 oc64 kh7 kw7 sh2 sw2 ph3 pw3",
    "conv backward_data {}n8 ic256 ih56 iw56 oc64 kh1 kw1",
    "conv backward_data {}n8 ic256 ih14 iw14 oc256 kh3 kw3 ph1 pw1",
    "conv backward_data {}n8 ic128 ih56 iw56 oc128 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv backward_filter {}n8 ic256 ih56 iw56 oc64 kh1 kw1",
    "conv backward_filter {}n8 ic256 ih14 iw14 oc256 kh3 kw3 ph1 pw1",
    "conv backward_filter {}n8 ic128 ih56 iw56 oc128 kh3 kw3 sh2 sw2 ph1 pw1",
    "dense forward {}n64 i4096 o4096",
    "dense backward_data {}n64 i4096 o4096",
    "dense backward_weight {}n64 i4096 o4096",
    "matmul {}n96 m128 k64 c128 transposed_b",
)
PARTS = {"memory": MEMORY, "products": PRODUCTS}
SETS = {"memory": "memory-bound", "products": "products"}  # in files of results


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts of texts of problems (default: all)")
    parser.add_argument("--device", help="as CLGRAFT_DEVICE")
    parser.add_argument("--parts", default="memory,products")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the number of the first problem of a part")
    parser.add_argument("--count", type=int, help="of problems of a part (default: all)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each problem")
    parser.add_argument("--json", default="", help="file of results")
    return parser.parse_args()


def runner(context: core.Context, problem: core.Problem) -> Callable[[], None]:
    """Return a run of a problem on random arrays, which begin with lines of a cache."""
    plan = context.plan(problem)
    inputs = problem.sample(np.random.default_rng(0))
    values = {a.name: inputs[a.name] if a.role != "out" else np.zeros(a.shape, a.dtype) for a in plan.arguments}
    arrays = {name: aligned(np.asarray(array)) for name, array in values.items()}
    scalars = problem.trial_scalars()
    return lambda: plan.run(scalars, **arrays)


def main() -> None:
    """Measure what the command line says."""
    options = parse()
    context = core.context(options.device)
    copy = peaks.measure(context).bandwidth
    print(f"{context.device}: copies {copy / 1e9:.1f} GB/s")
    rows = []
    for part in options.parts.split(","):
        texts = [text for text in PARTS[part] if not options.words or any(word in text for word in options.words)]
        texts = texts[options.first :][: options.count]
        ratios: dict[str, list[float]] = {name: [] for name in SMALL}
        for text in announced(texts):
            problems = {name: core.parse(text.format(word)) for name, word in TYPES.items()}
            found = compare({name: runner(context, each) for name, each in problems.items()}, options.seconds)
            print(line(part, text, problems, found, copy), flush=True)
            for name in SMALL:
                ratios[name].append(found["float32"].best / found[name].best)
                direction = getattr(problems[name], "direction", "forward")
                times = found["float32"].median, found[name].median
                rows.append(row(f"{SETS[part]} {name}", str(problems[name]), direction, "float32", *times))
        for name, values in ratios.items():
            if values:
                mean = geometric_mean(values)
                print(f"{part}, float32 / {name}: geometric mean {mean:.2f}, worst {min(values):.2f}")
    keep(options.json, context, joined(options.json, rows), {"float32": "clgraft in float32"})


def joined(path: str, rows: list[Measurement]) -> list[Measurement]:
    """Return the rows of a file of results, if there is one, with those of this run."""
    found = {(old.set, old.name): old for old in Results.read(Path(path)).rows} if path and Path(path).exists() else {}
    found.update({(new.set, new.name): new for new in rows})
    return list(found.values())


def line(part: str, text: str, problems: dict[str, core.Problem], found: dict[str, Timing], copy: float) -> str:
    """Return a problem's times in words."""
    base = found["float32"].best
    words = [f"{1e6 * base:8.0f} us"] + [f"{name} {base / found[name].best:.2f}" for name in SMALL]
    if part == "memory":
        words += [f"copy {problems[n].nbytes / copy / found[n].best:.2f}" for n in ("float32", "float16")]
    return f"{text.replace('{}', ''):78} " + "  ".join(words)


if __name__ == "__main__":
    main()
