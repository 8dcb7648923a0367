"""The tools of this deployment, named one by one: a file in this folder alone gives a model nothing."""

from tools.base import Tool
from tools.calculate import add
from tools.clock import get_current_datetime
from tools.knowledge import list_files, read_file, search_local
from tools.notes import list_notes, write_note

ALL_TOOLS: tuple[Tool, ...] = (
    get_current_datetime,
    add,
    search_local,
    list_files,
    read_file,
    write_note,
    list_notes,
)
