/** The hosts: slots, health and faults; charts of the chosen one. A host can be excluded, included, or declared lost. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, bodyOf } from "../../api/client";
import type { Host } from "../../api/types";
import { bytes, count, moment, UNRECORDED } from "../../lib/format";
import { useCluster, useTimeline } from "../../state/cluster";
import { useParam } from "../../state/url";
import { ActionError } from "../../ui/confirm";
import { Button } from "../../ui/controls";
import { Command } from "../../ui/copy";
import { TextField } from "../../ui/form";
import { Section } from "../../ui/page";
import { ErrorMessage } from "../../ui/placeholders";
import { Mark } from "../../ui/state-mark";
import { Table, type Column } from "../../ui/table";
import { HostCharts } from "./host-charts";
import { HostGpus } from "./host-gpus";
import { faultsOf, hottest, pressures } from "./host-health";

const COLUMNS: Column<Host>[] = [
  { name: "Host", width: "minmax(8rem, 1fr)", cell: (host) => <span title={host.hostname}>{host.id}</span>, by: (host) => host.id },
  { name: "State", width: "6rem", cell: (host) => <HostState host={host} /> },
  { name: "Slots used", width: "5.5rem", right: true, cell: (host) => (host.agent ? `${host.agent.slots_used} / ${host.usable_slots}` : "–"), by: (host) => host.agent?.slots ?? 0, help: "Used, and usable: without those of excluded GPUs" },
  { name: "Load", width: "5rem", right: true, cell: (host) => host.health?.load_1m?.toFixed(1) ?? "–", by: (host) => host.health?.load_1m ?? -1, help: "Processes that run or wait, mean over one minute" },
  { name: "Pressure", width: "13rem", right: true, cell: (host) => pressures(host), help: "Percent of the last minute short of CPU, memory, disk" },
  { name: "Memory free", width: "6.5rem", right: true, cell: (host) => bytes(host.health?.memory_available_bytes), by: (host) => host.health?.memory_available_bytes ?? -1 },
  { name: "Disk free", width: "5.5rem", right: true, cell: (host) => bytes(host.health?.disk_free_bytes), by: (host) => host.health?.disk_free_bytes ?? -1 },
  { name: "NIC errors", width: "5.5rem", right: true, cell: (host) => count(host.health?.nic_errors), by: (host) => host.health?.nic_errors ?? -1 },
  { name: "GPUs", width: "7rem", right: true, cell: (host) => hottest(host), by: (host) => host.health?.gpus.length ?? 0, help: "Number of GPUs and the highest temperature" },
  { name: "Measured", width: "8.5rem", cell: (host) => (host.measured_at === null ? UNRECORDED : <time>{moment(host.measured_at)}</time>), by: (host) => host.measured_at ?? 0 },
  { name: "Problems", width: "minmax(6rem, 2fr)", cell: (host) => <span className="text-dim" title={faultsOf(host)}>{faultsOf(host) || "–"}</span> },
];

function HostState({ host: { agent, excluded } }: { host: Host }) {
  if (excluded) return <Mark state="waiting" label="excluded" />;
  if (!agent) return <Mark state="idle" label="no agent" />;
  return <Mark state={agent.up ? "active" : "failed"} label={agent.up ? "up" : "lost"} />;
}

/** The hosts at the moment that is shown; null while they are being read. */
function useHosts(): { hosts: Host[] | null; error: Error | null } {
  const { cluster, cursor } = useCluster();
  const timeline = useTimeline();
  const { data, error } = useQuery({
    queryKey: ["hosts", cursor],
    queryFn: ({ signal }) => timeline.hosts(cursor ?? 0, signal),
    enabled: cursor !== null,
    staleTime: Infinity,
    retry: false,
  });
  if (cursor === null) return { hosts: [...(cluster?.hosts.values() ?? [])], error: null };
  return { hosts: data ?? null, error };
}

