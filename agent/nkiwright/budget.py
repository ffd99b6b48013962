"""Hard caps on what a run may use, checked before anything is used.

Before a model call its worst case is reserved: one token for each byte sent and all the output that
it may write, at the model's price.  Reservations are held while calls are under way, so calls made
at the same time cannot exceed a cap together.  Afterwards the actual usage takes the reservation's
place.  So a cap holds whenever the provider honours the output limit that it is given.

Money is kept in whole billionths of a dollar, rounded up, so that sums are exact.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nkiwright.errors import ExitCode, ModelError, NkiwrightError
from nkiwright.events import BudgetWarning
from nkiwright.llm.base import Completion, ModelCall, Usage
from nkiwright.llm.counting import believable, most_input_tokens
from nkiwright.llm.pricing import cost_usd, is_free

SCHEMA_VERSION = 1
DEFAULT_MAX_USD = 1.0
UNPRICED_MAX_TOKENS = 2_000_000
"""Cap on the tokens of models without a known price if no cap on tokens is given: dollars cannot
hold them, and there must always be a cap."""
MIN_USEFUL_OUTPUT_TOKENS = 2048
"""A reply limited to fewer would rarely hold a whole kernel, so the call is not made."""
THRESHOLDS = (0.5, 0.8)
"""Used fractions of a cap at which a warning is given."""
NANO = 1_000_000_000

Limit = Literal["usd", "tokens", "evaluations", "seconds"]
_FLAGS: Mapping[Limit, str] = {
    "usd": "--max-usd",
    "tokens": "--max-tokens",
    "evaluations": "--max-evaluations",
    "seconds": "--max-seconds",
}


class BudgetExceeded(NkiwrightError):
    """What was about to be done does not fit into a cap."""

    exit_code = ExitCode.UNSOLVED


@dataclass(slots=True)
class _Spent:
    """What has been used; plain numbers, so that they survive a restart."""

    nano_usd: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    estimated_tokens: int = 0
    """Of all tokens, those that were counted from text."""
    unpriced_tokens: int = 0
    """Of all tokens, those of models without a known price."""
    calls: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    """Before this process began."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What some calls may use, before the first is made."""

    model: str
    drafts: int
    repairs: int
    """Calls that may follow the drafts."""
    max_input_tokens: int
    """Of all calls, if each reply that is sent back is as long as it may be."""
    max_output_tokens: int
    """Of all calls, if each reply is as long as it may be."""
    max_usd: float | None
    """Dollars at these tokens, or None if the price is not known."""
    cap: str
    """The caps in words."""

    @property
    def text(self) -> str:
        """The estimate as one line."""
        calls = f"{self.model}: {self.drafts} drafts and at most {self.repairs} repairs"
        if is_free(self.model):
            return f"{calls}, from a recording: costs nothing"
        money = "price unknown" if self.max_usd is None else f"${self.max_usd:.2f}"
        return (
            f"{calls}, together at most {self.max_input_tokens:,} tokens in and "
            f"{self.max_output_tokens:,} out, {money}; stops at {self.cap}"
        )


class Reservation:
    """Room that is held for one call until `settle` says what it used.

    Made by `Budget.reserve` and `Budget.acquire`.
    """

    def __init__(self, budget: Budget, model: str, call: ModelCall, nano_usd: int | None) -> None:
        self._budget = budget
        self._usage: Usage | None = None
        self.model = model
        self.call = call
        """The call to make: as asked, or with a smaller output limit that fits."""
        self.tokens = most_input_tokens(call) + call.max_output_tokens
        """Tokens held."""
        self.nano_usd = nano_usd
        """Billionths of a dollar held, or None if the price is not known."""

    def settle(self, completion: Completion | None, *, error: BaseException | None = None) -> Usage:
        """Replace the reservation by what was used, and return that.

        Args:
            completion: What came, or None if the call failed or was cancelled.
            error: Why it failed.  An error that the provider cannot have billed (a refused key, no
                connection) uses nothing; any other failure, or none given, counts as the whole
                reservation, since the provider may bill all of it.
        """
        if self._usage is None:
            self._usage = self._used(completion, error)
            self._budget._settle(self, self._usage)
        return self._usage

    def _used(self, completion: Completion | None, error: BaseException | None) -> Usage:
        if completion is not None:
            return believable(completion.usage, self.call, completion.text)
        if isinstance(error, ModelError) and not error.may_be_billed:
            return Usage(input_tokens=0, output_tokens=0)
        return self._whole()

    def _whole(self) -> Usage:
        """Return all that is held, as usage."""
        return Usage(
            input_tokens=most_input_tokens(self.call),
            output_tokens=self.call.max_output_tokens,
            is_estimated=True,
        )


