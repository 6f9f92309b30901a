/** Form fields: a label above, a hint or an error below. */
import { useId, type ReactNode } from "react";

interface FieldProps {
  label: string;
  hint?: string | undefined;
  error?: string | undefined;
  value: string;
  onChange: (value: string) => void;
}

function Labelled({ label, hint, error, children }: {
  label: string;
  hint?: string | undefined;
  error?: string | undefined;
  children: (id: string) => ReactNode;
}) {
  const id = useId();
  return (
    <div className="min-w-0">
      <label htmlFor={id} className="mb-1 block text-s text-dim">{label}</label>
      {children(id)}
      {error ? <p role="alert" className="mt-1 text-s text-failed">{error}</p> : hint && <p className="mt-1 text-s text-faint">{hint}</p>}
    </div>
  );
}

export function TextField({ label, hint, error, value, onChange, type = "text", placeholder }: FieldProps & { type?: string; placeholder?: string }) {
  return (
    <Labelled {...{ label, hint, error }}>
      {(id) => <input id={id} type={type} placeholder={placeholder} className="control w-full" autoComplete="off" spellCheck={false} value={value} onChange={(event) => onChange(event.target.value)} />}
    </Labelled>
  );
}

export function AreaField({ label, hint, error, value, onChange, rows }: FieldProps & { rows: number }) {
  return (
    <Labelled {...{ label, hint, error }}>
      {(id) => <textarea id={id} spellCheck={false} rows={rows} className="control h-auto! w-full py-1.5 font-mono text-s!" value={value} onChange={(event) => onChange(event.target.value)} />}
    </Labelled>
  );
}

export function SelectField({ label, hint, value, onChange, options }: FieldProps & { options: readonly (readonly [value: string, text: string])[] }) {
  return (
    <Labelled {...{ label, hint }}>
      {(id) => (
        <select id={id} className="control w-full" value={value} onChange={(event) => onChange(event.target.value)}>
          {options.map(([each, shown]) => <option key={each} value={each}>{shown}</option>)}
        </select>
      )}
    </Labelled>
  );
}

export function CheckField({ label, hint, checked, onChange }: { label: string; hint: string; checked: boolean; onChange: (checked: boolean) => void }) {
  const id = useId();
  return (
    <div className="min-w-0">
      <span className="flex min-h-7 items-center gap-2">
        <input id={id} type="checkbox" className="size-4 accent-accent" checked={checked} onChange={(event) => onChange(event.target.checked)} />
        <label htmlFor={id}>{label}</label>
      </span>
      <p className="mt-1 text-s text-faint">{hint}</p>
    </div>
  );
}

/** The variables in lines of NAME=VALUE, or an error that quotes the wrong line. */
export function variablesOf(text: string): { variables: Record<string, string> } | { error: string } {
  const variables: Record<string, string> = {};
  for (const line of text.split("\n").filter((each) => each.trim() !== "")) {
    const [name = "", ...rest] = line.split("=");
    if (!name.trim() || rest.length === 0) return { error: `“${line}” is not NAME=VALUE` };
    variables[name.trim()] = rest.join("=");
  }
  return { variables };
}
