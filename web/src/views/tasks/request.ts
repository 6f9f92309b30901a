/** The form of a task as text, and the request it makes. */
import type { CreateTask, TaskDetail } from "../../api/types";

/** A task that may start again from step 0 is submitted in the terminal only. */
export type Form = Record<Exclude<keyof CreateTask, "allow_fresh_start">, string>;

export const BLANK: Form = {
  name: "",
  type: "training",
  entry: "",
  args: "",
  dataset_id: "",
  worker_count: "1",
  min_workers: "0",
  spares: "0",
  model_state: "replicated",
  policy: "replace",
  max_restarts: "3",
  keep_count: "0",
  config: "{}",
  env: "",
};

/** A form filled in as a task was asked for; of its environment only the names are known. */
export function formOf(task: TaskDetail): Form {
  return {
    name: task.name,
    type: task.type,
    entry: task.entry,
    args: task.args.join("\n"),
    dataset_id: task.dataset_id,
    worker_count: String(task.worker_count),
    min_workers: String(task.min_workers),
    spares: String(task.spares),
    model_state: task.model_state,
    policy: task.policy,
    max_restarts: String(task.max_restarts),
    keep_count: String(task.keep_count),
    config: JSON.stringify(task.config, null, 2),
    env: task.env_names.map((name) => `${name}=`).join("\n"),
  };
}

export type Faults = Partial<Record<keyof Form, string>>;

const lines = (text: string) => text.split("\n").filter((line) => line.trim() !== "");

/** What the JSON of the config is, or what is wrong with it. */
export function parsedConfig(text: string): { config: Record<string, unknown> } | { fault: string } {
  try {
    const value: unknown = JSON.parse(text.trim() || "{}");
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? { config: value as Record<string, unknown> }
      : { fault: "one JSON object is expected: { … }" };
  } catch (error) {
    return { fault: error instanceof Error ? error.message : String(error) };
  }
}

/** The request, or what has to be mended first. Everything else the coordinator checks. */
export function requestOf(form: Form): { request: CreateTask } | { faults: Faults } {
  const faults: Faults = {};
  const config = parsedConfig(form.config);
  if ("fault" in config) faults.config = config.fault;
  if (form.name.trim() === "") faults.name = "a name is needed";
  const number = (field: "worker_count" | "min_workers" | "spares" | "max_restarts" | "keep_count") => {
    const value = Number(form[field]);
    if (form[field].trim() === "" || !Number.isInteger(value)) faults[field] = "a whole number";
    return value;
  };
  const env: Record<string, string> = {};
  for (const line of lines(form.env)) {
    const [name, ...rest] = line.split("=");
    if (!name || rest.length === 0) faults.env = `“${line}” is not NAME=VALUE`;
    else env[name.trim()] = rest.join("=");
  }
  const request = {
    name: form.name.trim(),
    type: form.type,
    entry: form.entry.trim(),
    args: lines(form.args),
    dataset_id: form.dataset_id,
    worker_count: number("worker_count"),
    min_workers: number("min_workers"),
    spares: number("spares"),
    model_state: form.model_state,
    policy: form.policy,
    max_restarts: number("max_restarts"),
    keep_count: number("keep_count"),
    config: "config" in config ? config.config : {},
    env,
  } as CreateTask;
  return Object.keys(faults).length > 0 ? { faults } : { request };
}