class Budget:
    """Counts what a run uses and refuses what would exceed a cap.

    For one event loop; not safe to share between threads.

    Args:
        max_usd: Most dollars for models.
        max_tokens: Most tokens, in and out together, or None for no cap (models without a known
            price are then held to `UNPRICED_MAX_TOKENS`).
        max_evaluations: Most candidates to judge, or None for no cap.
        max_seconds: Most seconds, or None for no cap.
        on_warning: Called when a cap is half used, at 80 %, and when it first refuses something.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        *,
        max_usd: float = DEFAULT_MAX_USD,
        max_tokens: int | None = None,
        max_evaluations: int | None = None,
        max_seconds: float | None = None,
        on_warning: Callable[[BudgetWarning], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_nano_usd = math.floor(max_usd * NANO)
        self._max_tokens = max_tokens
        self._max_evaluations = max_evaluations
        self._max_seconds = max_seconds
        self._on_warning = on_warning
        self._clock = clock
        self._start = clock()
        self._spent = _Spent()
        self._held: list[Reservation] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._warned: dict[Limit, float] = {}

    # -- model calls --------------------------------------------------------------------------

    def reserve(self, model: str, call: ModelCall) -> Reservation:
        """Hold room for a call, with a smaller output limit if that makes it fit.

        Args:
            model: Model id, `provider:model`.
            call: The call to make.

        Raises:
            BudgetExceeded: A useful call does not fit.
        """
        self._check_time()
        limit = self._fitting_output(model, call)
        if limit is None:
            raise self._refusal(model, call)
        if limit < call.max_output_tokens:
            call = dataclasses.replace(call, max_output_tokens=limit)
        reservation = Reservation(self, model, call, _nano_price(model, call))
        self._held.append(reservation)
        return reservation

    async def acquire(self, model: str, call: ModelCall) -> Reservation:
        """Hold room for a call, first waiting for calls under way if they hold the room.

        Calls use less than they hold, so waiting lets more calls be made in full.  See `reserve`.
        """
        while self._held and not self._fits(model, call):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
        return self.reserve(model, call)

    def estimate(
        self, model: str, call: ModelCall, *, drafts: int, repairs: int, repair_tokens: int
    ) -> Estimate:
        """Return what drafts like this one and their repairs may use together.

        Args:
            model: Model id.
            call: A draft's call.
            drafts: How many drafts there are.
            repairs: How many repairs there may be, of all drafts together.
            repair_tokens: Tokens that a repair sends beyond what a draft sends, at most.
        """
        calls, sent = drafts + repairs, most_input_tokens(call)
        limit = call.max_output_tokens
        draft = _nano_cost(model, Usage(input_tokens=sent, output_tokens=limit))
        repair = _nano_cost(model, Usage(input_tokens=sent + repair_tokens, output_tokens=limit))
        known = draft is not None and repair is not None
        return Estimate(
            model=model,
            drafts=drafts,
            repairs=repairs,
            max_input_tokens=calls * sent + repairs * repair_tokens,
            max_output_tokens=calls * limit,
            max_usd=(drafts * (draft or 0) + repairs * (repair or 0)) / NANO if known else None,
            cap=self._cap_text(is_priced=known),
        )

    # -- evaluations and time -----------------------------------------------------------------

    def count_evaluation(self) -> None:
        """Count one evaluation that is about to be made.

        Raises:
            BudgetExceeded: No more are allowed.
        """
        self._check_time()
        cap = self._max_evaluations
        if cap is not None and self._spent.evaluations >= cap:
            self._warn_exhausted("evaluations")
            raise self._used_up("evaluations")
        self._spent.evaluations += 1
        self._warn_thresholds()

    def exhausted(self) -> str | None:
        """Return in words which cap is used up, or None if all have room."""
        self._warn_thresholds()
        for limit in _FLAGS:
            used, allowed = self._state(limit)
            if allowed is not None and used > 0 and used >= allowed:
                self._warn_exhausted(limit)
                return str(self._used_up(limit))
        return None

    # -- what was used ------------------------------------------------------------------------

    @property
    def used_usd(self) -> float | None:
        """Dollars used, or None if a model without a known price was used."""
        return None if self._spent.unpriced_tokens else self._spent.nano_usd / NANO

    @property
    def used_tokens(self) -> int:
        """Tokens used, in and out together."""
        return self._spent.tokens

    @property
    def used_input_tokens(self) -> int:
        """Tokens sent."""
        return self._spent.input_tokens

    @property
    def used_output_tokens(self) -> int:
        """Tokens received."""
        return self._spent.output_tokens

    @property
    def estimated_tokens(self) -> int:
        """Of the tokens used, those that were counted from text."""
        return self._spent.estimated_tokens

    @property
    def used_evaluations(self) -> int:
        """Evaluations made."""
        return self._spent.evaluations

    @property
    def used_seconds(self) -> float:
        """Seconds since the run began, pauses between processes left out."""
        return self._spent.seconds + self._clock() - self._start

    @property
    def calls(self) -> int:
        """Model calls that were settled."""
        return self._spent.calls

    def to_json(self) -> dict[str, Any]:
        """Return the counters as plain data.

        Calls under way count as used in full: after a crash nobody knows what they cost.
        """
        spent = dataclasses.replace(self._spent, seconds=self.used_seconds)
        for held in self._held:
            _add(spent, held._whole(), held.nano_usd)
        return {
            "schema_version": SCHEMA_VERSION,
            **dataclasses.asdict(spent),
            "warned": dict(self._warned),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from counters that `to_json` returned.

        Raises:
            ValueError: They are not of this schema version.
        """
        values = dict(data)
        if values.pop("schema_version", None) != SCHEMA_VERSION:
            raise ValueError(f"budget counters of schema version {SCHEMA_VERSION} expected")
        self._warned = values.pop("warned")
        self._spent = _Spent(**values)
        self._start = self._clock()

    # -- inside -------------------------------------------------------------------------------

    def _fits(self, model: str, call: ModelCall) -> bool:
        """Return whether a call fits as it is."""
        return self._fitting_output(model, call, least=call.max_output_tokens) is not None

    def _fitting_output(
        self, model: str, call: ModelCall, least: int = MIN_USEFUL_OUTPUT_TOKENS
    ) -> int | None:
        """Return the largest output limit that fits, or None if that is less than `least`."""
        least = min(least, call.max_output_tokens)

        def fits(output: int) -> bool:
            trial = dataclasses.replace(call, max_output_tokens=output)
            price = _nano_price(model, trial)
            if price is None and self._max_nano_usd == 0:
                return False
            if (price or 0) > self._usd_room():
                return False
            room = self._token_room(is_priced=price is not None)
            return room is None or most_input_tokens(trial) + output <= room

        if fits(call.max_output_tokens):
            return call.max_output_tokens
        if not fits(least):
            return None
        low, high = least, call.max_output_tokens
        while high - low > 1:  # fits(low), not fits(high)
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _usd_room(self) -> int:
        """Return the billionths of a dollar that nobody used or holds."""
        held = sum(held.nano_usd or 0 for held in self._held)
        return self._max_nano_usd - self._spent.nano_usd - held

    def _token_room(self, *, is_priced: bool) -> int | None:
        """Return the tokens that nobody used or holds, or None if they are not capped."""
        cap = self._token_cap(is_priced=is_priced)
        held = sum(held.tokens for held in self._held)
        return None if cap is None else cap - self._spent.tokens - held

    def _token_cap(self, *, is_priced: bool) -> int | None:
        if self._max_tokens is not None or is_priced:
            return self._max_tokens
        return UNPRICED_MAX_TOKENS

    def _settle(self, reservation: Reservation, usage: Usage) -> None:
        self._held.remove(reservation)
        _add(self._spent, usage, _nano_cost(reservation.model, usage))
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()
        self._warn_thresholds()

    def _check_time(self) -> None:
        used, allowed = self._state("seconds")
        if allowed is not None and used >= allowed:
            self._warn_exhausted("seconds")
            raise self._used_up("seconds")

    def _state(self, limit: Limit) -> tuple[float, float | None]:
        """Return what is used of a cap, and the cap."""
        spent = self._spent
        match limit:
            case "usd":
                return spent.nano_usd / NANO, self._max_nano_usd / NANO
            case "tokens":
                return spent.tokens, self._token_cap(is_priced=not spent.unpriced_tokens)
            case "evaluations":
                return spent.evaluations, self._max_evaluations
            case "seconds":
                return self.used_seconds, self._max_seconds

    def _used_up(self, limit: Limit) -> BudgetExceeded:
        used, allowed = self._state(limit)
        return BudgetExceeded(
            f"the budget of {_amount(limit, allowed or 0)} is used up "
            f"({_amount(limit, used)} used)",
            hint=f"raise it with {_FLAGS[limit]}",
        )

    def _refusal(self, model: str, call: ModelCall) -> BudgetExceeded:
        """Say which cap leaves no room for a call, and how much the call needs."""
        least = min(MIN_USEFUL_OUTPUT_TOKENS, call.max_output_tokens)
        trial = dataclasses.replace(call, max_output_tokens=least)
        price = _nano_price(model, trial)
        if price is None and self._max_nano_usd == 0:
            return BudgetExceeded(
                f"the price of {model} is not known, and the budget is $0",
                hint="raise it with --max-usd: models without a known price are held to "
                f"{UNPRICED_MAX_TOKENS:,} tokens, or --max-tokens",
            )
        limit: Limit = "tokens"
        needed: float = most_input_tokens(trial) + least
        left: float = self._token_room(is_priced=price is not None) or 0
        if price is not None and price > self._usd_room():
            limit, needed, left = "usd", price / NANO, self._usd_room() / NANO
        self._warn_exhausted(limit)
        held = f", {len(self._held)} calls under way" if self._held else ""
        return BudgetExceeded(
            f"the budget of {_amount(limit, self._cap(limit, price is not None))} has "
            f"{_amount(limit, max(left, 0))} left{held}, and a call to {model} may need "
            f"{_amount(limit, needed)}",
            hint=f"raise it with {_FLAGS[limit]}",
        )

    def _cap(self, limit: Limit, is_priced: bool) -> float:
        if limit == "tokens":
            return self._token_cap(is_priced=is_priced) or 0
        return self._state(limit)[1] or 0

    def _cap_text(self, *, is_priced: bool) -> str:
        caps = [_amount("usd", self._max_nano_usd / NANO)] if is_priced else []
        tokens = self._token_cap(is_priced=is_priced)
        if tokens is not None:
            caps.append(_amount("tokens", tokens))
        return " or ".join(caps)

    def _warn_thresholds(self) -> None:
        for limit in _FLAGS:
            used, allowed = self._state(limit)
            if not allowed:
                continue
            reached = max((t for t in THRESHOLDS if used >= t * allowed), default=0.0)
            if reached > self._warned.get(limit, 0.0):
                self._warn(limit, reached, is_exhausted=False)

    def _warn_exhausted(self, limit: Limit) -> None:
        if self._warned.get(limit, 0.0) < 1.0:
            self._warn(limit, 1.0, is_exhausted=True)

    def _warn(self, limit: Limit, reached: float, *, is_exhausted: bool) -> None:
        self._warned[limit] = reached
        used, allowed = self._state(limit)
        if self._on_warning is not None:
            self._on_warning(
                BudgetWarning(
                    limit=limit, used=used, allowed=allowed or 0, is_exhausted=is_exhausted
                )
            )


