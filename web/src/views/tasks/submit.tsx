/** The form that submits a task, empty or filled in with the request of an earlier task. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, bodyOf, curl } from "../../api/client";
import type { CreateTask } from "../../api/types";
import { useCluster } from "../../state/cluster";
import { go, hrefTo, usePlace } from "../../state/url";
import { Button } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { ActionError } from "../../ui/confirm";
import { ErrorMessage, Loading } from "../../ui/placeholders";
import { AreaField, CheckField, SelectField, TextField } from "../../ui/form";
import { Page, Scroll } from "../../ui/page";
import { BLANK, formOf, parsedConfig, requestOf, type Errors, type Form } from "./task-form";
import { taskQuery } from "./task-query";

const TYPES = ["training", "tuning", "evaluation", "data"] as const;
const POLICIES = [["replace", "replace the worker"], ["continue", "continue with fewer workers"], ["stop", "stop the task"]] as const;
const MODEL_STATES = [["replicated", "replicated: whole on every worker"], ["sharded", "sharded: a part on each worker"]] as const;

export function SubmitPage() {
  const from = usePlace().params.from ?? "";
  const { data, error, isPending } = useQuery({ ...taskQuery(from), enabled: from !== "" });
  const title = (
    <>
      <a href={hrefTo(["tasks"])} className="font-normal text-dim hover:underline">Tasks</a>
      <span aria-hidden className="mx-2 font-normal text-faint">/</span>
      {from ? `Submit ${from} again` : "Submit"}
    </>
  );
  return (
    <Page title={title}>
      <Scroll label="Submit a task">
        {from && error ? <ErrorMessage error={error} /> : from && isPending ? <Loading /> : <TaskForm key={from} initial={data ? formOf(data) : BLANK} />}
      </Scroll>
    </Page>
  );
}

function TaskForm({ initial }: { initial: Form }) {
  const { cluster } = useCluster();
  const [form, setForm] = useState(initial);
  const [errors, setErrors] = useState<Errors>({});
  const set = (field: keyof Form) => (value: string) => setForm((before) => ({ ...before, [field]: value }));
  const submit = useMutation({
    mutationFn: (body: CreateTask) => bodyOf(api.POST("/api/tasks", { body })),
    onSuccess: ({ task_id }) => go(["tasks", task_id]),
  });
  const onSubmit = (event: FormEvent) => {
    event.preventDefault();
    const made = requestOf(form);
    setErrors("errors" in made ? made.errors : {});
    if ("request" in made) submit.mutate(made.request);
  };
  const text = (field: keyof Form, label: string, hint = "", props: { type?: string; placeholder?: string } = {}) => (
    <TextField {...{ label, hint, ...props }} error={errors[field]} value={form[field]} onChange={set(field)} />
  );
  const choice = (field: keyof Form, label: string, options: readonly (readonly [value: string, text: string])[]) => (
    <SelectField {...{ label, options }} value={form[field]} onChange={set(field)} />
  );
  const area = (field: keyof Form, label: string, hint: string, rows: number, error = errors[field]) => (
    <AreaField {...{ label, hint, rows, error }} value={form[field]} onChange={set(field)} />
  );
  const check = (field: keyof Form, label: string, hint: string) => (
    <CheckField {...{ label, hint }} checked={form[field] === "yes"} onChange={(checked) => set(field)(checked ? "yes" : "")} />
  );
  const config = parsedConfig(form.config);
  const datasets = [...new Set([...(cluster?.datasets.keys() ?? []), form.dataset_id])].filter(Boolean);
  return (
    <form onSubmit={onSubmit} className="grid max-w-4xl grid-cols-2 gap-x-10 gap-y-4 max-md:grid-cols-1">
      {text("name", "Name", "", { placeholder: "imagenet-resnet50" })}
      {text("entry", "Script or module", form.workdir ? "a path in the folder" : "the same path on every host; empty: you start the workers yourself", { placeholder: "train.py" })}
      {initial.workdir && text("workdir", "Folder", "digest of the folder that was sent; empty: the same path on every host")}
      <div className="grid grid-cols-3 gap-4">
        {text("worker_count", "Workers", "", { type: "number" })}
        {text("min_workers", "Minimum workers", "0: set by the loss policy", { type: "number" })}
        {text("spares", "Spare workers", "", { type: "number" })}
      </div>
      {choice("dataset_id", "Dataset", [["", "none"], ...datasets.map((each) => [each, each] as const)])}
      <div className="grid grid-cols-2 gap-4 max-sm:grid-cols-1">
        {choice("policy", "Loss policy", [["", `default: ${form.entry.trim() ? "replace the worker" : "continue with fewer workers"}`], ...POLICIES])}
        {choice("model_state", "State layout", MODEL_STATES)}
      </div>
      <div className="grid grid-cols-3 gap-4">
        {choice("type", "Type", TYPES.map((each) => [each, each] as const))}
        {text("max_restarts", "Maximum restarts", "", { type: "number" })}
        {text("keep_count", "Checkpoints kept", "0: the coordinator's keep_count", { type: "number" })}
      </div>
      <div className="grid grid-cols-3 gap-4">
        {text("keep_every", "Keep every", "steps; 0: none", { type: "number" })}
        {text("keep_best", "Keep best by", "a metric; max:NAME for the highest", { placeholder: "val_loss" })}
        {text("keep_best_count", "Best kept", "", { type: "number" })}
      </div>
      <div className="grid grid-cols-2 gap-4 max-sm:grid-cols-1">
        {text("epochs", "Epochs", "of run.epochs; 0: as in the script", { type: "number" })}
        {text("max_steps", "Steps", "of run.epochs; 0: as in the script", { type: "number" })}
      </div>
      {area("config", "Config", "a JSON object; the script reads it as run.config", 8, "error" in config ? config.error : undefined)}
      <div className="flex flex-col gap-4">
        {area("args", "Arguments", "one per line", 3)}
        {area("env", "Environment", "NAME=VALUE, one per line; only the workers get the values", 3)}
      </div>
      <div className="grid grid-cols-2 gap-4 max-sm:grid-cols-1">
        {text("priority", "Priority", "queued tasks with a higher one start first", { type: "number" })}
        {text("after", "After tasks", "ids, with commas between; starts when all have completed", { placeholder: "prepare-1" })}
      </div>
      <div className="flex flex-col gap-4">
        {check("elastic", "Elastic", "Starts with the minimum of workers, takes free slots up to Workers, and gives them back to queued tasks.")}
        {check("preemptible", "Preemptible", "May be stopped to make room for a task of higher priority. It saves first, and continues by itself.")}
        {check("self_test", "Self-test", "Tests each host, in at most 10 s, before a worker starts there. What fails is excluded.")}
        {check("allow_fresh_start", "Allow a fresh start", "Train from step 0 when no checkpoint can be restored. Otherwise the task fails.")}
      </div>
      <div className="col-span-full flex items-center gap-2">
        <Button type="submit" tone="main" disabled={submit.isPending}>Submit</Button>
        <CopyButton label="Copy as curl" text={() => curlOf(form)} />
        <ActionError error={submit.error} />
      </div>
    </form>
  );
}

function curlOf(form: Form): string {
  const made = requestOf(form);
  return "request" in made ? curl("/tasks", {}, made.request) : "# correct the form first";
}
