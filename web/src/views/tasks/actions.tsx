/** The actions on a task; stopping is confirmed first. */
import { useMutation } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { post } from "../../api/client";
import type { Task, TaskDetail } from "../../api/types";
import { go } from "../../state/url";
import { ConfirmButton, Refused } from "../../ui/confirm";
import { Button } from "../../ui/controls";
import { TextField } from "../../ui/form";

const ENDED = new Set(["completed", "failed", "stopped"]);

export function Actions({ task, detail }: { task: Task; detail: TaskDetail | undefined }) {
  const path = `/tasks/${encodeURIComponent(task.id)}`;
  const stop = useMutation({ mutationFn: () => post(`${path}/stop`) });
  const save = useMutation({ mutationFn: () => post<{ request: number }>(`${path}/checkpoint`) });
  const running = !ENDED.has(task.status);
  return (
    <>
      <Refused error={stop.error ?? save.error} />
      {running && save.data && <span role="status" className="text-dim">requested; the workers save at their next step</span>}
      {running && <Button onClick={() => save.mutate()} disabled={save.isPending}>Checkpoint now</Button>}
      {running && <ConfirmButton label="Stop" confirm={`Stop ${task.id}: its workers save first`} pending={stop.isPending} onConfirm={() => stop.mutate()} />}
      {!running && detail && !detail.external && <Restart path={path} names={detail.env_names} />}
      <Button onClick={() => go(["tasks", "new"], { from: task.id })}>Submit again</Button>
    </>
  );
}

/** Starts an ended task once more. The values of its environment were not kept, so it asks for them. */
function Restart({ path, names }: { path: string; names: readonly string[] }) {
  const [env, setEnv] = useState<Record<string, string> | null>(null);
  const restart = useMutation({
    mutationFn: (given: Record<string, string>) => post<{ task_id: string }>(`${path}/restart`, { env: given }),
    onSuccess: ({ task_id }) => go(["tasks", task_id]),
  });
  const begin = () => (names.length === 0 ? restart.mutate({}) : setEnv(Object.fromEntries(names.map((name) => [name, ""]))));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (env) restart.mutate(env);
  };
  return (
    <>
      <Refused error={restart.error} />
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
