/** Pins a checkpoint, so that it is not deleted, or releases it. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, bodyOf } from "../../api/client";
import type { Checkpoint } from "../../api/types";
import { ActionError, ConfirmButton } from "../../ui/confirm";
import { Button, Field } from "../../ui/controls";
import { isPinned } from "./kept";

const MAX_NOTE = 200;

/** `close` is called when the checkpoint was deleted because no other rule keeps it. */
export function Pin({ saved, close }: { saved: Checkpoint; close: () => void }) {
  const [note, setNote] = useState<string | null>(null);
  const queries = useQueryClient();
  const params = { path: { checkpoint_id: saved.id }, query: { task_id: saved.task_id } };
  const onSuccess = ({ kept_because }: { kept_because: string[] }) => {
    setNote(null);
    void queries.invalidateQueries({ queryKey: ["checkpoint"] });
    if (kept_because.length === 0) close();
  };
  const pin = useMutation({ mutationFn: (text: string) => bodyOf(api.POST("/api/checkpoints/{checkpoint_id}/pin", { params, body: { note: text } })), onSuccess });
  const unpin = useMutation({ mutationFn: () => bodyOf(api.DELETE("/api/checkpoints/{checkpoint_id}/pin", { params })), onSuccess });
  const onSubmit = (event: FormEvent) => {
    event.preventDefault();
    pin.mutate(note?.trim() ?? "");
  };
  const last = saved.kept_because?.length === 1;
  return (
    <>
      {isPinned(saved) ? (
        <ConfirmButton label="Unpin" confirm={`Unpin ${saved.id}: ${last ? "it is deleted, because no other rule keeps it" : "other rules still keep it"}`} pending={unpin.isPending} onConfirm={() => unpin.mutate()} />
      ) : note === null ? (
        <Button onClick={() => setNote("")}>Pin</Button>
      ) : (
        <form onSubmit={onSubmit} aria-label={`Pin ${saved.id}`} className="flex flex-wrap items-center gap-2">
          {/* The form was opened to type into it. */}
          {/* oxlint-disable-next-line jsx-a11y/no-autofocus */}
          <Field autoFocus label="Note (optional)" maxLength={MAX_NOTE} value={note} onChange={(event) => setNote(event.target.value)} />
          <Button type="submit" tone="main" disabled={pin.isPending}>Pin</Button>
          <Button onClick={() => setNote(null)}>Cancel</Button>
        </form>
      )}
      <ActionError error={pin.error ?? unpin.error} />
    </>
  );
}
