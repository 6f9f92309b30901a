/** What may be done with a task. What cannot be undone is asked twice. */
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { post } from "../../api/client";
import type { Task } from "../../api/types";
import { go } from "../../state/url";
import { Button } from "../../ui/controls";

const ENDED = new Set(["completed", "failed", "stopped"]);

export function Actions({ task }: { task: Task }) {
  const [asking, setAsking] = useState(false);
  const path = `/tasks/${encodeURIComponent(task.id)}`;
  const stop = useMutation({ mutationFn: () => post(`${path}/stop`), onSettled: () => setAsking(false) });
  const save = useMutation({ mutationFn: () => post<{ request: number }>(`${path}/checkpoint`) });
  const fault = stop.error ?? save.error;
  const running = !ENDED.has(task.status);
  return (
    <>
      {fault && <span role="alert" className="text-failed">{fault.message}</span>}
      {save.data && <span role="status" className="text-dim">asked for, it saves at its next step</span>}
      {running && <Button onClick={() => save.mutate()} disabled={save.isPending}>Checkpoint now</Button>}
      {running && !asking && <Button tone="danger" onClick={() => setAsking(true)}>Stop</Button>}
      {running && asking && (
        <>
          <Button tone="danger" onClick={() => stop.mutate()} disabled={stop.isPending}>Stop {task.id}: its workers save first</Button>
          <Button onClick={() => setAsking(false)}>No</Button>
        </>
      )}
      <Button onClick={() => go(["tasks", "new"], { from: task.id })}>{running ? "Submit again" : "Restart"}</Button>
    </>
  );
}
