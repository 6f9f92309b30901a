/** A form for a new task, empty or filled in as an earlier one was asked for. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useId, useState, type FormEvent, type ReactNode } from "react";
import { curl, get, post } from "../../api/client";
import type { TaskDetail } from "../../api/types";
import { useCluster } from "../../state/cluster";
import { go, hrefTo, usePlace } from "../../state/url";
import { Button } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Fault, Loading } from "../../ui/empty";
import { Page, Scroll } from "../../ui/page";
import { BLANK, formOf, parsedConfig, requestOf, type Faults, type Form } from "./request";

const TYPES = ["training", "tuning", "evaluation", "data"] as const;
const POLICIES = [["replace", "replace it"], ["continue", "go on with fewer"], ["stop", "stop"]] as const;
const MODEL_STATES = [["replicated", "whole on every worker"], ["sharded", "in parts, one on each"]] as const;

export function SubmitPage() {
  const from = usePlace().params.from ?? "";
  const { data, error, isPending } = useQuery({
    queryKey: ["task", from],
    queryFn: ({ signal }) => get<TaskDetail>(`/tasks/${encodeURIComponent(from)}`, {}, signal),
    enabled: from !== "",
  });
  const title = (
    <>
      <a href={hrefTo(["tasks"])} className="font-normal text-dim hover:underline">Tasks</a>
      <span aria-hidden className="mx-2 font-normal text-faint">/</span>
      {from ? `Again as ${from}` : "Submit"}
    </>
  );
  return (
    <Page title={title}>
      <Scroll label="Submit a task">
        {from && error ? <Fault error={error} /> : from && isPending ? <Loading /> : <TaskForm key={from} initial={data ? formOf(data) : BLANK} />}
      </Scroll>
    </Page>
  );
}

function TaskForm({ initial }: { initial: Form }) {
  const { cluster } = useCluster();
  const [form, setForm] = useState(initial);
  const [faults, setFaults] = useState<Faults>({});
  const set = (field: keyof Form) => (value: string) => setForm((before) => ({ ...before, [field]: value }));
  const submit = useMutation({
    mutationFn: (body: unknown) => post<{ task_id: string }>("/tasks", body),
    onSuccess: ({ task_id }) => go(["tasks", task_id]),
  });
  const onSubmit = (event: FormEvent) => {
    event.preventDefault();
    const made = requestOf(form);
    setFaults("faults" in made ? made.faults : {});
    if ("request" in made) submit.mutate(made.request);
  };
  const text = (field: keyof Form, label: string, hint = "", props: { type?: string; placeholder?: string } = {}) => (
    <Labelled label={label} hint={hint} fault={faults[field]}>
      {(id) => <input id={id} className="control w-full" autoComplete="off" value={form[field]} onChange={(event) => set(field)(event.target.value)} {...props} />}
    </Labelled>
  );
  const choice = (field: keyof Form, label: string, options: readonly (readonly [value: string, text: string])[]) => (
    <Labelled label={label} hint="">
      {(id) => (
        <select id={id} className="control w-full" value={form[field]} onChange={(event) => set(field)(event.target.value)}>
          {options.map(([value, shown]) => <option key={value} value={value}>{shown}</option>)}
        </select>
      )}
    </Labelled>
  );
  const area = (field: keyof Form, label: string, hint: string, rows: number, fault = faults[field]) => (
    <Labelled label={label} hint={hint} fault={fault}>
      {(id) => <textarea id={id} spellCheck={false} rows={rows} className="control h-auto! w-full py-1.5 font-mono text-s!" value={form[field]} onChange={(event) => set(field)(event.target.value)} />}
    </Labelled>
  );
  const config = parsedConfig(form.config);
  const datasets = [...new Set([...(cluster?.datasets.keys() ?? []), form.dataset_id])].filter(Boolean);
  return (
    <form onSubmit={onSubmit} className="grid max-w-4xl grid-cols-2 gap-x-10 gap-y-4 max-md:grid-cols-1">
      {text("name", "Name", "", { placeholder: "imagenet-resnet50" })}
      {text("entry", "Script or module", "at the same place on every host; empty: workers are started elsewhere", { placeholder: "train.py" })}
      <div className="grid grid-cols-3 gap-4">
        {text("worker_count", "Workers", "", { type: "number" })}
        {text("min_workers", "At least", "0: as the policy says", { type: "number" })}
        {text("spares", "Spares", "", { type: "number" })}
      </div>
      {choice("dataset_id", "Dataset", [["", "none"], ...datasets.map((each) => [each, each] as const)])}
      <div className="grid grid-cols-2 gap-4">
        {choice("policy", "When a worker is lost", POLICIES)}
        {choice("model_state", "The model is", MODEL_STATES)}
      </div>
      <div className="grid grid-cols-3 gap-4">
        {choice("type", "Type", TYPES.map((each) => [each, each] as const))}
        {text("max_restarts", "Restarts", "", { type: "number" })}
        {text("keep_count", "Checkpoints kept", "0: as the coordinator is set", { type: "number" })}
      </div>
      {area("config", "Config", "one JSON object; the script reads it as run.config", 8, "fault" in config ? config.fault : undefined)}
      <div className="flex flex-col gap-4">
        {area("args", "Arguments", "one a line", 3)}
        {area("env", "Environment", "NAME=VALUE, one a line; values are told to the workers alone", 3)}
      </div>
      <div className="col-span-full flex items-center gap-2">
        <Button type="submit" tone="main" disabled={submit.isPending}>Submit</Button>
        <CopyButton label="Copy as curl" text={() => curlOf(form)} />
        {submit.error && <p role="alert" className="text-failed">{submit.error.message}</p>}
      </div>
    </form>
  );
}

function curlOf(form: Form): string {
  const made = requestOf(form);
  return "request" in made ? curl("/tasks", {}, made.request) : "# mend the form first";
}

function Labelled({ label, hint, fault, children }: {
  label: string;
  hint: string;
  fault?: string | undefined;
  children: (id: string) => ReactNode;
}) {
  const id = useId();
  return (
    <div className="min-w-0">
      <label htmlFor={id} className="mb-1 block text-s text-dim">{label}</label>
      {children(id)}
      {fault ? <p role="alert" className="mt-1 text-s text-failed">{fault}</p> : hint && <p className="mt-1 text-s text-faint">{hint}</p>}
    </div>
  );
}