export function Hosts() {
  const { cursor } = useCluster();
  const { hosts, error } = useHosts();
  const [shown, setShown] = useParam("host", "");
  const [asked, setAsked] = useState<Asked | null>(null);
  const actions: Column<Host> = {
    name: "Action",
    width: "14rem",
    cell: (host) => (
      <span className="flex gap-2">
        <Button aria-label={`Charts of ${host.id}`} aria-pressed={shown === host.id} className="h-6!" onClick={() => setShown(shown === host.id ? "" : host.id)}>Charts</Button>
        {cursor === null && !host.excluded && <Button aria-label={`Exclude… ${host.id}`} className="h-6!" onClick={() => setAsked({ id: host.id, what: "exclude" })}>Exclude…</Button>}
        {cursor === null && host.excluded && <Button aria-label={`Include… ${host.id}`} className="h-6!" onClick={() => setAsked({ id: host.id, what: "include" })}>Include…</Button>}
        {cursor === null && host.agent?.up && <Button aria-label={`Declare lost… ${host.id}`} className="h-6!" onClick={() => setAsked({ id: host.id, what: "lost" })}>Lost…</Button>}
      </span>
    ),
  };
  if (error) return <Section title="Hosts"><ErrorMessage error={error} /></Section>;
  if (hosts === null) return <Section title="Hosts"><p className="text-faint">Reading the hosts of that moment.</p></Section>;
  const chosen = hosts.find((host) => host.id === shown);
  return (
    <Section title="Hosts" aside={`${count(hosts.length)}`}>
      {hosts.length === 0 && <p className="mb-2 text-faint">No host offers slots. Start an agent on each host:</p>}
      {hosts.length === 0 ? <Command text="strata agent --slots 4" /> : <Table label="Hosts" rows={hosts} columns={[...COLUMNS, actions]} keyOf={(host) => host.id} sort={{ column: "Host", down: false }} sortParam="hosts" />}
      {asked && <ChangeHost key={`${asked.what} ${asked.id}`} {...asked} close={() => setAsked(null)} />}
      {chosen && chosen.gpus.length > 0 && <HostGpus key={`GPUs ${chosen.id}`} host={chosen} />}
      {chosen && <HostCharts key={chosen.id} host={chosen} />}
    </Section>
  );
}

type Asked = { id: string; what: "exclude" | "include" | "lost" };

/** What each action asks, what it sends, and what its button says. */
const ACTIONS = {
  exclude: {
    text: (id: string) => `Exclude host ${id}? No worker is placed there until it is included again. Workers that run there go on.`,
    button: (id: string) => `Exclude ${id}`,
    placeholder: "its GPU 3 is replaced",
    needsReason: true,
    send: (host_id: string, reason: string) => bodyOf(api.POST("/api/hosts/{host_id}/exclude", { params: { path: { host_id } }, body: { reason } })),
  },
  include: {
    text: (id: string) => `Include host ${id} again? Workers are placed there from now on, and its earlier failures no longer count.`,
    button: (id: string) => `Include ${id}`,
    placeholder: "it was repaired",
    needsReason: false,
    send: (host_id: string, reason: string) => bodyOf(api.POST("/api/hosts/{host_id}/include", { params: { path: { host_id } }, body: { reason } })),
  },
  lost: {
    text: (id: string) => `Declare host ${id} lost? Its workers are declared lost too, and the tasks recover without them. Do this only when the host is down.`,
    button: (id: string) => `Declare ${id} lost`,
    placeholder: "the machine was switched off",
    needsReason: true,
    send: (agent_id: string, reason: string) => bodyOf(api.POST("/api/agents/{agent_id}/lost", { params: { path: { agent_id } }, body: { reason } })),
  },
};

function ChangeHost({ id, what, close }: Asked & { close: () => void }) {
  const [reason, setReason] = useState("");
  const action = ACTIONS[what];
  const change = useMutation<unknown, Error>({ mutationFn: () => action.send(id, reason.trim()), onSuccess: close });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    change.mutate();
  };
  return (
    <form onSubmit={submit} aria-label={action.button(id)} className="mt-4 flex max-w-2xl flex-col gap-2">
      <p>{action.text(id)}</p>
      <TextField label="Reason" value={reason} onChange={setReason} placeholder={action.placeholder} />
      <div className="flex flex-wrap items-center gap-2">
        <Button type="submit" tone={what === "include" ? undefined : "danger"} disabled={(action.needsReason && !reason.trim()) || change.isPending}>{action.button(id)}</Button>
        <Button onClick={close}>Cancel</Button>
        <ActionError error={change.error} />
      </div>
    </form>
  );
}
