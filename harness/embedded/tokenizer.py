"""The nano tokenizer: bytes, plus whole pieces that are common in the train text.

Byte-level BPE with no merges at all: a piece is one token if the vocabulary holds it, else it falls
apart into bytes, so any text round-trips. A digit is always a piece of its own.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

# tokenizers ships no type marker
from tokenizers import (  # type: ignore[import-untyped]
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
)
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
THINK_TOKENS = ("<think>", "</think>")

# What MathEnv appends to each question; kept in one piece, since it is in every prompt.
QUESTION_SUFFIX = " Write your answer in \\boxed{} format."

_PIECES = r" Write your answer in \\boxed\{\} format\.|\\boxed\{|#### |\d| ?\p{L}+|[\s\S]"


def build_tokenizer(
    texts: Iterable[str], min_count: int = 20, pieces: str = _PIECES
) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary holds the 256 bytes and each piece seen `min_count` times.

    `pieces` is a regular expression that cuts a text into pieces. Ids run over the control tokens,
    the bytes, then pieces from most to least frequent.
    """
    splitter = _splitter(pieces)
    counts = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    frequent = sorted((-n, piece) for piece, n in counts.items() if n >= min_count)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    added = [piece for _, piece in frequent if piece not in set(alphabet)]
    words = [*CONTROL_TOKENS, *THINK_TOKENS, *alphabet, *added]

    tokenizer = Tokenizer(
        models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[], ignore_merges=True)
    )
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in THINK_TOKENS])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call] # transformers' own untyped code
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer.save_pretrained(str(directory))


def _splitter(pieces: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
