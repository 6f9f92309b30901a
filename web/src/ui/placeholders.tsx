/** Placeholders for a view without data: nothing there, loading, or an error with the next step. */
import { ApiError } from "../api/client";
import { Button } from "./controls";
import { Command } from "./copy";

export function Empty({ title, text, command }: {
  title: string;
  text?: string;
  command?: string;
}) {
  return (
    <div className="flex max-w-xl flex-col items-start gap-2 py-8">
      <p className="font-medium">{title}</p>
      {text && <p className="text-dim">{text}</p>}
      {command && <Command text={command} />}
    </div>
  );
}

export function ErrorMessage({ error, retry }: { error: unknown; retry?: () => void }) {
  const { hint = "", command = "" } = error instanceof ApiError ? error : {};
  return (
    <div role="alert" className="flex max-w-xl flex-col items-start gap-2 py-8">
      <p className="font-medium">
        <span aria-hidden className="mr-2 text-failed">
          ✕
        </span>
        {error instanceof Error ? error.message : String(error)}
      </p>
      {hint && <p className="text-dim">{hint}</p>}
      {command && <Command text={command} />}
      {retry && <Button onClick={retry}>Try again</Button>}
    </div>
  );
}

/** An error of the timeline API; a coordinator without one answers 404. */
export function TimelineError({ error }: { error: unknown }) {
  if (!(error instanceof ApiError && error.status === 404)) return <ErrorMessage error={error} />;
  return (
    <Empty
      title="Timeline API unavailable"
      text="This coordinator has no timeline. Live figures and logs are not affected."
      command="strata events --follow"
    />
  );
}

export function Loading() {
  return (
    <p role="status" className="py-8 text-faint">
      Loading…
    </p>
  );
}
