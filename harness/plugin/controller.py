"""The process that the user started: it hears of every item, and tells the verdict at the end."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from _pytest.junitxml import xml_key  # no public name leads to the JUnit file of a session

from harness.errors import CardError, StoreError
from harness.plugin import summary, verdict_json
from harness.plugin.collection import Subject, card_of, load
from harness.plugin.facts import Facts, named
from harness.plugin.ledger import ExperimentLedger, ItemRecord
from harness.plugin.options import SETTINGS, is_worker
from harness.plugin.progress import LiveLines
from harness.plugin.reports import CARRIED
from harness.plugin.verdict import verdict_of

EXIT_INCONCLUSIVE = 10
EXIT_NO_VERDICT = 11
EXIT_POST_HOC = 12


def pytest_configure(config: pytest.Config) -> None:
    """Watch the session, unless this process only runs items for one that does."""
    if not is_worker(config) and not config.option.collectonly:
        try:
            verdict_json.remove(config.stash[SETTINGS].verdict_json)
        except StoreError as error:
            reason = str(error).partition(". ")[0]  # what follows is about the run store
            raise pytest.UsageError(f"--verdict-json: {reason}; name another file") from None
        config.pluginmanager.register(Controller(config), "harness-controller")


class Controller:
    """Keeps a ledger per experiment, from the plan to the verdict."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings = config.stash[SETTINGS]
        self.cards: dict[Path, Path | None] = {}
        self.ledgers: dict[str, ExperimentLedger] = {}
        self.crashes: list[pytest.TestReport] = []
        self.problems: list[str] = []
        self.kept: dict[str, Path] = {}
        self.live = LiveLines(self.settings.runs_dir)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan what this process will run itself."""
        self.plan(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        """Plan what the workers will run; each of them collects the same."""
        self.plan(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """An experiment whose items could not even be made is INVALID."""
        if report.failed and (card := self.card(report.nodeid)):
            self.ledger(report.nodeid, card).collection_error = gist(report.longreprtext)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Make room for what pytest writes."""
        self.live.wipe()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down what an item came to, and what its process had learned by then."""
        self.live.wipe()
        ledger = self.ledgers.get(file_of(report.nodeid))
        if ledger is None:
            return
        carried = getattr(report, CARRIED, None)
        if carried is not None:
            record = ItemRecord(
                report.nodeid,
                carried["stage"],
                carried["name"],
                carried["verdict"],
                carried["reason"],
            )
            ledger.record(record, Facts.of(carried["facts"]))
        elif report.failed:  # xdist's own report of a worker that died
            stage, name = ledger.subject(report.nodeid)
            reason = str(report.longrepr)
            ledger.record(ItemRecord(report.nodeid, stage, name, "INVALID", reason))
            self.crashes.append(report)

    @pytest.hookimpl(tryfirst=True)  # before pytest writes the JUnit file
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the verdicts down, and let the exit status say what pytest's own can't."""
        self.live.stop()
        self.explain_crashes()
        documents = []
        for ledger in self.ledgers.values():
            document = verdict_json.document(ledger, verdict_of(ledger))
            documents.append(document)
            with self.noting_problems():
                place = verdict_json.stored_at(self.settings.runs_dir, ledger)
                self.kept[ledger.id] = verdict_json.keep(place, document)
        if self.settings.verdict_json and documents:
            with self.noting_problems():
                verdict_json.write(self.settings.verdict_json, documents)
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = self.exit_status()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the verdicts."""
        for ledger in self.ledgers.values():
            place = verdict_json.stored_at(self.settings.runs_dir, ledger)
            kept = self.kept.get(ledger.id, place)
            summary.show(terminalreporter, ledger, verdict_of(ledger), kept)
        for problem in self.problems:
            terminalreporter.write_line(problem, red=True)

    def plan(self, items: Iterable[str]) -> None:
        """Expect these items of experiments."""
        for item in items:
            card = self.card(item)
            if card and card.is_file():
                self.ledger(item, card).plan([item])

    def card(self, item: str) -> Path | None:
        """The card of an item's file, None if the file is no experiment."""
        file = self.config.rootpath / file_of(item)
        if file not in self.cards:
            self.cards[file] = card_of(file) if file.is_file() else None
        return self.cards[file]

    def ledger(self, item: str, card: Path) -> ExperimentLedger:
        """The ledger of an item's file; what an earlier session left undecided is removed."""
        file = file_of(item)
        if file not in self.ledgers:
            ledger = ExperimentLedger(card, Path(self.settings.scale).stem)
            try:
                ledger.experiment = load(self.config, card)
                ledger.scale = ledger.experiment.scale.name
            except CardError as error:
                ledger.collection_error = str(error)
            self.ledgers[file] = ledger
            with self.noting_problems():
                place = verdict_json.stored_at(self.settings.runs_dir, ledger)
                if verdict_json.decided(place) is None:
                    verdict_json.remove(place)
            self.live.watch(ledger.id, ledger.scale)
        return self.ledgers[file]

    @contextlib.contextmanager
    def noting_problems(self) -> Iterator[None]:
        """Go on without a file that can't be written or removed; it is reported at the end."""
        try:
            yield
        except StoreError as error:
            self.problems.append(named(error))

    def explain_crashes(self) -> None:
        """Give JUnit the properties that a dead worker could not send."""
        junit = self.config.stash.get(xml_key, None)
        if junit is None:
            return
        for report in self.crashes:
            ledger = self.ledgers[file_of(report.nodeid)]
            stage, name = ledger.subject(report.nodeid)
            subject = Subject(ledger.id, ledger.scale, stage, name)
            for key, value in (*subject.properties(), ("verdict", "INVALID")):
                junit.node_reporter(report).add_property(key, value)

    def exit_status(self) -> int:
        """What pytest calls a success, seen with the verdicts in mind."""
        words = [verdict_of(ledger).word for ledger in self.ledgers.values()]
        if self.problems or "INVALID" in words or "REFUTED" in words:
            return pytest.ExitCode.TESTS_FAILED
        if self.settings.require_verdict:
            if None in words or not words:
                return EXIT_NO_VERDICT
            if "INCONCLUSIVE" in words:
                return EXIT_INCONCLUSIVE
            decisions = [ledger.facts.decision for ledger in self.ledgers.values()]
            if any(decision.post_hoc for decision in decisions if decision):
                return EXIT_POST_HOC
        return pytest.ExitCode.OK


def gist(failure: str) -> str:
    """What a failure says, without its traceback if it has one."""
    said = [line[2:].strip() for line in failure.splitlines() if line.startswith("E ")]
    return "\n".join(said) or failure


def file_of(item: str) -> str:
    """The test file of a node id."""
    return item.partition("::")[0]
