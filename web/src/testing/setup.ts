import { cleanup } from "@testing-library/react";
import { afterEach, vi } from "vitest";

afterEach(() => {
  cleanup();
  localStorage.clear();
  location.hash = "";
  vi.useRealTimers();
  vi.unstubAllGlobals();
});
