/** Actions that change something: those that cannot be undone are confirmed first. */
import { useState, type ReactNode } from "react";
import { ApiError } from "../api/client";
import { Button } from "./controls";

/** A button that is followed by the question whether it is meant. */
export function ConfirmButton({ label, confirm, pending, onConfirm }: {
  label: string;
  /** What the second button says: the action with its object and its consequence. */
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

/** What the coordinator answered to a request that it refused, and what to do next. */
export function Refused({ error }: { error: Error | null }): ReactNode {
  if (!error) return null;
  const hint = error instanceof ApiError ? error.hint : "";
  return (
    <span role="alert" className="text-failed">
      {error.message}
      {hint && <span className="text-dim"> ({hint})</span>}
    </span>
  );
}
