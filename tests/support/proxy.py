"""A TCP proxy that misbehaves on request: it holds, cuts, and loses the one reply that matters."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

_HOST = "127.0.0.1"
_CHUNK = 65_536
_LOOK_AGAIN_SECONDS = 0.02
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class TcpProxy:
    """Forwards connections to `port` on to one upstream server.

    What is held is not lost: it arrives after `resume()`, as TCP would retransmit it. What is cut is.
    """

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self._upstream = (upstream_host, upstream_port)
        self._requests_flow, self._replies_flow = threading.Event(), threading.Event()
        self._refusing = False
        self._links: set[_Link] = set()
        self._links_lock = threading.Lock()  # the set is changed by every thread of the proxy
        self._loss: _Loss | None = None
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.resume()
        threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def pause_requests(self) -> None:
        """Hold what clients send; the server falls silent for want of questions."""
        self._requests_flow.clear()

    def pause_replies(self) -> None:
        """Hold what the server sends: its work is done, its answers do not arrive."""
        self._replies_flow.clear()

    def blackhole(self) -> None:
        """Hold both directions. Connections stay open, new ones too, and nothing moves."""
        self.pause_requests()
        self.pause_replies()

    def cut(self) -> None:
        """Break all connections, and each new one at once, until `resume()`."""
        self._refusing = True
        with self._links_lock:
            for link in self._links:
                link.cut()

    def resume(self) -> None:
        """Behave again: what was held goes on, new connections are served."""
        self._refusing = False
        self._requests_flow.set()
        self._replies_flow.set()

    def lose_reply_to(self, request: bytes, after_bytes: int = 0) -> threading.Event:
        """The next client message that contains `request` reaches the server; its reply does not come back.

        `after_bytes` of the reply pass, then that connection is cut; other connections are not touched.
        Since the reply had begun to arrive, the server is known to have acted; so choose bytes that only
        the deciding message has: a value, or COMMIT, and not the text of a statement that is prepared
        first. Returns an event that is set once it has happened: assert it, or the test proves nothing.
        """
        self._loss = _Loss(request, after_bytes)
        return self._loss.happened

    def close(self) -> None:
        """Stop listening, break all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone would not wake the thread in accept()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection(self._upstream, timeout=10.0)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            link = _Link(client, server)
            with self._links_lock:
                self._links.add(link)
            if self._refusing:  # asked after it was added, so that a cut() meanwhile cannot miss it
                link.cut()
            threading.Thread(target=self._forward_requests, args=(link,), daemon=True).start()
            threading.Thread(target=self._forward_replies, args=(link,), daemon=True).start()

    def _forward_requests(self, link: "_Link") -> None:
        seen = b""
        for chunk in link.chunks(link.client, self._requests_flow):
            loss = self._loss
            if loss is not None:
                seen = seen[-len(loss.request) :] + chunk
                if loss.request in seen:
                    self._loss, link.loss = None, loss
            link.send(link.server, chunk)
        self._leave(link)

    def _forward_replies(self, link: "_Link") -> None:
        for chunk in link.chunks(link.server, self._replies_flow):
            loss = link.loss
            if loss is None:
                link.send(link.client, chunk)
                continue
            link.send(link.client, chunk[: loss.after_bytes])
            loss.after_bytes -= len(chunk)
            if loss.after_bytes <= 0:
                link.cut()
                loss.happened.set()
        self._leave(link)

    def _leave(self, link: "_Link") -> None:
        """The second of its two threads closes a link: a socket in use by neither cannot be mixed up."""
        with self._links_lock:
            link.threads -= 1
            if link.threads == 0:
                self._links.discard(link)
                link.close()
            else:
                link.end()


class _Loss:
    def __init__(self, request: bytes, after_bytes: int) -> None:
        self.request = request
        self.after_bytes = after_bytes
        self.happened = threading.Event()


class _Link:
    """One client's connection and its twin to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.threads = 2
        self.loss: _Loss | None = None
        self._ended = threading.Event()

    def chunks(self, source: socket.socket, flow: threading.Event) -> Iterator[bytes]:
        """What arrives, each part once it may flow; ends with the connection."""
        while True:
            try:
                chunk = source.recv(_CHUNK)
            except OSError:
                return
            while not flow.wait(_LOOK_AGAIN_SECONDS):
                if self._ended.is_set():
                    return
            if not chunk or self._ended.is_set():
                return
            yield chunk

    def send(self, target: socket.socket, chunk: bytes) -> None:
        try:
            target.sendall(chunk)
        except OSError:
            self.end()

    def cut(self) -> None:
        """Break it, so that both sides notice at once."""
        for connection in (self.client, self.server):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.end()

    def end(self) -> None:
        """Wake both threads; what was forwarded before still arrives."""
        self._ended.set()
        for connection in (self.client, self.server):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.client.close()
        self.server.close()
