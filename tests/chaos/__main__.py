"""`make chaos`: MINUTES of it, with a SEED or with one of its own."""

import os
import secrets
import tempfile
from pathlib import Path

from tests.chaos.run import run
from tests.support.kafka_programs import NoKafka, find_kafka_programs


def main() -> None:
    programs = find_kafka_programs()
    if isinstance(programs, NoKafka):
        raise SystemExit(f"needs a real Apache Kafka of its own: {programs.reason}")
    seed = int(os.environ.get("SEED") or secrets.randbelow(1_000_000))
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-chaos-"))
    print(f"logs: {folder}")
    run(seed, 60 * float(os.environ.get("MINUTES") or 5), programs, folder)
    print("all is right")


if __name__ == "__main__":
    main()
