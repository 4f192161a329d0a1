"""Why a request failed, in the two categories that the SDK knows."""

from harness.errors import HarnessError


class RequestError(HarnessError, ValueError):
    """The client asked for something that can't be done: category `user`, never retried."""


class StateError(HarnessError, OSError):
    """The state folder can't be used: it is locked, not writable, or a file in it is damaged."""


class UnsupportedModel(HarnessError, ValueError):
    """The base model folder is not one that this engine can run."""
