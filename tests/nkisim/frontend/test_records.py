"""Kernels' own record types, `nl.NKIObject`."""

from dataclasses import dataclass

import pytest

from nkisim.errors import KernelError
from nkisim.frontend.nki.records import NKIObject


class Plain(NKIObject):
    rows: int
    columns: int = 4
    depth = 2


@dataclass
class Data(NKIObject):
    rows: int
    columns: int = 4
    depth = 2


class Derived(Plain):
    batch: int

    def __post_init__(self):
        self.size = self.batch * self.rows


@pytest.mark.parametrize("record", [Plain, Data], ids=["plain", "dataclass"])
def test_fields_are_annotated_or_assigned_names(record):
    made = record(3, depth=5)
    assert (made.rows, made.columns, made.depth) == (3, 4, 5)
    assert record.depth == 2


@pytest.mark.parametrize("record", [Plain, Data], ids=["plain", "dataclass"])
def test_reading_a_field_that_was_left_out_is_an_error_setting_it_is_not(record):
    made = record()
    with pytest.raises(AttributeError):
        made.rows  # noqa: B018
    made.rows = 7
    assert made.rows == 7


def test_a_derived_class_has_its_base_classs_fields_first():
    made = Derived(3, batch=2)
    assert (made.rows, made.size) == (3, 6)


def test_a_dataclass_keeps_its_own_constructor():
    @dataclass
    class Square(NKIObject):
        rows: int
        columns: int

        def __init__(self, size):
            self.rows = self.columns = size

    assert Square(4).columns == Square(size=4).rows == 4


def test_the_constructor_names_what_does_not_fit():
    with pytest.raises(KernelError, match="no field 'width'"):
        Plain(width=1)
    with pytest.raises(KernelError, match="two values for field 'rows'"):
        Plain(1, rows=1)
    with pytest.raises(KernelError, match="3 fields, got 4"):
        Plain(1, 2, 3, 4)
    with pytest.raises(TypeError):
        Data(width=1)  # type: ignore[call-arg]
