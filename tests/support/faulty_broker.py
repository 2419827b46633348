"""A broker that refuses on demand: the mock cluster inside librdkafka, for answers no healthy Kafka gives.

It is the client's own library, reached through ctypes; the messages and the protocol are real.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka

PRODUCE, OFFSET_COMMIT = 0, 8
"""Numbers of the requests in Kafka's protocol."""

NOT_ENOUGH_REPLICAS = 19
TOPIC_AUTHORIZATION_FAILED = 29
MSG_SIZE_TOO_LARGE = 10
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
REBALANCE_IN_PROGRESS = 27


def _library() -> ctypes.CDLL:
    (path,) = Path(confluent_kafka.__file__).parent.parent.joinpath("confluent_kafka.libs").glob("librdkafka-*")
    library = ctypes.CDLL(str(path))
    handle, number, code = ctypes.c_void_p, ctypes.c_int, ctypes.c_int16
    library.rd_kafka_new.restype = handle
    library.rd_kafka_new.argtypes = [number, handle, ctypes.c_char_p, ctypes.c_size_t]
    library.rd_kafka_mock_cluster_new.restype = handle
    library.rd_kafka_mock_cluster_new.argtypes = [handle, number]
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [handle]
    library.rd_kafka_mock_topic_create.argtypes = [handle, ctypes.c_char_p, number, number]
    library.rd_kafka_mock_push_request_errors_array.argtypes = [handle, code, ctypes.c_size_t, ctypes.POINTER(number)]
    library.rd_kafka_mock_clear_request_errors.argtypes = [handle, code]
    library.rd_kafka_mock_cluster_destroy.argtypes = [handle]
    library.rd_kafka_destroy.argtypes = [handle]
    return library


class FaultyBroker:
    """`refuse_next([code, code])` answers the next produce requests, or others, with these error codes."""

    def __init__(self, topics: Sequence[str], partitions: int = 1) -> None:
        self._library = _library()
        errors = ctypes.create_string_buffer(512)
        self._client = self._library.rd_kafka_new(0, None, errors, 512)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        self.bootstrap: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        for topic in topics:
            self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)

    def refuse_next(self, codes: Sequence[int], request: int = PRODUCE) -> None:
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(codes), array)

    def accept_again(self) -> None:
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, PRODUCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)
