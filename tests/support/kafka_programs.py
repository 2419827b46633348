"""The jars of a real Apache Kafka: from KAFKA_HOME, else through Maven into a cache."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_POM = Path(__file__).with_name("kafka-pom.xml")
_OLDEST_JAVA = 17
_DOWNLOAD_SECONDS = 300


@dataclass(frozen=True)
class KafkaPrograms:
    """How to run one of Kafka's main classes: the Java launcher and the folder with the jars."""

    java: str
    jars: Path


@dataclass(frozen=True)
class NoKafka:
    """There is none, and why."""

    reason: str


@cache
def find_kafka_programs() -> KafkaPrograms | NoKafka:
    """Looked for once in a run; the first time on a machine it downloads some 40 MB."""
    java = _java()
    if isinstance(java, NoKafka):
        return java
    home = os.environ.get("KAFKA_HOME")
    if home:
        jars = Path(home, "libs")
        return KafkaPrograms(java, jars) if jars.is_dir() else NoKafka(f"KAFKA_HOME has no folder {jars}")
    jars = _cache_folder() / f"kafka-{_version()}"
    missing = None if jars.is_dir() else _download(jars)
    return missing or KafkaPrograms(java, jars)


def _java() -> str | NoKafka:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        return NoKafka("there is no Java")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30)
    found = re.search(r'version "(\d+)', said.stderr + said.stdout)
    if found is None or int(found[1]) < _OLDEST_JAVA:
        return NoKafka(f"Java {_OLDEST_JAVA} or newer is needed")
    return java


def _version() -> str:
    """Kafka's version, and a mark of the whole file, so that a change of it is a new folder."""
    pom = _POM.read_text()
    version = re.search(r"<artifactId>kafka_2.13</artifactId>\s*<version>([^<]+)</version>", pom)
    assert version, f"no Kafka version in {_POM.name}"
    return f"{version[1]}-{hashlib.sha256(pom.encode()).hexdigest()[:8]}"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "counterfoil"


def _download(jars: Path) -> NoKafka | None:
    """Into a folder aside, then renamed: `jars` is complete or not there, whoever else downloads now."""
    maven = shutil.which("mvn")
    if maven is None:
        return NoKafka("there is neither KAFKA_HOME nor Maven")
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix=".download-") as aside:
        target = Path(aside, "jars")
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        try:
            done = subprocess.run(
                [maven, "-B", "-q", "-f", _POM, *copy],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_DOWNLOAD_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return NoKafka(f"Maven took longer than {_DOWNLOAD_SECONDS} s")
        if done.returncode != 0:
            return NoKafka(f"Maven failed: {(done.stdout + done.stderr).strip()[-500:]}")
        try:
            target.rename(jars)
        except OSError:
            if not jars.is_dir():  # else another run was faster, with the same content
                raise
    return None
