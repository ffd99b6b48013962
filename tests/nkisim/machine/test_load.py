"""Machine descriptions: complete, sourced, strict, and in line with the published peaks."""

import dataclasses
import re

import pytest

from nkisim.errors import MachineError
from nkisim.machine.load import FOLDER, load_machine, machine_names, read_machine

NAMES = ["trn1", "trn2", "trn3"]


def test_three_machines_are_described():
    assert list(machine_names()) == NAMES


@pytest.mark.parametrize(
    ("alias", "name"), [("gen2", "trn1"), ("inf2", "trn1"), ("gen3", "trn2"), ("gen4", "trn3")]
)
def test_aliases_name_the_same_machine(alias, name):
    assert load_machine(alias) is load_machine(name)
    assert load_machine(alias).name == name


def test_an_unknown_machine_is_refused_with_the_known_ones():
    with pytest.raises(MachineError, match=r"unknown machine 'trn9'; known are trn1 = gen2"):
        load_machine("trn9")


def _numbers(part, prefix=""):
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{prefix}{field.name}.")
        elif isinstance(value, (int, float)):
            yield prefix + field.name


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_source(name):
    machine = load_machine(name)
    wanted = set(_numbers(machine)) - {"generation"}
    assert set(machine.sources) == wanted
    assert all(len(source.source) > 5 for source in machine.sources.values())


def test_a_machine_cannot_be_changed():
    machine = load_machine("trn2")
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.dma.trigger_ns = 0.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        machine.sources["dma.trigger_ns"] = None  # type: ignore[index]


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"trigger_ns = .*\n", "", "broken.toml: dma.trigger_ns is missing"),
        (r"\[dma\]\n", "[dma]\nspeed = 3\n", "broken.toml: unknown key dma.speed"),
        (r"semaphore_ns = .*\n", "", "broken.toml: semaphore_ns is missing"),
        (r"\[pool\]", "[pooll]", "broken.toml: pool is missing"),
        (
            r"trigger_ns = \{ value",
            "trigger_ns = { vaule",
            "broken.toml: dma.trigger_ns needs value, source and confidence",
        ),
        (
            r"trigger_ns = \{",
            "trigger_ns = { nota = 'x',",
            "broken.toml: unknown key dma.trigger_ns.nota",
        ),
        (
            r"trigger_ns = \{ value = [\d.]+",
            "trigger_ns = { value = '1 us'",
            "broken.toml: dma.trigger_ns must be float, got str '1 us'",
        ),
        (
            r"engines = \{ value = 16",
            "engines = { value = 16.5",
            "broken.toml: dma.engines must be int, got float 16.5",
        ),
        (
            r"trigger_ns = \{ value = [\d.]+",
            "trigger_ns = { value = -1.0",
            "broken.toml: dma.trigger_ns must be finite and not negative, got -1.0",
        ),
        (
            r'(trigger_ns = .*confidence = )"figure"',
            r'\1"certain"',
            "broken.toml: dma.trigger_ns: confidence must be one of",
        ),
        (r'name = "trn2"', "name = trn2", "broken.toml: Invalid value"),
    ],
    ids=[
        "missing in a group",
        "unknown in a group",
        "missing at the top",
        "misspelt group",
        "misspelt value",
        "unknown in a quantity",
        "text for a number",
        "fraction for an integer",
        "negative",
        "unknown confidence",
        "not TOML",
    ],
)
def test_a_broken_description_names_file_and_key(tmp_path, pattern, replacement, message):
    text = (FOLDER / "trn2.toml").read_text(encoding="utf-8")
    broken, count = re.subn(pattern, replacement, text, count=1)
    assert count == 1
    path = tmp_path / "broken.toml"
    path.write_text(broken, encoding="utf-8")
    with pytest.raises(MachineError, match=re.escape(message)):
        read_machine(path)


@pytest.mark.parametrize(
    ("name", "bf16_tflops", "fp32_tflops"),
    [("trn1", 92, 23), ("trn2", 79, 20), ("trn3", 79, 20)],
)
def test_peaks_agree_with_the_architecture_guides(name, bf16_tflops, fp32_tflops):
    machine = load_machine(name)
    assert machine.flops_per_ns / 1000 == pytest.approx(bf16_tflops, rel=0.01)
    ns = machine.columns_ns(1_000_000, is_fp32=True)
    assert 2 * 128 * 128 * 1_000_000 / ns / 1000 == pytest.approx(fp32_tflops, rel=0.02)


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    # Sustained rates of the DMA bandwidth guideline; trn1 reached 272 to 294.
    [("trn1", 280), ("trn2", 368), ("trn3", 528)],
)
def test_bytes_cross_hbm_at_the_sustained_rate(name, gb_per_s):
    assert load_machine(name).transfer_ns(1e9) == pytest.approx(1e9 / gb_per_s, rel=0.01)


def test_the_share_of_hbm_can_be_the_tighter_cap():
    machine = load_machine("trn2").with_changes({"dma.hbm_bytes_per_ns": 100.0})
    assert machine.transfer_ns(1000) == pytest.approx(10)


def test_changes_leave_the_original_alone():
    machine = load_machine("trn2")
    changed = machine.with_changes({"dma.trigger_ns": 0.0, "semaphore_ns": 5.0})
    assert (changed.dma.trigger_ns, changed.semaphore_ns) == (0.0, 5.0)
    assert load_machine("trn2").dma.trigger_ns > 0
    assert changed.with_changes({"dma.trigger_ns": machine.dma.trigger_ns}).dma == machine.dma


@pytest.mark.parametrize("path", ["dma.triger_ns", "dmaa.trigger_ns", "trigger_ns", "name.x"])
def test_changes_of_unknown_fields_are_refused(path):
    with pytest.raises(MachineError, match=f"no field '{path}'"):
        load_machine("trn2").with_changes({path: 1.0})
