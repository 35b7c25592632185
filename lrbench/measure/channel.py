"""Messages between a study and a child: JSON behind its length, over a private socket."""

import json
import socket
import struct
from collections.abc import Callable
from time import monotonic
from typing import Any

HEADER = struct.Struct("!Q")


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """One end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Any) -> None:
        """Write one message.

        Raises:
            Closed
        """
        body = json.dumps(message).encode()
        try:
            self._end.settimeout(None)
            self._end.sendall(HEADER.pack(len(body)) + body)
        except OSError:
            raise Closed from None

    def receive(
        self, timeout_s: float | None = None, poll_s: float | None = None, poll: Callable[[], None] = lambda: None
    ) -> Any:
        """Read one message; `poll` is called every `poll_s` while there is none.

        Raises:
            Closed
            TimeoutError: the message was not complete in time.
        """
        until = None if timeout_s is None else monotonic() + timeout_s
        (length,) = HEADER.unpack(self._read(HEADER.size, until, poll_s, poll))
        return json.loads(self._read(length, until, poll_s, poll))

    def _read(self, length: int, until: float | None, poll_s: float | None, poll: Callable[[], None]) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            left = None if until is None else until - monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            waits = [wait for wait in (left, poll_s) if wait is not None]
            self._end.settimeout(min(waits) if waits else None)
            try:
                part = self._end.recv(min(length - len(parts), 1 << 16))
            except TimeoutError:
                poll()
                continue
            except OSError:
                raise Closed from None
            if not part:
                raise Closed
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """The other side reads its end."""
        self._end.close()
