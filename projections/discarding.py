"""The decision that an entry of a quarantine is never to be applied. It stays as a record, with its bytes."""

import logging

from infrastructure.postgres import Connection
from projections.inbox import claim
from projections.key_locks import lock_keys
from projections.order_keeping import OF_CONTRACTS
from projections.quarantine import key_hash, storable

logger = logging.getLogger(__name__)

PARKED = "SELECT key FROM quarantined_events WHERE consumer_name = %s AND id = %s AND state = 'parked'"
DISCARD = """
    UPDATE quarantined_events
    SET state = 'discarded', closed_at = now(), closed_by = %(by)s, closed_reason = %(reason)s
    WHERE consumer_name = %(consumer_name)s AND id = %(id)s AND state = 'parked'
    RETURNING event_id, category
"""


def discard(connection: Connection, consumer_name: str, entry_id: int, reason: str, by: str) -> bool:
    """False when there is no such entry, or it is closed already; nothing was changed then.

    The record is not applied when it comes again, nor is its event from another place, as far as the record
    could be read: its id is claimed as if it had been applied. What is parked behind it stays there until the
    next redrive.
    """
    decided = {"consumer_name": consumer_name, "id": entry_id, "reason": storable(reason), "by": storable(by)}
    with connection.transaction():
        row = connection.execute(PARKED, (consumer_name, entry_id)).fetchone()
        if row is None:
            return False
        if row[0] is not None:  # against a redrive that is just releasing it, or a consumer that parks behind it
            lock_keys(connection, consumer_name, [key_hash(row[0])])
        discarded = connection.execute(DISCARD, decided).fetchone()
        if discarded is None:
            return False
        event_id, category = discarded
        if event_id is not None and category in OF_CONTRACTS:
            claim(connection, consumer_name, [event_id])
    logger.info("discarded from quarantine", extra={"consumer": consumer_name, "entry": entry_id})
    return True