def _add(spent: _Spent, usage: Usage, nano_usd: int | None) -> None:
    spent.calls += 1
    spent.input_tokens += usage.input_tokens
    spent.cached_input_tokens += usage.cached_input_tokens or 0
    spent.output_tokens += usage.output_tokens
    spent.estimated_tokens += usage.tokens if usage.is_estimated else 0
    spent.nano_usd += nano_usd or 0
    if nano_usd is None:
        spent.unpriced_tokens += usage.tokens


def _nano_price(model: str, call: ModelCall) -> int | None:
    """Return the most that a call may cost in billionths of a dollar, or None if unknown."""
    usage = Usage(input_tokens=most_input_tokens(call), output_tokens=call.max_output_tokens)
    return _nano_cost(model, usage)


def _nano_cost(model: str, usage: Usage) -> int | None:
    cost = cost_usd(model, usage)
    return None if cost is None else math.ceil(cost * NANO)


def _amount(limit: Limit, value: float) -> str:
    match limit:
        case "usd":
            return f"${value:.2f}" if value >= 0.01 or value == 0 else f"${value:.4f}"
        case "tokens":
            return f"{value:,.0f} tokens"
        case "evaluations":
            return f"{value:,.0f} evaluations"
        case "seconds":
            return f"{value:,.0f} s"
