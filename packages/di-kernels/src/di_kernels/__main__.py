"""`python -m di_kernels check | bench | list | compile`.

Exit codes: 0 good, 1 a check or a kernel failed, 2 wrong use, 3 the device or the compiler is not
there.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

import torch

from di_kernels.bench import as_record, environment, measure_ceilings, run_bench
from di_kernels.cases import SIZES
from di_kernels.check import KERNELS, run_checks, why_no_kernels
from di_kernels.errors import BackendMissingError
from di_kernels.kernel_bench import kernel_ceilings, run_kernel_bench
from di_kernels.registry import describe, op_names
from di_kernels.tile.catalogue import kernels
from di_kernels.tile.gate import run_gate
from di_kernels.tile.toolchain import ARCHITECTURES


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "compile":
        return _compile(options)
    unknown = sorted(set(options.op) - set(op_names()))
    if unknown:
        print(f"unknown op: {', '.join(unknown)}", file=sys.stderr)
        print(f"hint: one of {', '.join(op_names())}", file=sys.stderr)
        return 2
    if getattr(options, "shapes", "") == KERNELS and not options.device.startswith("cuda"):
        print("shapes `kernels` need a GPU: give `--device cuda`", file=sys.stderr)
        return 2
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:
        print(f"device `{options.device}` cannot be used: {error}", file=sys.stderr)
        return 3
    if getattr(options, "shapes", "") == KERNELS:
        reason = why_no_kernels(options.device, options.op)
        if reason is not None:
            print(reason, file=sys.stderr)
            return 3
    commands = {"check": _check, "bench": _bench, "list": _list}
    return commands[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m di_kernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("check", "every backend against independent answers, on this device"),
        ("bench", "time, bytes, operations, floor and their ratio"),
        ("list", "which backend serves each op here"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--op", action="append", default=[], help="this op only; repeatable")
        command.add_argument("--device", default="cpu", help="torch device (default: cpu)")
        command.add_argument(
            "--shapes",
            choices=[*sorted(SIZES), KERNELS],
            default="small",
            help="widths (default: small); kernels: accelerated backends on a GPU",
        )
        command.add_argument("--json", action="store_true", help="one JSON document on stdout")
    _add_compile(commands)
    return parser


def _add_compile(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "every TileLang kernel for every declared architecture, without a GPU"
    command = commands.add_parser("compile", help=text, description=text)
    command.add_argument(
        "--arch", default=",".join(ARCHITECTURES), help="comma separated (default: %(default)s)"
    )
    command.add_argument("--op", action="append", default=[], help="its kernels only; repeatable")
    command.add_argument(
        "--kernel", action="append", default=[], help="this kernel only; repeatable"
    )
    command.add_argument("--per-op", action="store_true", help="one kernel of every op, not all")
    command.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    command.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _compile(options: argparse.Namespace) -> int:
    architectures = options.arch.split(",")
    for kind, given, known in (
        ("architecture", architectures, ARCHITECTURES),
        (
            "op with kernels",
            options.op,
            sorted({op for kernel in kernels().values() for op in kernel.ops}),
        ),
        ("kernel", options.kernel, kernels()),
    ):
        unknown = sorted(set(given) - set(known))
        if unknown:
            print(f"unknown {kind}: {', '.join(unknown)}", file=sys.stderr)
            print(f"hint: one of {', '.join(known)}", file=sys.stderr)
            return 2
    names = [*options.kernel]
    names += [kernel.name for kernel in kernels().values() if set(kernel.ops) & set(options.op)]
    results = []
    try:
        for result in run_gate(
            architectures, names=names, per_op=options.per_op, jobs=options.jobs
        ):
            results.append(result)
            if not options.json:
                print(
                    f"{result.kernel:32s} {result.architecture:8s} {result.status:10s} "
                    f"{result.registers:3d} registers {result.spill_bytes:4d} B spilled "
                    f"{result.shared_bytes:6d} B shared  {result.detail}",
                    flush=True,
                )
    except BackendMissingError as error:
        print(error, file=sys.stderr)
        return 3
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    failed = sum(result.status == "fail" for result in results)
    if not options.json:
        print(f"{len(results)} kernels, {failed} failed")
    return 1 if failed else 0


def _check(options: argparse.Namespace) -> int:
    results = []
    for result in run_checks(options.device, op_filter=options.op, shapes=options.shapes):
        results.append(result)
        if not options.json and result.status == "fail":
            print(f"FAIL {result.case} {result.backend}: {result.detail}")
    failed = sum(result.status == "fail" for result in results)
    if options.json:
        records = [asdict(result) for result in results]
        print(
            json.dumps({"environment": environment(options.device), "results": records}, indent=1)
        )
        return 1 if failed else 0
    for op in sorted({result.op for result in results}):
        served = sorted({r.backend for r in results if r.op == op and r.status != "unsupported"})
        passed = sum(r.op == op and r.status == "pass" for r in results)
        print(f"{op:26s} {passed:4d} passed   {', '.join(served)}")
    print(f"{len(results)} checks, {failed} failed")
    return 1 if failed else 0


def _bench(options: argparse.Namespace) -> int:
    if options.shapes == KERNELS:
        ceilings = kernel_ceilings(options.device)
        results = run_kernel_bench(options.device, op_filter=options.op, ceilings=ceilings)
    else:
        ceilings = measure_ceilings(options.device)
        results = run_bench(
            options.device, op_filter=options.op, shapes=options.shapes, ceilings=ceilings
        )
    if options.json:
        document = {
            "environment": environment(options.device),
            "ceilings": asdict(ceilings),
            "results": [as_record(result) for result in results],
        }
        print(json.dumps(document, indent=1))
        return 0
    print(
        f"copy {ceilings.copy_bytes_per_s / 1e9:.1f} GB/s, "
        f"product {ceilings.flops_per_s / 1e9:.1f} GFLOP/s"
    )
    print(f"{'case':64s} {'backend':10s} {'us':>10s} {'floor us':>10s} {'ratio':>7s}")
    for result in results:
        print(
            f"{result.case:64s} {result.backend:10s} {result.median_us:10.1f} "
            f"{result.floor_us:10.2f} {result.ratio:7.3f}"
        )
    return 0


def _list(options: argparse.Namespace) -> int:
    services = [s for s in describe(options.device) if not options.op or s.op in options.op]
    if options.json:
        print(json.dumps([asdict(service) for service in services], indent=1))
        return 0
    for service in services:
        mark = "" if service.is_verified else "  (unverified)"
        print(f"{service.op:26s} {service.backend:10s} {service.determinism}{mark}")
        for refusal in service.refusals:
            print(f"    {refusal}")
        for pair in service.beside_torch:
            print(f"    beside torch: {pair}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
