"""The lexical index: chunks in one SQLite file, ranked by FTS5's BM25 with a stable order of ties.

The file is written once and then only read, by any number of threads: each has its own read-only
connection. Nothing of a query reaches SQL but quoted words.
"""

import hashlib
import re
import sqlite3
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from harness.errors import DataError
from harness.tasks.sec_search.records import Chunk

TITLE_WEIGHT, TEXT_WEIGHT = 2.0, 1.0
MAX_QUERY_WORDS = 64
# of the chunks that a search ranks: this many, or an eighth of the corpus if that is more
ROWS, ROWS_SHARE = 6_000, 8
LEAST_WORDS = 2
RANKINGS_KEPT = 8_192
_TOKENIZE = "tokenize='porter unicode61 remove_diacritics 2'"
_APPLICATION_ID = 0x5EC5EA2C
_WORD = re.compile(r"[^\W_]+")

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE documents(
    rowid INTEGER PRIMARY KEY,
    doc_id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    text TEXT NOT NULL);
CREATE VIRTUAL TABLE documents_fts USING fts5(
    title, text, content='documents', content_rowid='rowid', {_TOKENIZE});
CREATE VIRTUAL TABLE terms USING fts5vocab('documents_fts', 'row');
CREATE TABLE document_counts(term TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID;
"""

_RANK = f"""
SELECT rowid, bm25(documents_fts, {TITLE_WEIGHT}, {TEXT_WEIGHT}) AS score
FROM documents_fts WHERE documents_fts MATCH ? ORDER BY score, rowid LIMIT ?
"""


@dataclass(frozen=True)
class Hit:
    """A chunk and how well it matches: `score` is BM25, higher is better."""

    chunk: Chunk
    score: float


def build_index(path: Path, chunks: Iterable[Chunk], rowids: Mapping[str, int]) -> str:
    """Write the index of `chunks` to a new file. The arrival order of the chunks has no effect.

    Args:
        path: a file that does not exist.
        chunks: chunks in any order; what `rowids` does not name is left out.
        rowids: the row of each id; equal scores are ranked by it.

    Returns:
        a hash of the indexed chunks' ids, titles and texts, in hex.

    Raises:
        DataError: an id of `rowids` did not come, or a chunk came twice.
    """
    content = 0

    def rows() -> Iterator[tuple[int, str, str, str]]:
        nonlocal content
        for chunk in chunks:
            if chunk.id in rowids:
                row = (chunk.id, chunk.title, _encodable(chunk.text))
                digest = hashlib.blake2b("\0".join(row).encode(), digest_size=32).digest()
                # a sum, so that the order of arrival does not matter
                content = (content + int.from_bytes(digest)) % 2**256
                yield (rowids[chunk.id], *row)

    connection = sqlite3.connect(path)
    try:
        connection.executescript(_SCHEMA)
        connection.executemany("INSERT INTO documents VALUES (?, ?, ?, ?)", rows())
        (stored,) = connection.execute("SELECT count(*) FROM documents").fetchone()
        if stored != len(rowids):
            raise DataError(
                f"{stored} of {len(rowids)} chunks came; the corpus changed while it was read"
            )
        connection.execute("INSERT INTO documents_fts(documents_fts) VALUES ('rebuild')")
        connection.execute("INSERT INTO documents_fts(documents_fts) VALUES ('optimize')")
        connection.execute("INSERT INTO document_counts SELECT term, doc FROM terms")
        connection.commit()
    except sqlite3.IntegrityError as error:
        raise DataError(f"a chunk came twice ({error}); ids are unique in a corpus") from None
    finally:
        connection.close()
    return hashlib.sha256(content.to_bytes(32)).hexdigest()


class Retriever:
    """Reads one index file. Safe to share between threads; picklable, by its path.

    Raises:
        DataError: the file is missing or is not an index.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        # rollouts of one question ask much the same, and the file never changes
        self._ranked = lru_cache(maxsize=RANKINGS_KEPT)(self._rank)
        try:
            (kind,) = self._connection().execute("PRAGMA application_id").fetchone()
            if kind != _APPLICATION_ID:
                raise DataError(f"{path}: not an index of filing chunks; prepare the folder again")
            (self.size,) = self._connection().execute("SELECT count(*) FROM documents").fetchone()
        except sqlite3.Error as error:
            raise DataError(
                f"{path}: can't be opened as an index ({error}); prepare the folder again"
            ) from None

    def __reduce__(self) -> tuple[type["Retriever"], tuple[Path]]:
        return Retriever, (self.path,)

    def search(self, words: Sequence[str], limit: int, rows: int | None = None) -> Iterator[Hit]:
        """The `limit` best chunks by BM25 that hold any of the words, best first, ties by row.

        Time grows with the rows that are ranked, so of many words the rarest are searched for: as
        many as stand in `rows` chunks together, and two at least. Without `rows` it is 6,000 or an
        eighth of the corpus. The common words of a language, which go first, weigh little.
        """
        budget = max(ROWS, self.size // ROWS_SHARE) if rows is None else rows
        telling = self.rarest(words, budget)
        if not telling or limit < 1:
            return
        match = " OR ".join(f'"{word}"' for word in telling)
        for row, score in self._ranked(match, limit):
            found = self._connection().execute(
                "SELECT doc_id, title, text FROM documents WHERE rowid = ?", (row,)
            )
            yield Hit(Chunk(*found.fetchone()), score)

    def rarest(self, words: Sequence[str], rows: int) -> list[str]:
        """The rarest indexed words, in `rows` chunks together, two at least; ties A to Z."""
        counted = {word: self.document_count(word) for word in words[:MAX_QUERY_WORDS]}
        known = sorted((n, word) for word, n in counted.items() if n)
        sums = accumulate(n for n, _ in known)
        fitting = sum(total <= rows for total in sums)
        return [word for _, word in known[: max(fitting, LEAST_WORDS)]]

    def document_count(self, word: str) -> int:
        """How many chunks hold the word, or another of the same stem."""
        term = stem(word)
        if term not in self._counts:
            found = self._connection().execute(
                "SELECT n FROM document_counts WHERE term = ?", (term,)
            )
            row = found.fetchone()
            self._counts[term] = row[0] if row else 0
        return self._counts[term]

    def get(self, doc_id: str) -> Chunk | None:
        """The chunk of this id, or None."""
        rows = self._connection().execute(
            "SELECT doc_id, title, text FROM documents WHERE doc_id = ?", (_encodable(doc_id),)
        )
        found = rows.fetchone()
        return Chunk(*found) if found else None

    def _rank(self, match: str, limit: int) -> tuple[tuple[int, float], ...]:
        rows = self._connection().execute(_RANK, (match, limit))
        return tuple((row, -score) for row, score in rows)

    def close(self) -> None:
        """Close the connections of all threads; none may be searching."""
        with self._lock:
            while self._opened:
                self._opened.pop().close()
            self._local = threading.local()

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            # immutable: nobody writes, so no lock files, and read-only folders work
            address = f"file:{urllib.parse.quote(str(self.path))}?mode=ro&immutable=1"
            connection = sqlite3.connect(address, uri=True, check_same_thread=False)
            with self._lock:
                self._opened.append(connection)
            connection.execute("PRAGMA query_only = ON")
            self._local.connection = connection
        return connection


def words_of(text: str) -> list[str]:
    """The words of a text, lower case, each once, in order: runs of letters and digits."""
    return list(dict.fromkeys(_WORD.findall(_encodable(text).casefold())))


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """What the index files a word under; the word itself if it is not one word to the index."""
    with _stemmer_lock:
        connection = _stemmer()
        connection.execute("INSERT INTO one VALUES (?)", (word,))
        found = connection.execute("SELECT term FROM terms").fetchall()
        connection.execute("DELETE FROM one")
    return str(found[0][0]) if len(found) == 1 else word


_stemmer_lock = threading.Lock()


@lru_cache(maxsize=1)
def _stemmer() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.execute(f"CREATE VIRTUAL TABLE one USING fts5(word, {_TOKENIZE})")
    connection.execute("CREATE VIRTUAL TABLE terms USING fts5vocab('one', 'instance')")
    return connection


def _encodable(text: str) -> str:
    """The text without lone surrogates, which SQLite can't take."""
    return text.encode("utf-8", "replace").decode("utf-8")
