/** Canvas size for any pixel ratio, element sizes, and theme colours for drawing. */
import { useEffect, useRef, useState } from "react";

export interface Size {
  width: number;
  height: number;
}

/** Sizes a canvas in CSS pixels and returns its context, scaled to them. */
export function fit(canvas: HTMLCanvasElement, size: Size): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(size.width * ratio), Math.round(size.height * ratio)];
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  context?.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** The size of an element, as it changes. */
export function useSize<E extends HTMLElement>() {
  const ref = useRef<E>(null);
  const [size, setSize] = useState<Size>({ width: 0, height: 0 });
  useEffect(() => {
    const element = ref.current;
    if (!element) return;
    const observer = new ResizeObserver(([entry]) => {
      if (!entry) return;
      const { width, height } = entry.contentRect;
      setSize({ width: Math.floor(width), height: Math.floor(height) });
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return { ref, size };
}

/** A theme colour in the current scheme, as a canvas needs it. */
export function colour(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--color-${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

export function colours<Name extends string>(names: readonly Name[]): Record<Name, string> {
  return Object.fromEntries(names.map((name) => [name, colour(name)])) as Record<Name, string>;
}

export function faded(rgb: string, alpha: number): string {
  const [r, g, b] = rgb.match(/[\d.]+/g) ?? ["0", "0", "0"];
  return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}
