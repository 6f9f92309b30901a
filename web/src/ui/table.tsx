/** A table that is as quick with ten thousand rows as with ten: only what is seen is made. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef, useState, type ReactNode } from "react";

export interface Column<Row> {
  name: string;
  /** A width as CSS grid takes it: `8rem`, `minmax(6rem, 1fr)`. */
  width: string;
  cell: (row: Row) => ReactNode;
  /** What to sort by; a column without it cannot be sorted. */
  by?: (row: Row) => number | string;
  right?: boolean;
}

export interface Sort {
  column: string;
  down: boolean;
}

interface Props<Row> {
  label: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  keyOf: (row: Row) => string;
  href?: (row: Row) => string;
  sort?: Sort;
  /** Whether the table fills its place and scrolls, or is as long as its rows. */
  fill?: boolean;
}

const ROW_PX = 32;

/** The rows in the order asked for; equal ones stay as they were. */
export function sorted<Row>(
  rows: readonly Row[],
  columns: readonly Column<Row>[],
  sort: Sort | undefined,
): readonly Row[] {
  const by = columns.find((column) => column.name === sort?.column)?.by;
  if (!by || !sort) return rows;
  const order = new Intl.Collator("en", { numeric: true });
  const sign = sort.down ? -1 : 1;
  return rows.toSorted((left, right) => {
    const [a, b] = [by(left), by(right)];
    const compared =
      typeof a === "number" && typeof b === "number" ? a - b : order.compare(`${a}`, `${b}`);
    return sign * compared;
  });
}

/** How a column stands: text after numbers keeps its distance, since the two would touch. */
function stance<Row>(columns: readonly Column<Row>[], index: number): string {
  if (columns[index]?.right) return "text-right";
  return columns[index - 1]?.right ? "pl-3" : "";
}

export function Table<Row>(props: Props<Row>) {
  const { rows, columns, keyOf, href, label, fill } = props;
  const [sort, setSort] = useState(props.sort);
  const shown = useMemo(() => sorted(rows, columns, sort), [rows, columns, sort]);
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: 12,
    enabled: fill === true,
  });
  const template = columns.map((column) => column.width).join(" ");
  const seen = fill
    ? virtual.getVirtualItems().map(({ index, start }) => ({ index, start }))
    : shown.map((_, index) => ({ index, start: index * ROW_PX }));
  return (
    <div
      ref={scroller}
      role="table"
      aria-label={label}
      aria-rowcount={shown.length + 1}
      // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex
      tabIndex={0}
      className={fill ? "min-h-0 flex-1 overflow-auto px-6 max-sm:px-4" : "overflow-x-auto"}
    >
      <div className="min-w-fit">
        <Head columns={columns} template={template} sort={sort} onSort={setSort} />
        <div role="rowgroup" className="relative" style={{ height: shown.length * ROW_PX }}>
          {seen.map(({ index, start }) => {
            const row = shown[index];
            return row === undefined ? null : (
              <Line
                key={keyOf(row)}
                {...{ row, columns, template, start }}
                index={index + 2}
                href={href?.(row)}
              />
            );
          })}
        </div>
      </div>
    </div>
  );
}

function Head<Row>({ columns, template, sort, onSort }: {
  columns: readonly Column<Row>[];
  template: string;
  sort: Sort | undefined;
  onSort: (sort: Sort) => void;
}) {
  return (
    <div role="rowgroup" className="sticky top-0 z-10 bg-page">
      <div
        role="row"
        aria-rowindex={1}
        className="grid h-8 items-center gap-x-3 border-b border-line text-s text-faint"
        style={{ gridTemplateColumns: template }}
      >
        {columns.map(({ name, by }, index) => {
          const down = sort?.column === name ? sort.down : undefined;
          const order = down === undefined ? "none" : down ? "descending" : "ascending";
          return (
            <div key={name} role="columnheader" aria-sort={order} className={stance(columns, index)}>
              {by ? (
                <button
                  type="button"
                  className="hover:text-text"
                  onClick={() => onSort({ column: name, down: down === undefined ? false : !down })}
                >
                  {name}
                  <span aria-hidden>{down === undefined ? "" : down ? " ↓" : " ↑"}</span>
                </button>
              ) : (
                name
              )}
            </div>
          );
        })}
      </div>
    </div>
  );
}

function Line<Row>({ row, columns, template, start, index, href }: {
  row: Row;
  columns: readonly Column<Row>[];
  template: string;
  start: number;
  index: number;
  href: string | undefined;
}) {
  return (
    <div
      role="row"
      aria-rowindex={index}
      className="absolute inset-x-0 grid items-center gap-x-3 border-b border-line/60 hover:bg-hover"
      style={{ gridTemplateColumns: template, height: ROW_PX, top: start }}
    >
      {columns.map(({ name, cell }, number) => (
        <div key={name} role="cell" className={`min-w-0 truncate ${stance(columns, number)}`}>
          {href && number === 0 ? (
            <a href={href} className="font-medium after:absolute after:inset-0 hover:underline">
              {cell(row)}
            </a>
          ) : (
            cell(row)
          )}
        </div>
      ))}
    </div>
  );
}
