// Removes the funding addresses that npm writes into package-lock.json.
import { readFileSync, writeFileSync } from "node:fs";

const file = new URL("package-lock.json", import.meta.url);
const withoutFunding = (key, value) => (key === "funding" ? undefined : value);
writeFileSync(file, JSON.stringify(JSON.parse(readFileSync(file, "utf8")), withoutFunding, 2) + "\n");
