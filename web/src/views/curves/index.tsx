/** Compare: the curves of several tasks, forks and archived runs in the same charts, and a table of what differs. */
import { useMemo } from "react";
import { inOrder, NO_POINTS, xRange } from "../../lib/curves";
import { momentText, useCluster, useCursor } from "../../state/cluster";
import { useComparedPoints, useComparedRuns } from "../../state/compared-runs";
import { change, hrefTo, useParam } from "../../state/url";
import { Button, Choice, Field } from "../../ui/controls";
import { CurveChart } from "../../ui/curve-chart";
import { Empty, ErrorMessage } from "../../ui/placeholders";
import { Page, Scroll, Section } from "../../ui/page";
import { ComparisonTable } from "./comparison-table";
import { CurveControls, showWindow, useCurveLook } from "./curve-controls";
import { keyOf, labelOf, lookAt, pinnedFrom, pinnedText, type PinnedRun } from "./pinned-runs";
import { useChoosableRuns } from "./choosable-runs";
import { ValueTable } from "./value-table";
import { useVisibleCharts, Watched } from "./visible-charts";

/** So many charts are shown while no metric is pinned. */
const FIRST = 6;

export default function Compare() {
  const [tasks] = useParam("tasks");
  const pinned = useMemo(() => pinnedFrom(tasks), [tasks]);
  const choosable = useChoosableRuns(pinned);
  const add = (key: string) => change({ tasks: [tasks, key].filter(Boolean).join(",") }, "push");
  const aside = choosable.length > 0 && <Choice label="Add a run" value="" onChange={add} options={[["", "Add a run …"], ...choosable.map((run) => [keyOf(run), labelOf(run)] as const)]} />;
  return (
    <Page title="Compare" aside={aside}>
      <Scroll label="Compare">
        {pinned.length === 0 ? (
          <Empty title="No run is chosen" text="Add runs at the top right, or open Compare from the page of a task. The address then holds the comparison." />
        ) : (
          <Comparison pinned={pinned} />
        )}
      </Scroll>
    </Page>
  );
}

/** Shows a moment of a run in all views. */
const showMoment = ({ run }: PinnedRun, atMs: number) => change({ run, t: momentText(atMs) }, "push");

function Comparison({ pinned }: { pinned: readonly PinnedRun[] }) {
  const look = useCurveLook();
  const cursor = useCursor();
  const { cluster } = useCluster();
  const [hidden, setHidden] = useParam("hide");
  const [metrics] = useParam("metrics");
  const [search, setSearch] = useParam("find");
  const [visible, note] = useVisibleCharts();
  const live = cursor === null && pinned.some(({ task, run }) => run === "" && cluster?.tasks.get(task)?.completed_at === null);
  const runs = useComparedRuns(pinned, live);
  const names = useMemo(() => [...new Set(inOrder(runs.flatMap(({ curves }) => curves ?? [])).map(({ name }) => name))], [runs]);
  const chosen = metrics ? metrics.split(",").map(decodeURIComponent).filter((name) => names.includes(name)) : names.slice(0, FIRST);
  const found = search ? names.filter((name) => name.toLowerCase().includes(search.toLowerCase())) : chosen;
  const { points, errors } = useComparedPoints({ runs, wanted: visible, axis: look.axis, window: look.window, live });
  const hiddenKeys = hidden.split(",").filter(Boolean);
  const shown = pinned.map((run, index) => ({ run, index })).filter(({ run }) => !hiddenKeys.includes(keyOf(run)));
  const toggle = (key: string) => setHidden((hiddenKeys.includes(key) ? hiddenKeys.filter((each) => each !== key) : [...hiddenKeys, key]).join(","));
  const pin = (name: string) => change({ metrics: (chosen.includes(name) ? chosen.filter((each) => each !== name) : [...chosen, name]).map(encodeURIComponent).join(",") });
  const axes = [...new Set(runs.flatMap(({ axes: each }) => each))];
  const whole = useMemo(() => xRange(points.flatMap((each) => [...each.values()])), [points]);
  return (
    <>
      <Legend pinned={pinned} hidden={hiddenKeys} onToggle={toggle} />
      <div className="my-3 flex flex-wrap items-center gap-x-4 gap-y-2">
        <CurveControls look={look} axes={axes} />
        <Field label="Find a metric" value={search} onChange={(event) => setSearch(event.target.value)} className="w-36" />
        <MetricChoice names={names} chosen={chosen} onPin={pin} />
      </div>
      {[...runs.map(({ error }) => error), ...errors].filter((error) => error !== null).map((error) => <ErrorMessage key={error.message} error={error} />)}
      <div className="grid grid-cols-2 gap-x-8 gap-y-4 max-xl:grid-cols-1">
        {found.map((name) => {
          const having = shown.filter(({ index }) => runs[index]!.curves?.some((curve) => curve.name === name));
          const curves = having.map(({ run, index }) => ({ label: labelOf(run), ...lookAt(index), points: points[index]!.get(name) ?? NO_POINTS, markers: runs[index]!.markers }));
          const axis = look.axis === "time" ? "elapsed" : look.axis;
          return (
            <Watched key={name} name={name} note={note}>
              <CurveChart name={name} level={2} {...look} whole={whole} axis={axis} curves={curves} onWindow={showWindow} onMoment={(atMs, curve) => showMoment(having[curve]!.run, atMs)} cursor={cursor} height={200} aside={<ValueTable name={name} axis={axis} curves={curves} window={look.window} />} />
            </Watched>
          );
        })}
      </div>
      {found.length === 0 && <p className="text-dim">{names.length === 0 ? "These runs have no metrics." : `No metric has “${search}” in its name.`}</p>}
      <Section title="Configs and last values" className="mt-8">
        <ComparisonTable pinned={pinned} runs={runs} />
      </Section>
    </>
  );
}

