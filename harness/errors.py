"""Every error that the harness raises on purpose.

    HarnessError
    ├── CardError            a card, registration or scale file says something it may not
    ├── DataError            a data file is missing, truncated or does not fit the card
    ├── StatisticsError      numbers that a formula does not accept (NaN, out of range, unpaired)
    ├── StoreError           the run store can't be read or written
    │   ├── StoreVersionError    it was written by a newer version of the harness
    │   └── StoreFullError       the disk is full; nothing half-written was left behind
    ├── ServiceError         the training service does not do what the run needs
    │   ├── ServiceUnreachable   it did not answer in time
    │   ├── ServiceRefused       it answered, and said no (key, model, request)
    │   └── ServiceDied          it stopped while the run was under way
    ├── RunError             training or evaluation produced something that can't be used
    │   └── CallRefused          it called the service in a way that nothing records
    └── BudgetExceeded       the registered wall-time cap was reached; state is kept

A message is one line: what, the value, the bound, and what to do. Where several problems are found
at once it has such a line for each.
"""


class HarnessError(Exception):
    """Root of the tree: catching it catches whatever the harness reports on purpose."""


class CardError(HarnessError, ValueError):
    """A card, registration or scale file is malformed, inconsistent or unresolved."""


class DataError(HarnessError, ValueError):
    """A data file is missing, truncated, or holds fewer records than the card says."""


class StatisticsError(HarnessError, ValueError):
    """A formula was given numbers that it does not accept."""


class StoreError(HarnessError, OSError):
    """The run store can't be read or written."""


class StoreVersionError(StoreError):
    """The run store was written by a newer version of the harness."""


class StoreFullError(StoreError):
    """No space is left on the device; the entry being written was removed."""


class ServiceError(HarnessError, RuntimeError):
    """The training service does not do what the run needs."""


class ServiceUnreachable(ServiceError):
    """The service did not answer within the time allowed."""


class ServiceRefused(ServiceError):
    """The service answered and refused: a wrong key, an unknown model, a rejected request."""


class ServiceDied(ServiceError):
    """The service stopped while the run was under way; what was checkpointed is kept."""


class RunError(HarnessError, RuntimeError):
    """Training or evaluation produced something that can't be used, such as a NaN reward."""


class CallRefused(RunError):
    """Code called the service in a way that is neither recorded nor known to change nothing."""


class BudgetExceeded(HarnessError, RuntimeError):
    """The registered wall-time cap was reached; the run stopped cleanly and kept its state."""
