/** The dialog that changes the number of workers of a running task. */
import { useMutation } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, bodyOf } from "../../api/client";
import type { ResizeAnswer, TaskDetail } from "../../api/types";
import { count, plural } from "../../lib/format";
import { ActionError } from "../../ui/confirm";
import { Button } from "../../ui/controls";
import { TextField } from "../../ui/form";
import { Modal } from "../../ui/modal";

export function ResizeDialog({ task, close }: { task: TaskDetail; close: () => void }) {
  const [workers, setWorkers] = useState(String(task.worker_count));
  const [minimum, setMinimum] = useState(task.elastic ? String(task.min_workers) : "0");
  const resize = useMutation({
    mutationFn: (body: { worker_count: number; min_workers: number }) =>
      bodyOf(api.POST("/api/tasks/{task_id}/resize", { params: { path: { task_id: task.id } }, body })),
  });
  const [worker_count, min_workers] = [Number(workers), Number(minimum)];
  const isValid = Number.isInteger(worker_count) && worker_count > 0 && Number.isInteger(min_workers) && min_workers >= 0;
  const onSubmit = (event: FormEvent) => {
    event.preventDefault();
    if (isValid) resize.mutate({ worker_count, min_workers });
  };
  return (
    <Modal title={`Resize ${task.id}`} close={close}>
      <form onSubmit={onSubmit} className="flex flex-col gap-4 p-2">
        <p className="text-dim">The workers change between two steps, without a restart. The samples of each step stay the same.</p>
        <div className="grid grid-cols-2 gap-4">
          <TextField label="Workers" type="number" value={workers} onChange={setWorkers} />
          <TextField label="Minimum workers" hint="0: exactly this number; else as many as slots are free" type="number" value={minimum} onChange={setMinimum} />
        </div>
        {resize.data && <p role="status" className="rounded-sm bg-hover px-3 py-2">{resizeText(resize.data)}</p>}
        <ActionError error={resize.error} />
        <div className="flex flex-wrap items-center gap-2">
          <Button type="submit" tone="main" disabled={!isValid || resize.isPending}>Resize</Button>
          <Button onClick={close}>{resize.data ? "Done" : "Cancel"}</Button>
        </div>
      </form>
    </Modal>
  );
}

/** The answer in words: "4 workers; 2 wait for a slot". */
function resizeText({ after, changed, waiting, waiting_for }: ResizeAnswer): string {
  const workers = changed ? plural(after, "worker") : `already ${plural(after, "worker")}`;
  const missing = waiting > 0 ? `; ${count(waiting)} ${waiting === 1 ? "waits" : "wait"} for a slot` : "";
  return `${workers}${missing}${waiting_for ? `: ${waiting_for}` : ""}`;
}
