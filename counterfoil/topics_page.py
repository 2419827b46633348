"""docs/topics.md, made of the contracts: who owns a topic, what is in it, what may change, and who reads it."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from inspect import cleandoc
from typing import Any

from domain.contracts import Contract
from domain.loading import load_business
from infrastructure.outbox import load_outbox
from projections.loading import Feed, all_projections

Schema = Mapping[str, Any]

HEAD = """\
# Topics

Made of the contracts by `counterfoil contracts --markdown > docs/topics.md`; a test compares the two. Do not edit it.

Every message is JSON with CloudEvents headers in binary mode. The partition is murmur2 of the key, as in Java clients.
The relay makes missing topics with the partitions, replicas and retention that the settings name. Where a topic has
others it says so loudly, in its log, in `counterfoil_topic_partitions_unexpected` and in
`counterfoil_topic_retention_unexpected`, and publishes there all the same: to stop would not undo what was done to it.
"""

RETENTION = "`COUNTERFOIL_TOPIC_RETENTION` seconds; without it the broker's default"
COMPATIBILITY = (
    "optional fields may be added, and readers ignore what they do not know; "
    "all else is another version, on another topic"
)
_FEW = 6
"""Texts of a field that has only certain ones, up to which they are all named."""


def all_contracts() -> list[type[Contract]]:
    """Of every outbox in the domain. Raises ContractUndescribed."""
    outboxes = [f"domain.{folder}" for folder in load_business() if find_spec(f"domain.{folder}.outbox")]
    return [contract for outbox in outboxes for contract in load_outbox(outbox).contracts]


def consumers_of(contract: type[Contract]) -> list[str]:
    """Consumer groups: those of our projections, and those outside that the contract names."""
    ours = (each.projection for each in all_projections() if each.feed is Feed.KAFKA)
    return sorted({each.consumer_name for each in ours if contract in each.contracts} | set(contract.consumers))


def topics_page() -> str:
    """As Markdown."""
    return HEAD + "".join(_section(contract) for contract in all_contracts())


def key_of(contract: type[Contract]) -> str:
    """The field that is the key, as it is named in JSON."""
    field = contract.model_fields[contract.keyed_by]
    return field.alias or contract.keyed_by


def _section(contract: type[Contract]) -> str:
    name, version = contract.contract_type(), contract.contract_version()
    facts = {
        "event": f"`{name}`, version {version}",
        "owner": contract.owner,
        "key": f"`{key_of(contract)}`",
        "known consumers": ", ".join(f"`{each}`" for each in consumers_of(contract)) or "none",
        "retention": RETENTION,
        "compatibility": COMPATIBILITY,
    }
    about = "".join(f"| {fact} | {value} |\n" for fact, value in facts.items())
    fields = "".join(f"| `{field}` | {need} | {value} |\n" for field, need, value in _fields(contract))
    return (
        f"\n## `{contract.topic}`\n\n{cleandoc(contract.__doc__ or '')}\n\n| | |\n| --- | --- |\n{about}"
        f"\n| field | | value |\n| --- | --- | --- |\n{fields}"
    )


def _fields(contract: type[Contract]) -> Iterator[tuple[str, str, str]]:
    schema = contract.model_json_schema(by_alias=True)
    required = set(schema.get("required", ()))
    for name, field in schema["properties"].items():
        yield name, "required" if name in required else "optional", _described(field, schema.get("$defs", {}))


def _described(field: Schema, parts: Mapping[str, Schema]) -> str:
    match field:
        case {"const": value}:
            return f"`{value}`"
        case {"enum": texts}:
            return "one of " + (
                ", ".join(f"`{text}`" for text in texts) if len(texts) <= _FEW else f"{len(texts)} texts"
            )
        case {"$ref": reference}:
            part = parts[reference.rpartition("/")[2]]
            return "; ".join(f"`{name}`: {_described(each, parts)}" for name, each in part["properties"].items())
        case {"anyOf": choices}:
            return " or ".join(_described(each, parts) for each in choices if each != {"type": "null"})
        case {"type": "array", "items": item}:
            return f"list of ({_described(item, parts)}){_bounds(field, 'minItems', 'maxItems', '')}"
        case {"type": "string", "format": "date-time"}:
            return "time in UTC, RFC 3339"
        case {"type": "string"}:
            return "text" + _bounds(field, "minLength", "maxLength", " characters")
        case {"type": "integer"}:
            return "whole number" + _bounds(field, "minimum", "maximum", "")
        case _:
            return str(field.get("type", "any"))


def _bounds(field: Schema, lowest: str, highest: str, unit: str) -> str:
    match field.get(lowest), field.get(highest):
        case None, None:
            return ""
        case low, None:
            return f", at least {low}{unit}"
        case None, high:
            return f", at most {high}{unit}"
        case low, high:
            return f", {low} to {high}{unit}"
