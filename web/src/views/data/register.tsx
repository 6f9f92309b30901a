/** The form that registers a dataset. */
import { useMutation } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, bodyOf, curl } from "../../api/client";
import type { RegisterDataset } from "../../api/types";
import { go, hrefTo } from "../../state/url";
import { ActionError } from "../../ui/confirm";
import { Button } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { AreaField, CheckField, TextField } from "../../ui/form";
import { Page, Scroll } from "../../ui/page";
import { BLANK, requestOf, type Errors, type Form } from "./dataset-form";

export function RegisterPage() {
  const [form, setForm] = useState(BLANK);
  const [errors, setErrors] = useState<Errors>({});
  const set = (field: keyof Form) => (value: string) => setForm((before) => ({ ...before, [field]: value }));
  const register = useMutation({
    mutationFn: (body: RegisterDataset) => bodyOf(api.POST("/api/datasets", { body: body as Required<RegisterDataset> })),
    onSuccess: ({ id }) => go(["data", id]),
  });
  const onSubmit = (event: FormEvent) => {
    event.preventDefault();
    const made = requestOf(form);
    setErrors("errors" in made ? made.errors : {});
    if ("request" in made) register.mutate(made.request);
  };
  const text = (field: keyof Form, label: string, hint = "", props: { type?: string; placeholder?: string } = {}) => (
    <TextField {...{ label, hint, ...props }} error={errors[field]} value={form[field]} onChange={set(field)} />
  );
  const title = (
    <>
      <a href={hrefTo(["data"])} className="font-normal text-dim hover:underline">Data</a>
      <span aria-hidden className="mx-2 font-normal text-faint">/</span>
      Register
    </>
  );
  return (
    <Page title={title}>
      <Scroll label="Register a dataset">
        <form onSubmit={onSubmit} className="grid max-w-4xl grid-cols-2 gap-x-10 gap-y-4 max-md:grid-cols-1">
          {text("dataset_id", "Id", "the id that training scripts use", { placeholder: "imagenet-1k" })}
          {text("name", "Name", "shown in the dashboard; empty: the id")}
          {text("path", "Path", "a file, a folder or s3://bucket/prefix that the coordinator can read", { placeholder: "/data/imagenet" })}
          {text("format", "Format", "empty: detected from the files")}
          <div className="grid grid-cols-3 gap-4">
            {text("total_samples", "Samples", "empty: counted from the path")}
            {text("shard_size", "Samples per shard", "empty: chosen from the data")}
            {text("seed", "Shuffle seed")}
          </div>
          {text("fingerprint", "Fingerprint", "changes when the data changes; empty: computed from the path")}
          <CheckField label="Shuffle" hint="A new order in every epoch; the same seed gives the same orders." checked={form.shuffle === "yes"} onChange={(checked) => set("shuffle")(checked ? "yes" : "")} />
          <AreaField label="Metadata" hint="NAME=VALUE, one per line" rows={3} error={errors.metadata} value={form.metadata} onChange={set("metadata")} />
          <div className="col-span-full flex flex-wrap items-center gap-2">
            <Button type="submit" tone="main" disabled={register.isPending}>{register.isPending ? "Registering…" : "Register"}</Button>
            <CopyButton label="Copy as curl" text={() => curlOf(form)} />
            <ActionError error={register.error} />
          </div>
        </form>
      </Scroll>
    </Page>
  );
}

function curlOf(form: Form): string {
  const made = requestOf(form);
  return "request" in made ? curl("/datasets", {}, made.request) : "# correct the form first";
}
