"""Fits constants of a machine: least squares on the logarithm of predicted over measured time.

Each constant has a prior, a normal distribution of its logarithm around the published or inferred
value, and a documented range that it may not leave.  Residuals are weighted so that a family of
kernels with many rows does not outvote the others, and large ones count by their size, not by their
square (pseudo-Huber), so that one kernel that the model cannot explain bends little.  Gauss-Newton
steps with a numeric Jacobian, halved while they make things worse.  No chance is involved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nkisim.calibrate.predict import Case, Report
from nkisim.machine.spec import Machine

Floats = npt.NDArray[np.float64]
RESIDUAL = 0.15
"""Spread of the logarithm of predicted over measured time that the model is trusted to reach."""
PROBE = 0.04
"""Change of a constant's logarithm for the Jacobian."""
LINEAR_ROUNDS = 30
SMALL_STEP = 0.005
"""Change of a constant's logarithm that is not worth another step."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant that may be fitted."""

    path: str
    low: float
    high: float
    """Documented range."""
    spread: float = 0.3
    """Prior: standard deviation of the logarithm around the machine file's value."""


@dataclass(frozen=True, eq=False, slots=True)
class Fit:
    """A machine fitted on some cases."""

    machine: Machine
    values: dict[str, float]
    jacobian: Floats
    """[cases, constants]: change of the logarithm of each prediction."""
    predictions: Floats
    """[cases]: at the fitted constants."""
    deviations: dict[str, float]
    """Standard error of the logarithm of each constant."""


