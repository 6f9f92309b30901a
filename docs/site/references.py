"""The reference pages that each build writes from code: Python, commands, REST, gRPC, SQL."""

import importlib
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from docs.site import sql_reference
from docs.site.markdown import cell, code, table
from docs.site.pages import ROOT, write

PACKAGES = {
    "strata": "What a training script imports.",
    "strata.torch": "PyTorch, Lightning, Hugging Face and accelerate. `import strata.torch`.",
    "strata.compat.wandb": "The calls of Weights & Biases, recorded with Strata: "
    "`import strata.compat.wandb as wandb`.",
}
METHODS = ("get", "post", "put", "patch", "delete")


# Python


def public_names(package: str) -> list[str]:
    """The public names of a package, without its version."""
    module = importlib.import_module(package)
    return [name for name in module.__all__ if name != "__version__"]


def definition(package: str, name: str) -> str:
    """The path of the module in which a public name is defined, and the name."""
    module = importlib.import_module(package)
    homes: dict[str, str] = getattr(module, "_HOMES", {})
    if name in homes:
        return f"{homes[name]}.{name}"
    value = getattr(module, name)
    if isinstance(value, ModuleType):
        return value.__name__
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"{value.__module__}.{value.__qualname__}"
    return f"{package}.{name}"


def python_page(package: str) -> str:
    """A page of a package: each public name with its signature and docstring."""
    parts = [f"# {package}", PACKAGES[package]]
    names = public_names(package)
    parts.append(", ".join(f"[`{name}`](#{package}.{name})" for name in names) + ".")
    for name in names:
        options = f"      heading: {package}.{name}\n      toc_label: {name}\n"
        anchor = f'<a id="{package}.{name}"></a>'
        parts.append(f"{anchor}\n\n::: {definition(package, name)}\n    options:\n{options}")
    return "\n\n".join(parts) + "\n"


# Command line


def command_page() -> str:
    """Every verb with its arguments and options, from the parser."""
    from typer.main import get_command_from_info
    from typer.models import CommandInfo

    from strata import cli

    parts = [
        "# Commands",
        "Every verb with its arguments and options. [Command line]"
        "(../command_line.md) explains addresses, exit codes and JSON.",
    ]
    for file in cli.verb_files():
        verb = cli.load_verb(file.stem)
        info = CommandInfo(name=file.stem.replace("_", "-"), callback=verb)
        command: Any = get_command_from_info(
            info, pretty_exceptions_short=False, rich_markup_mode=None
        )
        context = command.make_context(info.name, [], resilient_parsing=True)
        usage = command.get_usage(context).removeprefix("Usage: ")
        parts += [f"## strata {info.name}", str(command.help or "").replace("\b", "")]
        parts.append(f"```text\nstrata {' '.join(usage.split())}\n```")
        rows = []
        for parameter in command.params:
            record = parameter.get_help_record(context)
            if record:
                names = record[0] if isinstance(record[0], str) else str(record[0])
                rows.append([code(names.replace("|", "\\|")), cell(record[1])])
        if rows:
            parts.append(table(["argument or option", "meaning"], rows))
    return "\n\n".join(parts) + "\n"


# REST


