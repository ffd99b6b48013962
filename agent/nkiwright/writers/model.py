"""A language model as a writer: drafts from prompt arms, repairs from the emulator's words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nkisim.machine.load import load_machine
from nkiwright.budget import Budget, BudgetExceeded, Estimate
from nkiwright.candidate import Candidate, Draft, Origin
from nkiwright.cards import call_text, dims_text, isa_card, tensor_lines
from nkiwright.events import CallFinished, CallStarted, Event, StrategyNote, TokenDelta
from nkiwright.events import Usage as UsageEvent
from nkiwright.extract import extract_kernel
from nkiwright.feedback import feedback_on
from nkiwright.llm.base import Completion, Message, Model, ModelCall, Usage
from nkiwright.llm.pricing import cost_usd
from nkiwright.prompts import PromptLibrary
from nkiwright.tasks import Task
from nkiwright.writers.base import WriterStopped

ARMS = ("arm_plan", "arm_direct", "arm_numpy")
KEPT_ATTEMPTS = 2
"""Earlier attempts of a lineage that stay in the conversation."""
FEEDBACK_TOKENS = 4000
"""More than the judge's words on one attempt take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How to call the model."""

    max_output_tokens: int = 16_000
    temperature: float | None = None
    effort: str | None = None


class ModelWriter:
    """Writes kernels with a language model.

    Args:
        task: The task.
        model: The model.
        budget: Caps; asked before every call.
        prompts: Prompt texts.
        emit: Where events go.
        machine: Machine that kernels are written for.
        nki: NKI version that kernels are written for.
        bound_ns: Lower bound at the main shape.
        baseline_ns: The naive baseline's emulated latency, if there is one.
        settings: How to call the model.
    """

    can_repair = True

    def __init__(
        self,
        task: Task,
        model: Model,
        *,
        budget: Budget,
        prompts: PromptLibrary,
        emit: Callable[[Event], None],
        machine: str,
        nki: str,
        bound_ns: float,
        baseline_ns: float | None,
        settings: ModelSettings | None = None,
    ) -> None:
        self._task = task
        self._model = model
        self._budget = budget
        self._prompts = prompts
        self._emit = emit
        self._machine = load_machine(machine)
        self._nki = nki
        self._bound_ns = bound_ns
        self._baseline_ns = baseline_ns
        self._settings = settings or ModelSettings()
        self._calls = 0
        self._told_estimated = False
        self._system = prompts.render(
            "system",
            nki=nki,
            machine=self._machine,
            isa_card=isa_card(task.op_class, generation=self._machine.generation),
        )

    @property
    def name(self) -> str:
        """Model id."""
        return self._model.name

    def estimate(self, *, samples: int, repairs: int) -> Estimate:
        """Return what a run may use, before anything is spent.

        Args:
            samples: Number of drafts.
            repairs: Most repairs of one draft.
        """
        call = self._request([Message("user", self._draft_prompt(0))], index=0)
        attempts = min(KEPT_ATTEMPTS, repairs)
        return self._budget.estimate(
            self.name,
            call,
            drafts=samples,
            repairs=samples * repairs,
            repair_tokens=attempts * (call.max_output_tokens + FEEDBACK_TOKENS),
        )

    async def draft(self, index: int) -> Draft:
        """Ask for a first kernel."""
        messages = [Message("user", self._draft_prompt(index))]
        return await self._ask(messages, index=index, purpose="draft")

    async def repair(self, lineage: Sequence[Candidate]) -> Draft:
        """Ask for a corrected kernel; the last attempts stay in the conversation."""
        kept = lineage[-KEPT_ATTEMPTS:]
        messages = [Message("user", self._draft_prompt(lineage[0].lineage))]
        seen: list[str] = []
        for candidate in kept:
            feedback = feedback_on(candidate)
            reply = candidate.draft.source
            text = f"```python\n{reply}\n```" if reply else "(no kernel)"
            messages.append(Message("assistant", text))
            messages.append(
                Message(
                    "user",
                    self._prompts.render(
                        "repair",
                        feedback=feedback,
                        is_repeated=feedback.fingerprint in seen,
                    ),
                )
            )
            seen.append(feedback.fingerprint)
        return await self._ask(messages, index=lineage[0].lineage, purpose="repair")

    def tell(self, candidate: Candidate) -> None:
        """Nothing to learn between independent drafts."""

    def _draft_prompt(self, index: int) -> str:
        task = self._task
        return self._prompts.render(
            "draft",
            task=task,
            call=call_text(task),
            tensors=tensor_lines(task),
            main=dims_text(task.main),
            tiny=dims_text(task.tiny),
            bound_us=self._bound_ns / 1000,
            baseline_us=None if self._baseline_ns is None else self._baseline_ns / 1000,
            arm=self._prompts.render(ARMS[index % len(ARMS)]).strip(),
        )

    def _request(self, messages: Sequence[Message], *, index: int) -> ModelCall:
        return ModelCall(
            system=self._system,
            messages=tuple(messages),
            max_output_tokens=self._settings.max_output_tokens,
            temperature=self._settings.temperature,
            effort=self._settings.effort,
            sample=index,
        )

    async def _ask(self, messages: Sequence[Message], *, index: int, purpose: Origin) -> Draft:
        call = self._request(messages, index=index)
        try:
            reservation = await self._budget.acquire(self._model.name, call)
        except BudgetExceeded as error:
            raise WriterStopped(str(error)) from error
        number = self._calls
        self._calls += 1
        self._emit(CallStarted(call=number, purpose=purpose, model=self._model.name))
        start = time.monotonic()
        completion: Completion | None = None
        problem: BaseException | None = None
        try:
            completion = await self._model.complete(
                reservation.call, lambda text: self._emit(TokenDelta(call=number, text=text))
            )
        except BaseException as error:
            problem = error
            raise
        finally:
            usage = reservation.settle(completion, error=problem)
            self._emit(
                CallFinished(
                    call=number,
                    usage=UsageEvent(
                        input_tokens=usage.input_tokens,
                        cached_tokens=usage.cached_input_tokens or 0,
                        output_tokens=usage.output_tokens,
                        usd=cost_usd(self._model.name, usage),
                    ),
                    seconds=time.monotonic() - start,
                    error=None if problem is None else str(problem),
                )
            )
        self._tell_if_estimated(completion, usage)
        found = extract_kernel(completion.text, finish_reason=completion.finish_reason)
        return Draft(
            source=found.text if found.is_found else None,
            origin=purpose,
            problem=found.problem,
            call=number,
        )

    def _tell_if_estimated(self, completion: Completion, usage: Usage) -> None:
        """Say once that the server's own counts are not what is added up."""
        if not usage.is_estimated or self._told_estimated:
            return
        self._told_estimated = True
        said = completion.usage
        what = (
            "no token counts"
            if said.is_estimated
            else f"{said.input_tokens:,} tokens in and {said.output_tokens:,} out, which cannot be"
        )
        self._emit(
            StrategyNote(text=f"{self.name} reports {what}: tokens are estimated from the text")
        )
