"""The envelope of a contract: CloudEvents 1.0 attributes as Kafka headers (binary mode).

The value stays the bare contract; who routes or traces events need not read it. Attribute names are
those of the CloudEvents specification and of its partitioning and sequence extensions.
"""

from functools import cache
from uuid import UUID

from pydantic_core import to_json

from domain.contracts import Contract

Headers = tuple[tuple[str, bytes], ...]


def envelope(contract: Contract, key: bytes, namespace: UUID, sequence: int) -> Headers:
    """The headers of one message, in a fixed order. The same arguments always give the same bytes.

    key: the contract's, as the message carries it. namespace: the store that the event is a fact of; the source. An
    event id is unique in its source. sequence: version of the event within its aggregate, 1, 2, 3 ...; written as a
    decimal number.
    """
    return (
        *_headers_of_the_type(type(contract), namespace.int),
        ("ce_id", contract.event_id.encode()),
        ("ce_time", to_json(contract.occurred_at)[1:-1]),
        ("ce_subject", key),
        ("ce_partitionkey", key),
        ("ce_sequence", b"%d" % sequence),
    )


@cache
def _headers_of_the_type(contract_class: type[Contract], namespace: int) -> Headers:
    """The specification wants an absolute URI for the schema and a reference for the source."""
    name, version = contract_class.contract_type(), contract_class.contract_version()
    return (
        ("content-type", b"application/json"),
        ("ce_specversion", b"1.0"),
        ("ce_source", f"/counterfoil/{UUID(int=namespace)}".encode()),
        ("ce_type", f"{name}.v{version}".encode()),
        ("ce_dataschema", f"urn:counterfoil:contract:{name}:{version}".encode()),
    )
