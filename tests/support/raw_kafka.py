"""A message that no Python client would send: its header name is not UTF-8. Other clients do not mind."""

import ctypes
from pathlib import Path

import confluent_kafka

_TOPIC, _VALUE, _FLAGS, _HEADERS, _END = 1, 4, 7, 10, 0
_COPY_VALUE = 2


def _library() -> ctypes.CDLL:
    """The C library inside the client's own wheel."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka-*.so*"))))
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_headers_new.restype = ctypes.c_void_p
    return library


def send_with_header_name(bootstrap: str, topic: str, value: bytes, name: bytes) -> None:
    library = _library()
    configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
    error = ctypes.create_string_buffer(512)
    library.rd_kafka_conf_set(configuration, b"bootstrap.servers", bootstrap.encode(), error, len(error))
    producer = ctypes.c_void_p(library.rd_kafka_new(0, configuration, error, ctypes.c_size_t(len(error))))
    headers = ctypes.c_void_p(library.rd_kafka_headers_new(ctypes.c_size_t(1)))
    library.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(len(name)), b"x", ctypes.c_ssize_t(1))
    failed = library.rd_kafka_producev(
        producer,
        *(_TOPIC, topic.encode()),
        *(_VALUE, value, ctypes.c_size_t(len(value))),
        *(_FLAGS, _COPY_VALUE),
        *(_HEADERS, headers),
        _END,
    )
    assert not failed
    assert library.rd_kafka_flush(producer, 10_000) == 0
    library.rd_kafka_destroy(producer)
