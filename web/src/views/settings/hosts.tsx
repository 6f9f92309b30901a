/** The hosts that offer slots. A host that is down can be declared lost. */
import { useMutation } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, bodyOf } from "../../api/client";
import type { Agent } from "../../api/types";
import { count, moment } from "../../lib/format";
import { useCluster } from "../../state/cluster";
import { ActionError } from "../../ui/confirm";
import { Button } from "../../ui/controls";
import { Command } from "../../ui/copy";
import { TextField } from "../../ui/form";
import { Mark } from "../../ui/state-mark";
import { Section } from "../../ui/page";
import { Table, type Column } from "../../ui/table";

const COLUMNS: Column<Agent>[] = [
  { name: "Host", width: "minmax(8rem, 1fr)", cell: (agent) => agent.id, by: (agent) => agent.id },
  { name: "Name", width: "minmax(8rem, 1fr)", cell: (agent) => agent.hostname, by: (agent) => agent.hostname },
  { name: "State", width: "6rem", cell: (agent) => <Mark state={agent.up ? "active" : "failed"} label={agent.up ? "up" : "lost"} /> },
  { name: "Slots used", width: "6rem", right: true, cell: (agent) => `${agent.slots_used} / ${agent.slots}`, by: (agent) => agent.slots },
  { name: "Registered", width: "9rem", cell: (agent) => <time>{moment(agent.registered_at)}</time>, by: (agent) => agent.registered_at },
  { name: "Reason", width: "minmax(6rem, 2fr)", cell: (agent) => <span className="text-dim" title={agent.reason}>{agent.reason || "–"}</span> },
];

export function Hosts() {
  const { cluster, cursor } = useCluster();
  const [chosen, setChosen] = useState("");
  const hosts = [...(cluster?.agents.values() ?? [])];
  const action: Column<Agent> = {
    name: "Action",
    width: "7.5rem",
    cell: (agent) => agent.up && <Button aria-label={`Declare lost… ${agent.id}`} className="h-6!" onClick={() => setChosen(agent.id)}>Declare lost…</Button>,
  };
  if (cursor !== null) return <Section title="Hosts"><p className="text-faint">Hosts are only shown live. The timeline has their events.</p></Section>;
  return (
    <Section title="Hosts" aside={`${count(hosts.length)}`}>
      {hosts.length === 0 && <p className="mb-2 text-faint">No host offers slots. Start an agent on each host:</p>}
      {hosts.length === 0 ? <Command text="strata agent --slots 4" /> : <Table label="Hosts" rows={hosts} columns={[...COLUMNS, action]} keyOf={(agent) => agent.id} sort={{ column: "Host", down: false }} />}
      {chosen && <DeclareLost key={chosen} id={chosen} close={() => setChosen("")} />}
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
