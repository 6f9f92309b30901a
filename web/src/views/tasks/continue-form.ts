/** The fields of the dialog that continues or forks a task, and the request made from them. */
import type { ForkTask, TaskDetail } from "../../api/types";
import { parsedConfig } from "./task-form";

export interface ContinueForm {
  workers: string;
  config: string;
  env: Readonly<Record<string, string>>;
  /** The step and the name of a fork; empty for a task that continues. */
  step: string;
  name: string;
}

/** Errors by field; those of environment variables by their names. */
export type ContinueErrors = Partial<Record<"workers" | "config", string>> & { env?: Record<string, string> };

/** The working directory of the workers; the agent's when it is empty. */
export const WORKING_FOLDER = "PWD";

export function continueForm(task: TaskDetail, step: string): ContinueForm {
  const env = Object.fromEntries(task.env_names.map((name) => [name, ""]));
  return { workers: String(task.worker_count), config: "{}", env, step, name: "" };
}

/** The request without `dry_run`, or an error for each wrong field. The coordinator checks everything else. */
export function continueRequest(form: ContinueForm): { request: Omit<ForkTask, "dry_run"> } | { errors: ContinueErrors } {
  const errors: ContinueErrors = {};
  const workers = Number(form.workers);
  if (!Number.isInteger(workers) || workers < 1) errors.workers = "enter a whole number, at least 1";
  const config = parsedConfig(form.config);
  if ("error" in config) errors.config = config.error;
  const empty = Object.keys(form.env).filter((name) => form.env[name] === "" && name !== WORKING_FOLDER);
  if (empty.length > 0) errors.env = Object.fromEntries(empty.map((name) => [name, "enter its value: values are not stored"]));
  if (Object.keys(errors).length > 0) return { errors };
  return {
    request: {
      worker_count: workers,
      config: "config" in config ? config.config : {},
      env: { ...form.env },
      ...(form.step && { step: Number(form.step) }),
      ...(form.name.trim() && { name: form.name.trim() }),
    },
  };
}
