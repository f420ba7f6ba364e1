"""What is deprecated works as before, and says once what to use in its place, since which version and until which.

keys of scenarios       scenario.read.RENAMED
options of commands     cli.moved.RENAMED
names in Python         _RENAMED of the package
"""

import warnings
from dataclasses import dataclass


class GradtideDeprecationWarning(DeprecationWarning):
    """A name, key or option that works and will go; the message says what to use in its place."""


@dataclass(frozen=True)
class Deprecated:
    """Something that works and will go.

    Attributes:
        old: what is deprecated, as users write it.
        new: what to write in its place.
        since: version from which on it is deprecated.
        until: version in which it is gone.

    Example:
        >>> print(Deprecated("run.duration_s", "run.duration", "0.2", "0.4"))
        `run.duration_s` is deprecated since 0.2 and goes in 0.4: write `run.duration`
    """

    old: str
    new: str
    since: str
    until: str

    def __str__(self) -> str:
        return f"`{self.old}` is deprecated since {self.since} and goes in {self.until}: write `{self.new}`"

    def warn(self, stacklevel: int = 2) -> None:
        """Warn the caller's caller, or whoever is `stacklevel` calls above this one; once in a process."""
        if self not in _told:
            _told.add(self)
            warnings.warn(str(self), GradtideDeprecationWarning, stacklevel + 1)


_told: set[Deprecated] = set()
