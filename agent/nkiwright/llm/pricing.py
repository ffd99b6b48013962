"""What a call costs, from the price list that is installed with the program (no network)."""

from __future__ import annotations

from nkiwright.llm.base import Usage

FREE = ("replay", "autoschedule")
PRICED = ("openai", "anthropic")


def cost_usd(model: str, usage: Usage) -> float | None:
    """Return the price of a call in dollars, or None if it is not known.

    Args:
        model: Model id, `provider:model`.
        usage: Tokens of the call.
    """
    provider, _, name = model.partition(":")
    if provider in FREE:
        return 0.0
    if provider not in PRICED or not name:
        return None
    import genai_prices

    try:
        price = genai_prices.calc_price(
            genai_prices.Usage(
                input_tokens=usage.input_tokens,
                cache_read_tokens=min(usage.cached_input_tokens or 0, usage.input_tokens),
                output_tokens=usage.output_tokens,
            ),
            name,
            provider_id=provider,
        )
    except LookupError:
        return None
    return float(price.total_price)
