"""Free ports that stay free."""

import random
import socket

# Below what Linux (32768) and macOS (49152) hand out for outgoing connections. A port from that range
# could be taken while our server restarts: a client that retries it can even end up connected to itself.
_PORTS = range(15_000, 32_000)
_TRIES = 200


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port on which nobody listens now. Raises OSError when none is found."""
    for port in random.sample(_PORTS, _TRIES):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port on {host}: {_TRIES} tried")
