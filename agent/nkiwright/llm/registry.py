"""From a model id to a model."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from nkiwright.errors import ConfigError
from nkiwright.llm.base import Model

AUTOSCHEDULE = "autoschedule"
PROVIDERS = ("openai", "anthropic", "replay")
KNOWN = "'openai:MODEL', 'anthropic:MODEL', 'replay:FILE' or 'autoschedule'"
_FAMILIES = (
    (re.compile(r"(gpt|chatgpt|o[1-9]|codex)(?![a-z])", re.IGNORECASE), "openai"),
    (re.compile(r"(claude|opus|sonnet|haiku)", re.IGNORECASE), "anthropic"),
    (re.compile(r".*\.jsonl$", re.IGNORECASE), "replay"),
)


def is_autoschedule(spec: str) -> bool:
    """Return whether a model id names the writer that needs no model."""
    return spec.strip().lower() == AUTOSCHEDULE


def make_model(
    spec: str,
    *,
    base_url: str | None = None,
    environ: Mapping[str, str],
    timeout_seconds: float = 120.0,
    max_retries: int = 2,
) -> Model:
    """Make the model that a model id names.

    Args:
        spec: `openai:MODEL`, `anthropic:MODEL` or `replay:FILE`.
        base_url: Address of a server that speaks the provider's protocol, instead of its own.
        environ: The environment, for keys.
        timeout_seconds: Longest silence of the provider, its retries included.
        max_retries: Times that a refused or failed request is sent again.

    Raises:
        ConfigError: The id names no known provider, or the recording cannot be read.
        ModelError: The provider's key is missing.
    """
    provider, colon, name = (part.strip() for part in spec.partition(":"))
    if provider not in PROVIDERS or not colon or not name:
        raise ConfigError(
            f"a model is {KNOWN}, got {spec!r}", hint=_nearest(provider, name, bool(colon))
        )
    if provider == "replay":
        from nkiwright.llm.replay import ReplayModel

        return ReplayModel(Path(name).expanduser())
    if base_url is not None and not re.match(r"https?://[^/\s]", base_url):
        raise ConfigError(
            f"a base URL begins with http:// or https://, got {base_url!r}",
            hint="for example --base-url http://127.0.0.1:8000/v1",
        )
    if provider == "openai":
        from nkiwright.llm.openai import make_openai

        return make_openai(
            name,
            base_url=base_url,
            environ=environ,
            timeout_seconds=timeout_seconds,
            max_retries=max_retries,
        )
    from nkiwright.llm.anthropic import make_anthropic

    return make_anthropic(
        name,
        base_url=base_url,
        environ=environ,
        timeout_seconds=timeout_seconds,
        max_retries=max_retries,
    )


def _nearest(provider: str, name: str, has_colon: bool) -> str:
    """Return what was probably meant."""
    known = (*PROVIDERS, AUTOSCHEDULE)
    near = difflib.get_close_matches(provider.lower(), known, n=1, cutoff=0.6)
    if near and near[0] == AUTOSCHEDULE:
        return f"did you mean {AUTOSCHEDULE!r}?"
    if near and name:
        return f"did you mean '{near[0]}:{name}'?"
    if near:
        return f"name the model too: '{near[0]}:{'FILE' if near[0] == 'replay' else 'MODEL'}'"
    if not has_colon:
        for pattern, family in _FAMILIES:
            if pattern.match(provider):
                return f"did you mean '{family}:{provider}'?"
    return (
        "for any other server that speaks OpenAI's protocol use 'openai:MODEL' with --base-url; "
        "'autoschedule' needs no model"
    )
