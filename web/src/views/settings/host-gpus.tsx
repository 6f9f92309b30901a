/** The GPUs of a host: which are excluded, and their faults. A GPU can be excluded or included alone. */
import { useMutation } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, bodyOf } from "../../api/client";
import type { GpuHealth, Host, HostGpu } from "../../api/types";
import { bytes, percent } from "../../lib/format";
import { useCursor } from "../../state/cluster";
import { ActionError } from "../../ui/confirm";
import { Button } from "../../ui/controls";
import { TextField } from "../../ui/form";
import { Mark } from "../../ui/state-mark";
import { Table, type Column } from "../../ui/table";
import { faultsOfGpu } from "./host-health";

type Row = HostGpu & { health: GpuHealth | undefined };

const COLUMNS: Column<Row>[] = [
  { name: "GPU", width: "3.5rem", right: true, cell: (gpu) => `${gpu.index}`, by: (gpu) => gpu.index },
  { name: "State", width: "6rem", cell: (gpu) => <GpuState gpu={gpu} /> },
  { name: "Use", width: "4rem", right: true, cell: (gpu) => percent(gpu.health?.utilization_percent ?? null) },
  { name: "Memory", width: "6rem", right: true, cell: (gpu) => bytes(gpu.health?.memory_used_bytes ?? null) },
  { name: "Temperature", width: "6.5rem", right: true, cell: (gpu) => (gpu.health?.temperature_celsius == null ? "–" : `${Math.round(gpu.health.temperature_celsius)} °C`) },
  { name: "Model", width: "minmax(6rem, 1fr)", cell: (gpu) => <span title={gpu.uuid ?? ""}>{gpu.health?.name || "–"}</span> },
  { name: "Problems", width: "minmax(6rem, 2fr)", cell: (gpu) => <span className="text-dim" title={problems(gpu)}>{problems(gpu) || "–"}</span> },
];

function GpuState({ gpu }: { gpu: Row }) {
  if (gpu.excluded) return <Mark state="waiting" label="excluded" />;
  if (gpu.health?.lost) return <Mark state="failed" label="lost" />;
  return gpu.offered ? <Mark state="active" label="used" /> : <Mark state="idle" label="not offered" />;
}

const problems = (gpu: Row): string => [...(gpu.excluded ? [gpu.excluded] : []), ...(gpu.health ? faultsOfGpu(gpu.health) : [])].join("; ");

export function HostGpus({ host }: { host: Host }) {
  const cursor = useCursor();
  const [asked, setAsked] = useState<HostGpu | null>(null);
  const rows = host.gpus.map((gpu) => ({ ...gpu, health: host.health?.gpus.find((each) => (gpu.uuid ? each.uuid === gpu.uuid : each.index === gpu.index)) }));
  const action: Column<Row> = {
    name: "Action",
    width: "7rem",
    cell: (gpu) => cursor === null && <Button aria-label={`${verb(gpu)}… GPU ${gpu.index} of ${host.id}`} className="h-6!" onClick={() => setAsked(gpu)}>{verb(gpu)}…</Button>,
  };
  return (
    <section aria-label={`GPUs of ${host.id}`} className="mt-4">
      <h3 className="mb-2">GPUs of {host.id}</h3>
      <Table label={`GPUs of ${host.id}`} rows={rows} columns={[...COLUMNS, action]} keyOf={(gpu) => gpu.uuid ?? `${gpu.index}`} sort={{ column: "GPU", down: false }} sortParam="gpus" />
      {asked && <ChangeGpu key={`${asked.index} ${asked.excluded}`} host={host.id} gpu={asked} close={() => setAsked(null)} />}
    </section>
  );
}

const verb = (gpu: HostGpu) => (gpu.excluded ? "Include" : "Exclude");

function ChangeGpu({ host, gpu, close }: { host: string; gpu: HostGpu; close: () => void }) {
  const [reason, setReason] = useState("");
  const params = { path: { host_id: host, gpu: gpu.uuid ?? `${gpu.index}` } };
  const body = { reason: reason.trim() };
  const change = useMutation<unknown, Error>({
    mutationFn: () => bodyOf(gpu.excluded ? api.POST("/api/hosts/{host_id}/gpus/{gpu}/include", { params, body }) : api.POST("/api/hosts/{host_id}/gpus/{gpu}/exclude", { params, body })),
    onSuccess: close,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    change.mutate();
  };
  const button = `${verb(gpu)} GPU ${gpu.index} of ${host}`;
  return (
    <form onSubmit={submit} aria-label={button} className="mt-4 flex max-w-2xl flex-col gap-2">
      <p>{gpu.excluded ? `${button} again? Workers get it from now on, and earlier failures on it no longer count.` : `${button}? No worker gets it until it is included again. A worker that uses it goes on.`}</p>
      <TextField label="Reason" value={reason} onChange={setReason} placeholder={gpu.excluded ? "it was replaced" : "its memory is faulty"} />
      <div className="flex flex-wrap items-center gap-2">
        <Button type="submit" tone={gpu.excluded ? undefined : "danger"} disabled={(!gpu.excluded && !reason.trim()) || change.isPending}>{button}</Button>
        <Button onClick={close}>Cancel</Button>
        <ActionError error={change.error} />
      </div>
    </form>
  );
}
