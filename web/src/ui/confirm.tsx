/** Confirmation of an action that cannot be undone, and the error of an action. */
import { useState, type ReactNode } from "react";
import { ApiError } from "../api/client";
import { Button } from "./controls";

/** A button that asks for confirmation by a second button. */
export function ConfirmButton({ label, confirm, pending, onConfirm }: {
  label: string;
  /** Text of the second button: the action, its object and its consequence. */
  confirm: string;
  pending: boolean;
  onConfirm: () => void;
}) {
  const [asking, setAsking] = useState(false);
  if (!asking) return <Button tone="danger" disabled={pending} onClick={() => setAsking(true)}>{label}</Button>;
  return (
    <>
      <Button
        tone="danger"
        disabled={pending}
        className="h-auto! min-h-7 py-0.5 text-left whitespace-normal!"
        onClick={() => {
          setAsking(false);
          onConfirm();
        }}
      >
        {confirm}
      </Button>
      <Button onClick={() => setAsking(false)}>Cancel</Button>
    </>
  );
}

/** The error of an action and its hint; nothing while there is none. */
export function ActionError({ error }: { error: Error | null }): ReactNode {
  if (!error) return null;
  const hint = error instanceof ApiError ? error.hint : "";
  return (
    <span role="alert" className="text-failed">
      {error.message}
      {hint && <span className="text-dim"> ({hint})</span>}
    </span>
  );
}
