/** The coordinator asks for a token: one field, and where to find it. */
import { useState, type FormEvent } from "react";
import { ApiError, logIn } from "../api/client";
import { live } from "../api/live";
import { Button, Field } from "../ui/controls";
import { Command } from "../ui/copy";

export function TokenForm() {
  const [token, setToken] = useState("");
  const [fault, setFault] = useState("");
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    try {
      if (await logIn(token.trim())) live.open();
      else setFault("That token is not valid.");
    } catch (error) {
      setFault(error instanceof ApiError ? error.message : String(error));
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)} className="flex max-w-md flex-col items-start gap-3 p-6">
      <h1 className="text-l font-semibold">Token required</h1>
      <p className="text-dim">
        The coordinator printed it when it started; it is also in its settings as{" "}
        <code className="font-mono text-s">STRATA_TOKEN</code>.
      </p>
      <div className="flex w-full gap-2">
        <Field
          label="Token"
          type="password"
          className="flex-1"
          value={token}
          onChange={(event) => setToken(event.target.value)}
        />
        <Button type="submit" tone="main" disabled={!token.trim()}>
          Open
        </Button>
      </div>
      {fault && (
        <p role="alert" className="text-failed">
          {fault}
        </p>
      )}
      <Command text="strata up --token …" />
    </form>
  );
}
