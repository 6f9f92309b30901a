"""The Textual application of `strata top`.

It uses the terminal's own sixteen colours and its background, so it is readable in light and dark
terminals and over SSH. The threads of `live_feed` post messages; everything else runs in one loop.
"""

from dataclasses import replace
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.theme import BUILTIN_THEMES
from textual.widgets import DataTable, Footer, Input, Static

from strata.cli.support.charts.terminal_chart import sparkline
from strata.cli.support.charts.watched_curves import on_log_scale
from strata.cli.support.rest_client import Api
from strata.cli.support.tables import clock, count, plain
from strata.cli.support.top.detail_screen import DetailScreen
from strata.cli.support.top.live_feed import DetailReader, Details, LiveFeed, Subject
from strata.cli.support.top.live_mirror import Mirror, Patch
from strata.cli.support.top.top_columns import LIVING, VIEWS, arranged, rate, task_rate
from strata.coordinator.rest.response_models import TaskResponse
from strata.errors import StrataError

REFRESH_S = 0.5
TALL = 32
"""Lines of a terminal from which more facts are shown below the table."""

FACTS_LOW, FACTS_TALL = 3, 8
OF_TABLES = frozenset({"view", "next_view", "filter", "sort", "reverse", "clear"})

PLAIN = BUILTIN_THEMES["ansi-light"]
COLOURS = replace(
    PLAIN,
    name="strata-ansi",
    warning="ansi_yellow",
    accent="ansi_cyan",
    variables=PLAIN.variables
    | dict.fromkeys(("scrollbar-background", "scrollbar-background-hover"), "ansi_default")
    | {"scrollbar-background-active": "ansi_default", "footer-key-foreground": "ansi_cyan"},
)
"""The terminal's foreground and background, with colours that are readable on both kinds."""


class Patched(Message):
    """A patch arrived."""

    def __init__(self, patch: Patch) -> None:
        super().__init__()
        self.patch = patch


class Linked(Message):
    """The connection was made, or broke for a reason."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class Refused(Message):
    """The coordinator refused the stream."""

    def __init__(self, error: StrataError) -> None:
        super().__init__()
        self.error = error


class Looked(Message):
    """Details of a task or worker arrived."""

    def __init__(self, details: Details) -> None:
        super().__init__()
        self.details = details


class Rows(DataTable[Text]):
    """The table; Enter opens the row under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Open")]


