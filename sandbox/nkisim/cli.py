"""`nkisim check|run|profile|trace FILE:ENTRY ARGS…`, `nkisim calibrate`: the command line.

Results go to stdout, everything else to stderr.  Exit codes: 0 fine, 1 the kernel is wrong,
2 usage, 4 nkisim or its sandbox failed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nkisim import api
from nkisim._version import __version__
from nkisim.calibrate.errors import CalibrationError
from nkisim.dtypes import DType, lookup
from nkisim.errors import DiagnosticError, MachineError, NkisimError
from nkisim.frontend.entry import WRONG_CALL
from nkisim.machine.load import known_machines
from nkisim.profile.chrome import write_chrome_trace
from nkisim.profile.diff import ProfileFormatError, diff_profiles
from nkisim.profile.html import write_html
from nkisim.profile.lanes import render_lanes
from nkisim.profile.latency import latency_text
from nkisim.profile.text import DEFAULT_TOKENS, render_text
from nkisim.profile.what_if import what_if
from nkisim.sources import SourceNotFound, collect
from nkisim.timing.reorder import SCHEDULES

ARGUMENT_HELP = """\
Arguments are given in the order of the kernel's parameters:
  bfloat16[512,2048]   a tensor of random values (normal, or small integers), see --seed
  @x.npy               a tensor from a file
  1e-6  128  None  True  'text'  (1,2)   Python literals
  nl.add               a name of nki.language
