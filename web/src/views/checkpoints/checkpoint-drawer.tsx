/** The details of a checkpoint: its size, the part of each rank, and the generations that restored it. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, bodyOf, curl } from "../../api/client";
import type { Checkpoint, CheckpointDetail } from "../../api/types";
import { bytes, count, moment } from "../../lib/format";
import { hrefTo } from "../../state/url";
import { useCursor } from "../../state/cluster";
import { useFacts } from "../../state/facts";
import { ConfirmButton, ActionError } from "../../ui/confirm";
import { Button, Fact } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Drawer } from "../../ui/drawer";
import { Term } from "../../ui/term";
import { Mark, Meter } from "../../ui/state-mark";
import { Section } from "../../ui/page";
import { ForkDialog } from "../tasks/continue-dialog";
import { keptBecause } from "./kept";
import { Pin } from "./pin";
import { newBytes, storedSoFar } from "./sizes";

const REFRESH_MS = 2000;

const paramsOf = (checkpoint_id: string, task_id: string) => ({ path: { checkpoint_id }, query: { task_id } });

export function CheckpointDrawer({ chosen, listed, close }: {
  chosen: string;
  listed: Checkpoint | undefined;
  close: () => void;
}) {
  const [task = "", ...rest] = chosen.split("/");
  const id = rest.join("/");
  const path = `/checkpoints/${encodeURIComponent(id)}`;
  const live = useCursor() === null;
  const { data } = useQuery({
    queryKey: ["checkpoint", chosen],
    enabled: live,
    queryFn: ({ signal }): Promise<CheckpointDetail> => bodyOf(api.GET("/api/checkpoints/{checkpoint_id}", { params: paramsOf(id, task), signal })),
    refetchInterval: (query) => (query.state.data?.status === "in_progress" ? REFRESH_MS : false),
    retry: false,
  });
  const saved = listed ?? (live ? data : undefined);
  return (
    <Drawer title={id} close={close}>
      {saved && (
        <dl className="grid grid-cols-2 gap-4">
          <Fact name="Status"><Mark state={saved.status} /></Fact>
          {saved.status === "in_progress" ? (
            <Fact name="Stored so far">{storedSoFar(saved)}</Fact>
          ) : (
            <Fact name="Size, logical">{bytes(saved.size)}</Fact>
          )}
          {saved.status === "completed" && <Fact name="New bytes stored">{newBytes(saved)}</Fact>}
          <Fact name="Parts stored">{saved.parts} of {saved.parts_expected}</Fact>
          <Fact name="Step">{count(saved.step)}, epoch {count(saved.epoch)}</Fact>
          <Fact name="Started">{moment(saved.created_at)}</Fact>
          {saved.status === "completed" && <div className="col-span-full"><Fact name="Kept because">{keptBecause(saved)}</Fact></div>}
          <Fact name="Task"><a href={hrefTo(["tasks", saved.task_id])} className="hover:underline">{saved.task_id}</a></Fact>
          <Fact name="Started by"><a href={hrefTo(["workers", saved.worker_id])} className="hover:underline">{saved.worker_id}</a></Fact>
        </dl>
      )}
      {saved?.reason && <p className="mt-4 text-failed">{saved.reason}</p>}
      {saved?.path && <p className="mt-4 font-mono text-s break-all text-dim">{saved.path}</p>}
      <div className="my-4 flex flex-wrap items-center gap-2">
        {saved?.status === "completed" && <Verify id={id} task={task} />}
        {live && saved?.status === "completed" && <Fork task={task} step={saved.step} />}
        {live && saved?.status === "completed" && <Pin saved={saved} close={close} />}
        {saved?.path && <CopyButton label="Copy path" text={() => saved.path} />}
        <CopyButton label="Copy as curl" text={() => curl(path, { task_id: task })} />
        {live && saved?.status === "completed" && <Delete id={id} task={task} close={close} />}
      </div>
      {!saved && !live && <p className="text-dim">This checkpoint did not exist at this moment.</p>}
      {saved && <Metrics metrics={(live && data?.metrics) || saved.metrics} />}
      {live ? data && <Parts saved={data} /> : <p className="text-dim">Parts by rank are only shown live. The timeline has the events of each part.</p>}
      <RestoredBy task={task} checkpoint={id} />
    </Drawer>
  );
}

/** Reads every byte of the checkpoint and compares the checksums. */
function Verify({ id, task }: { id: string; task: string }) {
  const live = useCursor() === null;
  const verify = useMutation({ mutationFn: () => bodyOf(api.POST("/api/checkpoints/{checkpoint_id}/verify", { params: paramsOf(id, task) })) });
  if (!live) return null;
  const { data, error } = verify;
  return (
    <>
      <Button onClick={() => verify.mutate()} disabled={verify.isPending}>{verify.isPending ? "Verifying…" : "Verify"}</Button>
      {data && <Mark state={data.ok ? "completed" : "failed"} label={data.ok ? `${bytes(data.size_verified)} verified, as saved` : (data.reason ?? "damaged")} />}
      <ActionError error={error} />
    </>
  );
}

