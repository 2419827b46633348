"""Where the fault lies when Kafka does not take a message: it decides who has to change what."""

from enum import StrEnum

from confluent_kafka import KafkaError


class Fault(StrEnum):
    MESSAGE = "message"
    """This message, or one beside it in its batch, would be refused again."""
    TOPIC = "topic"
    """The topic is missing, forbidden or has an impossible name. No fault of the message: wait."""
    PRODUCER = "producer"
    """The client lost track and declared itself dead. A new one goes on."""
    BROKER = "broker"
    """Away, slow, or not ready; also whatever is unknown here. Wait."""


_OF_THE_MESSAGE = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
}
_OF_THE_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
_OF_THE_PRODUCER = {
    KafkaError._FATAL,
    KafkaError._GAPLESS_GUARANTEE,
    KafkaError._INCONSISTENT,
    KafkaError._STATE,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}


def fault_of(error: KafkaError) -> Fault:
    code = error.code()
    if code in _OF_THE_MESSAGE:
        return Fault.MESSAGE
    if code in _OF_THE_TOPIC:
        return Fault.TOPIC
    if error.fatal() or code in _OF_THE_PRODUCER:
        return Fault.PRODUCER
    return Fault.BROKER
