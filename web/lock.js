// Takes from the lock what npm adds and nobody needs to install: addresses that ask for funding.
import { readFileSync, writeFileSync } from "node:fs";

const file = new URL("package-lock.json", import.meta.url);
const drop = (key, value) => (key === "funding" ? undefined : value);
writeFileSync(file, JSON.stringify(JSON.parse(readFileSync(file, "utf8")), drop, 2) + "\n");
