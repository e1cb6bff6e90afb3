"""librdkafka's public C API (rdkafka.h), from the library that confluent-kafka has loaded."""

# confluent-kafka's own Producer needs a call and three Python objects for each row. Here, rows are
# passed as arrays of C structures.

import ctypes as c
import enum
from typing import Any, Final

import confluent_kafka
import numpy as np
import numpy.typing as npt

ANY_PARTITION: Final = -1
"""RD_KAFKA_PARTITION_UA: the partitioner chooses."""


class Message(c.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("error", c.c_int),
        ("topic", c.c_void_p),
        ("partition", c.c_int32),
        ("value", c.c_void_p),
        ("value_size", c.c_size_t),
        ("key", c.c_void_p),
        ("key_size", c.c_size_t),
        ("offset", c.c_int64),
        ("number", c.c_size_t),
    )


class Argument(c.Structure):
    """rd_kafka_vu_t: the kind of argument, and a union of at least 64 bytes."""

    _fields_ = (
        ("kind", c.c_int),
        ("first", c.c_uint64),
        ("second", c.c_uint64),
        ("third", c.c_int64),
        ("rest", c.c_char * 40),
    )


MESSAGE: Final = np.dtype(Message)
"""The element type of the arrays for `Handle.produce_batch`."""
ARGUMENT: Final = np.dtype(Argument)
"""The element type of the arrays for `Handle.produce_each`."""
Array = npt.NDArray[np.void]


class Kind(enum.IntEnum):
    """The kind of an argument for `Handle.produce_each` (rd_kafka_vtype_t)."""

    TOPIC = 2
    PARTITION = 3
    VALUE = 4
    KEY = 5
    NUMBER = 6
    TIMESTAMP = 8
    HEADER = 9


POINTER, TEXT, INT, SIZE = c.c_void_p, c.c_char_p, c.c_int, c.c_size_t
FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "version": (INT,),
    "conf_new": (POINTER,),
    "conf_destroy": (None, POINTER),
    "conf_set": (INT, POINTER, TEXT, TEXT, POINTER, SIZE),
    "conf_set_events": (None, POINTER, INT),
    "new": (POINTER, INT, POINTER, POINTER, SIZE),
    "name": (TEXT, POINTER),
    "destroy": (None, POINTER),
    "set_log_queue": (INT, POINTER, POINTER),
    "queue_get_main": (POINTER, POINTER),
    "queue_destroy": (None, POINTER),
    "queue_poll": (POINTER, POINTER, INT),
    "event_type": (INT, POINTER),
    "event_message_count": (SIZE, POINTER),
    "event_message_array": (SIZE, POINTER, POINTER, SIZE),
    "event_error": (INT, POINTER),
    "event_error_string": (TEXT, POINTER),
    "event_log": (INT, POINTER, POINTER, POINTER, POINTER),
    "event_config_string": (TEXT, POINTER),
    "event_destroy": (None, POINTER),
    "topic_new": (POINTER, POINTER, TEXT, POINTER),
    "topic_name": (TEXT, POINTER),
    "topic_destroy": (None, POINTER),
    "produce_batch": (INT, POINTER, c.c_int32, INT, POINTER, INT),
    "produceva": (POINTER, POINTER, POINTER, SIZE),
    "flush": (INT, POINTER, INT),
    "purge": (INT, POINTER, INT),
    "outq_len": (INT, POINTER),
    "metadata": (INT, POINTER, INT, POINTER, POINTER, INT),
    "metadata_destroy": (None, POINTER),
    "init_transactions": (POINTER, POINTER, INT),
    "begin_transaction": (POINTER, POINTER),
    "commit_transaction": (POINTER, POINTER, INT),
    "abort_transaction": (POINTER, POINTER, INT),
    "fatal_error": (INT, POINTER, POINTER, SIZE),
    "error_code": (INT, POINTER),
    "error_string": (TEXT, POINTER),
    "error_is_fatal": (INT, POINTER),
    "error_is_retriable": (INT, POINTER),
    "error_txn_requires_abort": (INT, POINTER),
    "error_destroy": (None, POINTER),
    "oauthbearer_set_token": (INT, POINTER, TEXT, c.c_int64, TEXT, POINTER, SIZE, POINTER, SIZE),
    "oauthbearer_set_token_failure": (INT, POINTER, TEXT),
}


class Library:
    """librdkafka's functions, named without their prefix."""

    def __init__(self) -> None:
        # dlopen also finds symbols in the libraries that this one is linked with.
        loaded = c.CDLL(confluent_kafka.cimpl.__file__)
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(loaded, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
