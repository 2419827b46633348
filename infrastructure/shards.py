"""Which shard an event belongs to: all events of an aggregate to the same one, so that each keeps their order."""

from zlib import crc32


def shard_of(originator_id: str, shards: int) -> int:
    """0 ... shards - 1: CRC-32 (the one of zlib and gzip) of the id in UTF-8, modulo the number of shards.

    The same in every process, version and machine. Another number of shards moves most aggregates.
    """
    return crc32(originator_id.encode()) % shards