NAME=VALUE passes by name."""
_TENSOR = re.compile(r"^(\w+)\[([\d,\s]*)\]$")


def parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    root = argparse.ArgumentParser(
        prog="nkisim", description="Emulate NKI kernels for AWS Trainium without Trainium."
    )
    root.add_argument("--version", action="version", version=f"nkisim {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("check", "trace a kernel and report what breaks the rules"),
        ("run", "run a kernel on arrays and summarise its outputs"),
        ("profile", "run a kernel and report its emulated time"),
        ("trace", "print the instructions that a kernel compiles to"),
    ):
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=ARGUMENT_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("kernel", metavar="FILE:ENTRY")
        sub.add_argument("args", nargs="*", metavar="ARG")
        sub.add_argument("--machine", default=None, help=f"{known_machines()}; default trn2")
        sub.add_argument("--nki", default=None, help="enforce this NKI version")
        sub.add_argument("--seed", type=int, default=0, help="seed of random tensors")
        sub.add_argument("--search-path", action="append", default=[], help="folder to import from")
        sub.add_argument(
            "--in-process",
            action="store_true",
            help="run the kernel's Python in this process, without the sandbox",
        )
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
        if name in ("run", "profile"):
            sub.add_argument(
                "--schedule",
                choices=SCHEDULES,
                default=None,
                help="time instructions in program order, or as a list scheduler orders them; "
                "default: as the kernel's compiler does",
            )
        if name == "run":
            sub.add_argument("--save", metavar="FILE.npz", help="save the outputs")
        if name == "profile":
            sub.add_argument("--chrome", metavar="FILE.json", help="write a Chrome/Perfetto trace")
            sub.add_argument("--html", metavar="FILE.html", help="write a page with zoomable lanes")
            sub.add_argument(
                "--what-if",
                action="store_true",
                help="also time the kernel with one thing idealised at a time",
            )
            sub.add_argument(
                "--lanes", action="store_true", help="print the engines' lanes as text instead"
            )
            sub.add_argument(
                "--window",
                metavar="START:END",
                help="microseconds that --lanes shows, for example 20:35.5",
            )
            sub.add_argument(
                "--budget",
                type=int,
                default=DEFAULT_TOKENS,
                metavar="TOKENS",
                help=f"longest report, in tokens of four characters (default {DEFAULT_TOKENS})",
            )
            sub.add_argument(
                "--placement",
                action="store_true",
                help="also print where each allocation site's tiles live",
            )
    _add_calibrate(commands)
    compare = commands.add_parser(
        "compare",
        help="say what moved between two profiles",
        description="Say what moved between two profiles written by `nkisim profile … --json`.",
    )
    compare.add_argument("before", metavar="BEFORE.json")
    compare.add_argument("after", metavar="AFTER.json")
    compare.add_argument("--debug", action="store_true", help="show tracebacks")
    return root


def _add_calibrate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "fit the machines' constants on measured kernels, or score predictions against them"
    sub = commands.add_parser("calibrate", help=text, description=text[0].upper() + text[1:] + ".")
    sub.add_argument("--measured", required=True, metavar="FILE.csv", help="published figures")
    sub.add_argument("--kernels", required=True, metavar="DIR", help="folder of repositories")
    sub.add_argument(
        "--bindings",
        metavar="FILE.toml",
        help="which kernel and arguments each figure belongs to; default: nkisim's own",
    )
    sub.add_argument(
        "--machine", action="append", metavar="NAME", help="trn1 or trn2; default: both"
    )
    sub.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default=None,
        help="whose order of instructions to time; default: as each kernel's compiler does",
    )
    sub.add_argument("--score", action="store_true", help="only score, fit nothing")
    sub.add_argument(
        "--report",
        metavar="FILE.md",
        help="write the full report, pictures beside it",
    )
    sub.add_argument(
        "--write-machines", action="store_true", help="write fitted constants to the machine files"
    )
    sub.add_argument("--cache", metavar="DIR", help="keep traced kernels here")
    sub.add_argument(
        "--in-process",
        action="store_true",
        help="run the kernels' Python in this process, without the sandbox",
    )
    sub.add_argument("--debug", action="store_true", help="show tracebacks")


class UsageError(NkisimError):
    """The command line cannot be understood."""


def parse_argument(text: str, rng: np.random.Generator) -> object:
    """Turn one command-line argument into a kernel argument."""
    if text.startswith("@"):
        try:
            return np.load(text[1:], allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {text[1:]!r}: {error}") from None
    tensor = parse_tensor(text)
    if tensor is None:
        return parse_value(text)
    shape, dtype = tensor
    if dtype.is_integer:
        return rng.integers(0, 2 if dtype.kind == "bool" else 100, shape).astype(dtype.storage)
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype.storage)


def parse_tensor(text: str) -> tuple[tuple[int, ...], DType] | None:
    """Return shape and dtype if `text` describes a tensor, such as `bfloat16[512,2048]`."""
    tensor = _TENSOR.match(text)
    if tensor is None:
        return None
    dtype = lookup(tensor[1])
    if dtype is None:
        raise UsageError(f"{tensor[1]!r} in {text!r} is not an NKI dtype")
    return tuple(int(n) for n in tensor[2].split(",") if n.strip()), dtype


def parse_value(text: str) -> object:
    """Turn an argument that is no tensor into a kernel argument."""
    if re.match(r"^(nl|nisa)\.\w[\w.]*$", text):
        return api.symbol(text)
    if lookup(text) is not None:
        return lookup(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise UsageError(
            f"cannot read argument {text!r}; expected for example bfloat16[128,512], 1e-6, "
            "'text', nl.add or @file.npy"
        ) from None


def _split(kernel: str) -> tuple[str, str]:
    path, colon, entry = kernel.rpartition(":")
    if not colon or not path or not entry:
        raise UsageError(f"expected FILE:ENTRY, got {kernel!r}, for example kernel.py:kernel")
    return path, entry


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = parser().parse_args(argv)
    try:
        return _dispatch(options)
    except (
        UsageError,
        MachineError,
        SourceNotFound,
        CalibrationError,
        ProfileFormatError,
    ) as error:
        return _fail(error, 2, options.debug)
    except DiagnosticError as error:
        if options.json:
            print(json.dumps({"ok": False, "diagnostic": error.diagnostic.to_dict()}))
        else:
            print(error, file=sys.stderr)
        return 2 if error.code == WRONG_CALL else 1
    except api.TraceFailed as error:
        return _fail(error, 1, options.debug)
    except (NkisimError, TypeError) as error:
        return _fail(error, 4, options.debug)
    except KeyboardInterrupt:
        return 130


def _fail(error: Exception, code: int, debug: bool) -> int:
    if debug:
        raise error
    print(f"nkisim: error: {error}", file=sys.stderr)
    return code


def _dispatch(options: argparse.Namespace) -> int:
    if options.command == "calibrate":
        from nkisim.calibrate.command import run

        return run(options)
    if options.command == "compare":
        print(diff_profiles(_read_profile(options.before), _read_profile(options.after)))
        return 0
    path, entry = _split(options.kernel)
    if not Path(path).is_file():
        raise UsageError(f"kernel file {path!r} does not exist")
    rng = np.random.default_rng(options.seed)
    args: list[object] = []
    kwargs: dict[str, object] = {}
    for text in options.args:
        name, equals, value = text.partition("=")
        if equals and name.isidentifier():
            kwargs[name] = parse_argument(value, rng)
        else:
            args.append(parse_argument(text, rng))
    settings = {
        "machine": options.machine,
        "nki": options.nki,
        "search_path": options.search_path,
        "isolated": not options.in_process,
    }
    if options.command == "check":
        return _check(options, path, entry, args, kwargs, settings)
    if options.command in ("run", "profile"):
        settings["order"] = options.schedule
    result = api.run_file(path, entry, args, kwargs, **settings)
    for diagnostic in result.diagnostics:
        print(diagnostic, file=sys.stderr)
    if options.command == "trace":
        from nkisim.ir.printer import render

        print(render(result.program))
        return 0
    if options.command == "run":
        return _run(options, result)
    return _profile(options, path, result)


def _read_profile(path: str) -> dict[str, object]:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read profile {path!r}: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path!r} holds no profile; write one with `nkisim profile … --json`")
    return data


def _profile(options: argparse.Namespace, path: str, result: api.RunResult) -> int:
    profile = result.profile
    gains = what_if(profile) if options.what_if or options.html else ()
    if options.chrome:
        write_chrome_trace(profile, options.chrome)
        print(f"wrote {options.chrome}; open it at ui.perfetto.dev", file=sys.stderr)
    if options.html:
        bundle = collect(path, options.search_path)
        texts = {str(item["file"]): str(item["text"]) for item in bundle.sources.values()}
        write_html(profile, options.html, gains=gains, sources=texts)
        print(f"wrote {options.html}; open it in a browser", file=sys.stderr)
    if options.json:
        print(json.dumps(profile.to_json()))
    elif options.lanes:
        start_ns, end_ns = _window(options.window)
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width = max(60, shutil.get_terminal_size((100, 24)).columns)
        print(render_lanes(profile, width=width, start_ns=start_ns, end_ns=end_ns, colour=colour))
    else:
        print(render_text(profile, budget_tokens=options.budget, gains=gains))
        if options.placement:
            print(f"\nplacement\n{profile.placement}")
    return 0


def _window(text: str | None) -> tuple[float, float | None]:
    """Return the window in nanoseconds."""
    if text is None:
        return 0.0, None
    start, _, end = text.partition(":")
    try:
        first, last = float(start or 0) * 1000, float(end) * 1000 if end else None
    except ValueError:
        raise UsageError(f"--window takes START:END in microseconds, got {text!r}") from None
    if first < 0 or (last is not None and last <= first):
        raise UsageError(f"--window must end after it starts, got {text!r}")
    return first, last


def _check(
    options: argparse.Namespace,
    path: str,
    entry: str,
    args: list[object],
    kwargs: dict[str, object],
    settings: dict[str, object],
) -> int:
    diagnostics = api.check(path, entry, args, kwargs, **settings)  # type: ignore[arg-type]
    wrong = [d for d in diagnostics if d.kind in ("error", "unsupported")]
    if options.json:
        print(json.dumps({"ok": not wrong, "diagnostics": [d.to_dict() for d in diagnostics]}))
    else:
        for diagnostic in diagnostics:
            print(diagnostic)
        if not wrong:
            print(f"{options.kernel}: no rule is broken")
    if any(d.code == WRONG_CALL for d in wrong):
        return 2
    return 1 if wrong else 0


def _run(options: argparse.Namespace, result: api.RunResult) -> int:
    if options.save:
        np.savez(options.save, *[o.astype(np.float32) for o in result.outputs])
    rows = []
    for output in result.outputs:
        values = output.astype(np.float64)
        rows.append(
            {
                "shape": list(output.shape),
                "dtype": str(lookup(output.dtype)),
                "mean": float(values.mean()),
                "min": float(values.min()),
                "max": float(values.max()),
            }
        )
    if options.json:
        print(json.dumps({"ok": True, "outputs": rows, "latency_ns": result.profile.latency_ns}))
        return 0
    for i, row in enumerate(rows):
        print(
            f"output {i}: {row['dtype']}{row['shape']}  mean {row['mean']:.6g}  "
            f"min {row['min']:.6g}  max {row['max']:.6g}"
        )
    profile = result.profile
    print(f"emulated latency: {latency_text(profile.latency_ns, profile.machine)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
