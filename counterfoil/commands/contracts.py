"""What is published, where, and who reads it."""

from typing import Annotated

import typer

from counterfoil.output import print_json, print_table
from counterfoil.topics_page import all_contracts, consumers_of, key_of, topics_page
from domain.contracts import Contract


def contracts(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/topics.md.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the public events: topic, version, owner, key and known consumers. Needs no database and no Kafka."""
    if markdown:
        typer.echo(topics_page(), nl=False)
        return
    found = all_contracts()
    if as_json:
        print_json([_fields(contract) for contract in found])
    else:
        columns = ("topic", "event", "version", "owner", "key", "known consumers")
        print_table("Contracts", columns, [_row(contract) for contract in found])


def _fields(contract: type[Contract]) -> dict[str, object]:
    return {
        "topic": contract.topic,
        "event": contract.contract_type(),
        "version": contract.contract_version(),
        "owner": contract.owner,
        "key": key_of(contract),
        "consumers": consumers_of(contract),
    }


def _row(contract: type[Contract]) -> tuple[object, ...]:
    return *list(_fields(contract).values())[:-1], ", ".join(consumers_of(contract))
