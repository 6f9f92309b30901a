/** Buttons, fields and choices: all of one height. */
import type { ButtonHTMLAttributes, InputHTMLAttributes, ReactNode } from "react";

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { tone?: "plain" | "main" | "danger" };

const TONES = {
  plain: "",
  main: "border-accent! text-accent! font-medium",
  danger: "text-failed!",
};

export function Button({ tone = "plain", className = "", ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      {...rest}
      className={`control inline-flex items-center gap-1.5 whitespace-nowrap ${TONES[tone]} ${className}`}
    />
  );
}

type FieldProps = InputHTMLAttributes<HTMLInputElement> & { label: string };

/** A text field whose name is only for those who cannot see what it is for. */
export function Field({ label, className = "", ...rest }: FieldProps) {
  return (
    <input
      type="text"
      aria-label={label}
      placeholder={label}
      autoComplete="off"
      spellCheck={false}
      {...rest}
      className={`control min-w-0 ${className}`}
    />
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  options: readonly (readonly [value: string, text: string])[];
  onChange: (value: string) => void;
}

export function Choice({ label, value, options, onChange }: ChoiceProps) {
  return (
    <select
      aria-label={label}
      className="control pr-1"
      value={value}
      onChange={(event) => onChange(event.target.value)}
    >
      {options.map(([each, text]) => (
        <option key={each} value={each}>
          {text}
        </option>
      ))}
    </select>
  );
}

/** A few choices side by side, of which one holds. */
export function Segments({ label, value, options, onChange }: ChoiceProps) {
  return (
    <div role="radiogroup" aria-label={label} className="inline-flex">
      {options.map(([each, text]) => (
        <button
          key={each}
          type="button"
          role="radio"
          aria-checked={each === value}
          onClick={() => onChange(each)}
          className={`control -ml-px rounded-none! first:rounded-l-sm! last:rounded-r-sm! ${
            each === value ? "bg-chosen! font-medium" : "text-dim!"
          }`}
        >
          {text}
        </button>
      ))}
    </div>
  );
}

/** A name above a value, for a list of facts about one thing. */
export function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div className="min-w-0">
      <dt className="text-s text-faint">{name}</dt>
      <dd className="truncate">{children}</dd>
    </div>
  );
}
