"""In-process responses of the nano model: enough to measure it, not a sampler to train from."""

import re
from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from harness.embedded.tokenizer import IM_END, IM_START, QUESTION_SUFFIX

_NUMBER = re.compile(r"-?\d+")


def prompt_text(question: str) -> str:
    """The prompt of the cookbook's `qwen3_instruct` renderer, without few-shot prefix."""
    return f"{IM_START}user\n{question}{QUESTION_SUFFIX}{IM_END}\n{IM_START}assistant\n"


@torch.no_grad()
def complete(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[str],
    *,
    max_tokens: int = 64,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """One response per question: greedy, or sampled at temperature 1 from `generator`.

    Returns token ids with the stop token as the last one; a response that was cut off at
    `max_tokens` has none. Prompts are padded on the left and run as one batch.
    """
    batch = tokenizer(
        [prompt_text(question) for question in questions],
        add_special_tokens=False,
        padding=True,
        padding_side="left",
        return_tensors="pt",
    )
    mask_PT = batch["attention_mask"]
    ids_PT, cache = batch["input_ids"], None
    position_P1 = mask_PT.cumsum(-1) - 1
    stop = tokenizer.convert_tokens_to_ids(IM_END)
    done_P = torch.zeros(len(questions), dtype=torch.bool)
    columns = []
    for _ in range(max_tokens):
        output = model(
            input_ids=ids_PT,
            attention_mask=mask_PT,
            position_ids=position_P1.clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        next_P = _choose(output.logits[:, -1], generator)
        columns.append(next_P.masked_fill(done_P, -1))
        done_P |= next_P == stop
        if bool(done_P.all()):
            break
        ids_PT = next_P[:, None]
        mask_PT = torch.cat([mask_PT, mask_PT.new_ones(len(questions), 1)], dim=1)
        position_P1 = position_P1[:, -1:] + 1
    rows: list[list[int]] = torch.stack(columns, dim=1).tolist()
    return [[token for token in row if token >= 0] for row in rows]


def boxed_answer(text: str) -> str | None:
    """What the last \\boxed{...} holds, or None."""
    _, found, rest = text.rpartition("\\boxed{")
    return rest.partition("}")[0].strip() if found and "}" in rest else None


def last_answer(text: str) -> str | None:
    """The last \\boxed{...}, else what follows the last "####", else the last number, else None."""
    boxed = boxed_answer(text)
    if boxed is not None:
        return boxed
    _, found, rest = text.rpartition("####")
    numbers = _NUMBER.findall(text)
    return rest.strip() if found else (numbers[-1] if numbers else None)


def _choose(logits_PV: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    if generator is None:
        return logits_PV.argmax(-1)
    return torch.multinomial(logits_PV.softmax(-1), 1, generator=generator)[:, 0]
