"""A switch's TCP connection to its controller: non-blocking, bounded, kept up with back-off."""

import contextlib
import errno
import socket
import time
from collections.abc import Callable

from testbed.openflow.codec import HEADER, MAX_MESSAGE_BYTES

BACKOFF_FIRST_S, BACKOFF_MOST_S = 0.1, 5.0
_READ_BYTES = 1 << 16
_MAX_UNSENT_BYTES = 32 << 20
"""A controller that does not read is dropped at this: memory stays bounded."""
_HANDLED_AT_ONCE = 512


class Connection:
    """Call `poll` often; it connects, reads, hands whole messages to `handle`, and sends what that returns."""

    def __init__(self, host: str, port: int, greeting: Callable[[], bytes], handle: Callable[[bytes], list[bytes]]) -> None:
        self.address = (host, port)
        self.connected = False
        self._greeting = greeting
        self._handle = handle
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._unsent = bytearray()
        self._backoff_s = BACKOFF_FIRST_S
        self._try_at = 0.0

    def send(self, data: bytes) -> None:
        """Queues a message; dropped while there is no connection."""
        if not self.connected:
            return
        if len(self._unsent) + len(data) > _MAX_UNSENT_BYTES:
            self._drop()
            return
        self._unsent += data

    def poll(self) -> bool:
        """Does what can be done without waiting; true if anything was received."""
        if self._socket is None:
            self._connect()
        elif not self.connected:
            self._finish_connecting()
        if not self.connected:
            return False
        busy = self._read()
        self._write()
        return busy

    def close(self) -> None:
        """Ends the connection for good."""
        self._drop()
        self._try_at = float("inf")

    def _connect(self) -> None:
        if time.monotonic() < self._try_at:
            return
        family = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self._socket.connect_ex(self.address)
        if code == 0:
            self._finish_connecting()
        elif code != errno.EINPROGRESS:
            self._drop()

    def _finish_connecting(self) -> None:
        assert self._socket is not None
        code = self._socket.connect_ex(self.address)
        if code in (errno.EINPROGRESS, errno.EALREADY):
            return
        if code not in (0, errno.EISCONN):
            self._drop()
            return
        self.connected = True
        self._backoff_s = BACKOFF_FIRST_S
        self._unsent += self._greeting()

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.connected = False
        self._received.clear()
        self._unsent.clear()
        self._try_at = time.monotonic() + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MOST_S)

    def _read(self) -> bool:
        assert self._socket is not None
        try:
            # What is already here is handled first: a peer that sends faster than that waits.
            data = self._socket.recv(_READ_BYTES) if len(self._received) < MAX_MESSAGE_BYTES else None
        except BlockingIOError:
            data = None
        except OSError:
            self._drop()
            return False
        if data == b"":
            self._drop()
            return False
        if data:
            self._received += data
        return self._take_messages() or bool(data)

    def _take_messages(self) -> bool:
        """Handles whole messages, a bounded number at once, so that one controller cannot hold up the fabric."""
        taken = 0
        for _ in range(_HANDLED_AT_ONCE):
            if len(self._received) - taken < HEADER.size:
                break
            _, _, length, _ = HEADER.unpack_from(self._received, taken)
            if length < HEADER.size or length > MAX_MESSAGE_BYTES:
                # What follows cannot be told from garbage any more.
                self._drop()
                return False
            if len(self._received) - taken < length:
                break
            request = bytes(self._received[taken : taken + length])
            taken += length
            for answer in self._handle(request):
                self.send(answer)
            if not self.connected:
                return False
        del self._received[:taken]
        return taken > 0

    def _write(self) -> None:
        if self._socket is None or not self._unsent:
            return
        with contextlib.suppress(BlockingIOError):
            try:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
            except BlockingIOError:
                raise
            except OSError:
                self._drop()
