/** The views: name, title, icon, and the code, which is loaded when the view is first opened. */
import { lazy, type ComponentType, type LazyExoticComponent } from "react";

export interface View {
  name: string;
  title: string;
  /** The SVG path of its icon, on a grid of 16. */
  icon: string;
  component: LazyExoticComponent<ComponentType>;
}

const view = (
  name: string,
  title: string,
  icon: string,
  load: () => Promise<{ default: ComponentType }>,
): View => ({ name, title, icon, component: lazy(load) });

export const VIEWS: readonly View[] = [
  view("overview", "Overview", "M2 13V8M6 13V3M10 13V6M14 13v-3", () => import("../views/overview")),
  view("workers", "Workers", "M2 2h5v5H2zM9 2h5v5H9zM2 9h5v5H2zM9 9h5v5H9z", () => import("../views/workers")),
  view("tasks", "Tasks", "M5 4h9M5 8h9M5 12h9M2 4h.01M2 8h.01M2 12h.01", () => import("../views/tasks")),
  view("data", "Data", "M2 4c0-1.3 2.7-2 6-2s6 .7 6 2-2.7 2-6 2-6-.7-6-2zM2 4v8c0 1.3 2.7 2 6 2s6-.7 6-2V4M2 8c0 1.3 2.7 2 6 2s6-.7 6-2", () => import("../views/data")),
  view("checkpoints", "Checkpoints", "M8 2l6 6-6 6-6-6z", () => import("../views/checkpoints")),
  view("barriers", "Barriers", "M2 3v10M14 3v10M5 8h6M9 6l2 2-2 2", () => import("../views/barriers")),
  view("logs", "Logs", "M3 4l3 3-3 3M8 12h5", () => import("../views/logs")),
  view("goodput", "Goodput", "M8 2a6 6 0 1 0 6 6H8zM10.5 2.5a6 6 0 0 1 3 3", () => import("../views/goodput")),
  view("timeline", "Timeline", "M2 4h6M5 8h8M3 12h5M10.5 12h3", () => import("../views/timeline")),
  view("compare", "Compare", "M2 13c4 0 4-9 12-9M2 8c5 0 6 4 12 4", () => import("../views/curves")),
  view("settings", "Settings", "M2 5h7M13 5h1M2 11h1M7 11h7M9 3v4M5 9v4", () => import("../views/settings")),
];

/** The key that goes to the view at a place in the list; the tenth has 0, those after it have none. */
export const keyOfView = (index: number): string => (index < 9 ? String(index + 1) : index === 9 ? "0" : "");

export function Icon({ path }: { path: string }) {
  return (
    <svg
      aria-hidden
      width="16"
      height="16"
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.5"
      strokeLinecap="round"
      strokeLinejoin="round"
      className="shrink-0"
    >
      <path d={path} />
    </svg>
  );
}
