/** Which charts are in sight, and how wide they are: only these are loaded. */
import { useCallback, useEffect, useRef, useState, type ReactNode } from "react";

const GRID_PX = 100;
const MOST_PX = 2000;

/** The width of each visible chart, and a function that each chart calls; null for a chart out of sight. */
export function useVisibleCharts(): [ReadonlyMap<string, number>, (name: string, width: number | null) => void] {
  const [visible, setVisible] = useState<ReadonlyMap<string, number>>(new Map());
  const note = useCallback((name: string, width: number | null) => {
    setVisible((before) => {
      if ((before.get(name) ?? null) === width) return before;
      const after = new Map(before);
      if (width === null) after.delete(name);
      else after.set(name, width);
      return after;
    });
  }, []);
  return [visible, note];
}

/** Watches whether a chart is in sight; its width is rounded, so that charts of a similar width share an answer. */
export function Watched({ name, note, children, className = "" }: { name: string; note: (name: string, width: number | null) => void; children: ReactNode; className?: string }) {
  const ref = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = ref.current;
    if (!element) return;
    const observer = new IntersectionObserver(([entry]) => {
      if (!entry) return;
      const width = Math.ceil(entry.boundingClientRect.width / GRID_PX) * GRID_PX;
      note(name, entry.isIntersecting ? Math.min(Math.max(width, GRID_PX), MOST_PX) : null);
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      note(name, null);
    };
  }, [name, note]);
  return <div ref={ref} className={className}>{children}</div>;
}
