/** The fields of the task form as text, and the request made from them. */
import type { CreateTask, TaskDetail } from "../../api/types";
import { variablesOf } from "../../ui/form";

/** Every field as text; a switch is "yes" or empty. */
export type Form = Record<keyof CreateTask, string>;

export const BLANK: Form = {
  name: "",
  type: "training",
  entry: "",
  args: "",
  dataset_id: "",
  worker_count: "1",
  min_workers: "0",
  elastic: "",
  spares: "0",
  model_state: "replicated",
  policy: "",
  max_restarts: "3",
  epochs: "0",
  max_steps: "0",
  keep_count: "0",
  keep_every: "0",
  keep_best: "",
  keep_best_count: "1",
  allow_fresh_start: "",
  config: "{}",
  env: "",
  priority: "0",
  after: "",
  preemptible: "",
  workdir: "",
  self_test: "",
};

/** The form filled in with the request of a task; the values of its environment are not stored. */
export function formOf(task: TaskDetail): Form {
  return {
    name: task.name,
    type: task.type,
    entry: task.entry,
    args: task.args.join("\n"),
    dataset_id: task.dataset_id,
    worker_count: String(task.worker_count),
    min_workers: String(task.min_workers),
    elastic: task.elastic ? "yes" : "",
    spares: String(task.spares),
    model_state: task.model_state,
    policy: task.policy,
    max_restarts: String(task.max_restarts),
    epochs: String(task.epochs),
    max_steps: String(task.max_steps),
    keep_count: String(task.keep_count),
    keep_every: String(task.keep_every),
    keep_best: task.keep_best,
    keep_best_count: String(task.keep_best_count),
    allow_fresh_start: "",
    config: JSON.stringify(task.config, null, 2),
    env: task.env_names.map((name) => `${name}=`).join("\n"),
    priority: String(task.priority),
    after: task.after.join(", "),
    preemptible: task.preemptible ? "yes" : "",
    workdir: task.workdir?.digest ?? "",
    self_test: task.self_test ? "yes" : "",
  };
}

type WholeNumber =
  | "worker_count"
  | "min_workers"
  | "spares"
  | "max_restarts"
  | "epochs"
  | "max_steps"
  | "keep_count"
  | "keep_every"
  | "keep_best_count"
  | "priority";

export type Errors = Partial<Record<keyof Form, string>>;

const lines = (text: string) => text.split("\n").filter((line) => line.trim() !== "");

/** The config as an object, or the error in its JSON. */
export function parsedConfig(text: string): { config: Record<string, unknown> } | { error: string } {
  try {
    const value: unknown = JSON.parse(text.trim() || "{}");
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? { config: value as Record<string, unknown> }
      : { error: "expected a JSON object: { … }" };
  } catch (failure) {
    return { error: failure instanceof Error ? failure.message : String(failure) };
  }
}

/** The request, or an error for each wrong field. The coordinator checks everything else. */
export function requestOf(form: Form): { request: CreateTask } | { errors: Errors } {
  const errors: Errors = {};
  const config = parsedConfig(form.config);
  if ("error" in config) errors.config = config.error;
  if (form.name.trim() === "") errors.name = "enter a name";
  const number = (field: WholeNumber) => {
    const value = Number(form[field]);
    if (form[field].trim() === "" || !Number.isInteger(value)) errors[field] = "enter a whole number";
    return value;
  };
  const env = variablesOf(form.env);
  if ("error" in env) errors.env = env.error;
  const request = {
    name: form.name.trim(),
    type: form.type,
    entry: form.entry.trim(),
    args: lines(form.args),
    dataset_id: form.dataset_id,
    worker_count: number("worker_count"),
    min_workers: number("min_workers"),
    elastic: form.elastic === "yes",
    spares: number("spares"),
    model_state: form.model_state,
    // Without a policy the coordinator chooses one, depending on whether it starts the workers.
    ...(form.policy && { policy: form.policy }),
    max_restarts: number("max_restarts"),
    epochs: number("epochs"),
    max_steps: number("max_steps"),
    keep_count: number("keep_count"),
    keep_every: number("keep_every"),
    keep_best: form.keep_best.trim(),
    keep_best_count: number("keep_best_count"),
    allow_fresh_start: form.allow_fresh_start === "yes",
    config: "config" in config ? config.config : {},
    env: "variables" in env ? env.variables : {},
    priority: number("priority"),
    after: form.after.split(",").map((each) => each.trim()).filter(Boolean),
    preemptible: form.preemptible === "yes",
    workdir: form.workdir.trim(),
    self_test: form.self_test === "yes",
  } as CreateTask;
  return Object.keys(errors).length > 0 ? { errors } : { request };
}