/** The runs with their lines; a run can be hidden in the charts, or removed from the comparison. */
function Legend({ pinned, hidden, onToggle }: { pinned: readonly PinnedRun[]; hidden: readonly string[]; onToggle: (key: string) => void }) {
  return (
    <ul aria-label="Runs" className="flex flex-wrap gap-x-5 gap-y-1">
      {pinned.map((run, index) => {
        const key = keyOf(run);
        const label = labelOf(run);
        const { colour, dash } = lookAt(index);
        return (
          <li key={key} className="flex items-center gap-2">
            <label className="flex items-center gap-2">
              <input type="checkbox" className="accent-accent" checked={!hidden.includes(key)} onChange={() => onToggle(key)} aria-label={`Show ${label}`} />
              <svg aria-hidden width="28" height="8"><line x1="0" y1="4" x2="28" y2="4" strokeWidth="2" stroke={`var(--color-${colour})`} strokeDasharray={dash.join(" ")} /></svg>
            </label>
            <a className="hover:underline" href={hrefTo(["tasks", run.task], { run: run.run })}>{label}</a>
            <button type="button" className="text-faint hover:text-text" aria-label={`Remove ${label}`} onClick={() => change({ tasks: pinnedText(pinned.filter((each) => each !== run)) }, "push")}>✕</button>
          </li>
        );
      })}
    </ul>
  );
}

/** Which metrics have a chart; the choice is in the address. */
function MetricChoice({ names, chosen, onPin }: { names: readonly string[]; chosen: readonly string[]; onPin: (name: string) => void }) {
  return (
    <details className="relative">
      <summary className="control inline-flex items-center">{chosen.length} of {names.length} metrics</summary>
      <div className="absolute z-20 mt-1 max-h-80 min-w-48 overflow-auto rounded-sm border border-edge bg-rail p-2 shadow-lg">
        {names.map((name) => (
          <label key={name} className="flex items-center gap-2 py-0.5 whitespace-nowrap">
            <input type="checkbox" className="accent-accent" checked={chosen.includes(name)} onChange={() => onPin(name)} />
            {name}
          </label>
        ))}
        <Button className="mt-1" onClick={() => change({ metrics: "" })}>The first {FIRST}</Button>
      </div>
    </details>
  );
}
