/** Layout, drawing and hit testing of the timeline's lanes. */
import type { Lane, LaneMark, LaneSpan } from "../api/timeline";
import type { Size } from "../lib/canvas";
import { clock } from "../lib/format";
import { ticks, toPixel, type Span } from "../lib/scale";

export const LANE_PX = 22;
export const IDLE_PX = 7;
export const AXIS_PX = 24;
export const LABEL_PX = 176;
const NARROW_PX = 480;
const NARROW_LABEL_PX = 96;

/** The width of the labels; smaller on a phone. */
export const labelWidth = ({ width }: Size) => (width < NARROW_PX ? NARROW_LABEL_PX : LABEL_PX);

const IDLE_KINDS = new Set(["idle"]);
const RARE = new Set(["recover", "lost"]);
const MIN_SPAN_PX = 1.5;
const TEXT_PX = 64;
const FONT = '11px "Inter", system-ui, sans-serif';

/** The colour of each kind of span; an unknown kind is drawn as waiting. */
export const KIND_COLOURS: Record<string, string> = {
  train: "active",
  data: "accent",
  barrier: "faint",
  checkpoint: "saving",
  recover: "recovering",
  wait: "edge",
  evaluate: "accent",
  idle: "line",
  lost: "failed",
};

export interface Row {
  lane: Lane;
  y: number;
  height: number;
}

/** Whether a lane only shows idle time. */
export function isIdle(lane: Lane, span: Span): boolean {
  const seen = lane.spans.some(
    ({ from_ms, to_ms, kind }) =>
      !IDLE_KINDS.has(kind) && from_ms < span.to && (to_ms ?? Infinity) > span.from,
  );
  return !seen && !lane.marks.some(({ at_ms }) => at_ms >= span.from && at_ms <= span.to);
}

/** The lane with its longest spans first, so that short spans are drawn over long ones. */
function layered(lane: Lane): Lane {
  const length = ({ from_ms, to_ms }: LaneSpan) => (to_ms ?? Infinity) - from_ms;
  return { ...lane, spans: lane.spans.toSorted((a, b) => length(b) - length(a)) };
}

/** The rows of the lanes from top to bottom; with `collapse`, idle lanes are thin. */
export function rowsOf(lanes: readonly Lane[], span: Span, collapse: boolean): Row[] {
  let y = AXIS_PX;
  return lanes.map((lane) => {
    const height = collapse && isIdle(lane, span) ? IDLE_PX : LANE_PX;
    const row = { lane: layered(lane), y, height };
    y += height;
    return row;
  });
}

export function heightOf(rows: readonly Row[]): number {
  const last = rows[rows.length - 1];
  return last ? last.y + last.height + 1 : AXIS_PX + LANE_PX;
}

export interface Scene {
  span: Span;
  /** Unfinished spans are drawn up to here. */
  now: number;
  cursor: number | null;
  chosen: string;
  inks: Record<string, string>;
}

/** The part of the canvas right of the labels. */
export const chartWidth = (size: Size) => Math.max(size.width - labelWidth(size), 1);

const pixelOf = (scene: Scene, size: Size, at: number) =>
  labelWidth(size) + toPixel(scene.span, chartWidth(size), at);

export function drawLanes(
  context: CanvasRenderingContext2D,
  size: Size,
  rows: readonly Row[],
  scene: Scene,
): void {
  context.clearRect(0, 0, size.width, size.height);
  context.font = FONT;
  drawAxis(context, size, scene);
  context.save();
  context.beginPath();
  context.rect(labelWidth(size), 0, chartWidth(size), size.height);
  context.clip();
  for (const row of rows) drawRow(context, size, row, scene);
  context.restore();
  for (const row of rows) drawLabel(context, size, row, scene);
  if (scene.cursor !== null) drawCursor(context, size, scene, scene.cursor);
}