class TopApp(App[StrataError]):
    """The view. It ends with an error if the coordinator refuses the stream."""

    TITLE = "strata top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #link, #views { height: 1; }
    #rows { height: 1fr; }
    #empty { height: 1fr; display: none; color: $foreground; padding: 1 2; }
    #loss { height: 1; }
    #facts { height: 3; text-wrap: nowrap; text-overflow: ellipsis; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    DataTable { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    DataTable > .datatable--header { text-style: bold underline; background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(at + 1), f"view({at})", view.title, show=False)
            for at, view in enumerate(VIEWS)
        ),
        Binding("tab", "next_view", "View", priority=True),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort by"),
        Binding("r", "reverse", "Reverse"),
        Binding("escape", "clear", "Clear"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, api: Api) -> None:
        super().__init__(ansi_color=True)
        self.api = api
        self.mirror = Mirror()
        self.details: Details | None = None
        self.since: datetime | None = None
        self.reason = "connecting"
        self.connected = False
        self.view = 0
        self.sorted_by: dict[int, int] = {}
        self.down: dict[int, bool] = {}
        self.wanted = ""
        self.reader: DetailReader | None = None
        self._columns_of = -1

    def compose(self) -> ComposeResult:
        """The lines of the main screen, from top to bottom."""
        yield Static(id="link")
        yield Static(id="views")
        yield Rows(id="rows", cursor_type="row")
        yield Static(id="empty")
        yield Static(id="loss")
        yield Static(id="facts")
        yield Input(id="filter", placeholder="text that a row must contain; Enter keeps it")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start to read the stream."""
        self.register_theme(COLOURS)
        self.theme = COLOURS.name
        LiveFeed(
            self.api,
            lambda patch: self.post_message(Patched(patch)),
            lambda reason: self.post_message(Linked(reason)),
            lambda error: self.post_message(Refused(error)),
        )
        self.reader = DetailReader(self.api, lambda details: self.post_message(Looked(details)))
        self.set_interval(REFRESH_S, self.show)
        self.query_one("#rows", DataTable).focus()
        self.show()

    def on_patched(self, message: Patched) -> None:
        """Apply a patch; it is shown with the next refresh."""
        self.mirror.apply(message.patch)

    def on_linked(self, message: Linked) -> None:
        """Note since when there is no connection."""
        if message.reason and self.since is None:
            self.since = datetime.now()
        if not message.reason:
            self.since = None
            self.mirror.rates.restart()
        self.connected, self.reason = not message.reason, message.reason
        self.show()

    def on_refused(self, message: Refused) -> None:
        """End with the error."""
        self.exit(message.error)

    def on_looked(self, message: Looked) -> None:
        """Keep the newest details."""
        self.details = message.details
        self.show()

    def show(self) -> None:
        """Draw everything again, unless the view is being closed."""
        if not self.is_running:
            return
        if isinstance(self.screen, DetailScreen):
            self.screen.show()
            return
        self.query_one("#link", Static).update(self.link_line())
        self.query_one("#views", Static).update(self.views_line())
        self._show_rows()
        self._show_loss()
        tall = self.size.height >= TALL
        facts = self.query_one("#facts", Static)
        facts.styles.height = FACTS_TALL if tall else FACTS_LOW
        facts.display = VIEWS[self.view].title != "Facts"
        facts.update(self.facts_lines(FACTS_TALL if tall else FACTS_LOW))

    def link_line(self) -> Text:
        """The coordinator, the state of the connection, and counts."""
        line = Text(no_wrap=True, overflow="ellipsis")
        if self.connected:
            line.append("● connected", "green")
        elif self.since is not None:
            why = plain(self.reason)
            line.append(f"✗ disconnected since {self.since:%H:%M:%S}", "bold red")
            line.append(f"  {why}", "red")
            return line
        else:
            line.append("◐ connecting", "yellow")
        line.append(f"  {self.api.url}")
        if (known := self.mirror.coordinator) is not None:
            line.append(f"  cluster {plain(known.cluster)}")
            line.append(f"  facts {count(known.position)}", "dim")
        if (totals := self.mirror.totals) is not None:
            line.append(f"  tasks {count(totals.tasks)}  workers {count(totals.workers)}", "dim")
            if totals.alerts:
                line.append(f"  alerts {count(totals.alerts)}", "bold yellow")
        return line

    def views_line(self) -> Text:
        """The views with their keys, the shown one highlighted, and the filter."""
        line = Text(no_wrap=True, overflow="ellipsis")
        for at, view in enumerate(VIEWS):
            line.append(f" {at + 1} {view.title} ", "reverse" if at == self.view else "")
        if self.wanted:
            line.append(f"  rows with {self.wanted!r}", "yellow")
        return line

    def _show_rows(self) -> None:
        view = VIEWS[self.view]
        table: DataTable[Text] = self.query_one("#rows", DataTable)
        column = self.sorted_by.get(self.view)
        rows = arranged(
            view.rows(self.mirror), self.wanted, column, self.down.get(self.view, False)
        )
        selected = self.selected_id()
        with self.batch_update():
            if self._columns_of != self.view:
                selected = ""
            self._columns_of = self.view
            left = table.scroll_x
            table.clear(columns=True)
            for at, title in enumerate(view.columns):
                arrow = ("▼" if self.down.get(self.view) else "▲") if at == column else ""
                table.add_column(f"{title}{arrow}", key=title)
            for row in rows:
                table.add_row(*(cell.shown for cell in row.cells), key=row.id)
            keys = [row.id for row in rows]
            if selected in keys:
                table.move_cursor(row=keys.index(selected), animate=False)
            table.scroll_to(x=left, animate=False)
        self.rows = {row.id: row for row in rows}
        table.display = bool(rows)
        empty = self.query_one("#empty", Static)
        empty.display = not rows
        unknown = "not known: no connection yet" if not self.mirror.at_ms else view.empty
        empty.update(f"no row contains {self.wanted!r}" if self.wanted else unknown)

    def selected_id(self) -> str:
        """The id of the row under the cursor, if any."""
        table: DataTable[Text] = self.query_one("#rows", DataTable)
        if not table.is_valid_row_index(table.cursor_row):
            return ""
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value or ""

    def shown_task(self) -> TaskResponse | None:
        """The task of the row under the cursor, else the newest one that runs, else the newest."""
        row = getattr(self, "rows", {}).get(self.selected_id())
        if row is not None and (found := self.mirror.task(row.task)) is not None:
            return found
        known = sorted(self.mirror.rows["tasks"].values(), key=lambda each: each.submitted_at)
        living = [task for task in known if task.status in LIVING]
        return next(iter([*living[::-1], *known[::-1]]), None)

    def _show_loss(self) -> None:
        task, line = self.shown_task(), Text(no_wrap=True, overflow="ellipsis")
        if task is not None and self.reader is not None:
            self.reader.want(Subject(task.id))
            line = loss_line(task, self.details, self.mirror, self.size.width)
        self.query_one("#loss", Static).update(line)

    def facts_lines(self, lines: int) -> Text:
        """The newest facts, one a line."""
        shown = Text(no_wrap=True, overflow="ellipsis")
        for event in self.mirror.facts[:lines]:
            shown.append(f"{clock(int(event.at_ms))} ", "dim")
            shown.append(f"{plain(event.summary)}\n")
        return shown

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key does something now: those of the tables do nothing in a detail."""
        return action not in OF_TABLES or not isinstance(self.screen, DetailScreen)

    def action_view(self, at: int) -> None:
        """Show another table."""
        self.view = at
        self.show()

    def action_next_view(self) -> None:
        """Show the next table."""
        self.action_view((self.view + 1) % len(VIEWS))

    def action_sort(self) -> None:
        """Sort by the next column; after the last one, by none."""
        chosen = self.sorted_by.get(self.view, -1) + 1
        if chosen < len(VIEWS[self.view].columns):
            self.sorted_by[self.view] = chosen
        else:
            self.sorted_by.pop(self.view, None)
        self.show()

    def action_reverse(self) -> None:
        """Reverse the order of the sorted column."""
        self.down[self.view] = not self.down.get(self.view, False)
        self.show()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the column that was clicked; again: the other way."""
        if self.sorted_by.get(self.view) == event.column_index:
            self.down[self.view] = not self.down.get(self.view, False)
        self.sorted_by[self.view] = event.column_index
        self.show()

    def action_filter(self) -> None:
        """Ask for a text that rows must contain."""
        entry = self.query_one("#filter", Input)
        entry.display = True
        entry.value = self.wanted
        entry.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        self.wanted = event.value.strip()
        self.show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter."""
        self._close_filter()

    def action_clear(self) -> None:
        """Remove the filter."""
        self.query_one("#filter", Input).value = ""
        self.wanted = ""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one("#rows", DataTable).focus()
        self.show()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the task or the worker of the row."""
        row = self.rows.get(event.row_key.value or "")
        if row is not None and row.task:
            self.push_screen(DetailScreen(self, Subject(row.task, row.worker, in_detail=True)))


def loss_line(task: TaskResponse, details: Details | None, mirror: Mirror, width: int) -> Text:
    """The loss of a task as a sparkline, its last value, and the step rate."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"loss of {plain(task.id)} ", "bold")
    if details is None or details.subject.task != task.id:
        line.append("…", "dim")
    elif details.losses is None:
        line.append(f"not known: {plain(details.errors[0])}", "red")
    elif not details.losses:
        line.append("not recorded", "dim")
    else:
        bars = max(width - len(line) - 44, 10)
        line.append(sparkline(on_log_scale(details.losses[-bars:])), "cyan")
        last = "not finite" if details.loss is None else f"{details.loss:.4g}"
        line.append(f" {last}", "bold")
        line.append(f" at step {count(details.step or 0)}")
    line.append(f"  {rate(task_rate(mirror, task))}".replace("/s", " steps/s"), "dim")
    return line


def run_top(api: Api) -> None:
    """Show the view until it is closed; raises if the coordinator refuses it."""
    error = TopApp(api).run()
    if error is not None:
        raise error
