/** The health of a host in words: what a cell of the table shows. */
import type { GpuHealth, Host } from "../../api/types";
import { percent } from "../../lib/format";

/** Percent of the last minute short of CPU, memory and disk. */
export function pressures({ health }: Host): string {
  if (!health) return "–";
  const shares = [health.cpu_pressure_percent, health.memory_pressure_percent, health.io_pressure_percent];
  return ["CPU", "mem", "disk"].map((name, index) => `${name} ${percent(shares[index])}`).join(" · ");
}

/** The number of GPUs, and the highest temperature that one reports. */
export function hottest({ health }: Host): string {
  if (!health || health.gpus.length === 0) return "–";
  const degrees = health.gpus.flatMap((gpu) => gpu.temperature_celsius ?? []);
  return degrees.length === 0 ? `${health.gpus.length}` : `${health.gpus.length} · ${Math.round(Math.max(...degrees))} °C`;
}

/** What is wrong with a GPU, in words. */
export function faultsOfGpu(gpu: GpuHealth): string[] {
  const reasons = (gpu.throttle_reasons ?? "").split(",");
  const faults = [
    gpu.lost && "lost",
    gpu.ecc_uncorrected && `${gpu.ecc_uncorrected} uncorrected ECC`,
    gpu.xid_errors && `${gpu.xid_errors} Xid, last ${gpu.last_xid}`,
    reasons.some((reason) => reason === "hw_thermal" || reason === "sw_thermal") && "too hot",
  ];
  return faults.filter((fault) => typeof fault === "string");
}

/** Why the host is excluded or was lost, and which faults its hardware has; empty without any. */
export function faultsOf({ agent, excluded, gpus, health }: Host): string {
  const faults = excluded ? [excluded] : [];
  for (const gpu of gpus) if (gpu.excluded) faults.push(`GPU ${gpu.index} is excluded: ${gpu.excluded}`);
  if (agent && !agent.up && agent.reason) faults.push(agent.reason);
  for (const gpu of health?.gpus ?? []) {
    const own = faultsOfGpu(gpu);
    if (own.length > 0) faults.push(`GPU ${gpu.index}: ${own.join(", ")}`);
  }
  if (health?.oom_kills) faults.push(`${health.oom_kills} OOM kills`);
  return faults.join("; ");
}
