/** The hosts: slots, health and faults; charts of the chosen one. A host that is down can be declared lost. */
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
import { faultsOf, hottest, pressures } from "./host-health";

const COLUMNS: Column<Host>[] = [
  { name: "Host", width: "minmax(8rem, 1fr)", cell: (host) => <span title={host.hostname}>{host.id}</span>, by: (host) => host.id },
  { name: "State", width: "6rem", cell: (host) => (host.agent ? <Mark state={host.agent.up ? "active" : "failed"} label={host.agent.up ? "up" : "lost"} /> : <Mark state="idle" label="no agent" />) },
  { name: "Slots used", width: "6rem", right: true, cell: (host) => (host.agent ? `${host.agent.slots_used} / ${host.agent.slots}` : "–"), by: (host) => host.agent?.slots ?? 0 },
  { name: "Load", width: "5rem", right: true, cell: (host) => host.health?.load_1m?.toFixed(1) ?? "–", by: (host) => host.health?.load_1m ?? -1, help: "Processes that run or wait, mean over one minute" },
  { name: "Pressure", width: "8rem", right: true, cell: (host) => pressures(host), help: "Percent of the last minute short of CPU, memory, disk" },
  { name: "Memory free", width: "6.5rem", right: true, cell: (host) => bytes(host.health?.memory_available_bytes), by: (host) => host.health?.memory_available_bytes ?? -1 },
  { name: "GPUs", width: "7rem", right: true, cell: (host) => hottest(host), by: (host) => host.health?.gpus.length ?? 0, help: "Number of GPUs and the highest temperature" },
  { name: "Measured", width: "8.5rem", cell: (host) => (host.measured_at === null ? UNRECORDED : <time>{moment(host.measured_at)}</time>), by: (host) => host.measured_at ?? 0 },
  { name: "Problems", width: "minmax(6rem, 2fr)", cell: (host) => <span className="text-dim" title={faultsOf(host)}>{faultsOf(host) || "–"}</span> },
];

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
  const [lost, setLost] = useState("");
  const actions: Column<Host> = {
    name: "Action",
    width: "15rem",
    cell: (host) => (
      <span className="flex gap-2">
        <Button aria-label={`Charts of ${host.id}`} aria-pressed={shown === host.id} className="h-6!" onClick={() => setShown(shown === host.id ? "" : host.id)}>Charts</Button>
        {cursor === null && host.agent?.up && <Button aria-label={`Declare lost… ${host.id}`} className="h-6!" onClick={() => setLost(host.id)}>Declare lost…</Button>}
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
      {lost && <DeclareLost key={lost} id={lost} close={() => setLost("")} />}
      {chosen && <HostCharts key={chosen.id} host={chosen} />}
    </Section>
  );
}

function DeclareLost({ id, close }: { id: string; close: () => void }) {
  const [reason, setReason] = useState("");
  const declare = useMutation({
    mutationFn: () => bodyOf(api.POST("/api/agents/{agent_id}/lost", { params: { path: { agent_id: id } }, body: { reason: reason.trim() } })),
    onSuccess: close,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    declare.mutate();
  };
  return (
    <form onSubmit={submit} aria-label={`Declare ${id} lost`} className="mt-4 flex max-w-2xl flex-col gap-2">
      <p>Declare host {id} lost? Its workers are declared lost too, and the tasks recover without them. Do this only when the host is down.</p>
      <TextField label="Reason" value={reason} onChange={setReason} placeholder="the machine was switched off" />
      <div className="flex flex-wrap items-center gap-2">
        <Button type="submit" tone="danger" disabled={!reason.trim() || declare.isPending}>Declare {id} lost</Button>
        <Button onClick={close}>Cancel</Button>
        <ActionError error={declare.error} />
      </div>
    </form>
  );
}
