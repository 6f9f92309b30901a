/** A sortable table. With `fill` it scrolls and renders only the visible rows, so that 10,000 rows stay fast. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef, type ReactNode } from "react";
import { byName } from "../lib/text";
import { useParam } from "../state/url";

/** Columns are constants: the rows are sorted again whenever the sort key function changes. */
export interface Column<Row> {
  name: string;
  /** A CSS grid width: `8rem`, `minmax(6rem, 1fr)`. */
  width: string;
  cell: (row: Row) => ReactNode;
  /** The sort key; a column without it is not sortable. */
  by?: (row: Row) => number | string;
  right?: boolean;
  /** An explanation, shown when the pointer is over the name. */
  help?: string;
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
  /** The order while the address has none. */
  sort?: Sort;
  /** Rearranges the sorted rows while they are in that order, for example as a tree. */
  arrange?: (rows: readonly Row[]) => readonly Row[];
  /** The parameter of the address that holds the order; different for two tables of one view. */
  sortParam?: string;
  /** Whether the table fills its place and scrolls, or is as long as its rows. */
  fill?: boolean;
}

const ROW_PX = 32;

const slugOf = (name: string) => name.toLowerCase().replace(/[^a-z0-9]+/g, "-");

/** The order that the address holds: `sort=step` ascending, `sort=-step` descending. */
function useSort<Row>(columns: readonly Column<Row>[], initial: Sort | undefined, param: string) {
  const textOf = (sort: Sort | undefined) => (sort ? `${sort.down ? "-" : ""}${slugOf(sort.column)}` : "");
  const [text, setText] = useParam(param, textOf(initial));
  const down = text.startsWith("-");
  const column = columns.find(({ name, by }) => by && slugOf(name) === text.slice(down ? 1 : 0));
  const sort = column ? { column: column.name, down } : undefined;
  return { sort, by: column?.by, isInitial: text === textOf(initial), setSort: (next: Sort) => setText(textOf(next)) };
}

/** The rows ordered by a key; rows with equal keys keep their order. */
export function sorted<Row>(rows: readonly Row[], by: ((row: Row) => number | string) | undefined, down: boolean): readonly Row[] {
  if (!by) return rows;
  const sign = down ? -1 : 1;
  return rows
    .map((row) => ({ row, key: by(row) }))
    .toSorted(({ key: a }, { key: b }) => sign * (typeof a === "number" && typeof b === "number" ? a - b : byName(`${a}`, `${b}`)))
    .map(({ row }) => row);
}

/** Text after a right-aligned column gets a margin, since the two would touch. */
function alignment<Row>(columns: readonly Column<Row>[], index: number): string {
  if (columns[index]?.right) return "text-right";
  return columns[index - 1]?.right ? "pl-3" : "";
}

export function Table<Row>({ rows, columns, keyOf, href, label, fill, sort: initial, arrange, sortParam = "sort" }: Props<Row>) {
  const { sort, by, isInitial, setSort } = useSort(columns, initial, sortParam);
  const down = sort?.down ?? false;
  const shown = useMemo(() => {
    const ordered = sorted(rows, by, down);
    return arrange && isInitial ? arrange(ordered) : ordered;
  }, [rows, by, down, arrange, isInitial]);
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: 12,
    enabled: fill === true,
  });
  const template = columns.map((column) => column.width).join(" ");
  const visible = fill
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
          {visible.map(({ index, start }) => {
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
        {columns.map(({ name, by, help }, index) => {
          const down = sort?.column === name ? sort.down : undefined;
          const order = down === undefined ? "none" : down ? "descending" : "ascending";
          return (
            <div key={name} role="columnheader" title={help} aria-sort={by && order} className={alignment(columns, index)}>
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
        <div key={name} role="cell" className={`min-w-0 truncate ${alignment(columns, number)}`}>
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
