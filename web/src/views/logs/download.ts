/** Log lines as a file. */
import type { LogEntry } from "../../api/types";
import { writerOf } from "./log-lines";

export function asText(entries: readonly LogEntry[]): string {
  return entries
    .map((entry) => {
      const at = new Date(entry.timestamp).toISOString();
      return `${at} ${entry.level.padEnd(5)} ${writerOf(entry)} ${entry.message}\n`;
    })
    .join("");
}

export function download(name: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
