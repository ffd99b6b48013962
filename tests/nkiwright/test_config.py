"""Settings come from the right place, and a wrong one says where it stands."""

from __future__ import annotations

import pytest

from nkiwright import config
from nkiwright.errors import ConfigError


@pytest.fixture
def load(tmp_path):
    """Return a function that loads settings from texts instead of the machine's own files."""

    def load(flags=None, *, user="", project="", environ=None):
        (tmp_path / "user.toml").write_text(user)
        (tmp_path / "nkiwright.toml").write_text(project)
        return config.load(
            flags,
            environ=environ or {},
            project_dir=tmp_path,
            user_config=tmp_path / "user.toml",
        )

    return load


def test_defaults_spend_nothing_and_are_capped(load):
    loaded = load()
    assert loaded.settings.model is None
    assert loaded.settings.max_usd == 1.0
    assert {source.kind for source in loaded.sources.values()} == {"default"}


def test_later_sources_win_and_are_remembered(load):
    loaded = load(
        {"seed": 4, "samples": None},
        user="samples = 1\nrepairs = 1\nmax_usd = 0.1\nseed = 1\n",
        project="# ours\nrepairs = 2\nmax_usd = 0.2\nseed = 2\n",
        environ={"NKIWRIGHT_MAX_USD": "0.3", "NKIWRIGHT_SEED": "3", "HOME": "/nowhere"},
    )
    settings, sources = loaded.settings, loaded.sources
    assert (settings.samples, settings.repairs, settings.max_usd, settings.seed) == (1, 2, 0.3, 4)
    assert sources["samples"].place.endswith("user.toml:1")
    assert sources["repairs"].place.endswith("nkiwright.toml:2")
    assert sources["max_usd"].place == "NKIWRIGHT_MAX_USD"
    assert sources["seed"].place == "--seed"


def test_process_environment_is_read_only_through_the_argument(load, monkeypatch):
    monkeypatch.setenv("NKIWRIGHT_SEED", "99")
    assert load().settings.seed == 0


def test_rows_show_every_setting_with_its_origin(load):
    rows = {name: (value, place) for name, value, place in load({"nki": "0.5"}).rows()}
    assert rows["nki"] == ("0.5", "--nki")
    assert rows["max_tokens"] == ("not set", "default")
    assert rows.keys() == config.Settings.model_fields.keys()


def test_nki_version_may_be_written_as_a_number(load):
    assert load(project="nki = 0.6\n").settings.nki == "0.6"


def test_empty_variable_counts_as_not_set(load):
    assert load(environ={"NKIWRIGHT_MODEL": ""}).settings.model is None


@pytest.mark.parametrize(
    ("project", "environ", "flags", "place", "says", "hint"),
    [
        ("seed = 1\nmachine = 'trn4'\n", {}, {}, "nkiwright.toml:2", "'trn1', 'trn2'", "machine"),
        ("\nsamples = 0\n", {}, {}, "nkiwright.toml:2", "greater than or equal to 1", "drafts"),
        ("max_uds = 5\n", {}, {}, "nkiwright.toml:1", "unknown field 'max_uds'", "'max_usd'"),
        ("seed = = 1\n", {}, {}, "nkiwright.toml:1", "not valid TOML", None),
        ("model = autoschedule\n", {}, {}, "nkiwright.toml:1", "not valid TOML", "quotes"),
        ("", {"NKIWRIGHT_SEED": "x"}, {}, "NKIWRIGHT_SEED", "integer", "Seed"),
        ("", {"NKIWRIGHT_MAX_UDS": "5"}, {}, "NKIWRIGHT_MAX_UDS", "unknown", "NKIWRIGHT_MAX_USD"),
        ("", {}, {"max_usd": float("nan")}, "--max-usd", "finite", "dollars"),
        ("", {}, {"base_url": "localhost"}, "--base-url", "'localhost'", "Address"),
        ("", {}, {"nki": "2.0"}, "--nki", "'0.6'", "version"),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, str) else None,
)
def test_wrong_value_names_place_and_remedy(load, project, environ, flags, place, says, hint):
    with pytest.raises(ConfigError) as caught:
        load(flags, project=project, environ=environ)
    message = str(caught.value)
    assert place in message
    assert says in message
    assert "\n" not in message
    if hint is not None:
        assert hint in (caught.value.hint or "")


def test_home_folder_is_written_out(load):
    assert "~" not in str(load({"runs_dir": "~/runs"}).settings.runs_dir)


def test_every_setting_has_help():
    for name in config.Settings.model_fields:
        assert config.help_text(name).endswith(".")


def test_another_user_file_can_be_named(tmp_path):
    assert config.user_file({"NKIWRIGHT_CONFIG": str(tmp_path / "c.toml")}) == tmp_path / "c.toml"
    assert config.user_file({}).name == "config.toml"
