/** What everyone should know before reading on: one line each, above the view. */
import { duration, moment } from "../lib/format";
import { goLive, useCluster, useDemo, useLive } from "../state/cluster";
import { Button } from "../ui/controls";
import { Command } from "../ui/copy";

const SKEW_MS = 5000;

export function Notices() {
  const { connection, cluster, skewMs, outdated } = useLive();
  const { cursor, fault } = useCluster();
  const demo = useDemo();
  const gone = connection.state === "gone" ? connection : null;
  return (
    <div>
      {gone && (
        <Notice sign="✕" tone="text-failed" text={capital(gone.message)}>
          {cluster && <span className="text-dim">What is shown is from {moment(gone.since)}.</span>}
          <Command text={gone.hint.replace("start it with: ", "")} />
        </Notice>
      )}
      {connection.state === "stale" && (
        <Notice sign="◐" tone="text-recovering" text="The coordinator is slow to answer">
          <span className="text-dim">What is shown is from {moment(connection.since)}.</span>
        </Notice>
      )}
      {outdated && (
        <Notice sign="◐" tone="text-recovering" text={`The coordinator is now ${cluster?.coordinator?.version}`}>
          <span className="text-dim">This page was made for another version.</span>
          <Button onClick={() => location.reload()}>Reload</Button>
        </Notice>
      )}
      {Math.abs(skewMs) > SKEW_MS && connection.state === "live" && (
        <Notice
          sign="◐"
          tone="text-recovering"
          text={`This computer's clock is ${duration(Math.abs(skewMs))} ${skewMs > 0 ? "behind" : "ahead of"} the coordinator's`}
        >
          <span className="text-dim">Ages are by the coordinator's clock.</span>
        </Notice>
      )}
      {demo === "recorded" && (
        <Notice sign="◆" tone="text-saving" text="Demo: a recorded run of a simulated cluster, nothing here is real">
          <Button onClick={goLive}>Leave the demo</Button>
        </Notice>
      )}
      {demo === "served" && (
        <Notice sign="◆" tone="text-saving" text="Demo: a simulated cluster, nothing here is real">
          <Command text="strata up" />
        </Notice>
      )}
      {cursor !== null && fault && (
        <Notice sign="✕" tone="text-failed" text={`${moment(cursor)} cannot be shown: ${fault.message}`} />
      )}
    </div>
  );
}

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

function Notice({ sign, tone, text, children }: {
  sign: string;
  tone: string;
  text: string;
  children?: React.ReactNode;
}) {
  return (
    <div
      role="status"
      className="flex flex-wrap items-center gap-x-3 gap-y-1 border-b border-line bg-rail px-6 py-1.5 max-sm:px-4"
    >
      <span aria-hidden className={tone}>
        {sign}
      </span>
      <span className="font-medium">{text}</span>
      {children}
    </div>
  );
}
