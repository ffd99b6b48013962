"""What a call costs, from the price list that is installed with the program (no network)."""

from __future__ import annotations

from nkiwright.llm.base import Usage

FREE = ("replay", "autoschedule")
PRICED = ("openai", "anthropic")


def is_free(model: str) -> bool:
    """Return whether a model id asks nobody, so that there is nothing to pay."""
    return model.partition(":")[0] in FREE


def cost_usd(model: str, usage: Usage) -> float | None:
    """Return the price of a call in dollars, or None if it is not known.

    Args:
        model: Model id, `provider:model`.
        usage: Tokens of the call.
    """
    if is_free(model):
        return 0.0
    provider, _, name = model.partition(":")
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
