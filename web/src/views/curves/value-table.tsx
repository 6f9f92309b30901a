/** The points of a chart as a table: the same values as text. */
import { useState } from "react";
import { exact, within, type Points } from "../../lib/curves";
import { moment } from "../../lib/format";
import type { Span } from "../../lib/scale";
import { placeText, type AxisName, type DrawnCurve } from "../../ui/curve-text";
import { Modal } from "../../ui/modal";
import { Table, type Column } from "../../ui/table";

interface Row {
  key: string;
  run: string;
  place: string;
  x: number;
  atMs: number;
  mean: string;
  band: string;
}

const COLUMNS: Column<Row>[] = [
  { name: "Point", width: "minmax(6rem, 1fr)", cell: (row) => row.place, by: (row) => row.x },
  { name: "Value", width: "6rem", right: true, cell: (row) => row.mean },
  { name: "Lowest to highest", width: "minmax(8rem, 1fr)", right: true, cell: (row) => row.band },
  { name: "Time", width: "9rem", right: true, cell: (row) => moment(row.atMs) },
];
const RUN: Column<Row> = { name: "Run", width: "minmax(6rem, 1fr)", cell: (row) => row.run, by: (row) => row.run };

function rowsOf(run: string, axis: AxisName, { x, mean, min, max, time_ms, not_finite }: Points): Row[] {
  const wrong = new Set(not_finite);
  return x.map((at, index) => ({
    key: `${run} ${index}`,
    run,
    place: placeText(axis, at),
    x: at,
    atMs: time_ms[index]!,
    mean: mean[index] === null && wrong.has(at) ? "not finite" : exact(mean[index]),
    band: min[index] === max[index] ? "" : `${exact(min[index])} to ${exact(max[index])}`,
  }));
}

/** A button that opens the table. */
export function ValueTable({ name, axis, curves, window }: { name: string; axis: AxisName; curves: readonly DrawnCurve[]; window: Span | null }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" className="text-faint hover:text-text hover:underline" aria-haspopup="dialog" aria-label={`Values of ${name}`} onClick={() => setOpen(true)}>Values</button>
      {open && (
        <Modal title={`${name}: the points of the chart`} close={() => setOpen(false)}>
          <div className="flex h-[60vh] flex-col">
            <Table fill label={`Values of ${name}`} rows={curves.flatMap(({ label, points }) => rowsOf(label, axis, within(points, window)))} columns={curves.length > 1 ? [RUN, ...COLUMNS] : COLUMNS} keyOf={(row) => row.key} sortParam="values" />
          </div>
        </Modal>
      )}
    </>
  );
}