function drawAxis(context: CanvasRenderingContext2D, size: Size, scene: Scene): void {
  const { step, at } = ticks(scene.span, chartWidth(size));
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (const each of at) {
    const x = Math.round(pixelOf(scene, size, each)) + 0.5;
    context.fillStyle = scene.inks.line!;
    context.fillRect(x, AXIS_PX - 4, 1, size.height - AXIS_PX + 4);
    context.fillStyle = scene.inks.faint!;
    const text = clock(each, step < 1000);
    if (x + 4 + context.measureText(text).width <= size.width) context.fillText(text, x + 4, AXIS_PX / 2);
  }
}

function drawRow(context: CanvasRenderingContext2D, size: Size, row: Row, scene: Scene): void {
  const thin = row.height === IDLE_PX;
  const [top, high] = thin ? [row.y + 2, row.height - 4] : [row.y + 3, row.height - 6];
  for (const each of row.lane.spans) {
    const end = each.to_ms ?? scene.now;
    if (end < scene.span.from || each.from_ms > scene.span.to) continue;
    const x = pixelOf(scene, size, each.from_ms);
    // Rare spans stay visible at any zoom; common ones blend into a shade.
    const exact = pixelOf(scene, size, end) - x;
    const width = RARE.has(each.kind) ? Math.max(exact, MIN_SPAN_PX) : exact;
    if (width >= 1) {
      context.fillStyle = scene.inks.page!;
      context.fillRect(x, top, width, high);
    }
    context.globalAlpha = each.kind === "train" ? 0.55 : 0.9;
    context.fillStyle = scene.inks[KIND_COLOURS[each.kind] ?? "edge"]!;
    context.fillRect(x, top, width > 3 ? width - 0.5 : width, high);
    context.globalAlpha = 1;
    if (each.ok === false) drawFailure(context, x, top, width, high, scene);
    if (scene.chosen !== "" && each.ref === scene.chosen) outline(context, x, top, width, high, scene);
    if (!thin && width >= TEXT_PX && hasRoomForText(row.lane, each, scene, size)) drawText(context, each, Math.max(x, labelWidth(size)), x + width, top + high / 2, scene);
  }
  for (const mark of row.lane.marks) drawMark(context, size, row, mark, scene);
}

/** Whether no shorter span covers the place of a span's text. */
function hasRoomForText(lane: Lane, span: LaneSpan, scene: Scene, size: Size): boolean {
  const from = Math.max(span.from_ms, scene.span.from);
  const room = ((scene.span.to - scene.span.from) / chartWidth(size)) * TEXT_PX;
  const longer = lane.spans.indexOf(span);
  return !lane.spans.some(
    (other, index) =>
      index > longer && other.from_ms < from + room && (other.to_ms ?? scene.now) > from,
  );
}

function drawFailure(context: CanvasRenderingContext2D, x: number, y: number, width: number, high: number, scene: Scene) {
  context.fillStyle = scene.inks.failed!;
  context.fillRect(x, y + high - 2, width, 2);
}

function outline(context: CanvasRenderingContext2D, x: number, y: number, width: number, high: number, scene: Scene) {
  context.strokeStyle = scene.inks.text!;
  context.lineWidth = 1.5;
  context.strokeRect(x - 0.5, y - 0.5, width + 1, high + 1);
}

function drawText(context: CanvasRenderingContext2D, span: LaneSpan, from: number, to: number, y: number, scene: Scene) {
  const text = span.count > 1 ? `${span.label} ×${span.count}` : span.label || span.kind;
  context.save();
  context.beginPath();
  context.rect(from, y - 10, to - from - 4, 20);
  context.clip();
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillStyle = span.kind === "idle" || span.kind === "wait" || span.kind === "train" ? scene.inks.text! : scene.inks.page!;
  context.fillText(text, from + 5, y + 0.5);
  context.restore();
}

