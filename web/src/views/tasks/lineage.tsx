/** The lineage of tasks: forks under their parent, and how often a task was continued. */
import type { Task } from "../../api/types";
import { count } from "../../lib/format";
import { useCluster } from "../../state/cluster";
import { hrefTo } from "../../state/url";

/** A task with the number of its ancestors in the list; without it the list is not a tree. */
export type TaskInTree = Task & { depth?: number };

/** Each task with its forks after it, otherwise in the given order; a fork without its parent stays in place. */
export function forest(tasks: readonly Task[]): TaskInTree[] {
  const listed = new Set(tasks.map(({ id }) => id));
  const isRoot = ({ parent }: Task) => !parent || !listed.has(parent);
  const forks = new Map<string, Task[]>();
  for (const task of tasks) if (!isRoot(task)) forks.set(task.parent, [...(forks.get(task.parent) ?? []), task]);
  const found: TaskInTree[] = [];
  const open: TaskInTree[] = tasks.filter(isRoot).toReversed();
  for (let task = open.pop(); task; task = open.pop()) {
    const { id, depth = 0 } = task;
    found.push(task);
    open.push(...(forks.get(id) ?? []).map((fork) => ({ ...fork, depth: depth + 1 })).toReversed());
  }
  return found;
}

const INDENT_REM = 1;
const MAX_INDENTS = 6;

/** The name of a task in a list: a fork is below its parent with its step, or names its parent where the list is not a tree. */
export function Branch({ task }: { task: TaskInTree }) {
  const { id, parent, forked_at, depth = 0 } = task;
  if (!parent) return id;
  const origin = `fork of ${parent} at step ${count(forked_at)}`;
  return (
    <span title={origin} style={{ paddingLeft: `${Math.max(0, Math.min(depth, MAX_INDENTS) - 1) * INDENT_REM}rem` }}>
      <span aria-hidden className="mr-1.5 text-faint">↳</span>
      {id} <span aria-hidden className="text-s font-normal text-faint">{depth > 0 ? `at step ${count(forked_at)}` : origin}</span>
      <span className="sr-only">{origin}</span>
    </span>
  );
}

/** The parent of a task, its forks, and how often it was continued; nothing if it has none of them. */
export function Lineage({ task }: { task: Task }) {
  const { cluster } = useCluster();
  const forks = [...(cluster?.tasks.values() ?? [])].filter(({ parent }) => parent === task.id).toSorted((a, b) => a.forked_at - b.forked_at);
  const link = (id: string) => <a href={hrefTo(["tasks", id])} className="font-medium hover:underline">{id}</a>;
  if (!task.parent && !task.continuations && forks.length === 0) return null;
  return (
    <section aria-label="Lineage" className="mt-2 flex flex-wrap gap-x-6 gap-y-1">
      {task.parent && <p><span className="text-faint">Fork of </span>{link(task.parent)} at step {count(task.forked_at)}</p>}
      {task.continuations > 0 && <p><span className="text-faint">Continued </span>{task.continuations === 1 ? "once" : `${count(task.continuations)} times`}</p>}
      {forks.length > 0 && (
        <p>
          <span className="text-faint">{forks.length === 1 ? "Fork: " : "Forks: "}</span>
          {forks.map(({ id, forked_at }, index) => <span key={id}>{index > 0 && ", "}{link(id)} at step {count(forked_at)}</span>)}
        </p>
      )}
    </section>
  );
}
