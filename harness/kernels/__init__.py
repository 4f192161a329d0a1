"""The harness's own prompt kernels, declared through the same door as anyone's."""

from harness.kernels import tfidf

DECLARED = (tfidf.tfidf,)
