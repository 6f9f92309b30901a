import { defineConfig } from "vitest/config";

/** Modules and components are tested here in a simulated DOM; pytest tests the built page in a browser. */
export default defineConfig({
  test: {
    include: ["src/**/*.test.{ts,tsx}"],
    environment: "happy-dom",
    environmentOptions: { happyDOM: { url: "http://localhost:3000/" } },
    // One DOM for all files, which setup.ts cleans after each test: 5 s instead of 60 s on two busy cores.
    isolate: false,
    setupFiles: ["src/testing/setup.ts"],
  },
});
