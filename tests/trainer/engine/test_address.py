"""Where the embedded engine listens."""

import socket

from trainer.engine.address import bind


def test_answers_are_not_kept_back_until_the_packet_before_is_acknowledged():
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
