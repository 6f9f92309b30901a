"""`strata checkpoints export`: the request that its options form, and its output."""

import re
from pathlib import Path

import msgspec
from rich.text import Text

from strata import extras
from strata.checkpoint.export.checkpoint_export import (
    CheckpointExport,
    ExportReport,
    ExportRequest,
    Format,
)
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.cli.support.checkpoint_actions import located, progress_bar
from strata.cli.support.tables import console, plain, print_json, size
from strata.errors import InvalidArgument

SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kKMGT]?)(i?)B?")
POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
SHOWN = 5


def requested_export(
    wanted: Format | None, out: str, only: str, shard_size: str, config_from: Path | None
) -> ExportRequest:
    """The export that the options ask for."""
    if wanted is None:
        raise InvalidArgument(
            "export needs a format", hint="add --format safetensors, hf, torch or dcp"
        )
    if not Path(out).name or "://" in out:
        raise InvalidArgument("export needs a folder to create", hint="add --out DIR")
    return ExportRequest(
        format=wanted,
        out=Path(out).absolute(),
        only=only,
        shard_bytes=size_bytes(shard_size),
        config_from=config_from,
    )


def size_bytes(text: str) -> int:
    """The bytes that a size such as 500MB or 2GiB means."""
    found = SIZE.fullmatch(text)
    amount = 0.0
    if found is not None:
        amount = float(found[1]) * (1024 if found[3] else 1000) ** POWERS[found[2]]
    if amount < 1:
        raise InvalidArgument(f"--shard-size is {text!r}", hint="give a size such as 5GB")
    return int(amount)


def export(
    url: str | None, checkpoint: str, task: str, request: ExportRequest, as_json: bool
) -> None:
    """Export a checkpoint to a new folder, and print how to load it."""
    if request.format in ("torch", "dcp"):
        extras.check("torch")
    storage, manifest = located(url, checkpoint, task)
    with CheckpointReader(storage, manifest) as reader:
        export = CheckpointExport(reader, request)
        with progress_bar("exporting", export.size_bytes) as told:
            report = export.run(told)
    if as_json:
        return print_json([msgspec.json.encode(report)])
    print_report(report)


def print_report(report: ExportReport) -> None:
    """Print what was left out, and a closing line with path, size and how to load it."""
    out = console()
    if report.left_out:
        shown = ", ".join(report.left_out[:SHOWN])
        more = f" and {len(report.left_out) - SHOWN} more" if len(report.left_out) > SHOWN else ""
        count = len(report.left_out)
        values = "1 value that is" if count == 1 else f"{count} values that are"
        line = f"left out: {values} not arrays: {shown}{more}"
        out.print(Text(plain(line)), soft_wrap=True)
    for note in report.notes:
        out.print(Text(plain(f"note: {note}")), soft_wrap=True)
    line = f"{report.path}: {size(report.size_bytes)}; load it with {report.load}"
    out.print(Text.assemble(("✓ ", "green"), plain(line)), soft_wrap=True)
