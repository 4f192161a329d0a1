import pytest
import torch
from tinker_cookbook.recipes.math_rl.math_env import MathEnv
from transformers import AutoTokenizer, Qwen3ForCausalLM

from harness.embedded import MODEL_DIR
from harness.embedded.problems import generate
from harness.embedded.sampling import boxed_answer, complete, last_answer

QUESTIONS = [problem.question for problem in generate().test[:6]]


@pytest.fixture(scope="module")
def nano():
    """The committed model and its tokenizer."""
    model = Qwen3ForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.mark.parametrize(
    ("text", "boxed", "last"),
    [
        ("4*7=28\n\\boxed{28}", "28", "28"),
        ("\\boxed{1} or \\boxed{ 2 }", "2", "2"),
        ("4*7=28\n#### 28", None, "28"),
        ("28 out of 30", None, "30"),
        ("The answer is 28.", None, "28"),
        ("\\boxed{28", None, "28"),
        ("no number", None, None),
        ("", None, None),
    ],
)
def test_answers_are_read_from_text(text: str, boxed: str | None, last: str | None) -> None:
    """Strict takes the last box; lenient falls back to ####, then to the last number."""
    assert boxed_answer(text) == boxed
    assert last_answer(text) == last


def test_padding_does_not_change_a_greedy_completion(nano) -> None:
    """A question answered alone and in a batch gets the same tokens."""
    model, tokenizer = nano
    together = complete(model, tokenizer, QUESTIONS)
    assert together == [complete(model, tokenizer, [question])[0] for question in QUESTIONS]


def test_the_stop_token_comes_once_and_last(nano) -> None:
    """A finished completion ends in the stop token; one that was cut off holds none."""
    model, tokenizer = nano
    for row in complete(model, tokenizer, QUESTIONS):
        assert row.index(tokenizer.eos_token_id) == len(row) - 1
    assert [len(row) for row in complete(model, tokenizer, QUESTIONS, max_tokens=2)] == [2] * 6


def test_sampling_follows_its_generator(nano) -> None:
    """Equal seeds give equal samples, another seed gives others."""
    model, tokenizer = nano
    rows = [
        complete(model, tokenizer, QUESTIONS, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


def test_the_boxed_answer_is_graded_as_the_cookbook_grades_it(nano) -> None:
    """On sampled answers, equality with the gold text is the cookbook's reward for correctness."""
    model, tokenizer = nano
    problems = generate().train[:48]
    rows = complete(
        model,
        tokenizer,
        [problem.question for problem in problems],
        generator=torch.Generator().manual_seed(0),
    )
    graded = []
    for problem, row in zip(problems, rows, strict=True):
        text = tokenizer.decode(row, skip_special_tokens=True)
        env = MathEnv(problem.question, str(problem.gold), renderer=None)
        graded.append(env.check_answer(text))
        assert graded[-1] == (boxed_answer(text) == str(problem.gold))
    assert set(graded) == {True, False}
