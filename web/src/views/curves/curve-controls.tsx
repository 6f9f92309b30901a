/** How curves are shown: axis, smoothing, scale and window; all of it is in the address. */
import type { CurveAxis } from "../../api/timeline";
import { windowFrom, windowText } from "../../lib/curves";
import type { Span } from "../../lib/scale";
import { change, usePlace } from "../../state/url";
import { Button, Segments } from "../../ui/controls";

export interface CurveLook {
  axis: CurveAxis;
  smoothing: number;
  log: boolean;
  window: Span | null;
}

const AXES: readonly CurveAxis[] = ["step", "time", "samples", "tokens"];
const MOST = 0.99;

export function useCurveLook(): CurveLook {
  const { params } = usePlace();
  const smoothing = Number(params.smooth);
  return {
    axis: AXES.find((each) => each === params.x) ?? "step",
    smoothing: smoothing > 0 ? Math.min(smoothing, MOST) : 0,
    log: params.y === "log",
    window: windowFrom(params.zoom ?? ""),
  };
}

export const showWindow = (window: Span | null): void => change({ zoom: windowText(window) });

/** The controls of all charts of a page; only axes that are recorded are offered. */
export function CurveControls({ look, axes }: { look: CurveLook; axes: readonly CurveAxis[] }) {
  const offered = AXES.filter((each) => axes.includes(each) || each === look.axis);
  return (
    <>
      <Segments label="Horizontal axis" value={look.axis} options={offered.map((each) => [each, each])} onChange={(axis) => change({ x: axis === "step" ? "" : axis, zoom: "" })} />
      <label className="flex items-center gap-2 text-s text-dim">
        Smoothing
        <input type="range" min={0} max={MOST} step={0.01} value={look.smoothing} className="w-24 accent-accent" onChange={(event) => change({ smooth: Number(event.target.value) > 0 ? event.target.value : "" })} />
        <output className="w-7 tabular-nums">{look.smoothing.toFixed(2)}</output>
      </label>
      <Segments label="Vertical scale" value={look.log ? "log" : "linear"} options={[["linear", "linear"], ["log", "log"]]} onChange={(scale) => change({ y: scale === "log" ? "log" : "" })} />
      {look.window && <Button onClick={() => showWindow(null)} title="Double click in a chart does the same">Show all</Button>}
    </>
  );
}
