"""What `traffic`, `accesses` and `page_use` show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..view import Chart, Figure, Table, View, detail, key, measure

if TYPE_CHECKING:
    from ..results import Result


def traffic_view(result: Result) -> View:
    has_lines = any(result.tables["by_line"].column("file").to_pylist())
    rest = (
        measure("bytes", "bytes", "moved", better="lower"), measure("share", "share", "share", bar=True),
        measure("loads", "loads", "count", better="lower"), measure("stores", "stores", "count", better="lower"),
        measure("stack_share", "stack", "share", show="known"), measure("mean_width", "bytes each", "number"),
        detail("load_bytes", "read", "moved", better="lower"), detail("store_bytes", "written", "moved", better="lower"),
        detail("instructions", "instructions", "count"), detail("unseen", "not seen", "count", show="nonzero"),
    )  # fmt: skip
    return View(
        title="Memory traffic",
        order=210,
        headline="{accessed_bytes}: {loads} loads of {load_bytes}, {stores} stores of {store_bytes}[, {mean_width} bytes each]"
        "[; {stack_share} of the bytes on the stack]",
        figures=(
            Figure(name="accessed_bytes", label="accessed", kind="moved", better="lower", help="Bytes read and written by all instructions."),
            Figure(name="loads", label="loads", kind="count", better="lower"),
            Figure(name="load_bytes", label="read", kind="moved", better="lower"),
            Figure(name="stores", label="stores", kind="count", better="lower"),
            Figure(name="store_bytes", label="written", kind="moved", better="lower"),
            Figure(name="mean_width", label="bytes an access", kind="number", better="higher"),
            Figure(name="stack_share", label="on the stack", kind="share", help="Of the accessed bytes, where the stack is known."),
            Figure(name="instructions", label="instructions with accesses", kind="count"),
            Figure(name="named_share", label="bytes with a function name", kind="share", better="higher"),
            Figure(name="unseen_executions", label="executions not seen", kind="count", better="lower", show="nonzero",
                   help="Of instructions whose accesses the emulator does not report."),
            Figure(name="uncounted_executions", label="executions without counts", kind="count", better="lower", show="nonzero"),
            Figure(name="emulator_width_bytes", label="bytes that are an upper bound", kind="moved", better="lower", show="nonzero",
                   help="Masked loads and instructions of unknown width: what the emulator accessed."),
            Figure(name="anonymous_code_bytes", label="bytes of code without a file", kind="moved", show="nonzero"),
            Figure(name="windows", label="windows", kind="count"),
            Figure(name="recorded_accesses", label="recorded accesses", kind="count"),
            Figure(name="recorded_share", label="recorded", kind="share", help="Of all accesses."),
        ),
        tables=(
            Table(name="by_function", title="By function", role="key", columns=(key("function", "function", "code"), *rest), leads_to="code_counts"),
            Table(name="by_line", title="By line", role="measure" if has_lines else "detail", columns=(key("function", "line", "code"), *rest), leads_to="code_counts"),
            Table(name="by_module", title="By module", role="detail", columns=(key("module", "module", "module"), *rest)),
            Table(name="by_thread", title="By thread", least_rows=2, columns=(
                key("thread", "thread", "thread", beside=("name",), zero="threads that have ended"), *rest)),
            Table(name="by_region", title="By region", least_rows=2, columns=(key("region", "region", "region", null="outside regions"), *rest)),
            Table(name="by_process", title="By process", least_rows=2, columns=(key("process", "process", "process", beside=("name",)), *rest)),
            Table(name="unseen", title="Not seen", columns=(
                key("cause", "cause", "text"), key("name", "of", "text"), measure("executions", "executions", "count", better="lower"),
                detail("function", "function", "code"),
            ), help="Accesses that are in no figure above."),
        ),
    )  # fmt: skip


def accesses_view(result: Result) -> View:
    figures = result.figures
    everything = figures["everything_recorded"]
    exact = everything and figures.get("shared_out_accesses") is None
    if not everything:
        how = "estimated from {windows} windows[, {recorded_share} of all accesses]"
    else:
        left_out = " but constants" if figures["executed_accesses"] > figures["recorded_accesses"] else ""
        how = f"every access{left_out}" + ("" if exact else "; objects sampled, so sites are estimated")
    estimate = {} if exact else {"error": "accesses_error"}
    shares = (
        measure("accesses", "accesses", "count", better="lower", **estimate),
        measure("accesses", "share", "share", of="figures.object_accesses", bar=True),
        measure("stores", "stores", "count", of="accesses"),
    )
    rest = (
        detail("bytes", "bytes", "moved", better="lower", **({} if exact else {"error": "bytes_error"})),
        detail("loads", "loads", "count", **({} if exact else {"error": "loads_error"})), detail("recorded", "recorded", "count"),
        detail("windows", "windows", "count"),
    )  # fmt: skip
    return View(
        title="Accesses by object",
        order=300,
        headline=how,
        silent=not figures["recorded_accesses"],
        figures=(
            Figure(name="object_accesses", label="accesses", kind="count", better="lower", help="Executed; constants included where their object is known."),
            Figure(name="accessed_objects", label="objects", kind="count"),
            Figure(name="in_no_object_share", label="in no known object", kind="share", better="lower"),
            Figure(name="recorded_accesses", label="recorded accesses", kind="count"),
            Figure(name="executed_accesses", label="executed accesses", kind="count"),
            Figure(name="recorded_share", label="recorded", kind="share", help="Of the executed accesses."),
            Figure(name="windows", label="windows", kind="count"),
            Figure(name="everything_recorded", label="every access recorded", kind="flag"),
            Figure(name="shared_out_accesses", label="accesses shared out", kind="count", show="nonzero",
                   help="Of objects that were not sampled: shared out to allocation sites by their weights."),
            Figure(name="damaged_windows", label="damaged windows", kind="count", better="lower", show="nonzero", help="Left out."),
        ),
        tables=(
            Table(name="by_object", title="By object", role="key", columns=(key("object", "object", "object"), detail("kind", "kind", "text"), *shares,
                  detail("function", "allocated by", "code"), *rest), leads_to="accesses"),
            Table(name="by_object_and_function", title="By object and function", columns=(
                key("object", "object", "object"), key("function", "function", "code"), *shares, *rest), leads_to="accesses"),
            Table(name="by_function", title="By function", role="detail", columns=(key("function", "function", "code"), *shares, *rest), leads_to="accesses"),
            Table(name="by_instruction", title="By instruction", role="detail", columns=(
                key("function", "instruction", "code"), measure("accesses", "accesses", "count", better="lower", **estimate),
                measure("bytes", "bytes", "moved", better="lower"), measure("split", "across lines", "count", better="lower"),
                measure("narrow", "below 4 bytes", "count"), measure("narrow_sequential", "of them sequential", "count", better="lower"),
                detail("recorded", "recorded", "count")), leads_to="accesses"),
        ),
    )  # fmt: skip


def page_use_view(result: Result) -> View:
    return View(
        title="Pages used by other threads",
        order=310,
        silent=not result.figures["pages_used_by_others"],
        headline="{pages_used_by_others} of {pages} pages are used by threads that did not touch them first: {others_share} of all accesses",
        figures=(
            Figure(name="pages", label="pages", kind="count"),
            Figure(name="shared_pages", label="pages of several threads", kind="count"),
            Figure(name="pages_used_by_others", label="pages used by others", kind="count", better="lower",
                   help="By a thread other than the one that touched them first."),
            Figure(name="page_accesses", label="accesses", kind="count"),
            Figure(name="accesses_by_others", label="accesses by others", kind="count", better="lower"),
            Figure(name="others_share", label="accesses by others, share", kind="share", better="lower"),
            Figure(name="page_threads", label="threads", kind="count"),
        ),
        charts=(
            Chart(name="matrix", title="Accesses by first toucher and user", kind="matrix", table="matrix", role="detail", y_kind="count",
                  columns=(("row", "first_thread"), ("row_name", "first_name"), ("column", "thread"), ("column_name", "name"),
                           ("value", "loads"), ("value", "stores")),
                  x_label="used by thread", y_label="first touched by thread"),
        ),
        tables=(
            Table(name="by_object", title="By object", sort="-accesses_by_others", columns=(
                key("object", "object", "object"), measure("bytes", "pages", "bytes"), measure("bytes_used_by_others", "used by others", "bytes", better="lower"),
                measure("accesses_by_others", "accesses by others", "count", better="lower"),
                measure("accesses_by_others", "share", "count", of="accesses", better="lower"),
                measure("first_touch_function", "first touched by", "code"), measure("main_first_thread", "thread", "thread"),
                detail("using_threads", "using threads", "count"), detail("first_touch_threads", "touching threads", "count"),
                detail("kind", "kind", "text"), detail("function", "allocated by", "code"),
            ), leads_to="page_accesses"),
            Table(name="matrix", title="First toucher and user", role="detail", sort="-stores", columns=(
                key("first_thread", "first touched by", "thread", beside=("first_name",)), key("thread", "used by", "thread", beside=("name",)),
                measure("pages", "pages", "count"), measure("loads", "loads", "count"), measure("stores", "stores", "count"),
            )),
        ),
    )  # fmt: skip
