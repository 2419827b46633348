"""What the documentation names exists, and what exists is named."""

import re
from pathlib import Path

import pytest

from infrastructure.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(COUNTERFOIL_\w+)` \| ([^|]*?) ?\|", (ROOT / "docs/operations.md").read_text(), re.M))
    for name, field in Settings.model_fields.items():
        assert rows[PREFIX + name.upper()] == shown(field.default)


def test_every_metric_that_a_document_names_exists() -> None:
    there = set(re.findall(r'"(counterfoil_\w+)"', (ROOT / "infrastructure/metrics.py").read_text()))
    named = {name for each in DOCUMENTS for name in re.findall(r"\b(counterfoil_[a-z_]+)\b", each.read_text())}
    assert named - there == set()


def shown(default: object) -> str:
    match default:
        case None:
            return ""
        case bool():
            return str(default).lower()
        case float():
            return f"{default:g}"
        case _:
            return str(default)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text()
    folders = ("domain", "infrastructure", "projections", "tests", "counterfoil", "docs")
    named = re.findall(rf"`((?:{'|'.join(folders)})/[\w./-]+)`", text)
    linked = [str((document.parent / link).relative_to(ROOT)) for link in re.findall(r"\]\(([\w./-]+)\)", text)]
    missing = [name for name in named + linked if not (ROOT / name).exists()]
    assert missing == []
