"""The synthetic world as a raw folder of the published schema, and the marker that says so."""

import json
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import DataError
from harness.tasks.sec_search.synthetic.questions import question_rows
from harness.tasks.sec_search.synthetic.world import Filed, World, file_company

if TYPE_CHECKING:
    from collections.abc import Sequence

from harness.tasks.sec_search.prepare import SYNTHETIC_MARKER as MARKER

_QUERIES = "data/train-00000-of-00001.parquet"
_CHUNKS = "corpora/sec/train/train-00000.parquet"
_BATCH_COMPANIES = 50

TINY = World(seed=7, companies=12)


def write_raw(world: World, raw: Path) -> Path:
    """Write the world's raw folder, whole or not at all; one that is there already is kept.

    Returns:
        `raw`.

    Raises:
        DataError: the folder exists and holds something else, or can't be written.
    """
    marker = json.dumps(asdict(world), sort_keys=True)
    if raw.exists():
        found = raw / MARKER
        if not found.is_file() or found.read_text() != marker:
            raise DataError(f"{raw}: holds another corpus; remove it or name another folder")
        return raw
    raw.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{raw.name}.", dir=raw.parent))
    try:
        _write_tables(world, temporary)
        (temporary / MARKER).write_text(marker)
        temporary.rename(raw)
    except OSError as error:
        # another process may have finished the same folder first
        if (raw / MARKER).is_file():
            return write_raw(world, raw)
        raise DataError(f"{raw}: can't be written ({error.strerror}); free space") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return raw


def _write_tables(world: World, folder: Path) -> None:
    # pyarrow ships no type marker
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    for name in (_QUERIES, _CHUNKS):
        (folder / name).parent.mkdir(parents=True)
    columns = ("chunk_id", "document_text", "metadata_json")
    schema = pa.schema([(column, pa.string()) for column in columns])
    filed: dict[int, Filed] = {}
    with pq.ParquetWriter(folder / _CHUNKS, schema) as writer:
        for start in range(0, world.companies, _BATCH_COMPANIES):
            rows: list[dict[str, str]] = []
            for company in range(start, min(start + _BATCH_COMPANIES, world.companies)):
                drawn = file_company(world, company)
                rows += chunk_rows(drawn)
                # the texts are on their way to the disk; the questions need the facts only
                filed[company] = replace(drawn, chunks=())
            writer.write_table(pa.Table.from_pylist(rows, schema))
    pq.write_table(pa.Table.from_pylist(list(question_rows(world, filed))), folder / _QUERIES)


def chunk_rows(filed: Filed) -> "Sequence[dict[str, str]]":
    """A company's chunks as rows of the corpus table."""
    return [
        {
            "chunk_id": chunk_id,
            "document_text": text,
            "metadata_json": json.dumps({"source": chunk_id.rpartition("_")[0]}),
        }
        for chunk_id, text in filed.chunks
    ]
