import { defineConfig } from "vitest/config";

/** Only what is pure is tested here, without a browser; pages are tested in a real one, by pytest. */
export default defineConfig({ test: { include: ["src/**/*.test.ts"], environment: "node" } });
