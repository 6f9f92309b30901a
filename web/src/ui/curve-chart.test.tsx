import { screen } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";
import { NO_POINTS, type Points } from "../lib/curves";
import { show } from "../testing/show";
import { CurveChart, type CurveChartProps } from "./curve-chart";
import { MarkerStrip } from "./marker-strip";

const LOSS: Points = {
  x: [0, 10, 20],
  mean: [2, null, 0.5],
  min: [1.5, 3, 0.5],
  max: [2.5, 9, 0.5],
  step: [0, 10, 20],
  time_ms: [1000, 2000, 3000],
  not_finite: [10],
};

function chart(given: Partial<CurveChartProps> = {}) {
  const acts = { onWindow: vi.fn(), onMoment: vi.fn() };
  const curves = [{ label: "", colour: "accent", dash: [], points: LOSS }];
  return { ...acts, ...show(<CurveChart name="loss" axis="step" curves={curves} window={null} smoothing={0} log={false} cursor={null} {...acts} {...given} />) };
}

const slider = () => screen.getByRole("slider");

describe("a chart of a curve", () => {
  it("has the last, lowest and highest value as text, of the band too", () => {
    chart();
    expect(slider().getAttribute("aria-label")).toBe("loss; last 0.5, lowest 0.5, highest 9, NaN or infinite at 1 point");
  });
  it("names values that the line cannot show instead of leaving them out", () => {
    chart();
    expect(screen.getByText(/NaN or infinite at/).textContent).toContain("step 10");
    chart({ log: true, curves: [{ label: "", colour: "accent", dash: [], points: { ...LOSS, mean: [-1, 0, 0.5], not_finite: [] } }] });
    expect(screen.getByText(/2 points are not above 0/)).toBeTruthy();
  });
  it("says of which run a value is that the line cannot show", () => {
    const other = { ...LOSS, not_finite: [] };
    chart({ curves: [{ label: "a", colour: "accent", dash: [], points: other }, { label: "b", colour: "saving", dash: [], points: LOSS }] });
    expect(screen.getByText(/NaN or infinite at/).closest("p")!.textContent).toMatch(/^b: /);
  });
  it("names the unit once where the name ends with it", () => {
    chart({ name: "step_s", unit: "s" });
    expect(screen.getByRole("heading", { name: "step_s" }).parentElement!.textContent).not.toMatch(/step_ss/);
    expect(slider().getAttribute("aria-label")).toMatch(/^step_s; /);
  });
  it("says that a window has no value", () => {
    chart({ curves: [{ label: "", colour: "accent", dash: [], points: NO_POINTS }] });
    expect(screen.getByText("no value in this window")).toBeTruthy();
  });
  it("is read with the arrow keys, and Enter shows the moment of the point", async () => {
    const { user, onMoment } = chart();
    await user.tab();
    expect(document.activeElement).toBe(slider());
    await user.keyboard("{ArrowLeft}{ArrowLeft}");
    expect(slider().getAttribute("aria-valuetext")).toMatch(/^step 0 · \d\d:\d\d:\d\d · 2 \(1.5 to 2.5\)$/);
    await user.keyboard("{Enter}");
    expect(onMoment).toHaveBeenCalledWith(1000, 0);
  });
  it("is zoomed with plus and minus around the point, and Home shows everything", async () => {
    const { user, onWindow } = chart({ window: { from: 0, to: 20 } });
    await user.tab();
    await user.keyboard("+");
    expect(onWindow).toHaveBeenLastCalledWith({ from: expect.closeTo(10 - 20 / 3, 6), to: expect.closeTo(10 + 20 / 3, 6) });
    await user.keyboard("-");
    expect(onWindow).toHaveBeenLastCalledWith({ from: -5, to: 25 });
    await user.keyboard("{Home}");
    expect(onWindow).toHaveBeenLastCalledWith(null);
  });
  it("reads each run of a comparison at its own nearest point", async () => {
    const other = { ...LOSS, x: [0, 19], mean: [7, 8], min: [7, 8], max: [7, 8], step: [0, 19], time_ms: [5000, 6000], not_finite: [] };
    const { user } = chart({ curves: [{ label: "a", colour: "accent", dash: [], points: LOSS }, { label: "b", colour: "active", dash: [8, 4], points: other }] });
    await user.tab();
    expect(slider().getAttribute("aria-valuetext")).toBe("step 20\na 0.5\nb 8");
  });
});

describe("markers above a chart", () => {
  const marker = (x: number, kind: string, text: string) => ({ x, curve: 0, marker: { at_ms: x * 1000, step: null, kind, text, ref: "" } });
  it("are one tab stop with a text each, and Enter shows the moment", async () => {
    const onMoment = vi.fn();
    const { user } = show(<MarkerStrip placed={[marker(1, "checkpoint", "saved"), marker(90, "lost", "w1 was lost")]} window={{ from: 0, to: 100 }} width={800} left={50} onMoment={onMoment} />);
    await user.tab();
    await user.keyboard("{ArrowRight}");
    expect(screen.getByRole("tooltip").textContent).toContain("w1 was lost");
    await user.keyboard("{Enter}");
    expect(onMoment).toHaveBeenCalledWith(90_000, 0);
    await user.tab();
    expect(document.activeElement).toBe(document.body);
  });
  it("have different signs, and the worst of a group stands for it", () => {
    show(<MarkerStrip placed={[marker(50, "checkpoint", "saved"), marker(50.1, "lost", "w1 was lost"), marker(10, "checkpoint", "earlier")]} window={{ from: 0, to: 100 }} width={400} left={0} onMoment={vi.fn()} />);
    expect(screen.getAllByRole("button").map((each) => each.textContent)).toEqual(["◆", "✕2"]);
    expect(screen.getByRole("button", { name: /saved; .*w1 was lost/ })).toBeTruthy();
  });
});
