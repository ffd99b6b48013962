"""What sampling plans is worth: best of 32 against one plan drawn uniformly, and against naive.

For each task and seed, draws plans uniformly, times them in the emulator (no values), and prints
the median over seeds of (one plan's time) / (best of n), with the best's speed-up over the naive
baseline.

    python benchmarks/autoschedule.py [--samples 32] [--seeds 5] [TASK ...]
"""

import argparse
import random
import statistics
import sys

from nkisim.api import TensorSpec, trace_bundle
from nkisim.dtypes import DTYPES
from nkisim.errors import NkisimError
from nkisim.machine.load import load_machine
from nkisim.profile.model import profile_program
from nkisim.sources import from_text
from nkiwright import tasks
from nkiwright.autoschedule.problem import NotCovered
from nkiwright.autoschedule.render import space_of
from nkiwright.resources import data_dir
from nkiwright.writers.autoschedule import problem_of


def latency_ns(task: tasks.Task, source: str, machine) -> float | None:
    """Return the emulated latency of a kernel at the main shape, or None if it is refused."""
    arguments = [TensorSpec(s.resolve(task.main), DTYPES[s.dtype]) for s in task.inputs]
    try:
        traced = trace_bundle(
            from_text(source),
            "kernel",
            arguments,
            dict(task.scalars),
            machine=machine,
            nki="0.6",
        )
    except NkisimError as error:
        print(f"  refused: {error}", file=sys.stderr)
        return None
    return profile_program(traced.program, machine).latency_ns


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--machine", default="trn2")
    options = parser.parse_args()
    machine = load_machine(options.machine)
    paths = tasks.discover(data_dir("tasks"))
    chosen = [tasks.load(p) for p in paths if not options.tasks or p.name in options.tasks]
    print(f"{'task':<18}{'one/best':>10}{'naive/best':>12}{'best us':>10}{'refused':>9}")
    above = 0
    for task in chosen:
        try:
            space = space_of(problem_of(task), machine)
        except NotCovered as error:
            print(f"{task.name:<18}{error}")
            continue
        baseline = latency_ns(task, task.baseline_text or "", machine)
        ratios, bests, refused = [], [], 0
        for seed in range(options.seeds):
            rng = random.Random(seed)
            found = []
            for _ in range(options.samples):
                value = latency_ns(task, space.render(space.sample(rng)).source, machine)
                refused += value is None
                found.append(value)
            legal = [v for v in found if v is not None]
            ratios.append(legal[0] / min(legal))
            bests.append(min(legal))
        ratio, best = statistics.median(ratios), statistics.median(bests)
        above += ratio >= 1.15
        print(
            f"{task.name:<18}{ratio:>9.2f}x{(baseline or 0) / best:>11.2f}x"
            f"{best / 1000:>10.1f}{refused:>9}",
            flush=True,
        )
    print(f"{above} of {len(chosen)} tasks gain at least 1.15x from {options.samples} plans")
    return 0


if __name__ == "__main__":
    sys.exit(main())
