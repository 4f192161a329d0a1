import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer

from harness.embedded import MODEL_DIR, RENDERER_NAME
from harness.embedded.pretrain import make_tokenizer
from harness.embedded.problems import generate
from harness.embedded.sampling import prompt_text
from harness.embedded.tokenizer import CONTROL_TOKENS, QUESTION_SUFFIX, THINK_TOKENS

TOKENIZER = get_tokenizer(str(MODEL_DIR))
RENDERER = get_renderer(RENDERER_NAME, TOKENIZER)


def _encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("token", [*CONTROL_TOKENS, *THINK_TOKENS])
def test_a_control_token_is_one_token(token: str) -> None:
    """Each chat control string encodes to exactly one id and decodes to itself."""
    ids = _encode(token)
    assert len(ids) == 1
    assert TOKENIZER.decode(ids) == token


def test_the_end_of_turn_is_the_end_of_sequence() -> None:
    """<|im_end|> is the tokenizer's EOS and the renderer's only stop token."""
    assert _encode("<|im_end|>") == [TOKENIZER.eos_token_id] == RENDERER.get_stop_sequences()


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    """Whatever unicode goes in comes out again."""
    assert TOKENIZER.decode(_encode(text)) == text


@pytest.mark.parametrize(
    "text", ["日本 🤖\u200d e\u0301", "\x00\x7f\t\r\n  ", "<|im_end|>a<think>\n\n</think>\n\n", ""]
)
def test_awkward_text_round_trips(text: str) -> None:
    """Combining marks, control characters and control tokens inside text survive."""
    assert TOKENIZER.decode(_encode(text)) == text


def test_digits_stay_single() -> None:
    """A number is one token per digit, wherever it stands."""
    assert len(_encode("1234567890")) == 10
    assert len(_encode("12*34=408")) == 9


def test_the_question_suffix_is_one_token() -> None:
    """What the cookbook appends to each question costs one token."""
    from tinker_cookbook.recipes.math_rl.math_env import MathEnv

    assert MathEnv.question_suffix() == QUESTION_SUFFIX
    assert len(_encode(QUESTION_SUFFIX)) == 1


def test_the_renderer_lays_out_the_prompt_of_the_pretraining() -> None:
    """The cookbook's prompt tokens equal those that the model was pretrained on."""
    for problem in generate().test[:50]:
        message = {"role": "user", "content": problem.question + QUESTION_SUFFIX}
        prompt = RENDERER.build_generation_prompt([message]).to_ints()
        assert prompt == _encode(prompt_text(problem.question))
        assert len(prompt) <= 48


def test_the_renderer_parses_an_answer() -> None:
    """A completion that ends in the stop token comes back as the assistant's text."""
    message, termination = RENDERER.parse_response(_encode("4*7=28\n\\boxed{28}<|im_end|>"))
    assert termination.is_stop_sequence
    assert message["content"] == "4*7=28\n\\boxed{28}"


def test_the_committed_tokenizer_is_the_one_that_the_script_builds() -> None:
    """Building it again from the train side gives the same vocabulary."""
    built = json.loads(make_tokenizer(generate().train).backend_tokenizer.to_str())
    committed = json.loads((MODEL_DIR / "tokenizer.json").read_text())
    assert built["model"] == committed["model"]
    assert built["added_tokens"] == committed["added_tokens"]
