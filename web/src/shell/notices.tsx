/** Notices above every view: the connection, the clock, the version, the demo. */
import { apiAddress } from "../api/client";
import { duration, moment } from "../lib/format";
import { goLive, useCluster, useDemo, useLive } from "../state/cluster";
import { Button } from "../ui/controls";
import { Command } from "../ui/copy";

const SKEW_MS = 5000;

export function Notices() {
  const { connection, cluster, skewMs, outdated } = useLive();
  const { cursor, error } = useCluster();
  const demo = useDemo();
  return (
    <div>
      {connection.state === "disconnected" && (
        <Notice sign="✕" tone="text-failed" text={`Disconnected: ${connection.error.message}`}>
          <span className="text-dim">
            {cluster && `This page shows the state of ${moment(connection.since)}. `}
            Check that the coordinator runs and that {apiAddress()} is its address (VITE_API_URL). Reconnecting…
          </span>
          {connection.error.command && <Command text={connection.error.command} />}
        </Notice>
      )}
      {connection.state === "stale" && (
        <Notice sign="◐" tone="text-recovering" text="No data from the coordinator for 12 s">
          <span className="text-dim">This page shows the state of {moment(connection.since)}.</span>
        </Notice>
      )}
      {outdated && (
        <Notice sign="◐" tone="text-recovering" text={`The coordinator is now ${cluster?.coordinator?.version}`}>
          <span className="text-dim">This page was loaded from another version.</span>
          <Button onClick={() => location.reload()}>Reload</Button>
        </Notice>
      )}
      {Math.abs(skewMs) > SKEW_MS && connection.state === "live" && (
        <Notice
          sign="◐"
          tone="text-recovering"
          text={`This computer's clock is ${duration(Math.abs(skewMs))} ${skewMs > 0 ? "behind" : "ahead of"} the coordinator's`}
        >
          <span className="text-dim">Ages are measured with the coordinator's clock.</span>
        </Notice>
      )}
      {demo === "recorded" && (
        <Notice sign="◆" tone="text-saving" text="Demo: a recorded run of a simulated cluster; all figures are simulated">
          <Button onClick={goLive}>Leave the demo</Button>
        </Notice>
      )}
      {demo === "served" && (
        <Notice sign="◆" tone="text-saving" text="Demo: a simulated cluster; all figures are simulated">
          <span className="text-dim">For a real cluster:</span>
          <Command text="strata up" />
        </Notice>
      )}
      {cursor !== null && error && (
        <Notice sign="✕" tone="text-failed" text={`${moment(cursor)} cannot be shown: ${error.message}`} />
      )}
    </div>
  );
}

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
