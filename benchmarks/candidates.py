"""How many candidates a second are judged, and where the time goes.

A hundred distinct rmsnorm kernels (512 x 2048, bfloat16) go through the whole judge: traced in the
sandbox, checked on three fresh seeds each with inputs drawn and the reference recomputed, timed.

    python benchmarks/candidates.py [--count 100] [--workers 2] [--task rmsnorm]
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from nkisim.machine.load import load_machine
from nkiwright import tasks
from nkiwright.autoschedule.search import AutoscheduleSampler
from nkiwright.evaluate import JudgeOptions
from nkiwright.executor import EvaluatorPool
from nkiwright.writers.autoschedule import problem_of

MAIN = "main = { n = 512, d = 2048 }"


def small_task(name: str, folder: Path) -> Path:
    """Copy a task with its main shape replaced by 512 x 2048, where it has n and d."""
    source = tasks.load(name).folder
    target = folder / name
    shutil.copytree(source, target)
    file = target / "task.toml"
    lines = file.read_text().splitlines()
    if name == "rmsnorm":
        lines = [MAIN if line.startswith("main =") else line for line in lines]
    file.write_text("\n".join(lines) + "\n")
    return target


def distinct_kernels(task: tasks.Task, count: int, machine: str) -> list[str]:
    """Sample `count` legal plans and render them; no two kernels are the same text."""
    sampler = AutoscheduleSampler(problem_of(task), load_machine(machine), seed=1)
    return [proposal.source for proposal in sampler.propose(count)]


async def measure(folder: Path, kernels: list[str], workers: int, machine: str) -> None:
    """Judge all kernels and print the rate."""
    options = JudgeOptions(machine=machine, with_profile=False)
    async with EvaluatorPool(workers=workers, keep_cases=False) as pool:
        warm = [pool.evaluate(folder, kernels[0], options, secret=k) for k in range(2 * workers)]
        await asyncio.gather(*warm)
        start = time.perf_counter()
        found = await asyncio.gather(
            *(
                pool.evaluate(folder, source, options, secret=1000 + i)
                for i, source in enumerate(kernels)
            )
        )
        seconds = time.perf_counter() - start
    verdicts = Counter(evaluation.verdict.value for evaluation in found)
    prints = {evaluation.fingerprint for evaluation in found}
    print(f"{len(found)} kernels, {len(prints)} distinct programs: {dict(verdicts)}")
    print(f"{len(found) / seconds:.1f} candidates a second with {workers} evaluators")
    steps: Counter[str] = Counter()
    for evaluation in found:
        steps.update(evaluation.seconds)
    total = workers * seconds
    print("where the evaluators' time goes (ms a candidate, share):")
    for step, spent in steps.most_common():
        print(f"  {step:<12} {1000 * spent / len(found):7.1f}  {100 * spent / total:5.1f} %")
    rest = total - sum(steps.values())
    print(f"  {'other':<12} {1000 * rest / len(found):7.1f}  {100 * rest / total:5.1f} %")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--task", default="rmsnorm")
    parser.add_argument("--machine", default="trn2")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        folder = small_task(options.task, Path(name))
        task = replace(tasks.load(folder))
        kernels = distinct_kernels(task, options.count, options.machine)
        asyncio.run(measure(folder, kernels, options.workers, options.machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
