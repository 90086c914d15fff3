"""Objects that verbena.torch refuses: copies of its own, and optimizers whose state it would lose."""
from __future__ import annotations

from typing import Any

import torch


class NotCopied:
    """A base of classes whose state is on the servers and in hooks of this process."""

    def __reduce__(self) -> Any:
        raise TypeError(f"verbena.torch.{type(self).__name__} cannot be pickled or copied: its "
                        "tables are on the servers; save state_dict(), or make another one with "
                        "another name=")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__reduce__()


def refuse_state(optimizer: torch.optim.Optimizer, argument: str, remedy: str) -> None:
    """Raises ValueError if a torch.optim optimizer has made steps, which the servers know nothing of.

    argument: its name, for the error. remedy: what the caller can do.
    """
    for entry in optimizer.state.values():
        # Adagrad has zeros at step 0 from the beginning; SGD counts no steps.
        stepped = float(entry["step"]) > 0 if "step" in entry else any(
            isinstance(value, torch.Tensor) for value in entry.values())
        if stepped:
            raise ValueError(f"{argument} has state of earlier steps, which the servers would not "
                             f"get; {remedy}")
