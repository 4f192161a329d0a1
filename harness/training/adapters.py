"""Which adapter meets which task."""

from harness.cards import Experiment
from harness.errors import CardError, DataError
from harness.tasks.sec_search import SearchTask
from harness.tasks.task import Task
from harness.training.searches import search_adapter
from harness.training.task_adapter import AnyAdapter
from harness.training.word_problems import problem_adapter


def task_adapter(tokenizer_source: str, experiment: Experiment, task: Task) -> AnyAdapter:
    """The adapter of the experiment's task, on the tokenizer of a folder or a hub's model name.

    Raises:
        DataError: there is no such tokenizer.
        CardError: there is no such renderer.
    """
    from tinker_cookbook.exceptions import RendererError
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    try:
        tokenizer = get_tokenizer(tokenizer_source)
    except (OSError, ValueError) as error:
        raise DataError(
            f"tokenizer of {tokenizer_source!r}: {str(error).splitlines()[0]}; make base_model a "
            "folder that holds one, or a model of the hub that can be reached or is cached here"
        ) from None
    try:
        if isinstance(task, SearchTask):
            return search_adapter(tokenizer, experiment, task)
        return problem_adapter(tokenizer, experiment.registration.training)
    except RendererError:
        raise CardError(
            f"training.renderer is {experiment.registration.training.renderer!r}, which "
            "tinker-cookbook does not have; register one of tinker_cookbook.renderers"
        ) from None
