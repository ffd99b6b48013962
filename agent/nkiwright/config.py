"""Settings: what can be configured, its legal values, and where each value came from.

Later wins: defaults, the user's config file, the project's `nkiwright.toml`, environment variables
`NKIWRIGHT_*`, flags.  API keys are no settings: they are read from the providers' own variables
where a client is made, and stored nowhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from nkiwright.errors import ConfigError
from nkiwright.toml_file import TomlFile, explain, read_toml, suggestion

ENV_PREFIX = "NKIWRIGHT_"
PROJECT_FILE = "nkiwright.toml"

Machine = Literal["trn1", "trn2", "trn3"]
NkiVersion = Literal["0.3", "0.4", "0.5", "0.6"]
Preset = Literal["quick", "standard", "deep"]
SourceKind = Literal["default", "user", "project", "environment", "flag"]


def _version_text(value: object) -> object:
    """Accept the number that TOML makes of an unquoted version."""
    return str(value) if isinstance(value, float) else value


class Settings(BaseSettings):
    """All settings; each field's text is its help."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    model: str | None = Field(default=None, min_length=1)
    """Who writes the kernels: `openai:NAME`, `anthropic:NAME`, `replay:FILE` or `autoschedule`.
    Without one, `autoschedule` does, which costs nothing."""

    base_url: str | None = Field(default=None, pattern=r"^https?://")
    """Address of a server that speaks the provider's protocol, instead of the provider's own."""

    samples: int = Field(default=8, ge=1)
    """First drafts to ask for."""

    repairs: int = Field(default=3, ge=0)
    """Times that one draft may be sent back with its error."""

    preset: Preset = "standard"
    """How long to search: `quick`, `standard` or `deep`."""

    seed: int = Field(default=0, ge=0)
    """Seed of everything random except the judge's secret inputs."""

    machine: Machine = "trn2"
    """The emulated machine: `trn1`, `trn2` or `trn3`."""

    nki: Annotated[NkiVersion, BeforeValidator(_version_text)] = "0.6"
    """The NKI version that kernels are written for."""

    max_usd: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Most dollars that one solve may spend on a model."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens, in and out together, that one solve may use."""

    max_evaluations: int | None = Field(default=None, ge=1)
    """Most candidates that one solve may evaluate."""

    max_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Most seconds that one solve may take."""

    timeout_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Seconds to wait for a model before a call counts as failed."""

    workers: int | None = Field(default=None, ge=1)
    """Candidates evaluated at once; without it, as many as there are processors."""

    runs_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Path("runs")
    """Folder that run folders are made in."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values only from `load`, which keeps each one's origin."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from."""

    kind: SourceKind
    place: str
    """The flag, variable or file with line, as a person would look it up."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings together with the origin of each."""

    settings: Settings
    sources: Mapping[str, Source]

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and origin of every setting, for `config show`."""
        return [
            (name, _display(getattr(self.settings, name)), self.sources[name].place)
            for name in Settings.model_fields
        ]


def user_file(environ: Mapping[str, str]) -> Path:
    """Return where the user's own config file is (it need not exist).

    Args:
        environ: The environment; `NKIWRIGHT_CONFIG` names another file.
    """
    if named := environ.get(f"{ENV_PREFIX}CONFIG"):
        return Path(named)
    return platformdirs.user_config_path("nkiwright") / "config.toml"


def load(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str],
    project_dir: Path,
    user_config: Path | None = None,
) -> Config:
    """Bring all sources together.

    Args:
        flags: Values from the command line or the caller, by field name; None means not given.
        environ: The environment variables.
        project_dir: Folder whose `nkiwright.toml` counts, if it has one.
        user_config: The user's config file, or None for the usual place.

    Raises:
        ConfigError: A value is not legal; names the source, the field and what is allowed.
    """
    values: dict[str, object] = {}
    sources = {name: Source("default", "default") for name in Settings.model_fields}
    user_path = user_file(environ) if user_config is None else user_config
    files: dict[SourceKind, Path] = {"user": user_path, "project": project_dir / PROJECT_FILE}
    for kind, path in files.items():
        if path.is_file():
            toml = read_toml(path, error=ConfigError)
            _check_names(toml)
            for name, value in toml.data.items():
                values[name] = value
                sources[name] = Source(kind, f"{path}:{toml.line_of((name,))}")
    for name, text in _from_environment(environ).items():
        values[name] = text
        sources[name] = Source("environment", f"{ENV_PREFIX}{name.upper()}")
    for name, value in (flags or {}).items():
        if value is not None:
            values[name] = value
            sources[name] = Source("flag", f"--{name.replace('_', '-')}")
    try:
        settings = Settings.model_validate(values)
    except ValidationError as exc:
        complaint = explain(exc, lambda _key: list(Settings.model_fields))
        name = str(complaint.key[0])
        place = sources[name].place if name in sources else f"--{name.replace('_', '-')}"
        raise ConfigError(
            f"{place}: {complaint.text}", hint=complaint.hint or help_text(name)
        ) from exc
    return Config(settings, sources)


def help_text(name: str) -> str:
    """Return the help of one setting as one line."""
    return " ".join((Settings.model_fields[name].description or "").split())


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in the environment; a near miss is an error, as it may cost money."""
    found: dict[str, str] = {}
    names = list(Settings.model_fields)
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or not text:
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        if name in names:
            found[name] = text
        elif near := difflib.get_close_matches(name, names, n=1, cutoff=0.8):
            raise ConfigError(
                f"{variable}: unknown setting",
                hint=f"did you mean {ENV_PREFIX}{near[0].upper()}?",
            )
    return found


def _check_names(toml: TomlFile) -> None:
    """Refuse unknown fields with the line they stand on."""
    for name in toml.data:
        if name not in Settings.model_fields:
            raise ConfigError(
                f"{toml.path}:{toml.line_of((name,))}: unknown field {name!r}",
                hint=suggestion(name, list(Settings.model_fields), "fields"),
            )


def _display(value: object) -> str:
    return "not set" if value is None else str(value)
