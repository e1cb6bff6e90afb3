"""The proxy is closed while clients connect."""

import gc
import socket
import warnings

from support.proxy import KafkaProxy


def test_no_connection_is_left_unclosed() -> None:
    gc.collect()  # what kafka-python's clients have left in other tests
    with socket.create_server(("127.0.0.1", 0), backlog=200) as upstream:
        port = upstream.getsockname()[1]
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", ResourceWarning)
            for _ in range(30):
                clients = [socket.socket() for _ in range(3)]
                with KafkaProxy(port) as proxy:
                    for client in clients:
                        client.settimeout(0)
                        client.connect_ex(("127.0.0.1", proxy.port))
                for client in clients:
                    client.close()
            gc.collect()
    assert [str(one.message) for one in found if one.category is ResourceWarning] == []
