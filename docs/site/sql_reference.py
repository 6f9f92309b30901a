"""The reference of the SQL tables: columns and types as DuckDB reports them for the demo run.

The meanings are in `sql_columns.toml`; a column without one, or one without a column, is an error.
"""

import tomllib
from pathlib import Path

from docs.site.markdown import cell, code, table

MEANINGS = Path(__file__).with_name("sql_columns.toml")
DEMO = "src/strata/timeline/archive/demo"
INTRO = """# SQL tables

`strata sql "select …" --data FOLDER` runs one query in DuckDB's SQL over a recorded run
([how](../timeline.md#sql)). It needs the extra `timeline`. The columns are those that DuckDB
reports."""


def columns() -> dict[str, list[tuple[str, str]]]:
    """The columns of each table with their types."""
    from strata.cli.support.past_source import opened
    from strata.timeline.export.sql_queries import ACTIVITY, VIEWS, connected

    found = {}
    with opened(DEMO, "") as timeline, connected(timeline, ACTIVITY) as db:
        for name in ("events", *VIEWS, ACTIVITY):
            rows = db.execute(f"DESCRIBE {name}").fetchall()
            found[name] = [(str(row[0]), str(row[1])) for row in rows]
    return found


def page() -> str:
    """The page of the SQL tables."""
    meanings = tomllib.loads(MEANINGS.read_text("utf-8"))
    parts = [INTRO]
    found = columns()
    if found.keys() != meanings.keys():
        raise ValueError(f"{MEANINGS} describes other tables than {', '.join(found)}")
    for name, described in found.items():
        about = meanings[name]
        if {column for column, _ in described} != about.keys() - {""}:
            raise ValueError(f"{MEANINGS} does not describe the columns of {name}: {described}")
        rows = [[code(column), code(kind), cell(about[column])] for column, kind in described]
        parts += [f"## {name}", about[""], table(["column", "type", "meaning"], rows)]
    return "\n\n".join(parts) + "\n"
