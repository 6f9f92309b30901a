/** The fields of the dataset form as text, and the request made from them. */
import type { RegisterDataset } from "../../api/types";
import { variablesOf } from "../../ui/form";

type Field = "dataset_id" | "name" | "path" | "format" | "fingerprint" | "total_samples" | "shard_size" | "seed" | "shuffle" | "metadata";
export type Form = Record<Field, string>;
export type Errors = Partial<Record<Field, string>>;

export const BLANK: Form = {
  dataset_id: "",
  name: "",
  path: "",
  format: "",
  fingerprint: "",
  total_samples: "",
  shard_size: "",
  seed: "42",
  shuffle: "yes",
  metadata: "",
};

/** The request, or an error for each wrong field. The coordinator checks everything else. */
export function requestOf(form: Form): { request: RegisterDataset } | { errors: Errors } {
  const errors: Errors = {};
  const number = (field: "total_samples" | "shard_size" | "seed") => {
    const text = form[field].trim();
    const value = Number(text);
    if (text !== "" && (!Number.isSafeInteger(value) || value < 0)) errors[field] = "enter a whole number";
    return text === "" ? 0 : value;
  };
  const metadata = variablesOf(form.metadata);
  if ("error" in metadata) errors.metadata = metadata.error;
  if (form.dataset_id.trim() === "") errors.dataset_id = "enter an id";
  if (form.seed.trim() === "") errors.seed = "enter a whole number";
  const [total_samples, shard_size, seed] = [number("total_samples"), number("shard_size"), number("seed")];
  if (form.path.trim() === "" && total_samples === 0) errors.total_samples ??= "enter the number of samples, or a path to count them";
  const request: RegisterDataset = {
    dataset_id: form.dataset_id.trim(),
    name: form.name.trim(),
    path: form.path.trim(),
    format: form.format.trim(),
    fingerprint: form.fingerprint.trim(),
    total_samples,
    shard_size,
    seed,
    shuffle: form.shuffle === "yes",
    metadata: "variables" in metadata ? metadata.variables : {},
  };
  return Object.keys(errors).length > 0 ? { errors } : { request };
}
