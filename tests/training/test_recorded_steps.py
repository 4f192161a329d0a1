"""The capability preflight over a scripted service: a sound loop, and one mistake at a time."""

import asyncio
import dataclasses

import pytest
from mistakes.first_steps import MISTAKES, REFUSED
from mistakes.mistake import named
from search_doubles import SearchService, compact_adapter, small_search
from service_doubles import ScriptedService, ScriptedTrainer, small_experiment

from harness.audit import capability
from harness.audit.throw_away import ThrowAwayEvidence
from harness.errors import CallRefused, RunError
from harness.tasks.sec_search import Selection, synthetic_task
from harness.tasks.sec_search.synthetic import TINY
from harness.training import evaluate
from harness.training.word_problems import ProblemAdapter


@pytest.fixture(name="problems")
def _problems(renderer, words):
    """`problems(experiment)`: what the preflight finds in the steps of the loop as it is now."""

    def found(experiment) -> list[str]:
        from harness.audit.probes import throw_away

        service = ScriptedService(renderer, words)
        evidence = asyncio.run(throw_away.collect(service, renderer, experiment, words))
        # the doubles repeat themselves bit for bit
        resumed = evidence.resumed.model_copy(update={"exact": True})
        stored = ThrowAwayEvidence.of(evidence.model_copy(update={"resumed": resumed}).plain())
        return list(capability.check(stored, experiment).problems)

    return found


@pytest.mark.parametrize("lag", [0, 1])
def test_a_sound_loop_sends_what_is_registered(problems, lag):
    """Nothing is found in the harness's own loop, with or without lag."""
    assert problems(small_experiment(lag)) == []


@pytest.mark.parametrize("lag", [0, 1])
def test_a_service_with_noise_is_let_through(problems, lag, monkeypatch):
    """Neither equal samples of other log-probs nor an arm that resumes are taken for a mistake."""
    created = ScriptedService.__init__

    def noisy(self, *arguments):
        created(self, *arguments)
        self.noise = (5e-3, 1e-3)

    monkeypatch.setattr(ScriptedService, "__init__", noisy)
    # so small a move shows nothing on such a service, which is said, and nothing else
    for line in problems(small_experiment(lag)):
        assert "so it shows nothing of the moments" in line


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if "problems" in m.settings], ids=named)
def test_a_mistake_in_the_loop_is_named(problems, small, monkeypatch, mistake):
    """The first steps give it away before anything is trained."""
    mistake.edit(monkeypatch)

    found = problems(small)
    assert any(mistake.words in line for line in found), found


@pytest.mark.parametrize("mistake", REFUSED, ids=named)
def test_a_call_that_nothing_records_ends_the_steps(problems, small, monkeypatch, mistake):
    """The first such call is refused by one line that names it."""
    mistake.edit(monkeypatch)

    with pytest.raises(CallRefused, match=mistake.words) as refused:
        problems(small)
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module", name="task")
def _task(tmp_path_factory):
    selection = Selection(n_train=24, n_test=6, background=None)
    return synthetic_task(TINY, tmp_path_factory.mktemp("sec") / "tiny", selection)


@pytest.fixture(name="evidence")
def _evidence(task):
    """`evidence()`: the preflight's evidence on the loop as it is now, read back."""

    def collected() -> ThrowAwayEvidence:
        from harness.audit.probes import throw_away

        experiment = small_search()
        adapter = compact_adapter(experiment, task)
        service = SearchService(adapter, task)
        found = asyncio.run(throw_away.collect(service, adapter, experiment, task))
        return ThrowAwayEvidence.of(found.plain())

    return collected


class TestEpisodesOfSeveralTurns:
    def test_a_sound_loop_sends_what_is_registered(self, evidence):
        """A request a turn, and an update of the groups that were kept."""
        found = evidence()
        finding = capability.check(found, small_search())

        assert finding.problems == ()
        for sent in found.traces:
            assert sent.multi_turn
            for step in sent.steps:
                assert len(step.samples) == step.replies > 12
                assert step.updates == len(step.losses) == 1
        assert found.evaluation_trace.replies > 2 * 6

    @pytest.mark.parametrize(
        "mistake", [m for m in MISTAKES if "episodes" in m.settings], ids=named
    )
    def test_a_mistake_is_named(self, evidence, monkeypatch, mistake):
        """The first steps give it away, in whichever turn it is."""
        mistake.edit(monkeypatch)

        found = capability.check(evidence(), small_search()).problems
        assert any(mistake.words in line for line in found), found

    def test_steps_without_an_update_are_no_mistake(self, evidence, monkeypatch):
        """Every reward equal: nothing is sent, and later versions have the same weights."""
        monkeypatch.setattr(SearchService, "CALLS", ("f",))
        found = evidence()

        assert {step.updates for sent in found.traces for step in sent.steps} == {0}
        problems = capability.check(found, small_search()).problems
        assert [line for line in problems if "moved log-probs" not in line] == []


def test_an_evaluation_that_samples_is_named(problems, small, monkeypatch):
    """Greedy decoding is read from the requests, not from the registration."""
    from harness.audit.probes import throw_away

    hot = small.registration.evaluation.model_copy(update={"temperature": 1.0})

    async def sampled(sampler, adapter, _spec, *more):
        return await evaluate.evaluate(sampler, adapter, hot, *more)

    monkeypatch.setattr(throw_away, "evaluate", sampled)

    assert problems(small) == [
        "evaluation sampled with temperature 1 in 20 of 20 requests, 0 registered; "
        "send what is registered"
    ]


def test_an_evaluation_with_another_prompt_is_named(problems, small, monkeypatch):
    """What is asked of a test item is what the stock environment asks."""
    original = ProblemAdapter.tokens
    longer = lambda self, item: original(  # noqa: E731  a method in one line
        self, dataclasses.replace(item, question=f"{item.question} Think step by step.")
    )
    monkeypatch.setattr(ProblemAdapter, "tokens", longer)

    assert any("evaluation did not send the prompts of 20 of 20" in x for x in problems(small))


class TestResumedArm:
    def test_lost_moments_are_named(self, problems, small, monkeypatch):
        """Weights alone are not enough to go on from."""

        async def without(self, path):
            weights, _, updates = self.saved[path]
            return ScriptedTrainer(self, weights, 0.0, updates)

        name = "create_training_client_from_state_with_optimizer_async"
        monkeypatch.setattr(ScriptedService, name, without)

        assert any("restore the optimizer's moments too" in line for line in problems(small))

    def test_a_fresh_start_is_named(self, problems, small, monkeypatch):
        """A checkpoint that is read but not loaded shows in the log-probs, before any step."""

        async def fresh(self, _path):
            return ScriptedTrainer(self, 50.0, 0.0, 0)

        name = "create_training_client_from_state_with_optimizer_async"
        monkeypatch.setattr(ScriptedService, name, fresh)

        with pytest.raises(RunError, match="weights restored after 2 updates differ by"):
            problems(small)

    def test_a_lost_queue_of_snapshots_is_named(self, problems, monkeypatch):
        """A lagged arm that resumes samples from the weights that it would have sampled from."""
        from harness.training.snapshots import Snapshots

        async def newest(self, paths, _text):
            for version in paths:
                self._clients[int(version)] = await self._service.create_sampling_client_async(
                    list(paths.values())[-1]
                )

        monkeypatch.setattr(Snapshots, "restore", newest)

        found = problems(small_experiment(lag=1))
        assert any("restore the snapshots that the lag needs" in line for line in found)
