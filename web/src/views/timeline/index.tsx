/** Timeline: lanes with what each worker did, events with their causes, and a comparison of two moments. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import type { Lane } from "../../api/timeline";
import { pan, zoom, type Span } from "../../lib/scale";
import { MOMENT_KEY, moveCursor, useCluster, useCursor, useNow, useTimeline } from "../../state/cluster";
import { useKeys } from "../../state/keys";
import { useSpan } from "../../state/recorded-span";
import { change, useParam, usePlace } from "../../state/url";
import { Button, Choice } from "../../ui/controls";
import { ErrorMessage, Loading, TimelineError } from "../../ui/placeholders";
import { Page } from "../../ui/page";
import { Ask } from "./ask";
import { Compare } from "./compare";
import { EventDrawer } from "./event-drawer";
import { Events } from "./events";
import { LaneChart, LaneLegend } from "./lane-chart";
import { Player } from "./player";
import { RunChoice } from "./run-choice";
import { defaultSpan, lastActivity, loadedSpan, spanFrom } from "./visible-span";

const NO_LANES: readonly Lane[] = [];
const REFRESH_MS = 3000;
const PAN = 0.2;
const ZOOM = 1.5;

export default function Timeline() {
  const { span, error } = useSpan();
  if (span) return <TimelineView recorded={span} />;
  return (
    <Page title="Timeline">
      <div className="px-6">
        {error ? <TimelineError error={error} /> : <Loading />}
      </div>
    </Page>
  );
}

function TimelineView({ recorded }: { recorded: Span }) {
  const timeline = useTimeline();
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
    () => ({ from: recorded.from, to: cursor === null ? Math.max(recorded.to, now) : recorded.to }),
    [recorded.from, recorded.to, now, cursor],
  );
  const span = spanFrom(params.from, params.to) ?? defaultSpan(bounds, cursor, lastActivity(ends, bounds.to));
  const showSpan = (next: Span) => change({ from: String(Math.round(next.from)), to: String(Math.round(next.to)) });
  const loaded = loadedSpan(span);
  const live = loaded.to >= recorded.to - REFRESH_MS;
  const found = useQuery({
    queryKey: [MOMENT_KEY, "lanes", loaded.from, loaded.to, task, node],
    queryFn: ({ signal }) => timeline.lanes({ from_ms: loaded.from, to_ms: loaded.to, task, node, limit: 200 }, signal),
    placeholderData: keepPreviousData,
    refetchInterval: live && cursor === null ? REFRESH_MS : false,
    retry: false,
  });
  const middle = (span.from + span.to) / 2;
  useKeys({
    arrowleft: () => showSpan(pan(span, -PAN, bounds)),
    a: () => showSpan(pan(span, -PAN, bounds)),
    arrowright: () => showSpan(pan(span, PAN, bounds)),
    d: () => showSpan(pan(span, PAN, bounds)),
    arrowup: () => showSpan(zoom(span, 1 / ZOOM, cursor ?? middle, bounds)),
    w: () => showSpan(zoom(span, 1 / ZOOM, cursor ?? middle, bounds)),
    arrowdown: () => showSpan(zoom(span, ZOOM, cursor ?? middle, bounds)),
    s: () => showSpan(zoom(span, ZOOM, cursor ?? middle, bounds)),
  });
  const range = { from_ms: Math.floor(span.from), to_ms: Math.ceil(span.to) };
  const tasks = [...(cluster?.tasks.keys() ?? [])];
  const toggle = (name: string) => setPanel(panel === name ? "" : name);
  const aside = (
    <>
      <Player bounds={bounds} />
      <RunChoice />
      <Choice label="Task" value={task} onChange={setTask} options={[["", "any task"], ...tasks.map((each) => [each, each] as const)]} />
      <Button onClick={() => showSpan(zoom(span, 1 / ZOOM, middle, bounds))} aria-label="Zoom in" title="Zoom in (W)">+</Button>
      <Button onClick={() => showSpan(zoom(span, ZOOM, middle, bounds))} aria-label="Zoom out" title="Zoom out (S)">−</Button>
      <Button onClick={() => change({ from: "", to: "" })}>Latest</Button>
      <Button onClick={() => toggle("ask")} aria-pressed={panel === "ask"}>Ask why</Button>
      <Button onClick={() => toggle("compare")} aria-pressed={panel === "compare"}>Compare</Button>
      <a className="control inline-flex items-center" href={timeline.exportAddress("perfetto", range)} download="strata-trace.json" title="Open the file at ui.perfetto.dev">Perfetto</a>
      <a className="control inline-flex items-center" href={timeline.exportAddress("jsonl", range)} download="strata-events.jsonl">JSON</a>
      {node && <Button onClick={() => change({ node: "" })}>{node} ✕</Button>}
    </>
  );
  return (
    <Page title="Timeline" aside={aside}>
      <div className="relative flex min-h-0 flex-1">
        <div className="flex min-w-0 flex-1 flex-col">
          {found.error ? <div className="px-6"><ErrorMessage error={found.error} /></div> : (
            <LaneChart loading={found.isPending} lanes={found.data?.lanes ?? NO_LANES} span={span} bounds={bounds} now={bounds.to} cursor={cursor} chosen={event} onSpan={showSpan} onEvent={setEvent} onMoment={(at) => moveCursor(at)} />
          )}
          <LaneLegend truncated={found.data?.truncated ?? false} exact={found.data?.fine ?? true} />
          <Events span={span} cursor={cursor} task={task} node={node} chosen={event} onEvent={setEvent} />
        </div>
        {event && <EventDrawer eventRef={event} key={event} close={() => setEvent("")} onEvent={setEvent} />}
        {!event && panel === "ask" && <Ask close={() => setPanel("")} onEvent={setEvent} />}
        {!event && panel === "compare" && <Compare bounds={bounds} close={() => setPanel("")} />}
      </div>
    </Page>
  );
}
