/** The task that runs, or the newest one: is it learning, how fast, and what did it cost. */
import { useMemo } from "react";
import type { Curve } from "../../api/timeline";
import type { Task } from "../../api/types";
import { exact, inOrder, NO_POINTS } from "../../lib/curves";
import { count, duration, figure, percent, UNRECORDED } from "../../lib/format";
import { moveCursor, useCursor } from "../../state/cluster";
import { useCurvePoints, useCurves, useMarkers } from "../../state/curves";
import { hrefTo } from "../../state/url";
import { CurveChart } from "../../ui/curve-chart";
import { Fact } from "../../ui/controls";
import { Mark } from "../../ui/state-mark";
import { useNoStepText } from "../curves/step-age";
import { showWindow, useCurveLook } from "../curves/curve-controls";
import { useVisibleCharts, Watched } from "../curves/visible-charts";
import { useGoodput } from "../goodput/task-goodput";
import { money } from "../goodput/time-classes";
import { hasEnded, progressOf, statusOf } from "../tasks/task-cells";

const HEIGHT_PX = 190;
const RATES = ["steps/s", "samples/s", "tokens/s"];

/** The task that the overview shows: the newest that runs, else the newest that made a step, else the newest. */
export function shownTask(tasks: Iterable<Task>): Task | undefined {
  const rank = (task: Task) => (hasEnded(task) ? (task.committed_steps > 0 ? 1 : 2) : task.status === "queued" ? 1.5 : 0);
  return [...tasks].toSorted((a, b) => rank(a) - rank(b) || b.submitted_at - a.submitted_at)[0];
}

export function Learning({ tasks }: { tasks: ReadonlyMap<string, Task> }) {
  const task = useMemo(() => shownTask(tasks.values()), [tasks]);
  return task ? <TaskLearning task={task} key={task.id} /> : null;
}

function TaskLearning({ task }: { task: Task }) {
  const cursor = useCursor();
  const running = cursor === null && !hasEnded(task);
  const { data, error, isPending } = useCurves(task.id, running);
  const main = useMemo(() => (data ? inOrder(data.curves)[0] : undefined), [data]);
  const noStep = useNoStepText(task, data?.curves);
  return (
    <section aria-label="Learning" className="mb-8 grid grid-cols-[minmax(0,1fr)_21rem] gap-x-10 gap-y-4 max-xl:grid-cols-1">
      {main ? <MainCurve task={task} curve={main} running={running} undone={data?.undone_steps ?? 0} /> : (
        <p className="pt-8 text-s text-faint">{isPending ? "Loading…" : (error?.message ?? "No metric was logged: step.log(loss=loss) records one.")}</p>
      )}
      <dl className="grid grid-cols-2 content-start gap-x-6 gap-y-3">
        <Fact name="Task"><a className="font-medium hover:underline" href={hrefTo(["tasks", task.id])}>{task.id}</a></Fact>
        <Fact name="Status"><Mark state={task.status} label={statusOf(task)} />{noStep && <span className="ml-2 text-recovering">{noStep}</span>}</Fact>
        {main && <Fact name={`${main.name}, lowest`}>{exact(main.min)}</Fact>}
        <Fact name="Progress">{progressOf(task)}</Fact>
        {RATES.map((name) => data?.curves.find((each) => each.name === name)).filter((each) => each !== undefined).map((each) => (
          <Fact key={each.name} name={noStep ? `${each.name}, last` : each.name}><span className={noStep && "text-faint"}>{each.last !== null && each.last >= 1000 ? count(each.last) : figure(each.last)}</span></Fact>
        ))}
        <Cost task={task.id} running={running} />
      </dl>
    </section>
  );
}

/** What share of the workers' time was productive, what most of the rest was spent on, and what it cost. */
function Cost({ task, running }: { task: string; running: boolean }) {
  const { data, error } = useGoodput(task, running);
  if (!data) return error ? <Fact name="Goodput">{UNRECORDED}</Fact> : null;
  const worst = data.classes.filter(({ name }) => name !== "productive").toSorted((a, b) => b.seconds - a.seconds)[0];
  const costs = (cost: number | null | undefined) => (cost === null || cost === undefined ? UNRECORDED : money(data.currency, cost));
  return (
    <>
      <Fact name="Goodput">{data.total_s > 0 ? percent(data.goodput * 100) : UNRECORDED}</Fact>
      {worst && worst.seconds > 0 && <Fact name="Most time lost">{worst.label}, {duration(worst.seconds * 1000)}</Fact>}
      <Fact name="Cost">
        {data.price ? `${costs(data.cost)}, of it ${costs(data.lost_cost)} lost` : <a className="text-accent hover:underline" href={hrefTo(["goodput", task])}>set <code>price</code></a>}
      </Fact>
    </>
  );
}

function MainCurve({ task, curve, running, undone }: { task: Task; curve: Curve; running: boolean; undone: number }) {
  const look = useCurveLook();
  const cursor = useCursor();
  const [visible, note] = useVisibleCharts();
  const markers = useMarkers(task.id, running);
  const { points } = useCurvePoints({ task: task.id, wanted: visible, axis: look.axis, window: look.window, worker: "", live: running, undone });
  const shown = points.get(curve.name) ?? NO_POINTS;
  const curves = useMemo(() => [{ label: "", colour: "accent", dash: [], points: shown, markers }], [shown, markers]);
  return (
    <Watched name={curve.name} note={note}>
      <CurveChart name={curve.name} unit={curve.unit} level={2} curves={curves} {...look} onWindow={showWindow} onMoment={(atMs) => moveCursor(atMs, "push")} cursor={cursor} height={HEIGHT_PX} aside={<a className="text-faint hover:underline" href={hrefTo(["tasks", task.id])}>all curves</a>} />
    </Watched>
  );
}
