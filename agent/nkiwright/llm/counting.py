"""Tokens counted from text, where a provider's own count is missing or cannot be true.

No tokenizer: prices are checked before a call, so that what is needed is a bound, not a count.
"""

from __future__ import annotations

import math

from nkiwright.llm.base import ModelCall, Usage

BYTES_PER_TOKEN = 2.5
"""Fewer than the 3 to 4 bytes that tokenizers make of English and code: it errs high."""
MESSAGE_TOKENS = 16
"""Tokens that the wire format adds to a message, at most."""
_HIDDEN_INPUT_TOKENS = 4096
"""Instructions that a server may put in front of ours; more is not believed."""
_HIDDEN_OUTPUT_TOKENS = 64


def text_tokens(text: str) -> int:
    """Return about how many tokens a text is, erring high."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN)


def input_tokens(call: ModelCall) -> int:
    """Return about how many tokens a call sends, erring high."""
    texts = (call.system, *(message.text for message in call.messages))
    return sum(text_tokens(text) + MESSAGE_TOKENS for text in texts)


def estimated_usage(call: ModelCall, text: str) -> Usage:
    """Return the usage of a call, from its text and that of its reply."""
    return Usage(
        input_tokens=input_tokens(call),
        output_tokens=min(text_tokens(text), call.max_output_tokens),
        is_estimated=True,
    )


def believable(usage: Usage, call: ModelCall, text: str) -> Usage:
    """Return `usage`, or an estimate if it cannot be true.

    A token is at least one byte of text, so a server that reports more of them than bytes (and
    more than it was allowed to write, for hidden reasoning), or none for a text, is wrong.

    Args:
        usage: What the provider reported.
        call: What was asked.
        text: What was answered.
    """
    sent = sum(
        len(part.encode("utf-8", "surrogatepass")) + MESSAGE_TOKENS
        for part in (call.system, *(message.text for message in call.messages))
    )
    received = len(text.encode("utf-8", "surrogatepass"))
    most_output = max(call.max_output_tokens, received) + _HIDDEN_OUTPUT_TOKENS
    is_possible = (
        0 < usage.input_tokens <= sent + _HIDDEN_INPUT_TOKENS
        and (1 if text else 0) <= usage.output_tokens <= most_output
        and 0 <= (usage.cached_input_tokens or 0) <= usage.input_tokens
        and 0 <= (usage.reasoning_tokens or 0) <= usage.output_tokens
    )
    return usage if is_possible else estimated_usage(call, text)