function drawMark(context: CanvasRenderingContext2D, size: Size, row: Row, mark: LaneMark, scene: Scene) {
  const x = pixelOf(scene, size, mark.at_ms);
  const y = row.y + row.height / 2;
  const half = mark.ref === scene.chosen ? 6 : 4;
  context.fillStyle = /lost|failed|fenced|exited/i.test(mark.kind) ? scene.inks.failed! : scene.inks.text!;
  context.beginPath();
  context.moveTo(x, y - half);
  context.lineTo(x + half, y);
  context.lineTo(x, y + half);
  context.lineTo(x - half, y);
  context.fill();
}

function drawLabel(context: CanvasRenderingContext2D, size: Size, row: Row, scene: Scene): void {
  if (row.height === IDLE_PX) return;
  context.save();
  context.beginPath();
  context.rect(0, row.y, labelWidth(size) - 12, row.height);
  context.clip();
  context.textBaseline = "middle";
  context.textAlign = "left";
  const middle = row.y + row.height / 2;
  context.fillStyle = scene.inks.text!;
  context.fillText(row.lane.node, 0, middle);
  const after = context.measureText(row.lane.node).width + 8;
  context.fillStyle = scene.inks.faint!;
  context.fillText(row.lane.label, after, middle);
  context.restore();
}

function drawCursor(context: CanvasRenderingContext2D, size: Size, scene: Scene, at: number): void {
  if (at < scene.span.from || at > scene.span.to) return;
  context.fillStyle = scene.inks.accent!;
  context.fillRect(pixelOf(scene, size, at) - 0.75, 0, 1.5, size.height);
}

export interface End {
  node: string;
  at_ms: number;
}

/** Draws an arrow from a cause to its effect. */
export function drawArrow(
  context: CanvasRenderingContext2D,
  size: Size,
  rows: readonly Row[],
  scene: Scene,
  from: End,
  to: End,
): void {
  const [x1, y1] = placeOf(rows, scene, size, from);
  const [x2, y2] = placeOf(rows, scene, size, to);
  const bend = Math.max(Math.abs(x2 - x1) / 2, 24);
  context.strokeStyle = scene.inks.accent!;
  context.fillStyle = scene.inks.accent!;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x1, y1);
  context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2 - 5, y2);
  context.stroke();
  context.beginPath();
  context.moveTo(x2, y2);
  context.lineTo(x2 - 7, y2 - 4);
  context.lineTo(x2 - 7, y2 + 4);
  context.fill();
}

/** The place of an event; events without a lane, such as the coordinator's, are on the axis. */
export function placeOf(rows: readonly Row[], scene: Scene, size: Size, end: End): [x: number, y: number] {
  const row = rows.find(({ lane }) => lane.node === end.node);
  return [pixelOf(scene, size, end.at_ms), row ? row.y + row.height / 2 : AXIS_PX - 3];
}

export interface Hit {
  lane: Lane;
  ref: string;
  label: string;
  from_ms: number;
  to_ms: number | null;
}

const REACH_PX = 6;

/** The mark or else the shortest span at a point. */
export function hit(rows: readonly Row[], size: Size, scene: Scene, x: number, y: number): Hit | null {
  const row = rows.find((each) => y >= each.y && y < each.y + each.height);
  if (!row) return null;
  const { lane } = row;
  const mark = lane.marks.find(({ at_ms }) => Math.abs(pixelOf(scene, size, at_ms) - x) <= REACH_PX);
  if (mark) return { lane, ref: mark.ref, label: `${mark.kind}: ${mark.label}`, from_ms: mark.at_ms, to_ms: null };
  const under = lane.spans.filter(
    ({ from_ms, to_ms }) =>
      pixelOf(scene, size, from_ms) - 1 <= x && x <= pixelOf(scene, size, to_ms ?? scene.now) + 1,
  );
  const [best] = under.toSorted(
    (a, b) => (a.to_ms ?? scene.now) - a.from_ms - ((b.to_ms ?? scene.now) - b.from_ms),
  );
  return best ? { lane, ref: best.ref, label: `${best.kind}: ${best.label}`, from_ms: best.from_ms, to_ms: best.to_ms } : null;
}
