"""How the SEC search task scales: preparation, search under load, memory. Prints one table.

    python benchmarks/sec_search.py [--chunks 20000 237000] [--sessions 8]

Each size runs in a process of its own, so that the peak memory is that size's. A search is one
clue of a question, or a whole one, and none is repeated; all sessions search at once and without a
pause between two searches, which no policy that has to be sampled does.
"""

import argparse
import multiprocessing
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from harness.tasks.sec_search import SearchSession, Selection, World, prepare
from harness.tasks.sec_search.index import Retriever
from harness.tasks.sec_search.synthetic import write_raw
from harness.tasks.sec_search.task import load_search_task

CHUNKS_PER_COMPANY = 60
SEARCHES = 60
# about 320 tokens a chunk, against at most 512 in the published corpus
SENTENCES = (12, 20)
TOPICS = ("revolving lender", "liability insurer", "headquarters city", "outside counsel")


@dataclass(frozen=True)
class Figures:
    """One row of the table; times in seconds, search times in milliseconds, sizes in MiB."""

    chunks: int
    write_s: float
    prepare_s: float
    cpu_ms: float
    alone_ms: float
    median_ms: float
    p95_ms: float
    grep_ms: float
    peak_mib: float
    index_mib: float


def main(arguments: Sequence[str]) -> None:
    """Measure each size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chunks", type=int, nargs="+", default=[20_000])
    parser.add_argument("--sessions", type=int, default=8)
    options = parser.parse_args(arguments)
    columns = (
        "chunks",
        "corpus written, s",
        "prepared, s",
        "CPU time of a search, ms",
        "search alone, ms",
        f"search by {options.sessions} at once, ms",
        "95th percentile, ms",
        "grep alone, ms",
        "peak memory, MiB",
        "index, MiB",
    )
    write_row(columns)
    write_row(["---:"] * len(columns))
    spawn = multiprocessing.get_context("spawn")
    for chunks in options.chunks:
        with spawn.Pool(1) as pool, tempfile.TemporaryDirectory() as folder:
            figures = pool.apply(measure, (chunks, options.sessions, Path(folder)))
        write_row([f"{figures.chunks:,}", *(f"{each:,.1f}" for each in astuple(figures)[1:])])


def write_row(cells: Sequence[str]) -> None:
    """One row of the table, at once."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


def measure(chunks: int, sessions: int, folder: Path) -> Figures:
    """Write, prepare and search a synthetic corpus of about `chunks` chunks."""
    world = World(seed=7, companies=-(-chunks // CHUNKS_PER_COMPANY), sentences=SENTENCES)
    started = time.perf_counter()
    raw = write_raw(world, folder / "raw")
    written = time.perf_counter()
    prepare(raw, folder / "prepared", Selection(n_train=1_024, n_test=64, background=None))
    prepared = time.perf_counter()
    task = load_search_task(folder / "prepared")
    # rankings are kept, so that no text may be searched for twice
    texts = list(dict.fromkeys(t for q in task.train for t in (*q.text.split(". "), q.text)))
    before = time.process_time()
    alone = search_times(task.retriever, texts[:SEARCHES], 1)
    cpu_s = time.process_time() - before
    together = search_times(task.retriever, texts[SEARCHES:], sessions)
    patterns = [rf"{topic}.*[A-Z]\w+ \w+" for topic in TOPICS]
    grep_s = [timed(lambda s, p=p: s.grep(p), task.retriever) for p in patterns]
    return Figures(
        chunks=task.retriever.size,
        write_s=written - started,
        prepare_s=prepared - written,
        cpu_ms=1e3 * cpu_s / SEARCHES,
        alone_ms=1e3 * statistics.median(alone),
        median_ms=1e3 * statistics.median(together),
        p95_ms=1e3 * statistics.quantiles(together, n=20)[-1],
        grep_ms=1e3 * statistics.median(grep_s),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        index_mib=task.retriever.path.stat().st_size / 2**20,
    )


def search_times(retriever: Retriever, texts: Sequence[str], sessions: int) -> list[float]:
    """Seconds of each search of `sessions` threads at once, each with texts of its own."""
    times: list[float] = []

    def work(number: int) -> None:
        mine = texts[number * SEARCHES : (number + 1) * SEARCHES]
        times.extend([timed(lambda s, t=t: s.search(t), retriever) for t in mine])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(times) != sessions * SEARCHES:
        raise RuntimeError(f"{len(times)} of {sessions * SEARCHES} searches were timed")
    return times


def timed(call: Callable[[SearchSession], object], retriever: Retriever) -> float:
    """Seconds of one call on a fresh session.

    Raises:
        RuntimeError: the call was not served.
    """
    session = SearchSession(retriever)
    started = time.perf_counter()
    call(session)
    passed = time.perf_counter() - started
    if session.counts["errors"]:
        raise RuntimeError("a call of the benchmark was refused, so its time says nothing")
    return passed


if __name__ == "__main__":
    main(sys.argv[1:])
