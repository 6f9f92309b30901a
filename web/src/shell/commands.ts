/** The commands of the palette, and the list of shortcuts for the help. */
import { live } from "../api/live";
import { goLive } from "../state/cluster";
import { setTheme, THEMES } from "../state/theme";
import { change, go } from "../state/url";
import { openDemo } from "./demo";
import type { Command } from "./command-search";
import { keyOfView, VIEWS } from "./views";

export const SHORTCUTS: readonly (readonly [keys: string, text: string])[] = [
  ["Ctrl K", "find a view, task, worker or action"],
  ["/", "search in this view"],
  ["1 … 9, 0", "go to a view"],
  ["L", "live"],
  ["?", "this help"],
  ["← → or A D", "timeline: earlier, later"],
  ["↑ ↓ or W S", "timeline: zoom in, zoom out"],
  [", .", "timeline: previous event, next event"],
  ["Space", "timeline: play, pause"],
  ["Esc", "close a panel or a dialog"],
];

/** All commands; tasks and workers are the ones known now. */
export function commands(): Command[] {
  const { cluster } = live.read();
  return [
    ...VIEWS.map(({ name, title }, index) => ({
      title,
      group: "View",
      keys: keyOfView(index),
      run: () => go([name]),
    })),
    { title: "Live", group: "Time", keys: "L", run: goLive },
    { title: "Demo", group: "Action", run: openDemo },
    { title: "Submit a task", group: "Action", run: () => go(["tasks", "new"]) },
    { title: "Copy a link to this view", group: "Action", run: () => void navigator.clipboard?.writeText(location.href) },
    { title: "Glossary", group: "Help", run: () => change({ glossary: "all" }, "push") },
    ...THEMES.map((theme) => ({ title: `Theme: ${theme}`, group: "Appearance", run: () => setTheme(theme) })),
    ...[...(cluster?.tasks.keys() ?? [])].map((id) => ({ title: id, group: "Task", run: () => go(["tasks", id]) })),
    ...[...(cluster?.workers.keys() ?? [])].map((id) => ({ title: id, group: "Worker", run: () => go(["workers", id]) })),
  ];
}
