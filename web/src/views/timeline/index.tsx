/** Timeline: lanes of what every worker did; any event with its causes; any two moments compared. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { exportAddress, lanes } from "../../api/timeline";
import { pan, zoom, type Span } from "../../lib/scale";
import { moveCursor, STATE, useCluster, useCursor, useNow } from "../../state/cluster";
import { useKeys } from "../../state/keys";
import { useSpan } from "../../state/span";
import { change, useParam, usePlace } from "../../state/url";
import { Button, Choice } from "../../ui/controls";
import { Fault, Loading, PastFault } from "../../ui/empty";
import { Page } from "../../ui/page";
import { Ask } from "./ask";
import { Compare } from "./compare";
import { EventDrawer } from "./drawer";
import { Events } from "./events";
import { LaneChart, LaneLegend } from "./lanes";
import { Player } from "./player";
import { RunChoice } from "./runs";
import { askedFor, chosen, lastWork, usual } from "./window";

const REFRESH_MS = 3000;
const PAN = 0.2;
const ZOOM = 1.5;

export default function Timeline() {
  const { span, error } = useSpan();
  if (span) return <Opened bounds={span} />;
  return (
    <Page title="Timeline">
      <div className="px-6">
        {error ? <PastFault error={error} /> : <Loading />}
      </div>
    </Page>
  );
}

function Opened({ bounds: known }: { bounds: Span }) {
  const cursor = useCursor();
  const now = useNow();
  const { params } = usePlace();
  const [task, setTask] = useParam("task");
  const [node] = useParam("node");
  const [panel, setPanel] = useParam("panel");
  const [event, setEvent] = useParam("event");
  const { cluster } = useCluster();
  const ends = [...(cluster?.tasks.values() ?? [])].map((each) => each.completed_at);
  const bounds = useMemo(
    () => ({ from: known.from, to: cursor === null ? Math.max(known.to, now) : known.to }),
    [known.from, known.to, now, cursor],
  );
  const span = chosen(params.from, params.to) ?? usual(bounds, cursor, lastWork(ends, bounds.to));
  const look = (next: Span) => change({ from: String(Math.round(next.from)), to: String(Math.round(next.to)) });
  const asked = askedFor(span);
  const live = asked.to >= known.to - REFRESH_MS;
  const found = useQuery({
    queryKey: [STATE, "lanes", asked.from, asked.to, task],
    queryFn: ({ signal }) => lanes({ from_ms: asked.from, to_ms: asked.to, task, limit: 200 }, signal),
    placeholderData: keepPreviousData,
    refetchInterval: live && cursor === null ? REFRESH_MS : false,
    retry: false,
  });
  const middle = (span.from + span.to) / 2;
  useKeys({
    arrowleft: () => look(pan(span, -PAN, bounds)),
    a: () => look(pan(span, -PAN, bounds)),
    arrowright: () => look(pan(span, PAN, bounds)),
    d: () => look(pan(span, PAN, bounds)),
    arrowup: () => look(zoom(span, 1 / ZOOM, cursor ?? middle, bounds)),
    w: () => look(zoom(span, 1 / ZOOM, cursor ?? middle, bounds)),
    arrowdown: () => look(zoom(span, ZOOM, cursor ?? middle, bounds)),
    s: () => look(zoom(span, ZOOM, cursor ?? middle, bounds)),
  });
  const shown = useMemo(
    () => (found.data?.lanes ?? []).filter((lane) => node === "" || lane.node === node),
    [found.data, node],
  );
  const range = { from_ms: Math.floor(span.from), to_ms: Math.ceil(span.to) };
  const tasks = [...(cluster?.tasks.keys() ?? [])];
  const toggle = (name: string) => setPanel(panel === name ? "" : name);
  const aside = (
    <>
      <Player bounds={bounds} />
      <RunChoice />
      <Choice label="Task" value={task} onChange={setTask} options={[["", "any task"], ...tasks.map((each) => [each, each] as const)]} />
      <Button onClick={() => look(zoom(span, 1 / ZOOM, middle, bounds))} aria-label="Zoom in" title="W">+</Button>
      <Button onClick={() => look(zoom(span, ZOOM, middle, bounds))} aria-label="Zoom out" title="S">−</Button>
      <Button onClick={() => change({ from: "", to: "" })}>Latest</Button>
      <Button onClick={() => toggle("ask")} aria-pressed={panel === "ask"}>Ask why</Button>
      <Button onClick={() => toggle("compare")} aria-pressed={panel === "compare"}>Compare</Button>
      <a className="control inline-flex items-center" href={exportAddress("perfetto", range)} download="strata-trace.json" title="Open the file at ui.perfetto.dev">Perfetto</a>
      <a className="control inline-flex items-center" href={exportAddress("jsonl", range)} download="strata-events.jsonl">JSON</a>
      {node && <Button onClick={() => change({ node: "" })}>{node} ✕</Button>}
    </>
  );
  return (
    <Page title="Timeline" aside={aside}>
      <div className="relative flex min-h-0 flex-1">
        <div className="flex min-w-0 flex-1 flex-col">
          {found.error ? <div className="px-6"><Fault error={found.error} /></div> : (
            <LaneChart loading={found.isPending} lanes={shown} span={span} bounds={bounds} now={bounds.to} cursor={cursor} chosen={event} onSpan={look} onEvent={setEvent} onMoment={(at) => moveCursor(at)} />
          )}
          <LaneLegend truncated={found.data?.truncated ?? false} />
          <Events span={span} cursor={cursor} task={task} node={node} chosen={event} onEvent={setEvent} />
        </div>
        {event && <EventDrawer eventRef={event} key={event} close={() => setEvent("")} onEvent={setEvent} />}
        {!event && panel === "ask" && <Ask close={() => setPanel("")} onEvent={setEvent} />}
        {!event && panel === "compare" && <Compare bounds={bounds} close={() => setPanel("")} />}
      </div>
    </Page>
  );
}
