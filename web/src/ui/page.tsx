/** The layout of a view: title, controls, a scrolling body and sections. */
import type { ReactNode } from "react";

export function Page({ title, aside, children }: {
  title: ReactNode;
  aside?: ReactNode;
  children: ReactNode;
}) {
  return (
    <div className="flex h-full min-h-0 flex-col">
      <header className="flex min-h-13 flex-wrap items-center gap-x-4 gap-y-2 px-6 py-3 max-sm:px-4">
        <h1 className="text-l font-semibold">{title}</h1>
        <div className="ml-auto flex flex-wrap items-center gap-2">{aside}</div>
      </header>
      {children}
    </div>
  );
}

/** The scrolling part of a view. */
export function Scroll({ children, label }: { children: ReactNode; label: string }) {
  return (
    <div
      role="region"
      aria-label={label}
      // Regions that scroll must be reachable with the keyboard.
      // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex
      tabIndex={0}
      className="min-h-0 flex-1 overflow-auto px-6 pb-8 max-sm:px-4"
    >
      {children}
    </div>
  );
}

export function Section({ title, aside, children, className = "" }: {
  title: ReactNode;
  aside?: ReactNode;
  children: ReactNode;
  className?: string;
}) {
  return (
    <section className={`min-w-0 ${className}`}>
      <div className="mb-2 flex items-baseline gap-3">
        <h2 className="text-m font-semibold">{title}</h2>
        <div className="ml-auto text-s text-faint">{aside}</div>
      </div>
      {children}
    </section>
  );
}
