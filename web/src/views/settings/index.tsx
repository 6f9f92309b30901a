/** Settings: the connection, the coordinator, its hosts and settings, and how this page looks. */
import { useQuery } from "@tanstack/react-query";
import { BASE, curl, get } from "../../api/client";
import { live, type Connection } from "../../api/live";
import type { Agent, SettingsAnswer } from "../../api/types";
import { age, count, duration, moment } from "../../lib/format";
import { openDemo } from "../../shell/demo";
import { goLive, useCluster, useDemo, useLive, useNow } from "../../state/cluster";
import { setTheme, THEMES, useTheme, type Theme } from "../../state/theme";
import { Button, Fact, Segments } from "../../ui/controls";
import { Command, CopyButton } from "../../ui/copy";
import { Fault } from "../../ui/empty";
import { Mark } from "../../ui/marks";
import { Page, Scroll, Section } from "../../ui/page";
import { Table, type Column } from "../../ui/table";

export default function Settings() {
  const theme = useTheme();
  return (
    <Page title="Settings" aside={<Segments label="Theme" value={theme} onChange={(value) => setTheme(value as Theme)} options={THEMES.map((each) => [each, each] as const)} />}>
      <Scroll label="Settings">
        <div className="flex flex-col gap-8">
          <ConnectionFacts />
          <Hosts />
          <Values />
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
  gone: ["failed", "reconnecting"],
  locked: ["failed", "a token is needed"],
};

function ConnectionFacts() {
  const { connection, skewMs } = useLive();
  const { cluster } = useCluster();
  const now = useNow();
  const told = cluster?.coordinator;
  const [state, text] = STATES[connection.state];
  return (
    <Section title="Coordinator" aside={<Button onClick={live.open}>Connect anew</Button>}>
      <dl className="grid grid-cols-[repeat(auto-fill,minmax(10rem,1fr))] gap-x-6 gap-y-4">
        <Fact name="Connection"><Mark state={state} label={"since" in connection ? `${text}, ${age(connection.since, now - skewMs)}` : text} /></Fact>
        <Fact name="Mode">{told?.mode ?? "–"}</Fact>
        <Fact name="API">{BASE}</Fact>
        <Fact name="Workers find it at">{told?.address ?? "–"}</Fact>
        <Fact name="Version">{told?.version ?? "–"}</Fact>
        <Fact name="Up for">{told?.started_at ? duration(now - told.started_at) : "–"}</Fact>
        <Fact name="Started">{told?.started_at ? moment(told.started_at) : "–"}</Fact>
        <Fact name="Cluster">{told?.cluster ?? "–"}</Fact>
        <Fact name="Incarnation">{count(told?.incarnation)}</Fact>
        <Fact name="Facts recorded">{count(told?.position)}</Fact>
        <Fact name="Its clock">{Math.abs(skewMs) < 1000 ? "agrees" : `${duration(Math.abs(skewMs))} ${skewMs > 0 ? "ahead" : "behind"}`}</Fact>
      </dl>
    </Section>
  );
}

const HOSTS: Column<Agent>[] = [
  { name: "Host", width: "minmax(8rem, 1fr)", cell: (agent) => agent.id, by: (agent) => agent.id },
  { name: "Name", width: "minmax(8rem, 1fr)", cell: (agent) => agent.hostname, by: (agent) => agent.hostname },
  { name: "State", width: "8rem", cell: (agent) => <Mark state={agent.up ? "active" : "failed"} label={agent.up ? "up" : "out of reach"} /> },
  { name: "Slots used", width: "6rem", right: true, cell: (agent) => `${agent.slots_used} / ${agent.slots}`, by: (agent) => agent.slots },
  { name: "Since", width: "10rem", cell: (agent) => <time>{moment(agent.registered_at)}</time>, by: (agent) => agent.registered_at },
  { name: "Why", width: "minmax(8rem, 2fr)", cell: (agent) => <span className="text-dim">{agent.reason}</span> },
];

function Hosts() {
  const { cluster } = useCluster();
  const hosts = [...(cluster?.agents.values() ?? [])];
  return (
    <Section title="Hosts" aside={`${count(hosts.length)}`}>
      {hosts.length === 0 ? <Command text="strata agent --slots 4" /> : <Table label="Hosts" rows={hosts} columns={HOSTS} keyOf={(agent) => agent.id} sort={{ column: "Host", down: false }} />}
    </Section>
  );
}

function Values() {
  const { data, error } = useQuery({
    queryKey: ["settings"],
    queryFn: ({ signal }) => get<SettingsAnswer>("/settings", {}, signal),
  });
  if (error) return <Fault error={error} />;
  if (!data) return null;
  const given = Object.entries(data.values).filter(([, value]) => value !== "" && value !== null);
  return (
    <Section title="Settings of the coordinator" aside={<CopyButton label="Copy as curl" text={() => curl("/settings")} />}>
      <dl className="mb-4 grid grid-cols-[repeat(auto-fill,minmax(10rem,1fr))] gap-x-6 gap-y-4">
        <Fact name="Storage">{data.storage}</Fact>
        <Fact name="Token">{data.token_needed ? "needed" : "none: this machine only"}</Fact>
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

function Demo() {
  const demo = useDemo();
  const toggle = () => (demo === "recorded" ? goLive() : openDemo());
  return (
    <Section title="Demo">
      {demo === "served" ? (
        <p className="mb-2 text-dim">This is a demo: a simulated cluster behind the same API. For a real one:</p>
      ) : (
        <>
          <Button role="switch" aria-checked={demo === "recorded"} onClick={toggle}>
            {demo === "recorded" ? "Leave the demo" : "Play the demo"}
          </Button>
          <p className="my-2 text-dim">A recorded run of a simulated cluster with faults, in this page. One that goes on, behind the same API:</p>
        </>
      )}
      <Command text={demo === "served" ? "strata up" : "strata demo"} />
    </Section>
  );
}
