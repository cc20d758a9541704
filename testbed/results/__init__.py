"""Results: the run folder, its tables and its summary."""

from testbed.results.folder import FolderError, RunFolder
from testbed.results.summary import check_expectations, make_summary
from testbed.results.tables import make_tables

__all__ = ["FolderError", "RunFolder", "check_expectations", "make_summary", "make_tables"]
