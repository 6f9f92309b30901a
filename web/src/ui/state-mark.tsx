/** States as a symbol with a colour, never a colour alone; and bars for shares. */

export interface Look {
  sign: string;
  colour: string;
  /** The text colour class, written out so that Tailwind finds it. */
  text: string;
}

const ACTIVE: Look = { sign: "●", colour: "active", text: "text-active" };
const IDLE: Look = { sign: "○", colour: "idle", text: "text-idle" };
const SAVING: Look = { sign: "◆", colour: "saving", text: "text-saving" };
const RECOVERING: Look = { sign: "◐", colour: "recovering", text: "text-recovering" };
const FAILED: Look = { sign: "✕", colour: "failed", text: "text-failed" };
const DONE: Look = { sign: "✓", colour: "active", text: "text-active" };
const ENDED: Look = { sign: "■", colour: "idle", text: "text-idle" };

/** The look of each state of the API; an unknown state looks idle. */
export const LOOKS: Record<string, Look> = {
  active: ACTIVE,
  idle: IDLE,
  checkpointing: SAVING,
  recovering: RECOVERING,
  failed: FAILED,
  queued: IDLE,
  starting: RECOVERING,
  running: ACTIVE,
  stopping: RECOVERING,
  stopped: ENDED,
  completed: DONE,
  in_progress: SAVING,
  waiting: RECOVERING,
  released: DONE,
  todo: IDLE,
  leased: ACTIVE,
  consumed: DONE,
  error: FAILED,
  warning: RECOVERING,
  warn: RECOVERING,
  info: { sign: "·", colour: "dim", text: "text-dim" },
  debug: { sign: "·", colour: "faint", text: "text-faint" },
  yes: DONE,
  no: FAILED,
  open: RECOVERING,
  unknown: IDLE,
};

export function lookOf(state: string): Look {
  return LOOKS[state] ?? IDLE;
}

/** A state with its symbol. */
export function Mark({ state, label }: { state: string; label?: string }) {
  const look = lookOf(state);
  return (
    <span className="inline-flex items-baseline gap-1.5 whitespace-nowrap">
      <span aria-hidden className={`${look.text} inline-block w-3 text-center text-s`}>
        {look.sign}
      </span>
      {label ?? state.replaceAll("_", " ")}
    </span>
  );
}

/** A bar for a share from 0 to 1, with its value as text. */
export function Meter({ share, label, state = "active" }: {
  share: number | null;
  label: string;
  state?: string;
}) {
  const width = share === null ? 0 : Math.min(Math.max(share, 0), 1) * 100;
  return (
    <span className="flex items-center gap-2">
      <span aria-hidden className="h-1 min-w-8 flex-1 overflow-hidden rounded-full bg-line">
        <span
          className="block h-full rounded-full"
          style={{ width: `${width}%`, background: `var(--color-${lookOf(state).colour})` }}
        />
      </span>
      <span className="min-w-10 shrink-0 text-right">{label}</span>
    </span>
  );
}