/** Deletes the checkpoint; the coordinator refuses this for the newest one and for one that is being read. */
function Delete({ id, task, close }: { id: string; task: string; close: () => void }) {
  const deleting = useMutation({ mutationFn: () => bodyOf(api.DELETE("/api/checkpoints/{checkpoint_id}", { params: paramsOf(id, task) })), onSuccess: close });
  return (
    <>
      <ConfirmButton label="Delete" confirm={`Delete ${id} and its files: this cannot be undone`} pending={deleting.isPending} onConfirm={() => deleting.mutate()} />
      <ActionError error={deleting.error} />
    </>
  );
}

function Fork({ task, step }: { task: string; step: number }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <Button onClick={() => setOpen(true)}>Fork</Button>
      {open && <ForkDialog id={task} step={step} close={() => setOpen(false)} />}
    </>
  );
}

/** The values that the script had logged last before it saved. */
function Metrics({ metrics = {} }: { metrics: Record<string, number> | undefined }) {
  const entries = Object.entries(metrics);
  if (entries.length === 0) return null;
  return (
    <Section title="Metrics" className="mb-6">
      <dl className="grid grid-cols-2 gap-x-4 gap-y-2">
        {entries.map(([name, value]) => <Fact key={name} name={name}>{Number(value.toPrecision(6))}</Fact>)}
      </dl>
    </Section>
  );
}

function Parts({ saved }: { saved: CheckpointDetail }) {
  const largest = Math.max(1, ...saved.written.map((part) => part.size));
  return (
    <Section title="Parts by rank" aside={`${saved.parts} of ${saved.parts_expected}`}>
      <ul>
        {saved.written.map((part) => (
          <li key={part.rank} className="grid grid-cols-[2rem_minmax(0,1fr)_9rem] items-center gap-3 py-0.5" title={`${part.path}\n${part.checksum}`}>
            <span className="text-right text-faint">{part.rank}</span>
            <span className="truncate">{part.worker_id}</span>
            <Meter share={part.size / largest} label={bytes(part.size)} state="checkpointing" />
          </li>
        ))}
      </ul>
    </Section>
  );
}

function RestoredBy({ task, checkpoint }: { task: string; checkpoint: string }) {
  const from = useFacts("RecoveryChosen", 200, REFRESH_MS).filter(
    ({ fields }) => fields.task === task && fields.checkpoint === checkpoint,
  );
  return (
    <Section title={<>Restored by <Term word="generation" /></>} className="mt-6">
      {from.length === 0 && <p className="text-faint">None among the latest facts.</p>}
      <ul>
        {from.map((fact) => (
          <li key={fact.id} className="flex gap-3 py-0.5">
            <time className="text-faint">{moment(fact.time)}</time>
            generation {String(fact.fields.generation)} at step {String(fact.fields.step)}
          </li>
        ))}
      </ul>
    </Section>
  );
}
