"""Entries shared by workers: each produced once, several at a time, a dead worker's taken over."""

import time
from collections.abc import Callable, Sequence

from harness import errors
from harness.store.entry import Entry


def produce_all(
    entries: Sequence[Entry],
    produce: Callable[[Entry], object],
    *,
    run: str,
    done: Callable[[Entry], bool] = Entry.is_sound,
    retrain: bool = False,
    poll: float = 0.2,
) -> None:
    """Return when every entry is done, having produced those that no other process did.

    Any missing entry that is free is tried, never the first in order: waiting for named locks in
    turn would make workers queue for the same entry. When others hold all that is missing, look
    again every `poll` seconds, until they are done or their holder has died and its lock is free.

    produce: makes an entry `done`, resuming from the records it finds; called with the lock held.
    run: names this run, the same for all its workers. An entry that failed in this run is not tried
        again by its other workers, who get the same error; the next run tries it anew.
    done: what to wait for; by default that the entry is complete and every record reads back.
    retrain: clear whatever earlier runs have stored, once in this run.

    Raises what `produce` raises, and StoreError if it returns with the entry not done.
    """

    def settled(entry: Entry) -> bool:
        own = [attempt for attempt in entry.attempts() if attempt.run == run]
        if own and own[-1].status == "failed":
            raise _same_error(entry, own[-1].error_type, own[-1].error)
        return (bool(own) or not retrain) and done(entry)

    missing = list(entries)
    while missing := [entry for entry in missing if not settled(entry)]:
        if not any(
            _produce_if_free(entry, produce, run, done, settled, retrain) for entry in missing
        ):
            time.sleep(poll)


def _produce_if_free(
    entry: Entry,
    produce: Callable[[Entry], object],
    run: str,
    done: Callable[[Entry], bool],
    settled: Callable[[Entry], bool],
    retrain: bool,
) -> bool:
    """Return whether the lock was had; then the entry is settled, by this process or another."""
    with entry.lock() as held:
        if held and not settled(entry):  # it may have been settled while nobody held the lock
            if retrain and all(attempt.run != run for attempt in entry.attempts()):
                entry.clear()
            with entry.attempt(run):
                produce(entry)
                if not done(entry):
                    raise errors.StoreError(
                        f"{entry.name} was produced but is not done: "
                        "the producer has to publish its records and finish the entry"
                    )
        return held


def _same_error(entry: Entry, kind: str | None, message: str | None) -> errors.HarnessError:
    """Return the harness's own error of that name, or a RunError for any other."""
    own = getattr(errors, kind or "", None)
    if isinstance(own, type) and issubclass(own, errors.HarnessError):
        return own(f"{entry.name}: {message}")
    return errors.RunError(f"{entry.name}: {kind}: {message}")
