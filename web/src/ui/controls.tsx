/** Buttons, fields and choices, all of the same height. */
import { useId, type ButtonHTMLAttributes, type InputHTMLAttributes, type ReactNode } from "react";
import { Term, type Word } from "./term";

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

/** A text field whose placeholder is its label. */
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

export type Options = readonly (readonly [value: string, text: string])[];

interface ChoiceProps {
  label: string;
  value: string;
  options: Options;
  onChange: (value: string) => void;
}

export function Choice({ label, value, options, onChange }: ChoiceProps) {
  return (
    <select
      aria-label={label}
      className="control max-w-60 pr-1"
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

/** A radio group drawn as a row of segments. The inputs lie invisibly over their texts. */
export function Segments({ label, value, options, onChange }: ChoiceProps) {
  const name = useId();
  return (
    <div role="radiogroup" aria-label={label} className="inline-flex">
      {options.map(([each, text]) => (
        <label
          key={each}
          className={`control relative -ml-px inline-flex items-center rounded-none! first:rounded-l-sm! last:rounded-r-sm! has-focus-visible:z-1 has-focus-visible:outline-2 has-focus-visible:outline-accent ${
            each === value ? "bg-chosen! font-medium" : "text-dim!"
          }`}
        >
          <input
            type="radio"
            name={name}
            value={each}
            checked={each === value}
            onChange={() => onChange(each)}
            className="absolute inset-0 m-0 cursor-pointer opacity-0"
          />
          {text}
        </label>
      ))}
    </div>
  );
}

/** A name and a value in a list of properties; `word` links the name to the glossary. */
export function Fact({ name, word, children }: { name: string; word?: Word; children: ReactNode }) {
  return (
    <div className="min-w-0">
      <dt className="text-s text-faint">{word ? <Term word={word}>{name}</Term> : name}</dt>
      <dd className="truncate">{children}</dd>
    </div>
  );
}
