"""The adapter of an experiment: what it is made of is named where it is not there."""

import dataclasses

import pytest

from harness.embedded import MODEL_DIR
from harness.errors import CardError, DataError
from harness.training.adapters import task_adapter


def test_missing_tokenizer_is_one_line(small, words, tmp_path):
    """A model whose folder holds no tokenizer, with what base_model has to be."""
    with pytest.raises(DataError, match="make base_model a folder that holds one") as caught:
        task_adapter(str(tmp_path), small, words)

    assert f"tokenizer of {str(tmp_path)!r}: " in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


def test_unknown_renderer_is_one_line(small, words):
    """The registered name, which is not one of the cookbook's."""
    training = small.registration.training.model_copy(update={"renderer": "qwen99"})
    registration = small.registration.model_copy(update={"training": training})

    with pytest.raises(CardError, match=r"training\.renderer is 'qwen99', which tinker-cookbook"):
        task_adapter(str(MODEL_DIR), dataclasses.replace(small, registration=registration), words)
