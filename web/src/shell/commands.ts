/** Everything that the palette and the keys can do. */
import { live } from "../api/live";
import { goLive } from "../state/cluster";
import { setTheme, THEMES } from "../state/theme";
import { go } from "../state/url";
import { openDemo } from "./demo";
import type { Command } from "./matching";
import { VIEWS } from "./views";

/** Keys of the whole page, as the help shows them. */
export const KEYS: readonly (readonly [keys: string, text: string])[] = [
  ["Ctrl K", "find a view, task, worker or action"],
  ["/", "search in this view"],
  ["1 … 9", "go to a view"],
  ["L", "live"],
  ["?", "this help"],
  ["← → or A D", "timeline: earlier, later"],
  ["↑ ↓ or W S", "timeline: closer, wider"],
  [", .", "timeline: event before, after"],
  ["Space", "timeline: play, pause"],
  ["Esc", "close what is open"],
];

/** What the palette offers; names of tasks and workers are those that are known now. */
export function commands(): Command[] {
  const { cluster } = live.read();
  return [
    ...VIEWS.map(({ name, title }, index) => ({
      title,
      group: "View",
      keys: String(index + 1),
      run: () => go([name]),
    })),
    { title: "Live", group: "Time", keys: "L", run: goLive },
    { title: "Demo", group: "Action", run: openDemo },
    { title: "Submit a task", group: "Action", run: () => go(["tasks", "new"]) },
    { title: "Copy a link to this view", group: "Action", run: () => void navigator.clipboard?.writeText(location.href) },
    ...THEMES.map((theme) => ({ title: `Theme: ${theme}`, group: "Look", run: () => setTheme(theme) })),
    ...[...(cluster?.tasks.keys() ?? [])].map((id) => ({ title: id, group: "Task", run: () => go(["tasks", id]) })),
    ...[...(cluster?.workers.keys() ?? [])].map((id) => ({ title: id, group: "Worker", run: () => go(["workers", id]) })),
  ];
}
