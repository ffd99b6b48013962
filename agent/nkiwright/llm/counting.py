"""Tokens counted from text, where a provider's own count is missing or cannot be true.

No tokenizer: each provider has its own, and not all are public.  There are two counts instead.  A
likely one stands in for a count that is missing.  A bound is what caps need: tokenizers work on
bytes, so a text has at most as many tokens as bytes.
"""

from __future__ import annotations

import math

from nkiwright.llm.base import ModelCall, Usage

BYTES_PER_TOKEN = 2.5
"""Fewer than the 2.7 to 3.5 bytes of a token in prompts and kernels (measured with o200k_base,
cl100k_base and Claude 2's tokenizer): it errs high there.  Tables of numbers have 1.6."""
MESSAGE_TOKENS = 16
"""Tokens that the wire format adds to a message, at most."""
_HIDDEN_INPUT_TOKENS = 4096
"""Instructions that a server may put in front of ours; more is not believed."""
_HIDDEN_OUTPUT_TOKENS = 64


def text_tokens(text: str) -> int:
    """Return about how many tokens a text is, erring high for prose and code."""
    return math.ceil(_size_bytes(text) / BYTES_PER_TOKEN)


def input_tokens(call: ModelCall) -> int:
    """Return about how many tokens a call sends, erring high for prose and code."""
    return sum(text_tokens(text) + MESSAGE_TOKENS for text in _texts(call))


def most_input_tokens(call: ModelCall) -> int:
    """Return the most tokens that a call can send, whatever its text and the tokenizer."""
    return sum(_size_bytes(text) + MESSAGE_TOKENS for text in _texts(call))


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
    most_output = max(call.max_output_tokens, _size_bytes(text)) + _HIDDEN_OUTPUT_TOKENS
    is_possible = (
        0 < usage.input_tokens <= most_input_tokens(call) + _HIDDEN_INPUT_TOKENS
        and (1 if text else 0) <= usage.output_tokens <= most_output
        and 0 <= (usage.cached_input_tokens or 0) <= usage.input_tokens
        and 0 <= (usage.reasoning_tokens or 0) <= usage.output_tokens
    )
    return usage if is_possible else estimated_usage(call, text)


def _texts(call: ModelCall) -> tuple[str, ...]:
    return (call.system, *(message.text for message in call.messages))


def _size_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
