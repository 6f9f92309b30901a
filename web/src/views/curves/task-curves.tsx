/** The curves of one task: a chart for each metric, the loss first. */
import { useMemo } from "react";
import type { Curve } from "../../api/timeline";
import type { Task } from "../../api/types";
import { inOrder, momentOf, NO_POINTS, xRange, type Marker, type Points } from "../../lib/curves";
import type { Span } from "../../lib/scale";
import { moveCursor, useCursor } from "../../state/cluster";
import { useCurvePoints, useCurves, useMarkers } from "../../state/curves";
import { hrefTo, useParam } from "../../state/url";
import { Button, Choice, Field } from "../../ui/controls";
import { CurveChart } from "../../ui/curve-chart";
import type { DrawnCurve } from "../../ui/curve-text";
import { Empty, Loading, TimelineError } from "../../ui/placeholders";
import { Section } from "../../ui/page";
import { hasEnded } from "../tasks/task-cells";
import { CurveControls, showWindow, useCurveLook, type CurveLook } from "./curve-controls";
import { compareHref } from "./pinned-runs";
import { useNoStepText } from "./step-age";
import { ValueTable } from "./value-table";
import { useVisibleCharts, Watched } from "./visible-charts";

/** So many charts are shown before "Show all". */
const FOLDED = 7;
const MAIN_PX = 240;

/** Shows the moment of a point in all views. */
const showMoment = (atMs: number) => moveCursor(atMs, "push");

export function TaskCurves({ task }: { task: Task }) {
  const cursor = useCursor();
  const running = cursor === null && !hasEnded(task);
  const { data, error, isPending } = useCurves(task.id, running);
  return (
    <Section title="Curves" className="mt-8">
      {error && !data ? <TimelineError error={error} /> : isPending ? <Loading /> : data && data.curves.length > 0 ? (
        <Charts task={task} curves={data.curves} axes={data.axes} undone={data.undone_steps} notes={data.notes} running={running} cursor={cursor} />
      ) : (
        <Empty title="No metric was logged" text="step.log(loss=loss) in the training script records one. It appears here within a second." />
      )}
    </Section>
  );
}

interface ChartsProps {
  task: Task;
  curves: readonly Curve[];
  axes: readonly CurveLook["axis"][];
  undone: number;
  notes: readonly string[];
  running: boolean;
  cursor: number | null;
}

function Charts({ task, curves, axes, undone, notes, running, cursor }: ChartsProps) {
  const look = useCurveLook();
  const [search, setSearch] = useParam("find");
  const [worker, setWorker] = useParam("worker");
  const [unfolded, setUnfolded] = useParam("charts");
  const [visible, note] = useVisibleCharts();
  const markers = useMarkers(task.id, running);
  const ordered = useMemo(() => inOrder(curves), [curves]);
  const found = ordered.filter(({ name }) => name.toLowerCase().includes(search.toLowerCase()));
  const shown = unfolded || search ? found : found.slice(0, FOLDED);
  const { points, error } = useCurvePoints({ task: task.id, wanted: visible, axis: look.axis, window: look.window, worker, live: running, undone });
  const noStep = useNoStepText(task, curves);
  const whole = useMemo(() => xRange([...points.values()]), [points]);
  return (
    <>
      <div className="mb-3 flex flex-wrap items-center gap-x-4 gap-y-2">
        <CurveControls look={look} axes={axes} />
        {task.worker_ids.length > 1 && <Choice label="Worker" value={worker} onChange={setWorker} options={[["", "all workers"], ...task.worker_ids.map((each) => [each, each] as const)]} />}
        <Field label="Find a metric" value={search} onChange={(event) => setSearch(event.target.value)} className="w-36" />
        <span className="ml-auto flex gap-4 text-s text-faint">
          <TimelineLink task={task.id} look={look} points={points} />
          <a className="hover:underline" href={compareHref([{ task: task.id, run: "" }])}>compare</a>
        </span>
      </div>
      {error && <TimelineError error={error} />}
      {noStep && <p className="mb-2 text-recovering">▲ {noStep}: the values above the charts are the last ones.</p>}
      <div className="grid grid-cols-3 gap-x-8 gap-y-4 max-xl:grid-cols-2 max-md:grid-cols-1">
        {shown.map((curve, index) => (
          <Watched key={curve.name} name={curve.name} note={note} className={index === 0 ? "col-span-full" : ""}>
            <OneCurve curve={curve} points={points.get(curve.name) ?? NO_POINTS} {...{ look, markers, cursor, whole }} stale={noStep !== ""} {...(index === 0 && { height: MAIN_PX })} />
          </Watched>
        ))}
      </div>
      {found.length === 0 && <p className="text-dim">No metric has “{search}” in its name.</p>}
      {found.length > FOLDED && !search && (
        <Button className="mt-3" aria-expanded={unfolded !== ""} onClick={() => setUnfolded(unfolded ? "" : "all")}>{unfolded ? "Show fewer" : `Show all ${found.length} charts`}</Button>
      )}
      {[...notes, ...(undone > 0 ? [`A recovery undid ${undone} ${undone === 1 ? "step" : "steps"}; the curves have the steps that the run kept.`] : [])].map((text) => <p key={text} className="mt-2 text-s text-faint">{text}</p>)}
    </>
  );
}

interface OneProps {
  curve: Curve;
  points: Points;
  look: CurveLook;
  whole: Span | null;
  markers: readonly Marker[];
  cursor: number | null;
  /** The task makes no step, so that the last values are not the present ones. */
  stale: boolean;
  height?: number;
}

function OneCurve({ curve, points, look, whole, markers, cursor, stale, height }: OneProps) {
  const drawn: DrawnCurve[] = useMemo(
    () => [{ label: "", colour: curve.source === "derived" ? "saving" : "accent", dash: [], points, markers }],
    [curve.source, points, markers],
  );
  return (
    <CurveChart
      name={curve.name}
      unit={curve.unit}
      curves={drawn}
      {...look}
      whole={whole}
      onWindow={showWindow}
      onMoment={showMoment}
      cursor={cursor}
      stale={stale}
      aside={<ValueTable name={curve.name} axis={look.axis} curves={drawn} window={look.window} />}
      {...(height !== undefined && { height })}
    />
  );
}

/** The same window on the timeline: what the workers did then. */
function TimelineLink({ task, look: { window }, points }: { task: string; look: CurveLook; points: ReadonlyMap<string, Points> }) {
  const first = [...points.values()].find(({ x }) => x.length > 0);
  const span = window ?? xRange(first ? [first] : []);
  if (!first || !span) return null;
  const [from, to] = [momentOf(first, span.from)!, momentOf(first, span.to)!];
  return <a className="hover:underline" href={hrefTo(["timeline"], { task, from: String(Math.floor(from)), to: String(Math.ceil(to) + 1) })}>on the timeline</a>;
}
