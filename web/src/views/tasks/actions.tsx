/** The actions on a task; stopping is confirmed first. */
import { useMutation } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, bodyOf } from "../../api/client";
import type { Task, TaskDetail } from "../../api/types";
import { go } from "../../state/url";
import { ConfirmButton, ActionError } from "../../ui/confirm";
import { Button } from "../../ui/controls";
import { TextField } from "../../ui/form";
import { ContinueDialog, ForkDialog } from "./continue-dialog";
import { ResizeDialog } from "./resize-dialog";
import { hasEnded } from "./task-cells";

export function Actions({ task, detail }: { task: Task; detail: TaskDetail | undefined }) {
  const params = { path: { task_id: task.id } };
  const stop = useMutation({ mutationFn: () => bodyOf(api.POST("/api/tasks/{task_id}/stop", { params })) });
  const save = useMutation({ mutationFn: () => bodyOf(api.POST("/api/tasks/{task_id}/checkpoint", { params })) });
  const [open, setOpen] = useState<"continue" | "fork" | "resize" | null>(null);
  const running = !hasEnded(task);
  const close = () => setOpen(null);
  return (
    <>
      <ActionError error={stop.error ?? save.error} />
      {running && save.data && <span role="status" className="text-dim">requested; the workers save at their next step</span>}
      {running && <Button onClick={() => save.mutate()} disabled={save.isPending}>Checkpoint now</Button>}
      {task.status === "running" && detail && <Button onClick={() => setOpen("resize")}>Resize</Button>}
      {!running && <Button tone="main" onClick={() => setOpen("continue")}>Continue</Button>}
      {task.saved_step !== null && <Button onClick={() => setOpen("fork")}>Fork</Button>}
      {running && <ConfirmButton label="Stop" confirm={`Stop ${task.id}: its workers save first`} pending={stop.isPending} onConfirm={() => stop.mutate()} />}
      {!running && detail && !detail.external && <Restart id={task.id} names={detail.env_names} />}
      <Button onClick={() => go(["tasks", "new"], { from: task.id })}>Submit again</Button>
      {open === "continue" && <ContinueDialog id={task.id} close={close} />}
      {open === "fork" && <ForkDialog id={task.id} close={close} />}
      {open === "resize" && detail && <ResizeDialog task={detail} close={close} />}
    </>
  );
}

/** Starts an ended task again. The values of its environment are not stored, so the form asks for them. */
function Restart({ id, names }: { id: string; names: readonly string[] }) {
  const [env, setEnv] = useState<Record<string, string> | null>(null);
  const restart = useMutation({
    mutationFn: (values: Record<string, string>) => bodyOf(api.POST("/api/tasks/{task_id}/restart", { params: { path: { task_id: id } }, body: { env: values } })),
    onSuccess: ({ task_id }) => go(["tasks", task_id]),
  });
  const begin = () => (names.length === 0 ? restart.mutate({}) : setEnv(Object.fromEntries(names.map((name) => [name, ""]))));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (env) restart.mutate(env);
  };
  return (
    <>
      <ActionError error={restart.error} />
      {!env && <Button onClick={begin} disabled={restart.isPending}>Restart</Button>}
      {env && (
        <form onSubmit={submit} aria-label="Environment of the restarted task" className="flex flex-wrap items-end gap-2">
          {names.map((name) => (
            <TextField key={name} label={`Value of ${name}`} value={env[name] ?? ""} onChange={(value) => setEnv({ ...env, [name]: value })} />
          ))}
          <Button type="submit" tone="main" disabled={restart.isPending}>Restart</Button>
          <Button onClick={() => setEnv(null)}>Cancel</Button>
        </form>
      )}
    </>
  );
}
