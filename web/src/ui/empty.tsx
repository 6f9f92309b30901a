/** Nothing to show, or something went wrong: what it means, and the next command to run. */
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

export function Fault({ error, retry }: { error: unknown; retry?: () => void }) {
  const told = error instanceof ApiError ? error : null;
  const hint = told?.hint ?? "";
  const command = /^start it with: (strata .*)$/.exec(hint)?.[1];
  return (
    <div role="alert" className="flex max-w-xl flex-col items-start gap-2 py-8">
      <p className="font-medium">
        <span aria-hidden className="mr-2 text-failed">
          ✕
        </span>
        {error instanceof Error ? error.message : String(error)}
      </p>
      {command ? <Command text={command} /> : <p className="text-dim">{hint}</p>}
      {retry && <Button onClick={retry}>Try again</Button>}
    </div>
  );
}

/** The past cannot be read here: an older coordinator, or one without a timeline. */
function NoTimeline() {
  return (
    <Empty
      title="Timeline API unavailable"
      text="This coordinator has no timeline. Live figures and logs are not affected."
      command="strata events --follow"
    />
  );
}

/** Why a question about the past has no answer. */
export function PastFault({ error }: { error: unknown }) {
  return error instanceof ApiError && error.status === 404 ? <NoTimeline /> : <Fault error={error} />;
}

export function Loading() {
  return (
    <p role="status" className="py-8 text-faint">
      Loading…
    </p>
  );
}
