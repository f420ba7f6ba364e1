"""Base class of the results of studies: access to the rows from table libraries, and saving to a folder."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gradtide import words
from gradtide.answer import Answer
from gradtide.results import Table
from gradtide.studies.folder import whole_folder


class StudyRows:
    """Base class of results of studies, whose rows polars, pyarrow, pandas and numpy can read.

    Attributes:
        rows: one dict per row, all with the same keys; at least one.
        summary: the figures of `summary.json`.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def table(self) -> Table:
        """The rows as a table."""
        return Table.of_dicts(self.rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict per row."""
        return [dict(row) for row in self.rows]

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """Return every column as an array."""
        return self.table.to_numpy()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)

    @property
    def answer(self) -> Answer:
        """The study's answer: headline, premises and candidates."""
        return Answer.of(self.summary)

    def __repr__(self) -> str:
        return f"<gradtide.{type(self).__name__} {self.summary['headline']}>"

    def _repr_html_(self) -> str:
        table = words.html_table(list(self.rows[0]), [list(row.values()) for row in self.rows])
        return table + words.answer_html(self.summary)

    def save(self, path: str | Path) -> Path:
        """Write the study folder `path` atomically, by rename.

        Raises:
            FolderError: if `path` exists and is not a folder of results.
        """
        with whole_folder(Path(path)) as folder:
            self.write(folder)
        return Path(path)

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`."""
        raise NotImplementedError
