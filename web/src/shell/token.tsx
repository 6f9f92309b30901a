/** The login form of a coordinator with a token. */
import { useState, type FormEvent } from "react";
import { ApiError, logIn } from "../api/client";
import { live } from "../api/live";
import { Button, Field } from "../ui/controls";

export function TokenForm() {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    try {
      if (await logIn(token.trim())) live.open();
      else setError("That token is not valid.");
    } catch (failure) {
      setError(failure instanceof ApiError ? failure.message : String(failure));
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)} className="flex max-w-md flex-col items-start gap-3 p-6">
      <h1 className="text-l font-semibold">Token required</h1>
      <p className="text-dim">
        The coordinator was started with a token: with <code className="font-mono text-s">--token</code>, or with{" "}
        <code className="font-mono text-s">STRATA_TOKEN</code> in its environment.
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
      {error && (
        <p role="alert" className="text-failed">
          {error}
        </p>
      )}
    </form>
  );
}
