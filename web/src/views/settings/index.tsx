/** Settings: the connection, the coordinator, hosts, and the preferences of this browser. */
import { useQuery } from "@tanstack/react-query";
import { api, apiAddress, bodyOf, curl } from "../../api/client";
import { live, type Connection } from "../../api/live";
import { age, count, duration, moment, UNRECORDED } from "../../lib/format";
import { openDemo } from "../../shell/demo";
import { CharacterKeysSwitch } from "../../shell/dialogs";
import { goLive, useCluster, useDemo, useLive, useNow } from "../../state/cluster";
import { setTheme, THEMES, useTheme, type Theme } from "../../state/theme";
import { Button, Fact, Segments } from "../../ui/controls";
import { Command, CopyButton } from "../../ui/copy";
import { ErrorMessage } from "../../ui/placeholders";
import { Mark } from "../../ui/state-mark";
import { Page, Scroll, Section } from "../../ui/page";
import { Hosts } from "./hosts";

export default function Settings() {
  const theme = useTheme();
  return (
    <Page title="Settings" aside={<Segments label="Theme" value={theme} onChange={(value) => setTheme(value as Theme)} options={THEMES.map((each) => [each, each] as const)} />}>
      <Scroll label="Settings">
        <div className="flex flex-col gap-8">
          <ConnectionFacts />
          <Hosts />
          <Values />
          <Shortcuts />
          <Demo />
        </div>
      </Scroll>
    </Page>
  );
}

const STATES: Record<Connection["state"], [state: string, text: string]> = {
  connecting: ["waiting", "connecting"],
  live: ["active", "live"],
  stale: ["waiting", "stale"],
  disconnected: ["failed", "disconnected"],
  locked: ["failed", "token required"],
};

function ConnectionFacts() {
  const { connection, skewMs } = useLive();
  const { cluster, cursor } = useCluster();
  const now = useNow();
  const status = cluster?.coordinator;
  // A past moment has only recorded values; an older coordinator sends an uptime of 0.
  const started = status && (cursor === null || status.uptime) ? status.started_at : null;
  const shown = (value: string | null | undefined) => (status ? value || UNRECORDED : "–");
  const [state, text] = STATES[connection.state];
  return (
    <Section title="Coordinator" aside={<Button onClick={live.open}>Reconnect</Button>}>
      <dl className="grid grid-cols-[repeat(auto-fill,minmax(10rem,1fr))] gap-x-6 gap-y-4">
        <Fact name="Connection"><Mark state={state} label={"since" in connection ? `${text}, ${age(connection.since, now - skewMs)}` : text} /></Fact>
        <Fact name="Mode">{shown(status?.mode)}</Fact>
        <Fact name="API">{apiAddress()}</Fact>
        <Fact name="Worker address">{shown(status?.address)}</Fact>
        <Fact name="Version">{shown(status?.version)}</Fact>
        <Fact name="Uptime">{status ? (started === null ? UNRECORDED : duration(now - started)) : "–"}</Fact>
        <Fact name="Started">{status ? (started === null ? UNRECORDED : moment(started)) : "–"}</Fact>
        <Fact name="Cluster">{status?.cluster ?? "–"}</Fact>
        <Fact name="Incarnation" word="incarnation">{count(status?.incarnation)}</Fact>
        <Fact name="Facts recorded" word="fact">{count(status?.position)}</Fact>
        <Fact name="Clock difference">{Math.abs(skewMs) < 1000 ? "less than 1 s" : `${duration(Math.abs(skewMs))} ${skewMs > 0 ? "ahead" : "behind"}`}</Fact>
      </dl>
    </Section>
  );
}

function Values() {
  const { data, error } = useQuery({
    queryKey: ["settings"],
    queryFn: ({ signal }) => bodyOf(api.GET("/api/settings", { signal })),
  });
  if (error) return <ErrorMessage error={error} />;
  if (!data) return null;
  const given = Object.entries(data.values).filter(([, value]) => value !== "" && value !== null);
  return (
    <Section title="Coordinator settings" aside={<CopyButton label="Copy as curl" text={() => curl("/settings")} />}>
      <dl className="mb-4 grid grid-cols-[repeat(auto-fill,minmax(10rem,1fr))] gap-x-6 gap-y-4">
        <Fact name="Storage">{data.storage}</Fact>
        <Fact name="Token">{data.token_needed ? "required" : "none: this machine only"}</Fact>
        <Fact name="Encryption">{data.encrypted ? "TLS" : "none"}</Fact>
      </dl>
      <dl className="columns-3 gap-10 text-s max-lg:columns-2 max-sm:columns-1">
        {given.map(([name, value]) => (
          <div key={name} className="flex justify-between gap-3 border-b border-line/60 py-1">
            <dt className="text-dim">{name}</dt>
            <dd className="truncate font-mono" title={String(value)}>{String(value)}</dd>
          </div>
        ))}
      </dl>
    </Section>
  );
}

function Shortcuts() {
  return (
    <Section title="Keyboard shortcuts">
      <div className="-mx-2"><CharacterKeysSwitch /></div>
      <p className="text-dim">Press ? for the list of shortcuts. Ctrl K and the arrow keys always work.</p>
    </Section>
  );
}

function Demo() {
  const demo = useDemo();
  const toggle = () => (demo === "recorded" ? goLive() : openDemo());
  return (
    <Section title="Demo">
      {demo === "served" ? (
        <p className="mb-2 text-dim">This is a demo: a simulated cluster behind the same API. For a real cluster:</p>
      ) : (
        <>
          <Button role="switch" aria-checked={demo === "recorded"} onClick={toggle}>
            {demo === "recorded" ? "Leave the demo" : "Play the demo"}
          </Button>
          <p className="my-2 text-dim">Plays a recorded run of a simulated cluster with faults in this page. For a simulated cluster that keeps running:</p>
        </>
      )}
      <Command text={demo === "served" ? "strata up" : "strata demo"} />
    </Section>
  );
}
