"""What is read: figures, bindings, and kernels out of logs and documentation."""

import pytest

from nkisim.calibrate.bindings import read_bindings
from nkisim.calibrate.errors import CalibrationError
from nkisim.calibrate.extract import code_block, code_blocks
from nkisim.calibrate.machine_file import with_values
from nkisim.calibrate.measured import read_measured
from nkisim.machine.load import FOLDER

HEAD = "id,generation,kernel,measured_latency_us,kind,ladder,scale,variant,notes\n"


def _csv(tmp_path, *lines, head=HEAD):
    path = tmp_path / "measured.csv"
    path.write_text(head + "".join(line + "\n" for line in lines))
    return path


def test_rows_and_what_they_count_for(tmp_path):
    rows = read_measured(
        _csv(
            tmp_path,
            "a,trn1,mm,10.5,measured,l,ok,v1,spill_rd_B=0; spill_wr_B=0; no spills",
            "b,trn1,mm,20,measured,l,ok,v2,spill_rd_B=4096; spill_wr_B=0",
            "c,trn2,mm,30,measured,l,x2_suspect,v3,",
            "d,trn2,mm,1,micro,,ok,,",
            "e,trn1,mm,5,hostwall,,ok,,",
            "f,trn1,mm,5,measured,,ok,v2 (spills),",
        )
    )
    assert [(i, r.counts, r.may_fit, r.is_spilled) for i, r in rows.items()] == [
        ("a", True, True, False),
        ("b", False, False, True),
        ("c", True, False, False),
        ("d", False, True, False),
        ("e", False, False, False),
        ("f", False, False, True),
    ]
    assert rows["a"].latency_us == 10.5


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,trn1,mm,zero,measured,,ok,,"], r"record 1: measured_latency_us .* got 'zero'"),
        (["a,trn1,mm,-1,measured,,ok,,"], "must be positive"),
        (["a,trn1,mm,1,measured,,ok,,", "a,trn1,mm,1,measured,,ok,,"], "two rows have the id 'a'"),
    ],
)
def test_bad_rows(tmp_path, lines, message):
    with pytest.raises(CalibrationError, match=message):
        read_measured(_csv(tmp_path, *lines))


def test_missing_column(tmp_path):
    with pytest.raises(CalibrationError, match="column 'generation' is missing"):
        read_measured(_csv(tmp_path, head="id,kernel\n"))


def _toml(tmp_path, text):
    path = tmp_path / "rows.toml"
    path.write_text(text)
    return path


def test_bindings(tmp_path):
    found = read_bindings(
        _toml(
            tmp_path,
            '[defaults]\nentry = "kernel"\n[text]\nhead = "import nki"\n'
            '[[row]]\nids = ["a", "b"]\nfile = "r/{variant}.py"\nprelude = "@head"\nsweep = true\n'
            'args = ["float32[128,4]", 3]\n'
            '[[row]]\nid = "c"\nconstant = "dma.trigger_ns"\n',
        )
    )
    assert list(found) == ["a", "b", "c"]
    assert found["b"].path(tmp_path, "v2") == tmp_path / "r/v2.py"
    assert found["b"].prelude == "import nki"
    assert found["a"].is_sweep
    assert not found["c"].is_kernel


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[row]\n", "cannot read rows.toml"),
        ("[rows]\n", "unknown key 'rows'"),
        ('[[row]]\nfile = "x"\nentry = "k"\n', "row 1: id is missing"),
        ('[[row]]\nid = "a"\nfile = "x"\n', r"row 1 \(a\): entry is missing"),
        ('[[row]]\nid = "a"\n', "exactly one of file, source, constant .* got none"),
        (
            '[[row]]\nid = "a"\nfile = "x"\nentry = "k"\nconstant = "c"\n',
            "exactly one .* got file, constant",
        ),
        ('[[row]]\nid = "a"\nconstant = "c"\ncolour = 1\n', "unknown key 'colour'"),
        ('[[row]]\nid = "a"\nfile = "x"\nentry = 3\n', "entry must be a string, got 3"),
        ('[[row]]\nid = "a"\ntransfer_bytes = true\n', "transfer_bytes must be a integer"),
        ('[[row]]\nid = "a"\nconstant = "c"\ngrid = [0]\n', "grid must hold positive integers"),
        ('[[row]]\nid = "a"\nconstant = "c"\nmeasure = "speed"\n', "measure must be 'latency'"),
        ('[[row]]\nid = "a"\nfile = "x"\nentry = "k"\nprelude = "@p"\n', "there is no text 'p'"),
        ('[[row]]\nid = "a"\nfile = "x"\nentry = "k"\nreplace = ["p"]\n', "replace must hold"),
        ('[[row]]\nids = ["a", "a"]\nconstant = "c"\n', "'a' is bound twice"),
    ],
)
def test_bad_bindings(tmp_path, text, message):
    with pytest.raises(CalibrationError, match=message):
        read_bindings(_toml(tmp_path, text))


LOG = """CodeCandidate(parent=CodeCandidate(parent=None,
plan=None,
code='''def first():
    \"\"\"Says 'so'.\"\"\"
''',
score=2.0),
plan='''Do it better.''',
code='''def second(): ...
''',
score=1.0)
"""
PAGE = """Title

.. code-block:: python
   :linenos:

   def first():
     pass

   x = 1

Text.

  .. code-block:: python

    y = 2
"""


def test_code_blocks_of_logs_and_pages():
    assert code_blocks(LOG) == [
        'def first():\n    """Says \'so\'."""\n',
        "def second(): ...\n",
    ]
    assert code_blocks(PAGE) == ["def first():\n  pass\n\nx = 1\n\n", "y = 2\n"]
    assert code_block(LOG, -1, "log") == code_block(LOG, 2, "log")
    with pytest.raises(CalibrationError, match="log has 2 code blocks, there is no block 3"):
        code_block(LOG, 3, "log")
    with pytest.raises(CalibrationError, match="no block 0"):
        code_block(LOG, 0, "log")


def test_fitted_values_replace_only_their_lines():
    before = (FOLDER / "trn1.toml").read_text()
    after = with_values(
        before,
        {"dve.overhead_cycles": 41.234567, "semaphore_ns": 70.0},
        {"dve.overhead_cycles": "some fit", "semaphore_ns": "other"},
    )
    changed = [b for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]
    assert changed == [
        'semaphore_ns = { value = 70.0, source = "other", confidence = "fit" }',
        'overhead_cycles = { value = 41.23, source = "some fit", confidence = "fit" }',
    ]
    with pytest.raises(CalibrationError, match=r"no constant 'dve\.colour'"):
        with_values(before, {"dve.colour": 1.0}, {"dve.colour": ""})