class Fitter:
    """Fits the constants of one machine on a list of cases."""

    def __init__(
        self, machine: Machine, constants: Sequence[Constant], cases: Sequence[Case]
    ) -> None:
        """Prepare; the machine's own values are the priors.

        Args:
            machine: The machine before the fit.
            constants: What may change.
            cases: What to reproduce; all must be of this machine.
        """
        self.machine, self.constants, self.cases = machine, tuple(constants), tuple(cases)
        self.prior = np.log([_value(machine, c.path) for c in constants])
        self.low = np.log([c.low for c in constants])
        self.high = np.log([c.high for c in constants])
        self.spread = np.array([c.spread for c in constants])
        self.measured = np.log([case.row.latency_us for case in cases])
        self._known: dict[tuple[float, ...], Floats] = {}

    def at(self, point: Floats) -> Machine:
        """Return the machine with the constants at `point`, logarithms."""
        values = {c.path: _rounded(math.exp(x)) for c, x in zip(self.constants, point, strict=True)}
        return self.machine.with_changes(values)

    def predictions(self, point: Floats) -> Floats:
        """Return the logarithm of each prediction."""
        key = tuple(point.tolist())
        if key not in self._known:
            machine = self.at(point)
            self._known[key] = np.log([case.predict(machine) for case in self.cases])
        return self._known[key]

    def jacobian(self, point: Floats) -> Floats:
        """Return the change of each prediction's logarithm with each constant's.

        Lists are scheduled for `point`; the order of instructions stays while constants move.
        """
        steps = [
            PROBE if x + PROBE <= high else -PROBE for x, high in zip(point, self.high, strict=True)
        ]
        moved = []
        for i, step in enumerate(steps):
            there = point.copy()
            there[i] += step
            moved.append(self.at(there))
        found = np.zeros((len(self.cases), len(steps)))
        here = self.at(point)
        for row, case in enumerate(self.cases):
            base = math.log(case.predict(here))
            for column, machine in enumerate(moved):
                change = math.log(case.predict(machine, replan=False)) - base
                found[row, column] = change / steps[column]
        return found

    def weights(self, used: Sequence[int]) -> Floats:
        """Return the weight of each used case: families count by the root of their size."""
        sizes = Counter(self.cases[i].family for i in used)
        return np.array([1.0 / math.sqrt(sizes[self.cases[i].family]) for i in used])

    def cost(self, point: Floats, used: Sequence[int], predictions: Floats | None = None) -> float:
        """Return what is minimised."""
        found = self.predictions(point) if predictions is None else predictions
        error = (found - self.measured)[list(used)] / RESIDUAL
        strain = (point - self.prior) / self.spread
        loss = 2.0 * (np.sqrt(1.0 + error * error) - 1.0)
        return float(self.weights(used) @ loss + strain @ strain)

    def solve_linear(
        self, point: Floats, base: Floats, jacobian: Floats, used: Sequence[int]
    ) -> Floats:
        """Return the best point of the model that is linear around `point`, within the ranges."""
        rows = list(used)
        j, weights = jacobian[rows], self.weights(used)
        best = point.copy()
        for _ in range(LINEAR_ROUNDS):
            error = (base[rows] + j @ (best - point) - self.measured[rows]) / RESIDUAL
            w = weights / np.sqrt(1.0 + error * error) / RESIDUAL**2
            target = self.measured[rows] - base[rows] + j @ point
            best = self._bounded(j, w, target)
        return best

    def _bounded(self, j: Floats, w: Floats, target: Floats) -> Floats:
        """Solve weighted least squares with priors; a constant that leaves its range sticks."""
        count = len(self.constants)
        fixed: dict[int, float] = {}
        while True:
            free = [i for i in range(count) if i not in fixed]
            point = np.array([fixed.get(i, 0.0) for i in range(count)])
            if free:
                rest = target - j @ point
                a = j[:, free]
                normal = (a * w[:, None]).T @ a + np.diag(1.0 / self.spread[free] ** 2)
                right = (a * w[:, None]).T @ rest + self.prior[free] / self.spread[free] ** 2
                point[free] = np.linalg.solve(normal, right)
            outside = np.maximum(self.low - point, point - self.high)
            worst = int(np.argmax(outside))
            if outside[worst] <= 1e-12:
                return point
            fixed[worst] = float(np.clip(point[worst], self.low[worst], self.high[worst]))

    def fit(self, used: Sequence[int], *, rounds: int, report: Report) -> Fit:
        """Fit on the cases numbered `used`.

        Args:
            used: Which cases to fit on.
            rounds: Most Gauss-Newton steps.
            report: Told how the cost falls.
        """
        point = np.clip(self.prior, self.low, self.high)
        cost = self.cost(point, used)
        report(f"  start: cost {cost:.3f}")
        jacobian = self.jacobian(point)
        for number in range(1, rounds + 1):
            aim = self.solve_linear(point, self.predictions(point), jacobian, used)
            step, better = 1.0, False
            while step > 0.1:
                trial = point + step * (aim - point)
                trial_cost = self.cost(trial, used)
                if trial_cost < cost - 1e-9:
                    better = True
                    break
                step /= 2
            if not better:
                break
            gain, point, cost = cost - trial_cost, trial, trial_cost
            report(f"  step {number}: cost {cost:.3f}")
            jacobian = self.jacobian(point)
            if gain < 1e-3 * cost:
                break
        return self._result(point, jacobian, used)

    def _result(self, point: Floats, jacobian: Floats, used: Sequence[int]) -> Fit:
        rows = list(used)
        base = self.predictions(point)
        error = (base - self.measured)[rows] / RESIDUAL
        w = self.weights(used) / np.sqrt(1.0 + error * error) / RESIDUAL**2
        j = jacobian[rows]
        covariance = np.linalg.inv((j * w[:, None]).T @ j + np.diag(1.0 / self.spread**2))
        machine = self.at(point)
        return Fit(
            machine,
            {c.path: _value(machine, c.path) for c in self.constants},
            jacobian,
            base,
            {c.path: float(math.sqrt(covariance[i, i])) for i, c in enumerate(self.constants)},
        )

    def without(self, fit: Fit, used: Sequence[int], *, rounds: int) -> Machine:
        """Return the machine fitted on `used` alone.

        Starts from the full fit and its Jacobian, which each step corrects by what it finds
        (Broyden's update): a step costs one evaluation.
        """
        point = np.log([fit.values[c.path] for c in self.constants])
        jacobian, cost = fit.jacobian.copy(), self.cost(point, used)
        for _ in range(rounds):
            base = self.predictions(point)
            aim = self.solve_linear(point, base, jacobian, used)
            move = aim - point
            if float(np.abs(move).max(initial=0.0)) < SMALL_STEP:
                break
            error = self.predictions(aim) - base - jacobian @ move
            jacobian += np.outer(error, move) / float(move @ move)
            aim_cost = self.cost(aim, used)
            if aim_cost < cost:
                point, cost = aim, aim_cost
        return self.at(point)


def _value(machine: Machine, path: str) -> float:
    group, _, name = path.rpartition(".")
    return float(getattr(getattr(machine, group) if group else machine, name))


def _rounded(value: float) -> float:
    """Round to four significant digits, which is what machine files state."""
    return float(f"{value:.4g}")


def folds(cases: Sequence[Case], used: Sequence[int]) -> Mapping[str, list[int]]:
    """Return for each kernel family the used cases that are not of it.

    Figures of single instructions belong to no family and stay in.
    """
    families = sorted({cases[i].family for i in used if cases[i].is_scored})
    return {family: [i for i in used if cases[i].family != family] for family in families}
