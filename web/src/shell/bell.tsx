/** The bell: the number of open alerts, and a dialog that lists them, with the ended ones below. */
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api, bodyOf } from "../api/client";
import type { Alert } from "../api/types";
import { duration, moment } from "../lib/format";
import { visible } from "../lib/text";
import { momentText, useCluster } from "../state/cluster";
import { hrefTo } from "../state/url";
import { ActionError } from "../ui/confirm";
import { Button } from "../ui/controls";
import { Modal } from "../ui/modal";
import { subjectHref, subjectText } from "../ui/subject";
import { Age } from "../ui/time";
import { Icon } from "./views";

const BELL = "M4 11V7a4 4 0 0 1 8 0v4l1.5 1.5h-11zM6.5 14.5h3";
const SIGNS = { error: "✕", warning: "▲", info: "●" } as const;
const INKS = { error: "text-failed", warning: "text-recovering", info: "text-accent" } as const;

export function Bell() {
  const [shown, setShown] = useState(false);
  const { cluster } = useCluster();
  const alerts = cluster ? inOrder([...cluster.alerts.values()]) : [];
  const open = alerts.filter((each) => each.status === "open");
  const worst = open.some((each) => each.severity === "error") ? "text-failed" : "text-recovering";
  const count = cluster?.totals?.alerts ?? open.length;
  const label = count === 0 ? "Alerts: none open" : `Alerts: ${count} open`;
  return (
    <>
      <button
        type="button"
        className={`control relative inline-flex shrink-0 items-center gap-1.5 ${count ? worst : "text-dim!"}`}
        aria-label={label}
        aria-haspopup="dialog"
        title={label}
        onClick={() => setShown(true)}
      >
        <Icon path={BELL} />
        {count > 0 && <span className="font-medium">{count}</span>}
      </button>
      {shown && (
        <Modal title="Alerts" close={() => setShown(false)}>
          <AlertList alerts={alerts} leave={() => setShown(false)} />
        </Modal>
      )}
    </>
  );
}

/** Open alerts first, then the ended ones, each newest first. */
function inOrder(alerts: Alert[]): Alert[] {
  const place = (alert: Alert) => alert.resolved_at ?? alert.raised_at;
  return alerts.toSorted((a, b) => Number(a.status === "resolved") - Number(b.status === "resolved") || place(b) - place(a));
}

function AlertList({ alerts, leave }: { alerts: readonly Alert[]; leave: () => void }) {
  const open = alerts.filter((each) => each.status === "open");
  const ended = alerts.filter((each) => each.status === "resolved");
  return (
    <div className="px-2 pb-2">
      {open.length === 0 && <p className="py-2 text-dim">No alert is open.</p>}
      <ul aria-label="Open alerts">
        {open.map((each) => <Row key={each.id} alert={each} leave={leave} />)}
      </ul>
      {ended.length > 0 && (
        <>
          <h3 className="mt-4 mb-1 text-s text-faint">Ended</h3>
          <ul aria-label="Ended alerts">
            {ended.map((each) => <Row key={each.id} alert={each} leave={leave} />)}
          </ul>
        </>
      )}
      <TestMessage />
    </div>
  );
}

/** Sends a test message to every channel and shows what each did with it. */
function TestMessage() {
  const test = useMutation({ mutationFn: () => bodyOf(api.POST("/api/alerts/test")) });
  return (
    <div className="mt-4 flex flex-wrap items-baseline gap-x-3 gap-y-1">
      <Button onClick={() => test.mutate()} disabled={test.isPending}>Send a test message</Button>
      <div role="status" className="min-w-0 [overflow-wrap:anywhere]">
        {test.isPending && <span className="text-dim">Sending…</span>}
        <ActionError error={test.error} />
        {test.data?.map(({ channel, target, error }) => (
          <p key={channel} className={error ? "text-failed" : ""}>
            {channel} to {visible(target)}: {error ? visible(error) : "took the message"}
          </p>
        ))}
      </div>
    </div>
  );
}

function Row({ alert, leave }: { alert: Alert; leave: () => void }) {
  const ended = alert.resolved_at;
  const how = alert.expired ? "Expired" : "Resolved";
  const at = { t: momentText(ended ?? alert.last_at) };
  return (
    <li className="flex items-baseline gap-x-3 border-b border-line/60 py-2">
      <span aria-hidden className={`w-3 text-center ${ended ? (alert.expired ? "text-faint" : "text-active") : INKS[alert.severity]}`}>
        {ended ? (alert.expired ? "–" : "✓") : SIGNS[alert.severity]}
      </span>
      <div className="min-w-0 flex-1">
        <p className="[overflow-wrap:anywhere]">
          <span className="sr-only">{ended ? how.toLowerCase() : alert.severity}: </span>
          {visible(alert.text)}
        </p>
        {ended && <p className="text-dim [overflow-wrap:anywhere]">{how}: {visible(alert.resolution)}</p>}
        {alert.failed.length > 0 && (
          <p className="text-failed">Not delivered: {alert.failed.join(", ")}</p>
        )}
        <p className="flex flex-wrap gap-x-3 text-s text-faint">
          <span>{alert.id} · {alert.rule}</span>
          {ended ? (
            <span title={moment(alert.raised_at)}>
              <Age at={ended} ago />, open for {duration(ended - alert.raised_at)}
            </span>
          ) : (
            <Age at={alert.raised_at} ago />
          )}
          {alert.count > 1 && <span>{alert.count} times</span>}
          <a className="text-accent hover:underline" href={subjectHref(alert.subject, at.t)} onClick={leave}>{visible(subjectText(alert.subject))}</a>
          {alert.causes[0] && (
            <a className="text-accent hover:underline" href={hrefTo(["timeline"], { event: alert.causes[0], ...at })} onClick={leave}>Event that caused it</a>
          )}
          <a className="text-accent hover:underline" href={hrefTo(["timeline"], { event: alert.event, ...at })} onClick={leave}>Event of the alert</a>
        </p>
      </div>
    </li>
  );
}