def schema_name(schema: dict[str, Any]) -> str:
    """The type of a JSON schema as text, with links to the structures."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(schema_name(each) for each in schema[key]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {schema_name(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {schema_name(schema['additionalProperties'])}"
    return str(kind)


def content_type(content: dict[str, Any]) -> str:
    """What a request or a response contains."""
    return ", ".join(
        schema_name(media["schema"]) if media.get("schema") else f"`{kind}`"
        for kind, media in content.items()
    )


def endpoint(method: str, path: str, described: dict[str, Any]) -> str:
    """One endpoint of the REST API."""
    parts = [f"### {method.upper()} {path}", str(described.get("description", ""))]
    given = described.get("parameters", [])
    rows = [
        [
            code(each["name"]),
            each["in"],
            schema_name(each.get("schema", {})),
            "yes" if each.get("required") else "",
            cell(each.get("description", "")),
        ]
        for each in given
    ]
    if rows:
        parts.append(table(["parameter", "in", "type", "required", "meaning"], rows))
    if "requestBody" in described:
        parts.append(f"Body: {content_type(described['requestBody']['content'])}.")
    answers = []
    for status, answer in described["responses"].items():
        kind = content_type(answer.get("content", {}))
        if status.startswith("2"):
            answers.append(f"{status}: {kind or 'no body'}")
    parts.append(f"Answer: {'; '.join(answers)}.")
    errors = [status for status in described["responses"] if not status.startswith("2")]
    if errors:
        parts.append(f"Errors: {', '.join(errors)}.")
    return "\n\n".join(filter(None, parts))


def rest_page() -> str:
    """Every endpoint and structure of the REST API, from its OpenAPI document."""
    from strata import __version__
    from strata.coordinator.rest.app import document

    described = json.loads(document(__version__))
    parts = [
        "# REST API",
        described["info"]["description"],
        "The coordinator serves this as an OpenAPI document at `/api/openapi.json`.",
    ]
    groups: dict[str, list[str]] = defaultdict(list)
    for path in sorted(described["paths"]):
        group = (path.removeprefix("/api/").split("/")[0] or "other").strip("/")
        for method in METHODS:
            if method in described["paths"][path]:
                groups[group].append(endpoint(method, path, described["paths"][path][method]))
    for group, endpoints in groups.items():
        parts += [f"## {group}", *endpoints]
    parts.append("## Structures")
    for name, schema in sorted(described["components"]["schemas"].items()):
        parts.append(f"### {name}")
        parts.append(str(schema.get("description", "")))
        required = schema.get("required", [])
        rows = [
            [
                code(field),
                schema_name(inner),
                "yes" if field in required else "",
                cell(inner.get("description", "")),
            ]
            for field, inner in schema.get("properties", {}).items()
        ]
        if rows:
            parts.append(table(["field", "type", "always", "meaning"], rows))
        else:
            parts.append(schema_name(schema))
    return "\n\n".join(filter(None, parts)) + "\n"


# gRPC


def blocks_of_proto(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Each service, message and enum: the comment above it, its kind, its name and its body."""
    form = r"((?:^//[^\n]*\n)*)^(service|message|enum) (\w+) \{([^\n]*\}|.*?^\})"
    for comment, kind, name, body in re.findall(form, text, re.MULTILINE | re.DOTALL):
        words = " ".join(line.removeprefix("//").strip() for line in comment.splitlines())
        yield words, kind, name, body


def grpc_page() -> str:
    """The gRPC service, its messages and enums, from the proto file."""
    text = (ROOT / "proto" / "strata" / "v1" / "coordinator.proto").read_text("utf-8")
    intro = re.match(r"(?://[^\n]*\n)+", text)
    assert intro, "the proto file begins with a comment"
    parts = ["# gRPC API", re.sub(r"^//[ ]?", "", intro[0], flags=re.MULTILINE).strip()]
    found = list(blocks_of_proto(text))
    defined = len(re.findall(r"^(?:service|message|enum) ", text, re.MULTILINE))
    assert len(found) == defined, "every definition of the proto file is on the page"
    for comment, kind, name, body in found:
        parts += [f"## {name}", comment]
        parts.append(f"```protobuf\n{kind} {name} {{{body}\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


# Pages


def write_all(folder: Path) -> None:
    """Write every reference page into the folder of sources."""
    for package in PACKAGES:
        name = f"python-{package.replace('.', '-')}"
        write(folder, f"reference/{name}.md", python_page(package))
    write(folder, "reference/commands.md", command_page())
    write(folder, "reference/rest.md", rest_page())
    write(folder, "reference/grpc.md", grpc_page())
    write(folder, "reference/sql.md", sql_reference.page())
