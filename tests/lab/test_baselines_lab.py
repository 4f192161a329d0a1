"""The offline lab on pools whose answer is known."""

import numpy as np
import pytest
from rollouts import a_group, a_rollout, a_turn

from harness.errors import DataError
from harness.lab import baselines, plot
from harness.lab.pools import Difficulty, Pool, calculations, saved_pools, simulated_pool
from harness.methods.pool import Design

DESIGN = Design(batch_size=32, resamples=200)
BY_KIND = Difficulty("by_kind", intercept=0.0, slope=3.0, noise=0.0)
BY_CHANCE = Difficulty("by_chance", intercept=0.0, slope=0.0, noise=3.0)


def compared(problems, model, kernel, fitted):
    """Candidates on 400 prompts x 8 rollouts of a difficulty model."""
    pool = simulated_pool(problems, model, prompts=400, rollouts=8, seed=3)
    return baselines.compare(pool, kernel, fitted, DESIGN)


def test_kernel_helps_where_alike_prompts_are_equally_hard(problems, kernel, fitted):
    """Each kind has a difficulty of its own and words of its own: neighbours know the answer."""
    found = compared(problems, BY_KIND, kernel, fitted)

    gain = found.gain(found.chosen)
    assert gain.lower > 0.1
    assert "yes: it leaves less noise" in found.answer(found.chosen)


def test_kernel_does_not_help_where_difficulty_is_not_in_the_words(problems, kernel, fitted):
    """Fewer contributors and nothing learned from them: no kernel beats the plain mean."""
    found = compared(problems, BY_CHANCE, kernel, fitted)

    assert not any(found.gain(name).lower > 0 for name in ("softmax tau 0.02", found.registered))
    assert "no: it leaves more noise" in found.answer("softmax tau 0.02")


def test_scores_agree_with_their_closed_forms(problems, kernel, fitted):
    """No baseline: E mu(1-mu)/m; uniform leave-one-out: E mu(1-mu)/(m(1-m)) (B-1)/B."""
    found = compared(problems, BY_CHANCE, kernel, fitted)
    rewards = found.pool.rewards_N_K
    m, within = rewards.mean(), rewards.var(axis=1, ddof=1).mean()
    batch = DESIGN.batch_size

    none = found.candidates["none"].headline.estimate
    uniform = found.candidates[baselines.UNIFORM].headline.estimate
    assert none == pytest.approx(within / m, rel=0.03)
    assert uniform == pytest.approx(within / (m * (1 - m)) * (batch - 1) / batch, rel=0.03)
    assert found.candidates[baselines.UNIFORM].contributors == pytest.approx(batch - 1)


def test_kernel_is_chosen_on_prompts_that_are_not_scored(problems, kernel, fitted):
    """Half of the prompts choose, the other half is scored."""
    found = compared(problems, BY_KIND, kernel, fitted)

    assert len(found.pool.questions) == 200
    assert found.chosen in found.candidates


def test_simulated_pools_repeat_and_follow_the_solution(problems):
    """One seed, one pool; with noise 0 the success rate falls with the calculations."""
    one, again = (simulated_pool(problems, BY_KIND, 400, 64, seed=1) for _ in range(2))
    assert np.array_equal(one.rewards_N_K, again.rewards_N_K)
    by_question = {problem.question: calculations(problem.solution) for problem in problems}
    steps = np.array([by_question[question] for question in one.questions])
    means = [one.rewards_N_K[steps == count].mean() for count in (1, 3, 5, 7)]
    assert means == sorted(means, reverse=True)
    with pytest.raises(DataError, match="400 problems, 401 prompts"):
        simulated_pool(problems, BY_KIND, 401, 8, seed=1)


def pair(prompt, rewards):
    """A group of two rollouts, of 3 tokens and of 5."""
    sizes = zip(rewards, (3, 5), strict=True)
    return a_group(prompt, [a_rollout(reward, a_turn([1] * n)) for reward, n in sizes])


def test_saved_rollouts_become_pools_of_start_middle_and_end(experiment):
    """Each takes a quarter of the steps; a prompt that comes again counts once."""
    arm = experiment.role("baseline")[0]
    records = [
        {"groups": [pair(2 * step % 6, [1.0, 0.0]), pair(2 * step % 6 + 1, [float(step), 0.0])]}
        for step in range(16)
    ]
    questions = [f"question {index}" for index in range(6)]
    start, middle, end = saved_pools(experiment, arm, records, questions)

    assert [pool.name for pool in (start, middle, end)] == ["start", "middle", "end"]
    assert len(start.questions) == 6  # four steps of two prompts, of which two come again
    assert start.rewards_N_K[1].tolist() == [0.0, 0.0]
    assert middle.rewards_N_K.shape == end.rewards_N_K.shape == (6, 2)
    assert end.tokens_N_K[0].tolist() == [3.0, 5.0]
    with pytest.raises(DataError, match="1 rollout a prompt"):
        saved_pools(experiment, experiment.role("treatment")[0], records, questions)


def test_report_and_picture_hold_every_candidate(problems, kernel, fitted, tmp_path):
    """The text names all baselines, RLOO's exact points, and answers for two kernels."""
    found = compared(problems, BY_KIND, kernel, fitted)
    text = "\n".join(baselines.lines(found))
    picture = plot.plot([found], tmp_path / "deep" / "plot.png", "test")

    assert all(name in text for name in (*found.candidates, "RLOO G=8", "registered kernel"))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in picture.parent.iterdir()] == ["plot.png"]


def test_score_norms_make_rho_s_the_headline(problems, kernel, fitted):
    """With token counts the headline is rho_s; equal counts leave it where rho is."""
    plain = simulated_pool(problems, BY_KIND, 400, 8, seed=3)
    tokens = np.full_like(plain.rewards_N_K, 7.0)
    pool = Pool(plain.name, plain.about, plain.questions, plain.rewards_N_K, tokens)
    found = baselines.compare(pool, kernel, fitted, DESIGN)

    candidate = found.candidates[baselines.UNIFORM]
    assert candidate.headline is candidate.score.rho_s
    assert candidate.headline.estimate == pytest.approx(candidate.score.rho.estimate, rel=0.02)
