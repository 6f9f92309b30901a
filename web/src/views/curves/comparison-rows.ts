/** The table of a comparison: configs, parameters and final metrics of several runs, one row for each name. */
import type { Curve, CurveSettings } from "../../api/timeline";
import { exact, inOrder } from "../../lib/curves";
import { count, moment } from "../../lib/format";

/** What is known of one run; undefined while it is loaded. */
export interface Compared {
  settings: CurveSettings | undefined;
  curves: readonly Curve[] | undefined;
}

export interface Row {
  group: "Run" | "Config" | "Parameters" | "Last values";
  name: string;
  /** One text for each run; null where it is not recorded. */
  values: (string | null)[];
  differs: boolean;
}

const textOf = (value: unknown): string => (typeof value === "number" ? exact(value) : String(value));

function row(group: Row["group"], name: string, values: (string | null)[]): Row {
  return { group, name, values, differs: values.some((value) => value !== values[0]) };
}

/** All names of several objects, in the order in which they appear. */
const namesOf = (objects: readonly object[]) => [...new Set(objects.flatMap((each) => Object.keys(each)))];

function change({ changes }: CurveSettings, name: string): string {
  const texts = changes.filter((each) => each.name === name).map(({ step, before, after }) => `; ${before} until step ${count(step)}, then ${after}`);
  return texts.join("");
}

/** A final metric: its last value, with the lowest and the highest. */
function finalText(curve: Curve | undefined): string | null {
  if (!curve) return null;
  const last = curve.last === null ? "not finite" : exact(curve.last);
  return curve.min === null ? last : `${last} (min ${exact(curve.min)}, max ${exact(curve.max)})`;
}

/** The number of steps that are recorded; what was logged outside of steps does not count. */
function stepsOf(curves: readonly Curve[]): string | null {
  const last = curves.filter(({ source }) => source === "derived").map(({ last_step }) => last_step);
  return last.length > 0 ? count(Math.max(...last) + 1) : null;
}

export function comparisonRows(runs: readonly Compared[]): Row[] {
  const settings = runs.map((run) => run.settings);
  const known = settings.filter((each) => each !== undefined);
  const each = (text: (given: CurveSettings) => string | null) => settings.map((given) => (given ? text(given) : null));
  const configs = known.map(({ config, logged }) => ({ ...config, ...logged }));
  const metrics = inOrder(runs.flatMap(({ curves }) => curves ?? []));
  const curveOf = (run: Compared, name: string) => run.curves?.find((curve) => curve.name === name);
  return [
    row("Run", "name", each(({ name }) => name || null)),
    row("Run", "state", each(({ state }) => state || null)),
    row("Run", "submitted", each(({ submitted_ms }) => (submitted_ms === null ? null : moment(submitted_ms)))),
    row("Run", "fork of", each(({ parent, forked_step }) => (parent ? `${parent} at step ${count(forked_step)}` : "–"))),
    row("Run", "steps", runs.map(({ curves }) => stepsOf(curves ?? []))),
    ...namesOf(configs).map((name) => row("Config", name, each((given) => {
      const all = { ...given.config, ...given.logged };
      return name in all ? textOf(all[name]) + change(given, name) : "not set";
    }))),
    ...namesOf(known.map(({ parameters }) => parameters)).map((name) => row("Parameters", name, each((given) => {
      const value = given.parameters[name];
      return value === undefined ? null : value + change(given, name);
    }))),
    ...[...new Set(metrics.map(({ name }) => name))].map((name) => row("Last values", name, runs.map((run) => finalText(curveOf(run, name))))),
  ];
}
