/** What the runs of a comparison were trained with, and their last values. */
import { useMemo } from "react";
import { UNRECORDED } from "../../lib/format";
import { visible } from "../../lib/text";
import { useParam } from "../../state/url";
import { comparisonRows, type Compared, type Row } from "./comparison-rows";
import { keyOf, labelOf, type PinnedRun } from "./pinned-runs";

export function ComparisonTable({ pinned, runs }: { pinned: readonly PinnedRun[]; runs: readonly Compared[] }) {
  const [differing, setDiffering] = useParam("rows");
  const rows = useMemo(() => comparisonRows(runs), [runs]);
  const shown = differing ? rows.filter(({ differs }) => differs) : rows;
  return (
    <>
      <label className="mb-2 inline-flex items-center gap-2">
        <input type="checkbox" className="accent-accent" checked={differing !== ""} onChange={(event) => setDiffering(event.target.checked ? "differing" : "")} />
        Only differences <span className="text-faint">{shown.length} of {rows.length} rows</span>
      </label>
      {/* oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex */}
      <div role="region" aria-label="Configs and last values" tabIndex={0} className="max-h-[70vh] overflow-auto">
        <table className="min-w-full text-left">
          <thead>
            <tr className="border-b border-line text-s text-faint">
              <th scope="col" className="sticky top-0 left-0 z-2 bg-page py-1.5 pr-6 font-normal">Name</th>
              {pinned.map((run) => <th key={keyOf(run)} scope="col" className="sticky top-0 z-1 bg-page py-1.5 pr-6 font-normal">{labelOf(run)}</th>)}
            </tr>
          </thead>
          <tbody>{shown.map((row, index) => <Line key={`${row.group} ${row.name}`} row={row} first={shown[index - 1]?.group !== row.group} runs={pinned} />)}</tbody>
        </table>
      </div>
      {shown.length === 0 && <p className="py-2 text-dim">No differences.</p>}
    </>
  );
}

/** A row whose values differ has a mark, so that it is found without comparing. */
function Line({ row, first, runs }: { row: Row; first: boolean; runs: readonly PinnedRun[] }) {
  return (
    <>
      {first && <tr><th scope="colgroup" colSpan={runs.length + 1} className="pt-3 text-s font-medium text-dim">{row.group}</th></tr>}
      <tr className="border-b border-line/60">
        <th scope="row" className="sticky left-0 max-w-72 truncate bg-page py-1 pr-6 font-normal" title={row.name}>
          {runs.length > 1 && <span className="mr-2 inline-block w-3 text-recovering" title={row.differs ? "differs" : undefined}>{row.differs ? "≠" : ""}</span>}
          {row.name}
        </th>
        {row.values.map((value, index) => (
          <td key={keyOf(runs[index]!)} className={`max-w-80 truncate py-1 pr-6 tabular-nums ${value === null ? "text-faint" : row.differs ? "font-medium" : ""}`} title={value ?? undefined}>
            {value === null ? UNRECORDED : visible(value)}
          </td>
        ))}
      </tr>
    </>
  );
}
