/** The dialogs that continue an ended task and fork a task: both show the step and the changes before they act. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, bodyOf } from "../../api/client";
import type { ForkTask, TaskDetail } from "../../api/types";
import { count } from "../../lib/format";
import { cut } from "../../lib/text";
import { go } from "../../state/url";
import { ActionError } from "../../ui/confirm";
import { Button } from "../../ui/controls";
import { AreaField, SelectField, TextField } from "../../ui/form";
import { focusFirstField, Modal } from "../../ui/modal";
import { ErrorMessage, Loading } from "../../ui/placeholders";
import { continueForm, continueRequest, WORKING_FOLDER, type ContinueErrors, type ContinueForm } from "./continue-form";
import { taskQuery } from "./task-query";

const MAX_STEPS = 1000;
const CONFIG_CHARS = 200;

export function ContinueDialog({ id, close }: { id: string; close: () => void }) {
  const { data, error } = useQuery(taskQuery(id));
  return (
    <Modal title={`Continue ${id}`} close={close}>
      {data ? <Form task={data} close={close} /> : error ? <ErrorMessage error={error} /> : <Loading />}
    </Modal>
  );
}

/** Without a `step` the newest checkpoint is chosen. */
export function ForkDialog({ id, step, close }: { id: string; step?: number; close: () => void }) {
  const task = useQuery(taskQuery(id));
  const saved = useQuery({
    queryKey: ["completed checkpoints", id],
    queryFn: ({ signal }) => bodyOf(api.GET("/api/checkpoints", { params: { query: { task_id: id, status: "completed", limit: MAX_STEPS } }, signal })),
  });
  const error = task.error ?? saved.error;
  const chosen = step === undefined ? [] : [step];
  const steps = saved.data && [...new Set([...chosen, ...saved.data.map((each) => each.step)])].toSorted((a, b) => b - a);
  return (
    <Modal title={`Fork ${id}`} close={close}>
      {task.data && steps ? <Form task={task.data} steps={steps} step={step} close={close} /> : error ? <ErrorMessage error={error} /> : <Loading />}
    </Modal>
  );
}

/** Continues the task, or forks it when there are `steps` to choose from. */
function Form({ task, steps, step, close }: { task: TaskDetail; steps?: readonly number[]; step?: number | undefined; close: () => void }) {
  const [form, setForm] = useState(() => continueForm(task, String(step ?? steps?.[0] ?? "")));
  const [errors, setErrors] = useState<ContinueErrors>({});
  const queries = useQueryClient();
  const send = (body: ForkTask) => {
    const params = { path: { task_id: task.id } };
    return steps ? bodyOf(api.POST("/api/tasks/{task_id}/fork", { params, body })) : bodyOf(api.POST("/api/tasks/{task_id}/continue", { params, body }));
  };
  const preview = useMutation({ mutationFn: (request: Omit<ForkTask, "dry_run">) => send({ ...request, dry_run: true }) });
  const start = useMutation({
    mutationFn: (request: Omit<ForkTask, "dry_run">) => send({ ...request, dry_run: false }),
    onSuccess: ({ task_id }) => {
      void queries.invalidateQueries({ queryKey: ["task", task.id] });
      close();
      go(["tasks", task_id]);
    },
  });
  const set = (change: Partial<ContinueForm>) => {
    setForm((before) => ({ ...before, ...change }));
    preview.reset();
    start.reset();
  };
  const onSubmit = (event: FormEvent) => {
    event.preventDefault();
    if (preview.data) return start.mutate(preview.variables);
    const made = continueRequest(form);
    setErrors("errors" in made ? made.errors : {});
    if ("request" in made) preview.mutate(made.request);
  };
  return (
    <form ref={focusFirstField} onSubmit={onSubmit} className="flex flex-col gap-4 p-2">
      <Fields {...{ form, set, errors, task, steps }} />
      {preview.data && <Preview {...preview.data} parent={steps && task.id} />}
      <ActionError error={preview.error ?? start.error} />
      <div className="flex flex-wrap items-center gap-2">
        <Button type="submit" tone="main" disabled={preview.isPending || start.isPending}>
          {!preview.data ? "Preview" : `${steps ? "Fork at" : "Continue from"} step ${count(preview.data.step)}`}
        </Button>
        <Button onClick={close}>Cancel</Button>
      </div>
    </form>
  );
}

function Fields({ form, set, errors, task, steps }: {
  form: ContinueForm;
  set: (change: Partial<ContinueForm>) => void;
  errors: ContinueErrors;
  task: TaskDetail;
  steps: readonly number[] | undefined;
}) {
  const { head, hidden } = cut(JSON.stringify(task.config), CONFIG_CHARS);
  return (
    <>
      {steps && (
        <div className="grid grid-cols-2 gap-4">
          <SelectField label="Checkpoint" value={form.step} onChange={(step) => set({ step })} options={steps.map((each) => [String(each), `step ${count(each)}`])} />
          <TextField label="Name" hint={`empty: ${task.name}`} value={form.name} onChange={(name) => set({ name })} />
        </div>
      )}
      <TextField label="Workers" type="number" error={errors.workers} value={form.workers} onChange={(workers) => set({ workers })} />
      <AreaField label="Config entries to change" hint={`a JSON object; other entries stay. Now: ${head}${hidden > 0 ? "…" : ""}`} error={errors.config} rows={3} value={form.config} onChange={(config) => set({ config })} />
      {task.env_names.map((name) => (
        <TextField
          key={name}
          label={`Value of ${name}`}
          hint={name === WORKING_FOLDER ? "the workers' folder; empty: the folder of the agent" : undefined}
          error={errors.env?.[name]}
          value={form.env[name] ?? ""}
          onChange={(value) => set({ env: { ...form.env, [name]: value } })}
        />
      ))}
    </>
  );
}

/** Where the task continues and what is different then; `parent` is the task of a fork. */
function Preview({ step, changes, parent }: {
  step: number;
  changes: readonly { name: string; before: string; after: string }[];
  parent: string | undefined;
}) {
  return (
    <div role="status" className="rounded-sm bg-hover px-3 py-2">
      <p className="font-medium">{parent ? `starts from step ${count(step)} of ${parent}` : `continues from step ${count(step)}`}</p>
      {changes.length === 0 && <p className="text-dim">with the same parameters</p>}
      <ul>
        {changes.map(({ name, before, after }) => (
          <li key={name} className="break-all"><span className="text-dim">{name}:</span> {before || "–"} → {after || "–"}</li>
        ))}
      </ul>
    </div>
  );
}
